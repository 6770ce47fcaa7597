import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from making import Case, cases, normal

from svoo.core import block_errors as block_errors_module
from svoo.core.block_errors import block_means, log_block_errors, log_block_masses
from svoo.core.clustering import CoClusters, from_sorted
from svoo.core.sorting import sort_sides


def clusters_of(case: Case, dtype: torch.dtype) -> CoClusters:
    query, key, _ = case.tokens(dtype)
    plan = case.plan(compensate=False)
    counts = case.query_blocks, case.key_blocks
    return from_sorted(query, key, *sort_sides((plan.query_blocks(), plan.key_blocks()), counts))


def slow(clusters: CoClusters, case: Case, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Errors and masses `[B, H, Cq, Ck]`, block by block as they are written."""
    _, key, value = case.tokens(torch.float64)
    errors = torch.zeros(case.batch, case.heads, case.query_blocks, case.key_blocks).double()
    masses = torch.zeros_like(errors)
    for b, h, i, j in torch.cartesian_prod(*(torch.arange(n) for n in errors.shape)).tolist():
        own = clusters.key.labels[b, h] == j
        if bool(own.any()):
            centroid = clusters.query.centroids[b, h, i] * scale
            weights = (key[b, h, own] @ centroid).exp()
            mean = (clusters.key.centroids[b, h, j] @ centroid).exp() * value[b, h, own].mean(0)
            parts = weights.unsqueeze(-1) * value[b, h, own] - mean
            errors[b, h, i, j], masses[b, h, i, j] = parts.square().sum(), weights.sum()
    return errors, masses


@settings(max_examples=40)
@given(case=cases(), scale=st.sampled_from((0.2, 1.0)), room=st.sampled_from((1, 100, 1 << 20)))
def test_it_is_the_written_sum(case: Case, scale: float, room: int) -> None:
    clusters = clusters_of(case, torch.float64)
    _, key, value = case.tokens(torch.float64)
    errors, masses = slow(clusters, case, scale)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_errors_module, "_CPU_ELEMENTS", room)
        found = log_block_errors(clusters, key, value, scale=scale)
        mass = log_block_masses(clusters, key, scale=scale)
    # A block of one token has no error: what is left of it is rounding.
    floor = 1e-24 * masses.square().clamp(min=1)
    torch.testing.assert_close(found.exp(), errors, rtol=1e-6, atol=float(floor.max()))
    torch.testing.assert_close(mass, masses.log())


def test_no_logit_is_too_large() -> None:
    case = Case(1, 2, 20, 30, 8, 3, 5, 0)
    query, key, value = case.tokens()
    clusters = clusters_of(case, torch.float32)
    double = clusters_of(case, torch.float64)
    _, wide_key, wide_value = case.tokens(torch.float64)
    found = log_block_errors(clusters, key, value, scale=60.0)
    expected = log_block_errors(double, wide_key, wide_value, scale=60.0)
    assert expected.max() > 2 * 88  # its square is far beyond float32
    filled = (clusters.key.sizes > 1).unsqueeze(2).expand_as(found)
    torch.testing.assert_close(found[filled].double(), expected[filled], rtol=1e-4, atol=1e-3)
    masses = log_block_masses(clusters, key, scale=60.0)
    wide = log_block_masses(double, wide_key, scale=60.0)
    torch.testing.assert_close(masses.double(), wide, rtol=1e-4, atol=1e-3)
    assert query.dtype == torch.float32


def test_empty_blocks_and_blocks_of_equal_tokens_have_no_error() -> None:
    tokens = normal(1, 1, 1, 4).expand(1, 1, 6, 4).bfloat16()
    labels = torch.tensor([0, 0, 0, 2, 2, 2]).view(1, 1, 6)
    clusters = from_sorted(tokens, tokens, *sort_sides((labels, labels), (3, 3)))
    errors = log_block_errors(clusters, tokens, tokens)
    assert bool((errors[..., 1] == -torch.inf).all()) and bool((errors < -20).all())
    assert bool((log_block_masses(clusters, tokens)[..., 1] == -torch.inf).all())
    means = block_means(tokens, clusters.key)
    assert means.dtype == torch.float32 and bool((means[:, :, 1] == 0).all())
    torch.testing.assert_close(means[0, 0, 0], tokens[0, 0, 0].float())


def test_theirs_overflows_where_logarithms_do_not() -> None:
    """SVG-EAR multiplies errors back by e^(2 max): in float32 all with logits from 45 on tie."""
    case = Case(1, 1, queries=12, keys=40, size=8, query_blocks=2, key_blocks=5, seed=0)
    clusters = clusters_of(case, torch.float32)
    _, key, value = case.tokens(torch.float32)
    logits = clusters.query.centroids @ key.mT  # [1, 1, blocks, tokens]
    scale = 60 / float(logits.amax())
    exact = slow(clusters_of(case, torch.float64), case, scale)[0].log()
    found = log_block_errors(clusters, key, value, scale=scale)
    torch.testing.assert_close(found.double(), exact, atol=1e-2, rtol=1e-3)
    top = logits.amax(dim=-1, keepdim=True) * scale
    theirs = (found - 2 * top).exp() * (2 * top).exp()
    assert theirs.isinf().any() and found.isfinite().all()
