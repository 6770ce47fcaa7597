import json
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import diffusers
import pytest
import torch
import transformers
from torch import nn

from svoo.app.estimate.data import (
    far_field_densities,
    find_architecture,
    find_card,
    latencies,
    mean_densities,
    paper_mode_density,
    read,
)
from svoo.app.estimate.work import count_work
from svoo.catalogue import find_model, models
from svoo.errors import ConfigError
from svoo.methods import find_method


def test_every_file_names_its_source() -> None:
    for name in ("cards", "latencies", "architectures", "densities"):
        assert len(read(name)["source"]) > 40


def test_every_row_names_its_source() -> None:
    for file, rows in (("cards", "cards"), ("architectures", "models")):
        for row in read(file)[rows].values():
            assert len(row["source"]) > 40


def test_cards() -> None:
    card = find_card("H200")
    assert (card.name, card.memory) == ("h200", 141e9)
    for name in read("cards")["cards"]:
        found = find_card(name)
        assert 1e14 < found.peak < 1e16 and found.link < found.bandwidth < 1e13
    with pytest.raises(ConfigError, match="one of h200, h100, a100, l40s, 4090, 5090, got 'h300'"):
        find_card("h300")


def test_seven_models_have_latencies_and_densities_of_all_their_layers() -> None:
    assert len(latencies()) == 7 and all(
        row["svoo"] < row["dense"] for row in latencies().values()
    )
    for name in latencies():
        model = find_model(name)
        found = mean_densities(model)
        assert found is not None and len(found.mean) == len(found.low) == model.layers
        assert all(0 <= low <= mean <= 1 for low, mean in zip(found.low, found.mean, strict=True))
    assert mean_densities(find_model("mini")) is None


def test_every_model_of_the_catalogue_has_its_sizes() -> None:
    for model in models():
        assert find_architecture(model).feed_forward >= model.heads * model.head_dim


WAN: dict[str, Any] = {
    "num_attention_heads": 40, "num_layers": 40, "ffn_dim": 13824, "text_dim": 4096,
    "in_channels": 16, "out_channels": 16, "freq_dim": 256, "cross_attn_norm": True,
}  # fmt: skip
PICTURE = {"in_channels": 36}
UMT5 = transformers.UMT5Config(
    d_model=4096, d_ff=10240, d_kv=64, num_heads=64, num_layers=24, vocab_size=256384,
    feed_forward_proj="gated-gelu",
)  # fmt: skip
LLAMA = transformers.LlamaConfig(
    hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
    num_key_value_heads=8, vocab_size=128320, tie_word_embeddings=False,
)  # fmt: skip
CLIP_LARGE = {"num_hidden_layers": 24, "num_attention_heads": 16, "patch_size": 14}
CLIP_LARGE |= {"hidden_size": 1024, "intermediate_size": 4096, "image_size": 336}
CLIP_HUGE = {"num_hidden_layers": 32, "num_attention_heads": 16, "patch_size": 14}
CLIP_HUGE |= {"hidden_size": 1280, "intermediate_size": 5120, "image_size": 224}


def wan(**changes: Any) -> Any:
    return diffusers.WanTransformer3DModel(**WAN | changes)


def around_wan() -> list[nn.Module]:
    return [transformers.UMT5EncoderModel(UMT5), diffusers.AutoencoderKLWan()]


def around_hunyuan(encoder: nn.Module) -> list[nn.Module]:
    text = transformers.CLIPTextModel(transformers.CLIPTextConfig(hidden_size=768,
        intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12))  # fmt: skip
    return [encoder, text, diffusers.AutoencoderKLHunyuanVideo()]


