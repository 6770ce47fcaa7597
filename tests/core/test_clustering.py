from collections.abc import Callable

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from making import Case, cases, chance, normal
from torch import Tensor

from svoo import co_cluster
from svoo.core import clustering as clustering_module
from svoo.core.clustering import CoClusters, Implementation, from_sorted
from svoo.core.kmeans import k_means
from svoo.core.sorting import sort_sides
from svoo.errors import BackendUnavailableError, ConfigError, NonFiniteError, ShapeError


def unit(rows: Tensor) -> Tensor:
    length = rows.norm(dim=-1, keepdim=True)
    return torch.where(length > 0, rows / length, torch.zeros_like(rows))


def means(tokens: Tensor, labels: Tensor, old: Tensor) -> Tensor:
    new = old.clone()
    for cluster in range(len(old)):
        if bool((labels == cluster).any()):
            new[cluster] = tokens[labels == cluster].mean(dim=0)
    return new


def products(rows: Tensor, columns: Tensor) -> Tensor:
    """All inner products, each summed in the same order: equal columns give equal numbers."""
    return (rows.unsqueeze(1) * columns.unsqueeze(0)).sum(dim=-1)


def algorithm_1(
    query: Tensor, key: Tensor, start: tuple[Tensor, Tensor], iterations: int
) -> tuple[Tensor, ...]:
    """The paper's Algorithm 1 for one head, with its affinity matrices written out; nearest by
    arg-max of the cosine."""
    cq, ck = start
    lq, lk = torch.zeros(len(query)), torch.zeros(len(key))
    for _ in range(iterations):
        lk = products(unit(products(key, cq)), unit(products(ck, cq))).argmax(dim=-1)
        ck = means(key, lk, ck)
        lq = products(unit(products(query, ck)), unit(products(cq, ck))).argmax(dim=-1)
        cq = means(query, lq, cq)
    return lq, lk, cq, ck


def assert_is_algorithm_1(
    query: Tensor, key: Tensor, initial: tuple[Tensor, Tensor], iterations: int
) -> None:
    counts = initial[0].shape[2], initial[1].shape[2]
    clusters = co_cluster(query, key, *counts, iterations=iterations, initial=initial)
    for b in range(query.shape[0]):
        for h in range(query.shape[1]):
            start = initial[0][b, h], initial[1][b, h]
            lq, lk, cq, ck = algorithm_1(query[b, h], key[b, h], start, iterations)
            assert torch.equal(clusters.query.labels[b, h], lq)
            assert torch.equal(clusters.key.labels[b, h], lk)
            torch.testing.assert_close(clusters.query.centroids[b, h], cq)
            torch.testing.assert_close(clusters.key.centroids[b, h], ck)


def first_tokens(query: Tensor, key: Tensor, case: Case) -> tuple[Tensor, Tensor]:
    return query[:, :, : case.query_blocks], key[:, :, : case.key_blocks]


@settings(max_examples=150)
@given(case=cases(), iterations=st.integers(1, 4), scale=st.sampled_from((1.0, 1e-6, 1e6)))
def test_the_inner_product_form_is_algorithm_1(case: Case, iterations: int, scale: float) -> None:
    query, key, _ = case.tokens(torch.float64)
    assume(case.size > 1)  # on a line every cosine is 1 or -1: ties, tested below
    query, key = query * scale, key * scale
    assert_is_algorithm_1(query, key, first_tokens(query, key, case), iterations)


def test_ties_go_to_the_lowest_index() -> None:
    query = torch.tensor([1.0, 2.0, -1.0], dtype=torch.float64).view(1, 1, 3, 1)
    key = torch.tensor([4.0, -2.0, 1.0, 8.0], dtype=torch.float64).view(1, 1, 4, 1)
    initial = query[:, :, :2], key[:, :, [0, 0, 1]]
    assert_is_algorithm_1(query, key, initial, 1)
    labels = co_cluster(query, key, 2, 3, iterations=1, initial=initial).key.labels
    assert labels.flatten().tolist() == [0, 2, 0, 0]  # never 1: the same centroid as 0, behind it


