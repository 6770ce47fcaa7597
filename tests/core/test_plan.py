from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from making import Case, cases, normal
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from svoo import (
    BlockPlan,
    MeanTerms,
    VideoLayout,
    add_text,
    co_cluster,
    run_plan,
    select_blocks,
)
from svoo.backends import BACKENDS
from svoo.core import plan as plan_module
from svoo.core.plan import plan_from_clusters
from svoo.errors import PlanError, ShapeError

backends_by_name = {backend.name: backend for backend in BACKENDS}


def good(**changes: Any) -> dict[str, Any]:
    """Two heads, four queries in two blocks, five keys in three blocks (one empty)."""
    parts: dict[str, Any] = {
        "query_order": torch.tensor([[[2, 0, 1, 3], [0, 1, 2, 3]]]),
        "key_order": torch.tensor([[[4, 3, 2, 1, 0], [0, 1, 2, 3, 4]]]),
        "query_sizes": torch.tensor([[[1, 3], [2, 2]]]),
        "key_sizes": torch.tensor([[[2, 0, 3], [1, 3, 1]]]),
        "keep": torch.tensor(
            [
                [
                    [[True, False, False], [False, True, True]],
                    [[False, True, False], [True, True, True]],
                ]
            ]
        ),
    }
    return parts | changes


def test_density_and_mask_of_a_plan_done_by_hand() -> None:
    plan = BlockPlan(**good())
    # Head 0: the query 2 sees keys 4, 3; the queries 0, 1, 3 see keys 2, 1, 0.
    sees = plan.to_dense_mask()[0, 0].int().tolist()
    assert sees == [[1, 1, 1, 0, 0], [1, 1, 1, 0, 0], [0, 0, 0, 1, 1], [1, 1, 1, 0, 0]]
    assert plan.density()[0].tolist() == pytest.approx([11 / 20, 16 / 20])


@pytest.mark.parametrize("blocks", [1, 7, 2**15, 2**15 + 1])
@pytest.mark.parametrize("dtype", [torch.int16, torch.int64])
def test_tokens_of_a_block_stay_in_their_order(blocks: int, dtype: torch.dtype) -> None:
    chance = torch.Generator().manual_seed(blocks)
    labels = torch.randint(min(blocks, 2**15), (2, 3, 500), generator=chance).to(dtype)
    labels[0, 0, 0] = min(blocks, 2**15) - 1
    keep = torch.ones(2, 3, blocks, 1, dtype=torch.bool)
    plan = BlockPlan.from_labels(labels, torch.zeros_like(labels), keep)
    assert plan.query_order is not None
    for b, h in ((b, h) for b in range(2) for h in range(3)):
        expected = sorted(range(500), key=labels[b, h].tolist().__getitem__)
        assert plan.query_order[b, h].tolist() == expected
        assert plan.query_sizes[b, h].tolist() == labels[b, h].bincount(minlength=blocks).tolist()


@given(case=cases(), ordered=st.booleans())
def test_the_mask_agrees_with_labels_and_density(case: Case, ordered: bool) -> None:
    plan = case.plan(compensate=False, ordered=ordered)
    mask = plan.to_dense_mask()
    torch.testing.assert_close(mask.float().mean(dim=(2, 3)), plan.density())
    rows, columns = plan.query_blocks(), plan.key_blocks()
    for b in range(case.batch):
        for h in range(case.heads):
            assert torch.equal(mask[b, h], plan.keep[b, h][rows[b, h]][:, columns[b, h]])


