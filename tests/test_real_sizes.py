"""A call at the sizes of real models, on tensors that hold no numbers: what it allocates, how much
it starts, and that it never waits for the device."""

from dataclasses import replace

import pytest
import torch
from counting import Counter
from torch import Tensor

from svoo import BlockPlan, SVOOConfig
from svoo.core import clustering, selection, validate
from svoo.core.quality import masked_errors
from svoo.core.random import seeded
from svoo.core.selection import keep_mass, keep_top
from svoo.kernels.triton.launch import Launch
from svoo.kernels.triton.sparse import sparse_attention
from svoo.methods.base import Call, Dense, Run
from svoo.methods.sta_search import squared_errors
from svoo.methods.svg1 import SVG1Config
from svoo.methods.svoo.far import plan_far_call
from svoo.methods.svoo.labels import LabelState, cluster_counts
from svoo.methods.svoo.method import SVOOMethod, plan_call
from svoo.methods.warm_up import count_dense_steps
from svoo.session.worth import LAUNCHES

GIGABYTE = 1 << 30
MODELS = pytest.mark.parametrize(
    ("heads", "tokens"), [(40, 75_600), (24, 118_800)], ids=["Wan 14B", "HunyuanVideo"]
)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels of a device that has them all and computes nothing, in their order."""
    names: list[str] = []
    for module in (clustering, selection):
        monkeypatch.setattr(module, "why_no_kernels", lambda _tokens: None)
    monkeypatch.setattr(validate, "check_tensor", lambda _name, _tensor: None)  # refuses "meta"
    monkeypatch.setattr(Launch, "run", lambda self: names.append(self.kernel.__name__))
    return names


def empty_tokens(heads: int, tokens: int, batch: int = 1) -> Tensor:
    side = torch.empty(batch, tokens, heads, 128, dtype=torch.bfloat16, device="meta")
    return side.transpose(1, 2)  # as diffusers has it


def run(query: Tensor, plan: BlockPlan) -> Tensor:
    return sparse_attention(query, query, query, plan, scale=0.1, return_lse=False)[0]


@MODELS
def test_a_call_neither_waits_nor_holds_much(launched: list[str], heads: int, tokens: int) -> None:
    query = empty_tokens(heads, tokens)
    config = SVOOConfig.paper().always_sparse()
    budgets = torch.empty(heads, device="meta")
    with Counter() as counter:
        plan = plan_call(query, query, config, Call(0, 0, generator=seeded()), budgets=budgets)
        planning = counter.operations
        assert counter.peak <= 0.3 * GIGABYTE, counter.peak / GIGABYTE
        run(query, plan)
    # Two sides at each iteration; query tiles, longest first. Selection sorts nothing.
    assert counter.sorts == 2 * config.iterations + 1 and launched.count("_select") == 1
    assert launched[-1] == "attend" and launched.count("_assign") == 2 * config.iterations
    assert planning <= 160 and counter.operations - planning <= 70, counter.operations
    assert counter.peak <= 1.1 * GIGABYTE  # the tokens themselves are 2.2 GB


@MODELS
def test_the_far_field_in_groups_of_heads(launched: list[str], heads: int, tokens: int) -> None:
    """What left-out blocks are to query blocks is the largest thing there is: 2.5 GB for all 40
    heads with 256 x 1024 blocks, so heads are planned in groups of at most 1 GB."""
    query = empty_tokens(heads, tokens)
    config = replace(SVOOConfig.balanced(), fineness=1.0)
    group = SVOOMethod(config, Run(steps=2, layers=1, heads=heads)).heads_per_plan(query, query)
    states: dict[int, LabelState] = {}
    for step in range(2):
        launched.clear()
        with Counter() as counter:
            outputs = []
            for first in range(0, heads, group):
                part = query[:, first : first + group]
                state = states.setdefault(first, LabelState())
                state.step = step
                call = Call(step, 0, generator=seeded())
                weight = torch.empty(part.shape[1], device="meta")
                plan = plan_far_call(part, part, part, config, call, 0.002, state, weight)
                outputs.append(run(part, plan))
                del plan
            torch.cat(outputs, dim=1)
        groups = -(-heads // group)
        assert groups <= 3 and launched.count("_look") == groups
        assert counter.operations + len(launched) <= LAUNCHES * groups, counter.operations
        assert counter.peak <= 3 * GIGABYTE, counter.peak / GIGABYTE


@pytest.mark.usefixtures("launched")
def test_labels_are_sorted_when_they_are_made_and_not_again() -> None:
    """Two sides at each iteration; not by the other branch, nor by k-means that goes on from them.
    The order of a layer of Wan 14B is what is kept: 24 MB, in int32."""
    query = empty_tokens(40, 75_600)[:, :8]
    config, state = SVOOConfig(), LabelState()
    for step in range(3):
        state.step = step
        with Counter() as counter:
            for branch in ("cond", "uncond"):
                call = Call(step, 0, branch=branch, generator=seeded())
                plan_far_call(query, query, query, config, call, 0.002, state)
        assert counter.sorts == 2 * (config.iterations if step == 0 else 1)
    clusters = sum(cluster_counts(config, query, query))
    assert state.nbytes == 8 * 4 * (2 * 75_600 + clusters)


@MODELS
def test_other_methods_choose_without_sorting(
    launched: list[str], heads: int, tokens: int
) -> None:
    """BSA and XAttention by mass, seven others by number: one kernel each."""
    blocks = -(-tokens // 128)
    scores = torch.empty(1, heads, blocks, blocks, device="meta")
    with Counter() as counter:
        keep_mass(scores, 0.9, least=4)
        keep_top(scores, blocks // 10)
        keep_top(scores, torch.empty(1, heads, 1, 1, dtype=torch.int64, device="meta"))
    assert counter.sorts == 0 and launched == ["_keep_best"] * 3
    assert counter.peak <= 4 * scores.numel(), counter.peak  # sorting holds 16 bytes for each


@MODELS
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.usefixtures("launched")
def test_measuring_budgets_in_the_warm_up(heads: int, tokens: int, batch: int) -> None:
    """One layer, once a video: it was 28,295 operations, and 6.2 GB at batch 2 on Wan 14B."""
    query = empty_tokens(heads, tokens, batch)
    config = SVOOConfig.paper()
    method = SVOOMethod(config, Run(steps=10, layers=40, heads=heads, calibrate=True))
    last = count_dense_steps(config, 10) - 1
    with Counter(may_wait=True) as counter:
        for step in range(last):
            assert isinstance(method.plan(query, query, query, Call(step, 7)), Dense)
        assert counter.operations == counter.waits == 0  # only the last dense step measures
        assert isinstance(method.plan(query, query, query, Call(last, 7)), Dense)
        once = counter.operations
        method.plan(query, query, query, Call(last, 7, branch="uncond"))
    assert counter.operations == once  # nor does the second branch
    found = method.budgets.at(Call(last, 7), heads)
    assert found is not None and (found.shape, found.device.type) == ((heads,), "cpu")
    # For each head a product, its bins and their histogram, which the host reads.
    assert counter.operations <= 12 * batch * heads + 30, counter.operations
    assert counter.waits <= batch * heads + 3, counter.waits
    assert counter.peak <= 0.25 * GIGABYTE, counter.peak / GIGABYTE


@MODELS
@pytest.mark.parametrize("batch", [1, 2])
def test_measuring_of_other_methods(heads: int, tokens: int, batch: int) -> None:
    """SVG1 tries two masks on some rows at every call, a search of windows compares outputs."""
    query = empty_tokens(heads, tokens, batch)
    count = SVG1Config().rows
    rows = torch.empty(count, dtype=torch.int64, device="meta")
    masks = torch.empty(2, count, tokens, dtype=torch.bool, device="meta")
    with Counter() as counter:
        assert masked_errors(query, query, query, rows, masks, None).shape == (2, batch, heads)
    assert counter.operations <= 650, counter.operations
    assert counter.peak <= 0.75 * GIGABYTE, counter.peak / GIGABYTE
    with Counter() as counter:
        assert squared_errors(query, query).shape == (heads,)
    assert counter.operations <= 4 * heads + 1, counter.operations
    assert counter.peak <= 0.25 * GIGABYTE, counter.peak / GIGABYTE