@given(case=cases(sizes=(3, 8, 16)), repeats=st.integers(2, 4))
def test_of_equal_centroids_the_first_wins(case: Case, repeats: int) -> None:
    query, key, _ = case.tokens(torch.float64)
    initial = tuple(side.repeat(1, 1, repeats, 1) for side in first_tokens(query, key, case))
    counts = [side.shape[2] for side in initial]
    assume(counts[0] <= case.queries and counts[1] <= case.keys)
    assume(min(case.query_blocks, case.key_blocks) > 1)  # else nearly all tie, by sign
    assert_is_algorithm_1(query, key, (initial[0], initial[1]), 1)
    names: tuple[Implementation, ...] = ("auto", "torch")
    for implementation in names:
        for cluster in (co_cluster, k_means):
            for dtype in (torch.float64, torch.float32):
                clusters = cluster(
                    query.to(dtype),
                    key.to(dtype),
                    *counts,
                    iterations=1,
                    initial=(initial[0], initial[1]),
                    implementation=implementation,
                )
                assert clusters.query.labels.max() < case.query_blocks
                assert clusters.key.labels.max() < case.key_blocks


def test_a_centroid_of_zero_affinity_scores_zero() -> None:
    query = torch.tensor([[1.0, 0.0], [2.0, 0.0]], dtype=torch.float64).view(1, 1, 2, 2)
    key = torch.tensor([[0.0, 1.0], [1.0, 1.0], [-1.0, 0.0]], dtype=torch.float64).view(1, 1, 3, 2)
    initial = query[:, :, :1], key[:, :, :2]
    assert_is_algorithm_1(query, key, initial, 1)
    labels = co_cluster(query, key, 1, 2, iterations=1, initial=initial).key.labels
    # Centroid 0 is orthogonal to the query: it scores 0, above centroid 1's negative score for the
    # last key.
    assert labels.flatten().tolist() == [0, 1, 0]


def test_tokens_of_zero_and_tiny_numbers_in_single_precision() -> None:
    query, key = normal(1, 2, 30, 8), normal(1, 2, 40, 8, seed=1)
    plain = co_cluster(query, key, 4, 6)
    # Squares of affinities would underflow.
    tiny = co_cluster(query * 2.0**-60, key * 2.0**-60, 4, 6)
    assert torch.equal(plain.key.labels, tiny.key.labels)
    zero = co_cluster(torch.zeros_like(query), torch.zeros_like(key), 4, 6)
    assert zero.key.labels.max() == 0
    assert zero.key.sizes[..., 0].tolist() == [[40, 40]]


@given(case=cases())
def test_clusters_are_consistent(case: Case) -> None:
    query, key, _ = case.tokens()
    clusters = co_cluster(query, key, case.query_blocks, case.key_blocks)
    for side, tokens in ((clusters.query, query), (clusters.key, key)):
        assert side.sizes.sum(dim=-1).unique().tolist() == [tokens.shape[2]]
        for cluster in range(side.sizes.shape[2]):
            count = (side.labels == cluster).sum(dim=-1)
            assert torch.equal(count, side.sizes[..., cluster])
    again = from_sorted(query, key, clusters.query.sorted(), clusters.key.sorted())
    full = clusters.key.sizes > 0
    torch.testing.assert_close(again.key.centroids[full], clusters.key.centroids[full])
    assert torch.equal(again.key.sizes, clusters.key.sizes)


def test_an_empty_cluster_keeps_its_centroid() -> None:
    query = normal(1, 1, 10, 4)
    far = query[:, :, :1].repeat(1, 1, 2, 1)  # the second of two equals gets nothing
    clusters = co_cluster(query, query, 2, 2, iterations=1, initial=(far, far))
    assert clusters.key.sizes.flatten().tolist() == [10, 0]
    assert torch.equal(clusters.key.centroids[0, 0, 1], query[0, 0, 0])