@given(case=cases())
def test_permute_and_restore_are_exact_inverses(case: Case) -> None:
    query, key, _ = case.tokens()
    plan = case.plan(compensate=False)
    assert plan.query_order is not None and plan.key_order is not None
    permuted, permuted_keys = plan.permute_queries(query), plan.permute_keys(key)
    for b in range(case.batch):
        for h in range(case.heads):
            assert torch.equal(permuted[b, h], query[b, h, plan.query_order[b, h]])
            assert torch.equal(permuted_keys[b, h], key[b, h, plan.key_order[b, h]])
            blocks = plan.key_blocks()[b, h, plan.key_order[b, h]]
            assert bool((blocks.diff() >= 0).all())  # permuted keys stand block by block
    assert torch.equal(plan.restore_queries(permuted), query)
    assert torch.equal(plan.restore_queries(permuted[..., 0]), query[..., 0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"keep": torch.ones(1, 2, 2, 3)}, "keep must be bool"),
        ({"keep": torch.ones(2, 2, 3, dtype=torch.bool)}, "keep must be bool"),
        ({"query_sizes": torch.tensor([[[1, 3]]])}, r"query_sizes must be \[1, 2, 2\]"),
        (
            {"terms": MeanTerms(torch.ones(1, 2, 2, dtype=torch.bool))},
            r"compensate must be \[1, 2, 3\]",
        ),
        ({"key_order": torch.arange(5)}, r"key_order must be \[1, 2, tokens\]"),
        (
            {"key_sizes": torch.tensor([[[2, 0, 3], [1, 3, 1]]]).int()},
            r"key_sizes must be int64, got torch.int32: use key_sizes.long\(\)",
        ),
        ({"query_order": torch.zeros(1, 2, 4)}, "query_order must be int64, got torch.float32"),
        (
            {"key_sizes": torch.tensor([[[2, 0, 3], [1, 3, 2]]])},
            "key_sizes must sum to 5 tokens .* 5 to 6",
        ),
        (
            {"query_sizes": torch.tensor([[[-1, 5], [2, 2]]])},
            "query_sizes must not be negative, got -1",
        ),
        (
            {"query_order": torch.tensor([[[2, 0, 1, 1], [0, 1, 2, 3]]])},
            r"query_order is not a permutation of 0 \.\. 3",
        ),
        (
            {"keep": torch.tensor([[[[False, True, False]] * 2, [[True, True, True]] * 2]])},
            r"query block 0 of batch 0, head 0 keeps no key token.*2 such blocks",
        ),
    ],
)
def test_a_plan_that_contradicts_itself_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        BlockPlan(**good(**changes))
    BlockPlan(**good(**changes), check=False)  # trusted makers are not checked


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.full((1, 2, 4), 2), "query_labels must be from 0 to 1, .* got 2 to 2"),
        (torch.full((1, 2, 4), -1), "got -1 to -1"),
        (
            torch.zeros(1, 2, 4),
            r"whole numbers \[1, 2, tokens\] .*, got torch.float32 \[1, 2, 4\]",
        ),
        (torch.zeros(2, 4).long(), r"got torch.int64 \[2, 4\]"),
        (torch.zeros(2, 2, 4).long(), r"got torch.int64 \[2, 2, 4\]"),
    ],
)
def test_labels_that_do_not_fit_are_refused(labels: torch.Tensor, message: str) -> None:
    keep = torch.ones(1, 2, 2, 3, dtype=torch.bool)
    fine = torch.zeros(1, 2, 5, dtype=torch.int64)
    with pytest.raises(PlanError, match=message):
        BlockPlan.from_labels(labels, fine, keep)
    with pytest.raises(PlanError, match="key_labels"):
        BlockPlan.from_labels(fine, fine + 3, keep)


def test_an_empty_query_block_may_keep_nothing() -> None:
    sizes = torch.tensor([[[0, 4], [2, 2]]])
    keep = good()["keep"].clone()
    keep[0, 0, 0] = False
    BlockPlan(**good(query_sizes=sizes, keep=keep))


