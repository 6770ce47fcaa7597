"""A new method is one small class: it runs through `svoo.apply`, text and statistics included."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import tiny
import torch
from torch import Tensor

import svoo


@dataclass(frozen=True, kw_only=True)
class EveryOtherConfig(svoo.MethodConfig):
    name: ClassVar[str] = "every-other"

    def start(self, run: svoo.Run) -> svoo.Method:  # noqa: ARG002
        return EveryOther()


class EveryOther:
    state_bytes = 0

    def plan(self, query: Tensor, key: Tensor, value: Tensor, call: svoo.Call) -> svoo.BlockPlan:  # noqa: ARG002
        labels = torch.arange(query.shape[2], device=query.device).expand(query.shape[:3]) % 2
        keep = torch.eye(2, dtype=torch.bool, device=query.device)
        return svoo.BlockPlan.from_labels(labels, labels, keep.expand(*query.shape[:2], 2, 2))


@pytest.mark.parametrize("name", ["wan2.1-t2v", "hunyuanvideo-t2v"])
def test_a_users_method_runs(name: str) -> None:
    pipe = tiny.build(name)
    dense = tiny.generate(pipe)
    with svoo.apply(pipe, EveryOtherConfig(strict=True)) as handle:
        sparse = tiny.generate(pipe)
        stats = handle.stats()
    assert not torch.equal(sparse, dense) and torch.equal(tiny.generate(pipe), dense)
    assert stats.method == "every-other" and stats.dense_calls == 0 and stats.sparse_calls > 0
    # Half of the video pairs; HunyuanVideo's text is kept besides.
    assert stats.density is not None
    assert stats.density == pytest.approx(0.5) if name.startswith("wan") else stats.density > 0.5


def test_padding_is_never_seen() -> None:
    pipe = tiny.build("hunyuanvideo-t2v")
    with svoo.apply(pipe, EveryOtherConfig()):
        short = tiny.generate(pipe, max_sequence_length=12)
        long = tiny.generate(pipe, max_sequence_length=48)
    torch.testing.assert_close(short, long, atol=1e-4, rtol=0)


@pytest.mark.parametrize("compensate", [False, "mean"])
def test_one_call_of_a_users_method(compensate: svoo.methods.base.Compensate) -> None:
    query, key, value = (torch.randn(1, 2, 30, 8) for _ in range(3))
    config = EveryOtherConfig(compensate=compensate)
    plan = svoo.make_plan(query, key, value, config)
    assert (plan.terms is None) == (compensate is False)
    output = svoo.sparse_attention(query, key, value, config)
    torch.testing.assert_close(output, svoo.run_plan(query, key, value, plan))
    with pytest.raises(svoo.SVOOError, match="budgets and state are SVOO's"):
        svoo.sparse_attention(query, key, value, config, budgets=torch.ones(2))
