"""Equal-size clusters against a recursive form, point by point."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from making import Case, cases, chance, normal
from torch import Tensor

from svoo.core.balanced import Balanced, split_evenly, split_sizes, square_root, turn_to_axes


def slow(points: Tensor, tokens: list[int], size: int) -> list[list[int]]:
    """Split one head's points `[N, D]`, on their axes already, by the written rule."""
    if len(tokens) <= size:
        return [tokens]
    axis = int(points[tokens].var(dim=0, correction=0).argmax())
    inside = sorted(tokens, key=lambda token: float(points[token, axis]))
    cuts = range(size, len(tokens), size)
    cut = min(cuts, key=lambda cut: (abs(cut - len(tokens) / 2), cut))
    return slow(points, inside[:cut], size) + slow(points, inside[cut:], size)


@settings(max_examples=60)
@given(
    case=cases(sizes=(1, 3, 8)),
    size=st.integers(1, 12),
    dtype=st.sampled_from((torch.float64, torch.float32)),
)
def test_it_is_the_recursive_form(case: Case, size: int, dtype: torch.dtype) -> None:
    points = case.tokens(dtype)[0]
    found = split_evenly(points, size)
    axes = turn_to_axes(points)
    for b in range(case.batch):
        for h in range(case.heads):
            parts = [set(part.tolist()) for part in found.order[b, h].split(list(found.sizes))]
            assert parts == [
                set(part) for part in slow(axes[b, h], list(range(case.queries)), size)
            ]
    assert all(count == size for count in found.sizes[:-1]) and 0 < found.sizes[-1] <= size


@given(case=cases(), size=st.integers(1, 12), sample=st.integers(1, 20))
def test_a_sample_gives_equal_sizes_too(case: Case, size: int, sample: int) -> None:
    points = case.tokens(torch.bfloat16)[0]
    found = split_evenly(points, size, sample=sample, generator=chance(case.seed))
    again = split_evenly(points, size, sample=sample, generator=chance(case.seed))
    assert torch.equal(found.order, again.order)
    assert torch.equal(
        found.order.sort(dim=-1).values,
        torch.arange(case.queries).expand(case.batch, case.heads, -1),
    )
    sizes = torch.tensor(found.sizes)
    counts = torch.nn.functional.one_hot(found.labels(), len(sizes)).sum(dim=2)
    assert bool((counts == sizes).all())


def test_labels_follow_the_order() -> None:
    found = Balanced(torch.tensor([[[2, 0, 1]]]), (2, 1))
    assert found.labels().flatten().tolist() == [0, 1, 0]


def test_far_groups_are_found() -> None:
    points = torch.cat(
        [normal(1, 1, 16, 4, seed=s) + 50 * normal(4, seed=9 + s) for s in range(4)], 2
    )
    parts = split_evenly(points, 16, sample=4, generator=chance(0)).order.view(4, 16) // 16
    assert bool((parts == parts[:, :1]).all())


@pytest.mark.parametrize(
    ("size", "unit", "expected"),
    [
        (2, 1, (1, 1)),
        (3, 1, (1, 2)),
        (9, 8, (8, 1)),
        (670, 128, (384, 286)),
        (640, 128, (256, 384)),
    ],
)
def test_the_first_part_is_the_multiple_nearest_to_half(
    size: int, unit: int, expected: tuple[int, int]
) -> None:
    assert split_sizes(size, unit) == expected


def test_axes_do_not_turn_round_with_the_last_bit() -> None:
    points = normal(1, 1, 40, 6, dtype=torch.float64) * torch.arange(1, 7)  # axes far apart
    axes = turn_to_axes(points)
    shaken = points + 1e-9 * normal(*points.shape, seed=1, dtype=torch.float64)
    torch.testing.assert_close(turn_to_axes(shaken), axes, atol=1e-6, rtol=1e-6)
    # Every axis, mapped back, has its largest component on the positive side.
    centred = points - points.mean(dim=2, keepdim=True)
    directions = torch.linalg.lstsq(centred[0, 0], axes[0, 0]).solution
    largest = directions.gather(0, directions.abs().argmax(dim=0, keepdim=True))
    assert bool((largest > 0).all())


def test_square_root() -> None:
    rows = normal(2, 3, 4, 8, dtype=torch.float64)  # fewer rows than channels: no full rank
    moment = rows.transpose(2, 3) @ rows
    root = square_root(moment)
    torch.testing.assert_close(root @ root, moment)
    torch.testing.assert_close(root, root.transpose(2, 3))