@pytest.mark.parametrize("text_first", [False, True])
def test_text_and_padding_blocks(text_first: bool) -> None:
    layout = VideoLayout(2, 3, 4, text=5, text_first=text_first, valid_text=torch.tensor([5, 2]))
    query, key = normal(2, 3, 24, 8), normal(2, 3, 24, 8, seed=1)
    clusters = co_cluster(query, key, 3, 4)
    keep = select_blocks(clusters, mass=0.5)
    plan = plan_from_clusters(clusters, keep, compensate=True, layout=layout)
    BlockPlan(
        plan.query_order,
        plan.key_order,
        plan.query_sizes,
        plan.key_sizes,
        plan.keep,
        plan.terms,
    )
    bare = plan_from_clusters(clusters, keep, compensate=True).to_dense_mask()
    mask = plan.to_dense_mask()
    video = slice(5, None) if text_first else slice(0, 24)
    text = slice(0, 5) if text_first else slice(24, None)
    assert torch.equal(mask[:, :, video, video], bare)
    assert bool(mask[0, :, :, text].all())  # sample 0 has no padding
    valid, padding = list(range(29))[text][:2], list(range(29))[text][2:]
    assert bool(mask[1][:, :, valid].all())
    assert not bool(mask[1][:, :, padding].any())
    assert bool(mask[:, :, text, video].all())  # text sees all video
    real = [mask[0].float().mean(dim=(1, 2)), _without(mask[1], padding).float().mean(dim=(1, 2))]
    torch.testing.assert_close(plan.density(torch.tensor([0, 3])), torch.stack(real))
    assert isinstance(plan.terms, MeanTerms)
    added = plan.terms.compensate[:, :, :2] if text_first else plan.terms.compensate[:, :, -2:]
    assert not bool(added.any())  # neither text nor padding ever is


def _without(mask: torch.Tensor, tokens: list[int]) -> torch.Tensor:
    rest = [token for token in range(mask.shape[-1]) if token not in tokens]
    return mask[:, rest][:, :, rest]


def test_without_text_the_layout_changes_nothing() -> None:
    clusters = co_cluster(normal(1, 1, 24, 8), normal(1, 1, 24, 8, seed=1), 3, 4)
    keep = select_blocks(clusters)
    plain = plan_from_clusters(clusters, keep, compensate=False)
    same = plan_from_clusters(clusters, keep, compensate=False, layout=VideoLayout(2, 3, 4))
    assert torch.equal(plain.to_dense_mask(), same.to_dense_mask())
    assert plain.terms is None


def all_plans(case: Case, *, ordered: bool) -> list[BlockPlan]:
    plain, mean = (
        case.plan(compensate=with_terms, ordered=ordered) for with_terms in (False, True)
    )
    return [plain, mean, *(case.far_plan(groups=count, ordered=ordered) for count in (0, 2))]


@given(
    frames=st.integers(1, 3),
    text=st.integers(0, 4),
    text_first=st.booleans(),
    ordered=st.booleans(),
    seed=st.integers(0, 99),
)
def test_any_plan_takes_text_and_padding(
    frames: int, text: int, text_first: bool, ordered: bool, seed: int
) -> None:
    """With text a token sees what it saw of the video, all real text and no padding."""
    valid = torch.tensor([text, seed % (text + 1)])
    layout = VideoLayout(frames, 2, 3, text, text_first, valid)
    video = layout.video
    case = Case(2, 2, video, video, 4, min(3, video), min(4, video), seed)
    query, key, value = (normal(2, 2, layout.tokens, 4, seed=seed + i) for i in range(3))
    for plan in all_plans(case, ordered=ordered):
        whole = add_text(plan, layout)
        checked = replace(whole, check=True)
        assert (checked.query_tokens, checked.key_tokens) == (layout.tokens, layout.tokens)
        if not ordered:
            assert whole.query_order is whole.key_order is None
        mask, bare = whole.to_dense_mask(), plan.to_dense_mask()
        real = layout.real_tokens()
        assert real is not None
        inside = slice(layout.video_start, layout.video_start + video)
        expected = real[:, None, None].expand(mask.shape).clone()
        expected[:, :, inside, inside] = bare
        assert torch.equal(mask, expected)
        # Real text as keys of its own: the same softmax over the video plan's rows and these.
        output = run_plan(query, key, value, whole, backend="reference", return_lse=True)
        parts = (layout.video_part(query), layout.video_part(key), layout.video_part(value))
        alone = run_plan(*parts, plan, backend="reference", return_lse=True)
        assert alone.lse is not None
        logits = (query @ key.mT / 2).masked_fill(~real[:, None, None], -torch.inf)
        logits[:, :, inside, inside] = -torch.inf
        logits = torch.cat((logits[:, :, inside], alone.lse.unsqueeze(-1)), dim=-1)
        weights = logits.softmax(dim=-1)
        merged = weights[..., :-1] @ value + weights[..., -1:] * alone.output
        torch.testing.assert_close(output.output[:, :, inside], merged, atol=1e-5, rtol=1e-5)


