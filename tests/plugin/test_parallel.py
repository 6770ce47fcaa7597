"""Several ranks give the video of one. Ranks are processes that meet through gloo on the CPU."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from diffusers.models.transformers.transformer_wan import WanAttnProcessor
from methods_common import SMALL
from on_ranks import Clip, die_in_the_middle, make_clips, make_uneven_clip, refuse_each, run_ranks

import svoo
from svoo import SVOOConfig
from svoo.catalogue import find_model
from svoo.errors import ConfigError, ModelError, RankError, StrictError
from svoo.plugin.apply import apply
from svoo.plugin.parallel import Split, check_degree

KMEANS: dict[str, Any] = {
    "query_clusters": 6000, "key_clusters": 12000, "mass": 0.5, "dense_steps": 1,
}  # fmt: skip
ADASPA: dict[str, Any] = {"block": 4, "dense_steps": 1, "recall": 0.4}
# k-means on 16 features needs more than 16 sampled tokens, or its axes are any.
LARGER: dict[str, Any] = {"num_frames": 17, "height": 128, "width": 128, "steps": 3}
CLIPS = {
    "Wan": Clip(),
    "Wan, spread after": Clip(spread="after"),
    "Wan, removed": Clip(spread="removed"),
    "Wan, compiled": Clip(compiled=True),
    "Wan, several videos": Clip(call={"num_videos_per_prompt": 2}),
    "both experts": Clip("wan2.2-t2v", spread="after"),
    "an image": Clip("wan2.1-i2v"),
    "a timestep per token": Clip("wan2.2-ti2v-5b"),
    "HunyuanVideo": Clip("hunyuanvideo-t2v"),
    "HunyuanVideo, spread after": Clip("hunyuanvideo-t2v", spread="after"),
    "HunyuanVideo, text that does not divide": Clip(
        "hunyuanvideo-t2v", uneven=True, call={"max_sequence_length": 15}
    ),
    "HunyuanVideo, an image": Clip("hunyuanvideo-i2v", uneven=True),
    "HunyuanVideo, far": Clip("hunyuanvideo-t2v", "far", call=LARGER),
    "far": Clip(method="far", call=LARGER),
    "svg2": Clip(method="svg2", settings=KMEANS),
    "adaspa": Clip(method="adaspa", settings=ADASPA),
}
OF_FOUR = ("Wan", "both experts", "HunyuanVideo", "svg2", "adaspa")
ALWAYS: dict[str, Any] = {"dense_steps": 0, "dense_layers": 0, "strict": True}
METHODS = {
    f"{row.name}, {pipeline}": Clip(
        pipeline, row.name, ALWAYS | SMALL.get(row.name, {}), call={"steps": 2}
    )
    for row in svoo.available_methods()
    if row.name not in ("dense", "svoo")  # ours is among the others
    for pipeline in ("wan2.1-t2v", "hunyuanvideo-t2v")
}  # with guidance; with text and padding


@pytest.fixture(scope="module")
def on_two() -> list[dict[str, Any]]:
    return run_ranks(2, make_clips, CLIPS)


@pytest.fixture(scope="module")
def on_four() -> list[dict[str, Any]]:
    return run_ranks(4, make_clips, {name: CLIPS[name] for name in OF_FOUR})


@pytest.mark.parametrize("name", CLIPS)
def test_two_ranks_make_the_video_of_one(on_two: list[dict[str, Any]], name: str) -> None:
    compare(CLIPS[name], [found[name] for found in on_two])


@pytest.mark.parametrize("name", OF_FOUR)
def test_four_ranks_make_the_video_of_one(on_four: list[dict[str, Any]], name: str) -> None:
    compare(CLIPS[name], [found[name] for found in on_four])


@pytest.fixture(scope="module", params=[2, 4])
def by_method(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    return run_ranks(request.param, make_clips, METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_makes_the_video_of_one_rank(
    by_method: list[dict[str, Any]], name: str
) -> None:
    compare(METHODS[name], [found[name] for found in by_method])


def test_shards_of_the_video_may_differ_in_size() -> None:
    clip = Clip(uneven=True, call={"height": 48, "width": 48})
    compare(clip, run_ranks(2, make_uneven_clip, clip))


def compare(clip: Clip, ranks: list[Any]) -> None:
    frames, stats = clip.make(spread=False)
    for found in ranks:
        assert not isinstance(found, Exception), found
        video, counted = found
        torch.testing.assert_close(video, frames, atol=1e-4, rtol=1e-3)
        assert counted.sparse_calls == stats.sparse_calls
        assert counted.dense_calls == stats.dense_calls
        for here, alone in zip(counted.layers, stats.layers, strict=True):
            assert here.density_by_head == pytest.approx(alone.density_by_head)
            assert here.dense_reasons == alone.dense_reasons
    if clip.spread != "removed":
        assert stats.density is not None and stats.density < 1
        assert any("ranks" in note for note in ranks[0][1].notes)


def test_what_cannot_be_done_is_refused_before_any_attention() -> None:
    for refused in run_ranks(2, refuse_each):
        assert {name: type(error) for name, error in refused.items()} == {
            "ring": ConfigError,
            "ring first": ConfigError,
            "heads": ConfigError,
            "recording": ConfigError,
            "tokens": ConfigError,
            "text": ConfigError,
            "gloo": ConfigError,
            "own attention": ModelError,
            "no plan": ModelError,
        }
        said = {name: str(error) for name, error in refused.items()}
        assert "ulysses_degree" in said["ring"] == said["ring first"]
        assert said["heads"] == ("2 ranks cannot share 3 attention heads evenly: use 1 or 3")
        assert "27 tokens" in said["tokens"] and "ulysses_anything=True" in said["tokens"]
        assert "15 tokens (text)" in said["text"] and "gloo" in said["gloo"]


def test_a_rank_that_dies_ends_the_others_with_a_clear_error() -> None:
    first, killed = run_ranks(2, die_in_the_middle, 1)
    assert killed is None
    assert isinstance(first, RankError), first
    assert "another process of this run has ended" in str(first)


class Bypassing(WanAttnProcessor):  # type: ignore[misc]
    """Attends by itself, as xDiT's processors do."""

    def __call__(self, attn: Any, hidden_states: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        return attn.to_out[0](hidden_states)  # type: ignore[no-any-return]


def test_processors_that_attend_past_us_are_counted_as_dense() -> None:
    pipe = tiny.build("wan2.1-t2v")
    pipe.transformer.blocks[1].attn1.set_processor(Bypassing())
    config = SVOOConfig(query_clusters=4, key_clusters=8, mass=0.5, dense_steps=0, dense_layers=0)
    with apply(pipe, config, profile=None) as handle:
        tiny.generate(pipe, steps=2)
        first, second, _ = handle.stats().layers
    assert (first.sparse_calls, first.dense_calls) == (4, 0)
    assert second.dense_reasons == {"Bypassing attends by itself, past svoo": 4}
    with apply(pipe, replace(config, strict=True), profile=None), pytest.raises(StrictError):
        tiny.generate(pipe, steps=2)


def test_other_libraries_ways_are_refused_by_name() -> None:
    pipe = tiny.build("wan2.1-t2v")
    theirs = type("xFuserWanAttnProcessor", (WanAttnProcessor,), {"__module__": "xfuser.layers"})
    pipe.transformer.blocks[2].attn1.set_processor(theirs())
    with pytest.raises(ModelError, match="xDiT's xFuserWanAttnProcessor"):
        apply(pipe)
    pipe = tiny.build("wan2.1-t2v")
    config = type("Config", (), {"__module__": "cache_dit.distributed"})()
    config.context_parallel_config = config
    pipe.transformer.blocks[0].attn1.processor._parallel_config = config
    with pytest.raises(ConfigError, match="cache-dit's own parallelism"):
        apply(pipe)


def test_outside_of_torchrun_there_is_nobody_to_share_with() -> None:
    with pytest.raises(ConfigError, match="torchrun"):
        svoo.parallelise(tiny.build("wan2.1-t2v"))


@pytest.mark.parametrize("heads", [1, 12, 24, 40])
def test_degrees_are_refused_unless_they_divide_the_heads(heads: int) -> None:
    for degree in range(1, heads + 1):
        if heads % degree:
            with pytest.raises(ConfigError, match=f"{degree} ranks cannot share {heads}"):
                check_degree(degree, heads)
        else:
            check_degree(degree, heads)


def test_the_page_of_limits_has_the_heads_of_the_models() -> None:
    page = (Path(__file__).parents[2] / "docs" / "scale.md").read_text()
    shown = {
        "Wan 1.3B": "wan2.1-t2v-1.3b", "Wan 14B": "wan2.1-t2v-14b",
        "HunyuanVideo": "hunyuanvideo-t2v", "embedded": "mini",
    }  # fmt: skip
    heads = ", ".join(f"{find_model(name).heads} ({title})" for title, name in shown.items())
    assert f"| the ranks must divide the heads: {heads} |" in page


@pytest.mark.parametrize(("degree", "video", "text"), [(1, 5, 3), (2, 7, 4), (3, 6, 2), (4, 9, 0)])
def test_video_comes_first_and_back(degree: int, video: int, text: int) -> None:
    everything = torch.arange(video + text)
    shards = zip(
        everything[:video].tensor_split(degree), everything[video:].tensor_split(degree),
        strict=True,
    )  # fmt: skip
    exchanged = torch.cat([part for pair in shards for part in pair])[None]
    split = Split(degree, 0, None)
    found = split.video_first(exchanged, video)
    assert torch.equal(found[0], everything)
    assert torch.equal(split.as_exchanged(found, video), exchanged)
    assert sum(split.sizes(video)) == video
