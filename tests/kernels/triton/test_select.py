import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from making import Case, cases, chance, examples, normal
from torch import Tensor

from svoo import select_blocks
from svoo.core import selection
from svoo.core.clustering import Clusters, CoClusters
from svoo.core.selection import BudgetUnit, keep_mass, keep_top
from svoo.errors import BackendUnavailableError
from svoo.kernels.triton import select

pytestmark = pytest.mark.usefixtures("fresh_memory_is_nan")


def on_device(clusters: CoClusters, device: torch.device) -> CoClusters:
    def moved(side: Clusters) -> Clusters:
        return Clusters(*(part.to(device) for part in (side.labels, side.centroids, side.sizes)))

    return CoClusters(moved(clusters.query), moved(clusters.key))


def some_clusters(case: Case) -> CoClusters:
    """Centroids on a coarse grid, so that many masses are equal; some clusters are empty."""
    lead = (case.batch, case.heads)

    def side(count: int, seed: int) -> Clusters:
        sizes = torch.randint(0, 9, (*lead, count), generator=chance(case.seed + seed))
        centroids = normal(*lead, count, 4, seed=case.seed + seed).round()
        return Clusters(torch.zeros(*lead, 1, dtype=torch.int64), centroids, sizes)

    clusters = CoClusters(side(case.query_blocks, 1), side(case.key_blocks, 2))
    clusters.key.sizes[:, :, 0] = 3
    return clusters


@pytest.fixture
def by_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel is taken, wherever tokens are."""
    monkeypatch.setattr(selection, "why_no_kernels", lambda _tokens: None)


@pytest.mark.usefixtures("by_triton")
@settings(max_examples=examples(100))
@given(
    case=cases(),
    mass=st.sampled_from((1e-6, 0.3, 0.9, 1.0)),
    theta=st.sampled_from((0.0, 0.1, 1.0)),
    unit=st.sampled_from(("tokens", "clusters", "whole clusters")),
    drawn=st.one_of(
        st.none(),
        st.lists(st.sampled_from((0.0, 0.05, 0.1, 0.3, 0.55, 1.0)), min_size=6, max_size=6),
    ),
    per_video=st.booleans(),
)
def test_it_is_the_sorted_form(
    kernel_device: torch.device,
    case: Case,
    mass: float,
    theta: float,
    unit: BudgetUnit,
    drawn: list[float] | None,
    per_video: bool,
) -> None:
    clusters = some_clusters(case)
    budgets: Tensor | None = None
    if drawn is not None:
        budgets = torch.tensor(drawn[: case.batch * case.heads]).view(case.batch, case.heads)
        budgets = budgets if per_video else budgets[0]
    wanted = select_blocks(
        clusters, budgets, mass=mass, theta=theta, unit=unit, implementation="torch"
    )
    got = select_blocks(
        on_device(clusters, kernel_device),
        None if budgets is None else budgets.to(kernel_device),
        mass=mass,
        theta=theta,
        unit=unit,
    )
    assert torch.equal(got.cpu(), wanted)


@pytest.mark.usefixtures("by_triton")
def test_rows_of_real_length_that_are_no_power_of_two(kernel_device: torch.device) -> None:
    """The masses of 1,500 blocks are small: whole numbers of them are rounded."""
    lead, keys = (1, 2), 1500
    sizes = torch.randint(0, 150, (*lead, keys), generator=chance(0))
    labels = torch.zeros(*lead, 1, dtype=torch.int64)
    query = Clusters(labels, 3 * normal(*lead, 5, 16), torch.ones(*lead, 5, dtype=torch.int64))
    clusters = CoClusters(query, Clusters(labels, normal(*lead, keys, 16, seed=1), sizes))
    budgets = torch.tensor([0.05, 0.2])
    wanted = select_blocks(clusters, budgets, implementation="torch")
    assert 5 < int(wanted.sum()) < wanted.numel() // 2
    got = select_blocks(on_device(clusters, kernel_device), budgets.to(kernel_device))
    assert torch.equal(got.cpu(), wanted)


@pytest.mark.usefixtures("by_triton")
def test_more_blocks_than_registers_hold_are_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(select, "MOST_BLOCKS", 3)
    monkeypatch.setattr(select, "keep_largest", None)
    clusters = some_clusters(Case(1, 1, 9, 9, 4, 2, 4, seed=0))
    wanted = select_blocks(clusters, implementation="torch")
    assert torch.equal(select_blocks(clusters), wanted)


def test_a_kernel_that_cannot_run_is_refused_by_name() -> None:
    clusters = some_clusters(Case(1, 1, 9, 9, 4, 2, 4, seed=0))
    with pytest.raises(BackendUnavailableError, match="needs a CUDA tensor, got cpu"):
        select_blocks(clusters, implementation="triton")


SCORES = st.one_of(
    st.floats(width=32, allow_nan=False),
    st.sampled_from((0.0, -0.0, -1.0, 0.25, torch.inf, -torch.inf)),
)


@settings(max_examples=examples(60))
@given(
    drawn=st.lists(SCORES, min_size=6, max_size=60),
    count=st.integers(0, 12),
    per_row=st.booleans(),
)
def test_the_best_of_a_row(
    kernel_device: torch.device, drawn: list[float], count: int, per_row: bool
) -> None:
    """Against Python's stable sort; many are equal."""
    blocks = len(drawn) // 6
    scores = torch.tensor(drawn[: 6 * blocks]).view(1, 2, 3, blocks)
    counts = torch.tensor([count, 3]).view(1, 2, 1, 1)
    wanted = torch.zeros_like(scores, dtype=torch.bool)
    for head in range(2):
        for row in range(3):
            line = scores[0, head, row].tolist()
            ranked = sorted(range(blocks), key=lambda place: -line[place])
            first = int(counts[0, head]) if per_row else count
            wanted[0, head, row, ranked[:first]] = True
    given_count = counts.to(kernel_device) if per_row else count
    got = select.keep_best(scores.to(kernel_device), given_count)
    assert torch.equal(got.cpu(), wanted)
    assert torch.equal(keep_top(scores, counts if per_row else count), wanted)  # by sorting


@settings(max_examples=examples(60))
@given(
    drawn=st.lists(
        st.one_of(st.floats(0, 2.0**20, width=32), st.sampled_from((0.0, 0.25, 1.0, 1e-30))),
        min_size=4,
        max_size=60,
    ),
    mass=st.sampled_from((0.0, 1e-6, 0.3, 0.75, 0.9, 1.0)),
    least=st.integers(0, 4),
)
def test_the_heaviest_of_a_row(
    kernel_device: torch.device, drawn: list[float], mass: float, least: int
) -> None:
    weights = torch.tensor(drawn[: len(drawn) // 2 * 2]).view(1, 2, 1, -1)
    wanted = keep_mass(weights, mass, least)  # by sorting
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection, "why_no_kernels", lambda _scores: None)
        patch.setattr(selection, "falling_order", None)
        got = keep_mass(weights.to(kernel_device), mass, least)
    assert torch.equal(got.cpu(), wanted)


@pytest.mark.usefixtures("by_triton")
def test_only_float32_rows_that_fit_are_left_unsorted(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = normal(2, 9)
    assert selection.needs_no_sorting(scores)
    assert not selection.needs_no_sorting(scores.double())
    monkeypatch.setattr(select, "MOST_BLOCKS", 8)
    assert not selection.needs_no_sorting(scores)
