import json
from pathlib import Path
from typing import Any

import pytest
import torch

from svoo.catalogue import find_model
from svoo.errors import ModelError, ShapeError
from svoo.mini.pipeline import WEIGHTS, MiniPipeline, check_weights, load
from tools.training.build import (
    assemble,
    make_text_encoder,
    make_tokenizer,
    make_transformer,
    make_vae,
)
from tools.training.export import write_hashes

PROMPT = "a red circle moves left over a checkered floor"


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained model in the shape of the shipped one."""
    torch.manual_seed(0)
    folder: Path = tmp_path_factory.mktemp("weights")
    assemble(make_vae(), make_text_encoder(), make_transformer()).save_pretrained(folder)
    write_hashes(folder)
    return folder


@pytest.fixture(scope="module")
def pipe(weights: Path) -> MiniPipeline:
    loaded = load(weights)
    loaded.set_progress_bar_config(disable=True)
    return loaded


def generate(pipe: MiniPipeline, prompt: str = PROMPT, **settings: Any) -> torch.Tensor:
    sizes = {"height": 32, "width": 48, "num_frames": 5, "num_inference_steps": 2} | settings
    chance = torch.Generator().manual_seed(0)
    frames: torch.Tensor = pipe(prompt, generator=chance, output_type="pt", **sizes).frames[0]
    return frames


def test_the_same_prompt_and_seed_give_the_same_video(pipe: MiniPipeline) -> None:
    first = generate(pipe)
    assert first.shape == (5, 3, 32, 48)
    assert torch.equal(first, generate(pipe))
    assert not torch.equal(first, generate(pipe, "a blue star spins over rippling water"))


def test_short_text_padding_works_too(pipe: MiniPipeline) -> None:
    assert generate(pipe, max_sequence_length=32).shape == (5, 3, 32, 48)


def test_unknown_words_are_warned_of_with_the_grammar(pipe: MiniPipeline) -> None:
    with pytest.warns(
        UserWarning, match="does not know dragon, flies; it was trained on\na COLOUR"
    ):
        generate(pipe, "a red dragon flies, left over a brick wall")


def test_punctuation_and_capitals_change_nothing(pipe: MiniPipeline) -> None:
    assert torch.equal(
        generate(pipe), generate(pipe, "A red circle moves left, over a checkered floor.")
    )


def test_the_shipped_pipeline_is_small_and_does_what_its_parts_say() -> None:
    assert sum(path.stat().st_size for path in WEIGHTS.rglob("*") if path.is_file()) < 20e6
    shipped, mini = load(), find_model("mini")
    assert len(shipped.transformer.blocks) == mini.layers
    assert shipped.transformer.config.num_attention_heads == mini.heads
    assert shipped.transformer.config.attention_head_dim == mini.head_dim
    assert shipped.tokenizer.get_vocab() == make_tokenizer().get_vocab()
    spoken = "A red circle moves left, over a checkered floor."
    assert shipped.tokenizer(spoken)["input_ids"] == make_tokenizer()(PROMPT)["input_ids"]
    shipped.set_progress_bar_config(disable=True)
    assert torch.equal(generate(shipped), generate(shipped))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"height": 100}, "height must be a multiple of 16, got 100; the nearest is 96"),
        ({"width": 7}, "width must be a multiple of 16, got 7; the nearest is 16"),
        ({"num_frames": 0}, "num_frames must be a multiple of 4 plus 1, got 0; the nearest is 1"),
        ({"num_frames": 48}, "num_frames .* the nearest is 49"),
    ],
)
def test_sizes_that_do_not_divide(
    pipe: MiniPipeline, settings: dict[str, int], message: str
) -> None:
    with pytest.raises(ShapeError, match=message):
        generate(pipe, PROMPT, **settings)


def test_a_damaged_weight_file_is_named_with_its_hash(weights: Path) -> None:
    check_weights(weights)
    path = weights / "transformer" / "diffusion_pytorch_model.safetensors"
    whole = path.read_bytes()
    expected = json.loads((weights / "hashes.json").read_text())[str(path.relative_to(weights))]
    path.write_bytes(whole[:-1] + b"!")
    try:
        with pytest.raises(ModelError, match=f"{path} is damaged: .* expected {expected}"):
            load(weights)
        path.unlink()
        with pytest.raises(ModelError, match="cannot read the weight file"):
            load(weights)
    finally:
        path.write_bytes(whole)


def test_missing_weights_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="not complete"):
        load(tmp_path)
