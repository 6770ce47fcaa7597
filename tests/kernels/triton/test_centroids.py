import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from making import Case, cases, chance, examples, far_apart, normal, plan_on

from svoo.core import clustering, far_field
from svoo.core.sorting import sort_labels
from svoo.kernels.triton.centroids import ROWS, fill_means, find_moments, update_centroids

pytestmark = pytest.mark.usefixtures("fresh_memory_is_nan")


@settings(max_examples=examples(60))
@given(
    case=cases(max_tokens=3 * ROWS, sizes=(5, 32, 64, 96, 128)),
    dtype=st.sampled_from((torch.bfloat16, torch.float16, torch.float32)),
)
def test_it_is_the_torch_form(kernel_device: torch.device, case: Case, dtype: torch.dtype) -> None:
    tokens = case.tokens(dtype)[0].to(kernel_device)
    skewed = torch.rand(tokens.shape[:3], generator=chance(case.seed)).square()
    labels = (
        (skewed * (case.query_blocks + 2)).long().to(kernel_device)
    )  # a block or two are empty
    old = normal(case.batch, case.heads, case.query_blocks + 3, case.size).to(kernel_device)
    expected = clustering.update_centroids(tokens, labels, old, by="torch")
    order, sizes = sort_labels(labels, old.shape[2])
    assert torch.equal(order, labels.argsort(dim=-1, stable=True))
    assert torch.equal(sizes, expected.sizes)
    means = update_centroids(tokens, order, sizes, old)
    assert means.dtype == torch.float32
    torch.testing.assert_close(means, expected.centroids, atol=2e-6, rtol=2e-6)
    empty = sizes == 0
    assert bool(empty.any())
    assert torch.equal(means[empty], old[empty])


@settings(max_examples=examples(40))
@given(
    case=cases(max_tokens=3 * ROWS, sizes=(5, 32, 96)),
    dtype=st.sampled_from((torch.bfloat16, torch.float16, torch.float32)),
)
def test_moments_are_the_torch_form(
    kernel_device: torch.device, case: Case, dtype: torch.dtype
) -> None:
    """Tokens far from 0, where sums of squares would lose all digits; blocks may be empty."""
    plan = case.plan(compensate=False)
    tokens = (case.tokens(torch.float64)[1] + 100).to(dtype)
    assert plan.key_order is not None
    expected = far_field.find_moments(tokens.double(), plan.key_order, plan.key_sizes, by="torch")
    here = plan_on(kernel_device, plan)
    mean, variance = find_moments(tokens.to(kernel_device), here.key_order, here.key_sizes)
    torch.testing.assert_close(mean.double().cpu(), expected.mean, atol=1e-5, rtol=2e-6)
    torch.testing.assert_close(variance.double().cpu(), expected.variance, atol=1e-5, rtol=1e-4)


def test_runs_without_an_order_strides_and_offsets_beyond_32_bits(
    kernel_device: torch.device,
) -> None:
    tokens = normal(1, 3, 10, 32, dtype=torch.bfloat16).to(kernel_device)
    sizes = torch.tensor([3, 0, 7], device=kernel_device).expand(1, 3, 3)
    expected = torch.stack(
        (tokens[:, :, :3].float().mean(dim=2), tokens[:, :, 3:].float().mean(dim=2)), dim=2
    )
    for same in (tokens, tokens.transpose(2, 3).contiguous().transpose(2, 3), far_apart(tokens)):
        means = torch.full((1, 3, 3, 32), 7.0, device=kernel_device)
        fill_means(same, None, sizes, means)
        torch.testing.assert_close(means[:, :, [0, 2]], expected)
        assert means[:, :, 1].unique().tolist() == [7.0]
