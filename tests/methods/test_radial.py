from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from making import normal
from torch import Tensor

from svoo import Session, VideoLayout, make_plan
from svoo.errors import ConfigError
from svoo.methods.radial import RadialConfig, find_windows, radial_blocks


def slow_tokens(
    frame: int, other: int, size: int, config: RadialConfig, *, theirs: bool
) -> Tensor:
    """The mask `[size, size]` of one pair of frames."""
    distance = abs(frame - other)
    length = 2 ** size.bit_length() / 2 ** distance.bit_length()
    split = int(128 / length) if length < 128 else 1
    mask: Tensor = torch.zeros(size, size, dtype=torch.bool)
    if other == 0 and config.sink:
        return ~mask
    if distance % split and (theirs or distance > 1):
        return mask
    window = max(length * config.decay, config.block)
    if distance <= 1:
        window = size if distance == 0 or config.neighbour == "full" else size // 2
    places = torch.arange(size)
    return torch.le((places - places[:, None]).abs(), window)


def slow_blocks(frames: int, size: int, config: RadialConfig, *, theirs: bool = False) -> Tensor:
    """The rule, pair of frames by pair of frames; `theirs`: only the first blocks of a frame are
    judged, and a third is of whole blocks."""
    tokens, block = frames * size, config.block
    count = -(-tokens // block)
    keep = torch.zeros(count, count, dtype=torch.bool)
    for frame in range(frames):
        for other in range(frames):
            mask = torch.zeros(count * block, count * block, dtype=torch.bool)
            rows, columns = (slice(f * size, (f + 1) * size) for f in (frame, other))
            mask[rows, columns] = slow_tokens(frame, other, size, config, theirs=theirs)
            judged = [
                range(f * size // block, min(count, f * size // block + -(-size // block)))
                if theirs
                else range(f * size // block, ((f + 1) * size - 1) // block + 1)
                for f in (frame, other)
            ]
            for i in judged[0]:
                for j in judged[1]:
                    part = mask[i * block : (i + 1) * block, j * block : (j + 1) * block]
                    height = min(block, tokens - i * block)
                    keep[i, j] |= is_kept(part, block if theirs else min(height, size))
    return keep


def is_kept(part: Tensor, rows: int) -> bool:
    """Whether a block is kept for its part of a token mask: more than 60 % of the columns that
    hold anything have more than a third of so many rows set."""
    filled = part.sum(dim=0)
    held = int((filled > 0).sum())
    return held > 0 and int((filled > rows / 3).sum()) / held > 0.6


def test_the_slow_rule_shrinks_as_theirs(goldens: Path) -> None:
    stored = np.load(goldens / "radial-shrink.npz")
    tokens, block = int(stored["token_mask_shape"][1]), int(stored["block_size"])
    bits = np.unpackbits(stored["token_mask_packed"], axis=-1)[:, :tokens]
    parts = torch.from_numpy(bits.astype(bool)).unflatten(0, (-1, block)).unflatten(2, (-1, block))
    found = [[is_kept(part, block) for part in row.movedim(1, 0)] for row in parts]
    assert np.array_equal(np.array(found), stored["block_mask"])


@settings(max_examples=25)
@given(
    frames=st.integers(1, 9),
    size=st.integers(1, 20),
    block=st.integers(1, 12),
    decay=st.sampled_from([0.0, 0.2, 0.8]),
    neighbour=st.sampled_from(["full", "half"]),
    sink=st.booleans(),
)
def test_is_the_rule(frames: int, size: int, block: int, **choices: Any) -> None:
    config = RadialConfig(block=block, **choices)
    keep = radial_blocks(frames, size, config)
    assert torch.equal(keep, slow_blocks(frames, size, config))
    tokens = normal(1, 1, frames * size, 2)
    plan = make_plan(tokens, tokens, tokens, config, layout=VideoLayout(frames, size, 1))
    replace(plan, check=True)  # every block sees something, itself first
    assert bool(keep.diagonal().all())


FILES = (
    "wan21-f9-t256-d0.2",
    "wan22-f8-t1024-d0.8-bs64",
    "hunyuan-f12-t512-d0.95-text256",
    "wan-f16-t200-d0.2",
)


@pytest.mark.parametrize("name", FILES)
def test_is_theirs(goldens: Path, name: str) -> None:
    stored = np.load(goldens / f"radial-{name}.npz")
    config = RadialConfig(
        decay=float(stored["decay_factor"]),
        block=int(stored["block_size"]),
        sink=str(stored["model_type"]) == "wan",
    )
    frames, size = int(stored["num_frame"]), int(stored["token_per_frame"])
    keep = radial_blocks(frames, size, config).numpy()
    theirs = stored["mask"][: len(keep), : len(keep)]
    if size % config.block == 0:
        assert np.array_equal(keep, theirs)
    else:  # they miss tails of frames: as many entries as were counted, and none of ours besides
        assert not (theirs & ~keep).any() and int((keep & ~theirs).sum()) == 37
        assert np.array_equal(slow_blocks(frames, size, config, theirs=True).numpy(), theirs)


def test_windows_are_theirs(goldens: Path) -> None:
    stored = np.load(goldens / "radial-tables.npz")
    for row, size in enumerate(stored["T"].tolist()):
        config = RadialConfig(
            decay=float(stored["decay"][row]), block=int(stored["block_size"][row])
        )
        ours = find_windows(33, size, config)
        theirs = stored["window_width"][row]
        for distance in range(33):
            if ours[distance] >= 0:
                assert min(ours[distance], size) == min(int(theirs[distance]), size)
    for row, size in enumerate(stored["split_T"].tolist()):
        seen = np.array(find_windows(33, size, RadialConfig())) >= 0
        seen[1] = stored["split_keep"][row][1]  # neighbours: dropped by theirs where T < 128
        assert np.array_equal(seen, stored["split_keep"][row])


def test_is_made_once_per_run() -> None:
    layout = VideoLayout(5, 6, 7, text=6, valid_text=torch.tensor([6, 2]))
    config = RadialConfig(block=8, decay=0.01, sink=False)
    sessions = [Session(config.always_sparse(), steps=3, layers=2, heads=2) for _ in range(2)]
    query, key, value = (normal(2, 2, layout.tokens, 8, seed=seed) for seed in range(3))
    for step in range(2):
        for layer in range(2):
            sessions[0].attend(query, key, value, step=step, layer=layer, layout=layout)
    assert sessions[0].method.state_bytes == 27 * 27 and sessions[1].method.state_bytes == 0
    output = sessions[0].attend(query, key, value, step=2, layer=0, layout=layout)
    key[1, :, layout.video + 2 :] = 1e4  # padding
    again = sessions[1].attend(query, key, value, step=2, layer=0, layout=layout)
    torch.testing.assert_close(again[:, :, : layout.video], output[:, :, : layout.video])
    density = sessions[1].stats().density
    assert density is not None and density < 1


def test_published_settings() -> None:
    def told(model: str) -> tuple[Any, ...]:
        config = RadialConfig.for_model(model)
        return config.decay, config.block, config.sink, config.dense_steps, config.dense_layers

    assert told("wan2.1-t2v-1.3b") == (0.2, 128, True, 0.24, 1)
    assert told("wan2.2-t2v-a14b") == (0.8, 64, True, 0.275, 1)
    assert told("hunyuanvideo-t2v") == (0.95, 128, False, 0.24, 0)


@pytest.mark.parametrize(
    ("setting", "value"),
    [("decay", -0.1), ("block", 0), ("neighbour", "quarter"), ("sink", 1)],
)
def test_bad_settings(setting: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{setting} must be"):
        RadialConfig(**{setting: value})
    with pytest.raises(ConfigError, match="radial needs the grid"):
        make_plan(*(normal(1, 1, 9, 4),) * 3, RadialConfig())