@given(case=cases(), iterations=st.integers(1, 3))
def test_k_means_takes_the_nearest_centroid(case: Case, iterations: int) -> None:
    query, key, _ = case.tokens(torch.float64)
    start = first_tokens(query, key, case)
    clusters = k_means(
        query, key, case.query_blocks, case.key_blocks, iterations=iterations, initial=start
    )
    for side, tokens, centres in (
        (clusters.query, query, start[0]),
        (clusters.key, key, start[1]),
    ):
        for b in range(case.batch):
            for h in range(case.heads):
                centre, labels = centres[b, h], torch.zeros(0)
                for _ in range(iterations):
                    labels = torch.cdist(
                        tokens[b, h], centre, compute_mode="donot_use_mm_for_euclid_dist"
                    ).argmin(dim=-1)
                    centre = means(tokens[b, h], labels, centre)
                assert torch.equal(side.labels[b, h], labels)
                torch.testing.assert_close(side.centroids[b, h], centre)


@pytest.mark.parametrize("cluster", [co_cluster, k_means])
def test_chunks_do_not_change_labels(cluster: object, monkeypatch: pytest.MonkeyPatch) -> None:
    query, key = normal(2, 2, 300, 8), normal(2, 2, 200, 8, seed=1)
    assert callable(cluster)
    whole: CoClusters = cluster(query, key, 5, 7, implementation="torch")
    monkeypatch.setattr(clustering_module, "_CHUNK_ELEMENTS", 7 * 64)
    parts: CoClusters = cluster(query, key, 5, 7, implementation="torch")
    assert torch.equal(whole.key.labels, parts.key.labels)
    assert torch.equal(whole.query.labels, parts.query.labels)


def test_half_precision_mostly_agrees_with_exact() -> None:
    query, key = (
        normal(1, 4, 500, 32),
        normal(1, 4, 500, 32, seed=1) + 3,
    )  # keys share a large mean
    exact = co_cluster(query.double(), key.double(), 8, 16, iterations=1)
    rounded = co_cluster(query.bfloat16(), key.bfloat16(), 8, 16, iterations=1)
    assert rounded.key.centroids.dtype == torch.float32
    assert (exact.key.labels == rounded.key.labels).double().mean() > 0.95


@pytest.mark.parametrize("cluster", [co_cluster, k_means])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kernels_cluster_as_torch_does(
    kernel_device: torch.device,
    cluster: Callable[..., CoClusters],
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clustering_module, "why_no_kernels", lambda _tokens: None)
    query = normal(2, 2, 150, 32, dtype=dtype).to(kernel_device)
    key = normal(2, 2, 170, 32, seed=1, dtype=dtype).add(3).to(kernel_device)
    exact, got = (
        cluster(query, key, 8, 20, iterations=1, implementation=name)
        for name in ("torch", "triton")
    )
    for one, other in ((exact.query, got.query), (exact.key, got.key)):
        agreement = (one.labels == other.labels).double().mean()
        assert agreement > (0.999 if dtype == torch.float32 else 0.95)
        assert other.sizes.sum(dim=-1).unique().tolist() == [one.labels.shape[2]]
        assert other.centroids.dtype == torch.float32
    again = from_sorted(query, key, *sort_sides((got.query.labels, got.key.labels), (8, 20)))
    full = got.key.sizes > 0
    torch.testing.assert_close(again.key.centroids[full], got.key.centroids[full])