def test_a_plan_of_other_tokens_takes_no_text() -> None:
    plan = Case(1, 1, 24, 23, 4, 2, 3, seed=0).plan(compensate=False)
    with pytest.raises(PlanError, match="2 x 3 x 4 = 24 video tokens, the plan 24 .* and 23 keys"):
        add_text(plan, VideoLayout(2, 3, 4, text=5))
    plan = Case(1, 1, 24, 24, 4, 2, 3, seed=0).plan(compensate=False)
    with pytest.raises(ShapeError, match="valid_text must be between 0 and the 5"):
        add_text(plan, VideoLayout(2, 3, 4, text=5, valid_text=torch.tensor([6])))
    with pytest.raises(ShapeError, match=r"valid_text must be \[1\]"):
        add_text(plan, VideoLayout(2, 3, 4, text=5, valid_text=torch.tensor([1, 2])))


def test_nothing_waits_for_the_device_when_token_counts_are_given() -> None:
    """A fake tensor has no numbers: reading one is an error, as waiting for a device would be."""
    with FakeTensorMode():
        sizes = torch.ones(1, 2, 3, dtype=torch.int64)
        keep = torch.ones(1, 2, 3, 3, dtype=torch.bool)
        valid = torch.ones(1, dtype=torch.int64)
        layout = VideoLayout(1, 1, 3, text=2, valid_text=valid)
        plan = BlockPlan(None, None, sizes, sizes, keep, check=False, query_tokens=3, key_tokens=3)
        whole = add_text(plan, layout, check=False)
        assert whole.key_tokens == 5 and whole.query_blocks().shape == (1, 2, 5)
        assert whole.density(layout.padding).shape == (1, 2)
        with pytest.raises(DataDependentOutputException):
            BlockPlan(None, None, sizes, sizes, keep, check=False)


class WithoutFloat64(TorchDispatchMode):
    """A device like Apple's: no operation takes or gives float64."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves((args, kwargs, result)):
            refused = isinstance(leaf, torch.Tensor) and leaf.dtype == torch.float64
            assert not refused, f"{func} in float64"
        return result


@pytest.mark.parametrize("ordered", [False, True])
def test_no_float64(ordered: bool) -> None:
    layout = VideoLayout(2, 3, 4, text=3, valid_text=torch.tensor([3, 1]))
    case = Case(2, 2, 24, 24, 8, 3, 4, seed=1)
    query, key, value = (normal(2, 2, 27, 8, seed=seed) for seed in range(3))
    video = all_plans(case, ordered=ordered)
    with WithoutFloat64():  # type: ignore[no-untyped-call]
        for plan in video:
            whole = replace(add_text(plan, layout), check=True)
            whole.density(layout.padding)
            for backend in ("reference", "blocked"):
                if backends_by_name[backend].why_not(query, whole) is None:
                    run_plan(query, key, value, whole, backend=backend, return_lse=True)
        with pytest.raises(AssertionError, match="in float64"):
            query.double()


def test_kept_keys_are_counted_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Case(2, 3, 40, 50, 4, 6, 9, seed=2).plan(compensate=False)
    exact = (plan.keep.double() @ plan.key_sizes.double().unsqueeze(-1)).squeeze(-1).long()
    assert torch.equal(plan.kept_keys(), exact)
    monkeypatch.setattr(plan_module, "_CHUNK", 100)
    assert torch.equal(plan.kept_keys(), exact)