def build(name: str) -> tuple[list[nn.Module], list[nn.Module]]:
    """A model's transformers, and what is beside them, without memory."""
    if name.startswith("hunyuanvideo"):
        if "t2v" in name:
            around = around_hunyuan(transformers.LlamaModel(LLAMA))
            return [diffusers.HunyuanVideoTransformer3DModel()], around
        vision = transformers.CLIPVisionConfig(**CLIP_LARGE)
        both = transformers.LlavaConfig(vision_config=vision, text_config=LLAMA)
        around = around_hunyuan(transformers.LlavaForConditionalGeneration(both))
        kind = {"image_condition_type": "token_replace"}
        return [diffusers.HunyuanVideoTransformer3DModel(**kind)], around
    small = {"num_attention_heads": 12, "num_layers": 30, "ffn_dim": 8960}
    picture = transformers.CLIPVisionConfig(**CLIP_HUGE)
    made: dict[str, Callable[[], tuple[list[Any], list[Any]]]] = {
        "wan2.1-t2v-1.3b": lambda: ([wan(**small)], around_wan()),
        "wan2.1-t2v-14b": lambda: ([wan()], around_wan()),
        "wan2.1-i2v-14b": lambda: (
            [wan(**PICTURE, image_dim=1280, added_kv_proj_dim=5120)],
            [*around_wan(), transformers.CLIPVisionModel(picture)],
        ),
        "wan2.2-t2v-a14b": lambda: ([wan(), wan()], around_wan()),
        "wan2.2-i2v-a14b": lambda: ([wan(**PICTURE), wan(**PICTURE)], around_wan()),
    }
    return made[name]()


@pytest.mark.parametrize("name", latencies())
def test_parameters_are_those_of_the_published_configurations(name: str) -> None:
    with torch.device("meta"):
        counted = [
            sum(parameter.numel() for part in parts for parameter in part.parameters())
            for parts in build(name)
        ]
    found = find_architecture(find_model(name))
    assert [found.parameters, found.beside] == counted


def test_the_embedded_model_is_counted_too() -> None:
    from svoo.mini.pipeline import load

    pipe, found = load(), find_architecture(find_model("mini"))
    beside = [*pipe.text_encoder.parameters(), *pipe.vae.parameters()]
    assert found.parameters == sum(each.numel() for each in pipe.transformer.parameters())
    assert found.beside == sum(each.numel() for each in beside)


BENCHMARKS = Path(__file__).parents[3] / "docs" / "benchmarks"


def test_the_far_fields_densities_are_those_of_the_benchmark() -> None:
    found = far_field_densities()
    rows = json.loads((BENCHMARKS / "far_field.json").read_text())["rows"]
    rows += json.loads((BENCHMARKS / "far-2340.json").read_text())["rows"]
    mini = find_model("mini")
    for tokens, shares in found.by_tokens.items():
        for tolerance, share in shares.items():
            measured = [
                row["density"]
                for row in rows
                if mini.count_tokens(row["frames"], row["height"], row["width"]) == tokens
                and row["config"].get("tolerance") == tolerance
                and row["setting"] != "bf16 products"
            ]
            assert len(measured) >= 3
            assert share == pytest.approx(median(measured), abs=0.0006)


def test_between_measured_sizes_and_tolerances_the_share_lies_between() -> None:
    found = far_field_densities()
    small, large = sorted(found.by_tokens)
    *_, middle, most = sorted(found.by_tokens[large])
    ours = found.at(middle, large)
    assert ours == pytest.approx(found.by_tokens[large][middle])
    between = (small * large) ** 0.5
    assert ours < found.at(middle, between) < found.at(middle, small) < 1
    assert found.at(most, large) < found.at((middle * most) ** 0.5, large) < ours
    assert found.at(middle, 4 * large) == pytest.approx(ours / 4)  # as many keys
    assert found.at(middle, 10) == 1


@pytest.mark.parametrize(("file", "tokens"), [("far_field", 7488), ("far-2340", 2340)])
def test_paper_modes_density_on_the_embedded_model_is_that_of_the_benchmark(
    file: str, tokens: int
) -> None:
    rows = json.loads((BENCHMARKS / f"{file}.json").read_text())["rows"]
    measured = median(row["density"] for row in rows if row["setting"] == "paper")
    assert paper_mode_density(tokens)[0] == pytest.approx(measured, abs=0.0006)
    mini = find_model("mini")
    found = count_work(find_method("paper", "mini"), mini, (1, 1, tokens), 20)
    assert found.density == paper_mode_density(tokens)[0] and not found.guessed
    assert paper_mode_density(7488)[0] < paper_mode_density(4000)[0] < paper_mode_density(9)[0]