@pytest.mark.compiler
@pytest.mark.parametrize("cluster", [co_cluster, k_means])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_clusters_of_the_cpp_kernels_are_torchs(
    cluster: Callable[..., CoClusters], dtype: torch.dtype
) -> None:
    query = normal(2, 2, 500, 32, dtype=dtype)
    key = normal(2, 2, 400, 32, seed=1, dtype=dtype).add(3)
    exact, got = (cluster(query, key, 8, 20, implementation=name) for name in ("torch", "cpp"))
    for one, other in ((exact.query, got.query), (exact.key, got.key)):
        assert (one.labels == other.labels).double().mean() > 0.99
        assert torch.equal(
            other.sizes,
            other.labels.new_zeros(other.sizes.shape).scatter_add_(
                2, other.labels, torch.ones_like(other.labels)
            ),
        )
        assert other.centroids.dtype == torch.float32
    again = from_sorted(
        query.double(), key.double(), *sort_sides((got.query.labels, got.key.labels), (8, 20))
    )
    for one, other in ((again.query, got.query), (again.key, got.key)):
        full = other.sizes > 0
        torch.testing.assert_close(
            other.centroids[full].double(), one.centroids[full], atol=1e-5, rtol=1e-5
        )


def test_an_implementation_asked_for_by_name_runs_or_says_why_not() -> None:
    query, key = normal(1, 1, 10, 4), normal(1, 1, 20, 4)
    with pytest.raises(BackendUnavailableError, match="triton: needs a CUDA tensor, got cpu"):
        co_cluster(query, key, 2, 3, implementation="triton")
    with pytest.raises(ConfigError, match="one of auto, triton, cpp, torch, got 'cuda'"):
        k_means(query, key, 2, 3, implementation="cuda")  # type: ignore[arg-type]


def test_the_draw_is_seeded_and_never_global() -> None:
    query, key = normal(1, 2, 50, 8), normal(1, 2, 50, 8, seed=1)
    before = torch.get_rng_state()
    first, second = co_cluster(query, key, 5, 9), co_cluster(query, key, 5, 9)
    other = co_cluster(query, key, 5, 9, generator=chance(7))
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(first.key.labels, second.key.labels)
    assert not torch.equal(first.key.labels, other.key.labels)


@pytest.mark.parametrize("cluster", [co_cluster, k_means])
@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ((11, 5), "query_clusters must be between 1 and the 10 query tokens, got 11"),
        ((5, 21), "key_clusters must be between 1 and the 20 key tokens, got 21"),
        ((0, 5), "query_clusters must be between 1"),
    ],
)
def test_more_clusters_than_tokens_or_none(
    cluster: Callable[..., CoClusters], counts: tuple[int, int], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        cluster(normal(1, 1, 10, 4), normal(1, 1, 20, 4), *counts)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize("cluster", [co_cluster, k_means])
def test_gradients_and_autocast_change_nothing(
    cluster: Callable[..., CoClusters], dtype: torch.dtype
) -> None:
    query, key = normal(1, 2, 60, 8, dtype=dtype), normal(1, 2, 50, 8, seed=1, dtype=dtype)
    plain = cluster(query, key, 4, 6)
    with torch.autocast("cpu", torch.bfloat16):
        again = cluster(query.requires_grad_(), key.requires_grad_(), 4, 6)
    assert torch.equal(plain.key.centroids, again.key.centroids)
    assert torch.equal(plain.query.labels, again.query.labels)
    assert not again.key.centroids.requires_grad


def test_bad_input() -> None:
    query, key = normal(1, 1, 10, 4), normal(1, 1, 20, 4)
    with pytest.raises(ConfigError, match="iterations"):
        co_cluster(query, key, 2, 2, iterations=0)
    with pytest.raises(NonFiniteError, match="initial key centroids hold NaN"):
        co_cluster(query, key, 2, 2, initial=(query[:, :, :2], key[:, :, :2] * torch.nan))
    with pytest.raises(
        ShapeError, match=r"initial key centroids must be \[1, 1, 3, 4\], got \[1, 1, 2, 4\]"
    ):
        co_cluster(query, key, 2, 3, initial=(query[:, :, :2], key[:, :, :2]))
    with pytest.raises(NonFiniteError):
        co_cluster(query, key * float("inf"), 2, 3)
