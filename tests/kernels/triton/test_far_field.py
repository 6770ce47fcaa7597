import torch
from attending import FLOAT32, ROUNDING
from hypothesis import given, settings
from hypothesis import strategies as st
from making import Case, cases, examples, far_apart, plan_on

from svoo.backends.reference import block_means
from svoo.core.far_field import see_blocks
from svoo.kernels.triton.far_field import look
from svoo.kernels.triton.tiles import Tile

SMALL = Tile(16, 16, warps=4, stages=1)


@settings(max_examples=examples(40))
@given(
    case=cases(sizes=(5, 32, 96)),
    dtype=st.sampled_from(tuple(ROUNDING)),
    ordered=st.booleans(),
)
def test_it_is_the_definition(
    kernel_device: torch.device, case: Case, dtype: torch.dtype, ordered: bool
) -> None:
    query, key, value = case.tokens(dtype)
    plan = case.plan(compensate=False, ordered=ordered)
    centres = query[:, :, : case.query_blocks]
    means = block_means(key.double(), plan).to(dtype)
    order = torch.arange(case.keys).expand(case.batch, case.heads, -1)
    exact = see_blocks(
        centres.double(),
        means.double(),
        key.double(),
        value.double(),
        order if plan.key_order is None else plan.key_order,
        plan.key_sizes,
        scale=0.3,
        by="torch",
    )
    here = plan_on(kernel_device, plan)
    centres, means, key, value = (part.to(kernel_device) for part in (centres, means, key, value))
    log_sum, seen = look(
        centres,
        means,
        key,
        value,
        here.key_order,
        here.key_sizes,
        scale=0.3,
        tile=SMALL,
    )
    assert (log_sum.dtype, seen.dtype) == (torch.float32, dtype)
    torch.testing.assert_close(log_sum.double().cpu(), exact.bias, atol=3e-5, rtol=3e-5)
    # Weights are rounded before they meet the values, and so is their sum.
    largest = float(value.abs().max())
    limit = 2 * ROUNDING[dtype] * largest + FLOAT32 * (1 + largest)
    assert bool(((seen.double().cpu() - exact.value).abs() <= limit).all())
    empty = (plan.key_sizes == 0).unsqueeze(2).expand(exact.bias.shape)
    assert bool((seen.cpu()[empty] == 0).all())


def test_offsets_beyond_32_bits(kernel_device: torch.device) -> None:
    case = Case(1, 3, 20, 30, 32, 2, 4, seed=7)
    query, key, value = (side.to(kernel_device) for side in case.tokens(torch.bfloat16))
    plan = plan_on(kernel_device, case.plan(compensate=False))
    centres, means = query[:, :, :2], key[:, :, :4]

    def run(key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        order, sizes = plan.key_order, plan.key_sizes
        return look(centres, means, key, value, order, sizes, scale=0.2, tile=SMALL)

    for one, other in zip(run(far_apart(key), far_apart(value)), run(key, value), strict=True):
        assert torch.equal(one, other)
