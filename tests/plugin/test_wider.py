"""Models beyond the paper: the same seam, tiny random weights."""

from typing import Any

import pytest
import tiny
import torch

from svoo import SVOOConfig
from svoo.plugin.handle import apply

SETTINGS: dict[str, Any] = {"query_clusters": 4, "key_clusters": 8, "dense_layers": 0}
# Mochi's rope asks for an autocast that the CPU has not; guiders warn that they are new.
pytestmark = [
    pytest.mark.filterwarnings("ignore:In CPU autocast"),
    pytest.mark.parametrize("name", tiny.WIDER),
]


def test_keeping_everything_is_the_model_itself_and_undone_it_is_again(name: str) -> None:
    pipe = tiny.build(name)
    plain = tiny.generate(pipe)
    with apply(pipe, SVOOConfig(mass=1.0, dense_steps=0, **SETTINGS), profile=None) as handle:
        whole = tiny.generate(pipe)
        rows = handle.stats()["layers"]
    torch.testing.assert_close(whole, plain, atol=1e-4, rtol=0)
    assert all(row["sparse_calls"] > 0 and row["dense_calls"] == 0 for row in rows)
    assert len(rows) == (5 if name == "wan-vace" else 3)
    assert torch.equal(tiny.generate(pipe), plain)


def test_sparse_is_sparse(name: str) -> None:
    pipe = tiny.build(name)
    plain = tiny.generate(pipe)
    with apply(pipe, SVOOConfig(mass=0.5, dense_steps=1, **SETTINGS)) as handle:
        sparse = tiny.generate(pipe)
        stats = handle.stats()
    assert 0 < stats["density"] < 0.8
    assert stats["steps"] == 4 and stats["calls"] == 1 and not stats["notes"]
    reasons = {reason for row in stats["layers"] for reason in row["dense_reasons"]}
    assert reasons == {"warm-up: the first 1 of 4 steps are dense"}
    assert not torch.equal(sparse, plain)
    assert bool(torch.isfinite(sparse).all())
