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
from torch.nn.functional import cosine_similarity

from svoo import Run, Session, VideoLayout, make_plan
from svoo.errors import ConfigError
from svoo.methods.spargeattn import SpargeAttnConfig


def slow_keep(query: Tensor, key: Tensor, config: SpargeAttnConfig) -> Tensor:
    """The rule for one head, query `[N, D]`, key `[M, D]`, block by block in float64."""
    query, key = query.double(), key.double()
    if config.smooth:
        key = key - key.mean(dim=0)
    query_blocks, key_blocks = query.split(config.query_block), key.split(config.key_block)

    def similar(tokens: Tensor, block: int) -> bool:
        cosines = cosine_similarity(tokens[:, None], tokens[None], dim=-1)
        judged = config.judge_ragged or len(tokens) == block
        return judged and float(cosines.mean()) > config.similarity

    key_similar = [similar(part, config.key_block) for part in key_blocks]
    keep = torch.zeros(len(query_blocks), len(key_blocks), dtype=torch.bool)
    for row, queries in enumerate(query_blocks):
        weights = {
            column: float((queries.mean(0) @ part.mean(0) / query.shape[1] ** 0.5).exp())
            for column, part in enumerate(key_blocks)
            if key_similar[column]
        }
        reached, total = 0.0, sum(weights.values())
        for rank, column in enumerate(sorted(weights, key=lambda c: -weights[c])):
            reached += weights[column] / total
            if config.topk is not None:
                chosen = rank < max(1, int(config.topk * len(key_blocks)))
            else:
                assert config.cdf is not None
                chosen = rank == 0 or reached <= config.cdf
            keep[row, column] = chosen
        keep[row] |= ~torch.tensor(key_similar)
        if not similar(queries, config.query_block):
            keep[row] = True
    return keep


@settings(max_examples=40)
@given(
    queries=st.integers(1, 40),
    keys=st.integers(1, 40),
    topk=st.sampled_from([None, 0.0, 0.3, 0.5, 1.0]),
    cdf=st.sampled_from([0.3, 0.7, 0.97]),
    similarity=st.sampled_from([-0.1, 0.2, 0.35]),
    smooth=st.booleans(),
    judge_ragged=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_is_the_rule(
    queries: int,
    keys: int,
    topk: float | None,
    cdf: float,
    similarity: float,
    smooth: bool,
    judge_ragged: bool,
    seed: int,
) -> None:
    config = SpargeAttnConfig(
        topk=topk,
        cdf=None if topk is not None else cdf,
        similarity=similarity,
        query_block=6,
        key_block=4,
        smooth=smooth,
        judge_ragged=judge_ragged,
    )
    query, key = normal(2, 2, queries, 8, seed=seed), normal(2, 2, keys, 8, seed=seed + 1)
    plan = replace(make_plan(query, key, key, config), check=True)
    for batch in range(2):
        for head in range(2):
            expected = slow_keep(query[batch, head], key[batch, head], config)
            assert torch.equal(plan.keep[batch, head], expected)


def test_is_theirs(goldens: Path) -> None:
    stored = np.load(goldens / "spargeattn-block-map.npz")
    for case, name in enumerate(stored["case_names"]):
        tokens = int(stored["case_n"][case])
        query, key = (torch.from_numpy(stored[side])[:, :, :tokens] for side in "qk")
        for head in range(2):  # some cases have settings for each head
            topk, cdf = (float(stored[f"case_{rule}"][case][head]) for rule in ("topk", "cdf"))
            config = SpargeAttnConfig(
                topk=None if np.isnan(topk) else topk,
                cdf=None if np.isnan(cdf) else cdf,
                similarity=float(stored["case_simthreshd1"][case][head]),
                query_block=int(stored["case_BLKQ"][case]),
                key_block=int(stored["case_BLKK"][case]),
                smooth=bool(stored["case_smooth_k"][case]),
                judge_ragged=False,
            )
            here = slice(head, head + 1)
            keep = make_plan(query[:, here], key[:, here], key[:, here], config).keep
            if stored["case_sink"][case]:
                keep[..., 0] = True  # theirs can force the first column: text does that here
            assert np.array_equal(keep.numpy(), stored[f"map__{name}"][:, here]), name


def test_text_padding_and_a_batch() -> None:
    layout = VideoLayout(3, 5, 5, text=6, valid_text=torch.tensor([6, 2]))
    config = SpargeAttnConfig(query_block=16, key_block=8, dense_steps=1)
    session = Session(config, steps=3, layers=1, heads=2)
    query, key, value = (normal(2, 2, layout.tokens, 8, seed=seed) for seed in range(3))
    whole = [
        session.attend(query, key, value, step=step, layer=0, layout=layout) for step in (0, 1)
    ]
    assert not torch.equal(*whole)
    key[1, :, layout.video + 2 :] = 1e4  # padding
    again = session.attend(query, key, value, step=1, layer=0, layout=layout)
    torch.testing.assert_close(again[:, :, : layout.video], whole[1][:, :, : layout.video])
    assert session.stats().dense_calls == 1 and session.method.state_bytes == 0


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"cdf": 0.9}, "topk"),
        ({"topk": None}, "topk"),
        ({"topk": 1.5}, "topk"),
        ({"topk": None, "cdf": -0.1}, "cdf"),
        ({"similarity": 2}, "similarity"),
        ({"query_block": 0}, "query_block"),
        ({"key_block": 1.5}, "key_block"),
        ({"smooth": 1}, "smooth"),
        ({"judge_ragged": 1}, "judge_ragged"),
    ],
)
def test_bad_settings(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=f"^{named} must be"):
        SpargeAttnConfig(**settings)


def test_low_precision_chooses_the_same() -> None:
    query, key = normal(1, 2, 200, 16), normal(1, 2, 200, 16, seed=1)
    config = SpargeAttnConfig(query_block=16, key_block=8)
    low = query.bfloat16(), key.bfloat16()
    wide = make_plan(low[0].float(), low[1].float(), low[1].float(), config)
    assert torch.equal(make_plan(low[0], low[1], low[1], config).keep, wide.keep)
    assert config.start(Run(steps=1)).state_bytes == 0
