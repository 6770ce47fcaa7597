import json
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
from torch.nn.functional import pad

from svoo import Session, VideoLayout, make_plan
from svoo.errors import ConfigError
from svoo.methods import xattention
from svoo.methods.xattention import XAttentionConfig


def slow_keep(query: Tensor, key: Tensor, config: XAttentionConfig) -> Tensor:
    """The rule for one head `[N, D]`, in float64, pair by pair of groups of tokens."""
    stride, block = config.stride, config.block
    scale = query.shape[1] ** -0.5

    def groups(tokens: Tensor) -> list[Tensor]:
        parts = list(tokens.double().split(stride))
        parts[-1] = torch.cat([parts[-1], parts[-1][-1:].repeat(stride - len(parts[-1]), 1)])
        return parts

    queries, keys = groups(query), groups(key)
    rows, columns = -(-len(query) // block), -(-len(key) // block)
    sums = torch.zeros(rows, columns, dtype=torch.float64)
    for g, asks in enumerate(queries):
        logits = [
            sum(float(asks[stride - 1 - i] @ other[i]) for i in range(stride)) * scale / stride
            for other in keys
        ]
        for at, share in enumerate(torch.tensor(logits, dtype=torch.float64).softmax(0)):
            sums[g * stride // block, at * stride // block] += share
    return greedy(sums, config.mass)


def greedy(sums: Tensor, mass: float) -> Tensor:
    """Keep the first block, and each row's largest while the sum before is below its share."""
    keep = torch.zeros_like(sums, dtype=torch.bool)
    keep[:, 0] = True
    for i, row in enumerate(sums):
        before = 0.0
        for j in row.argsort(descending=True).tolist():
            keep[i, j] |= before < mass * float(row.sum())
            before += float(row[j])
    return keep


@settings(max_examples=30)
@given(
    queries=st.integers(1, 50),
    keys=st.integers(1, 50),
    stride=st.sampled_from([1, 2, 4]),
    per_block=st.integers(1, 3),
    mass=st.sampled_from([0.0, 0.31, 0.63, 0.9]),
    seed=st.integers(0, 1000),
)
def test_is_the_rule(
    queries: int, keys: int, stride: int, per_block: int, mass: float, seed: int
) -> None:
    config = XAttentionConfig(block=stride * per_block, stride=stride, mass=mass)
    query = 3 * normal(2, 2, queries, 8, seed=seed, dtype=torch.float64)
    key = normal(2, 2, keys, 8, seed=seed + 1, dtype=torch.float64)
    plan = replace(make_plan(query, key, key, config), check=True)
    for b in range(2):
        for h in range(2):
            assert torch.equal(plan.keep[b, h], slow_keep(query[b, h], key[b, h], config))


def load(path: Path) -> tuple[Any, dict[str, Any], Tensor, Tensor]:
    stored = np.load(path)
    query, key = (torch.from_numpy(stored[side]).float() for side in "qk")
    return stored, json.loads(str(stored["meta_json"])), query, key


def test_is_theirs(goldens: Path) -> None:
    stored, facts, query, key = load(goldens / "xattn-L2048-s8-t95.npz")
    config = XAttentionConfig(stride=facts["stride"], mass=facts["threshold"])
    assert np.array_equal(make_plan(query, key, key, config).keep.numpy(), stored["keep"])


def test_their_padding_takes_mass(goldens: Path) -> None:
    """Theirs on the zero-padded length gives the stored map; ours leaves the padding out."""
    stored, facts, query, key = load(goldens / "xattn-L2200-s8-t90-ragged.npz")
    config = XAttentionConfig(stride=facts["stride"], mass=facts["threshold"])
    more = facts["padded_len"] - query.shape[2]
    padded = [pad(side, (0, 0, 0, more)) for side in (query, key)]
    scale = query.shape[3] ** -0.5
    # Their padded query groups count for nothing: groups beyond the tokens are left out here.
    short = padded[0][:, :, : query.shape[2]]
    sums = xattention.block_masses(short, padded[1], config.block, config.stride, scale)
    rows = stored["keep"].shape[2]
    np.testing.assert_allclose(
        sums.numpy(), stored["block_sums_padded"][:, :, :rows], atol=1e-4, rtol=0
    )
    theirs = torch.stack([greedy(head, config.mass) for head in sums[0]])
    assert np.array_equal(theirs.numpy(), stored["keep_padded"][0, :, :rows])
    assert np.array_equal(theirs[..., :rows].numpy(), stored["keep"][0])
    ours = make_plan(query, key, key, config).keep
    real = xattention.block_masses(query, key, config.block, config.stride, scale)
    assert torch.equal(ours[0], torch.stack([greedy(head, config.mass) for head in real[0]]))
    assert float(sums[..., rows:].sum()) > 0 and not np.array_equal(ours.numpy(), stored["keep"])


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    query, key = normal(1, 2, 75, 8), normal(1, 2, 75, 8, seed=1)
    config = XAttentionConfig(block=8, stride=4)
    whole = make_plan(query, key, key, config).keep
    monkeypatch.setattr(xattention, "_CHUNK", 1)
    assert torch.equal(make_plan(query, key, key, config).keep, whole)


def test_text_padding_and_work() -> None:
    layout = VideoLayout(3, 5, 5, text=6, valid_text=torch.tensor([6, 2]))
    session = Session(XAttentionConfig(block=8, stride=4), steps=3, layers=1, heads=2)
    query, key, value = (3 * normal(2, 2, layout.tokens, 8, seed=seed) for seed in range(3))
    output = session.attend(query, key, value, step=1, layer=0, layout=layout)
    key[1, :, layout.video + 2 :] = 1e4  # padding
    again = session.attend(query, key, value, step=1, layer=0, layout=layout)
    torch.testing.assert_close(again[:, :, : layout.video], output[:, :, : layout.video])
    stats = session.stats()
    assert stats.density is not None and stats.density < 1
    assert stats.work == {"selection": 0.25}


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"block": 0}, "block"),
        ({"stride": 0}, "stride"),
        ({"stride": 3}, "block"),
        ({"mass": 1.1}, "mass"),
    ],
)
def test_bad_settings(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=f"^{named} must be"):
        XAttentionConfig(**settings)
