import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from making import Case, cases, examples, far_apart, normal
from torch import Tensor

from svoo.kernels.triton.assign import assign, multiply_adds
from svoo.kernels.triton.tiles import Tile

pytestmark = pytest.mark.usefixtures("fresh_memory_is_nan")

SMALL = Tile(16, 16, warps=4, stages=1)


def exact_scores(tokens: Tensor, weights: Tensor, bias: Tensor) -> Tensor:
    """The definition, with weights rounded as the kernel is told to."""
    weights = weights.to(tokens.dtype).double()
    return tokens.double() @ weights.transpose(2, 3) + bias.double().unsqueeze(2)


@settings(max_examples=examples(60))
@given(
    case=cases(max_tokens=50, sizes=(5, 32, 64, 96, 128)),
    dtype=st.sampled_from((torch.bfloat16, torch.float16, torch.float32)),
    tile=st.sampled_from((SMALL, Tile(32, 32, warps=4, stages=1))),
)
def test_no_other_score_is_higher(
    kernel_device: torch.device, case: Case, dtype: torch.dtype, tile: Tile
) -> None:
    query, key, _ = case.tokens()
    tokens, weights = query.to(kernel_device, dtype), key.to(kernel_device)
    bias = -0.5 * weights.square().sum(dim=-1)
    labels = assign(tokens, weights, bias, tile)
    scores = exact_scores(tokens, weights, bias)
    chosen = scores.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    assert labels.dtype == torch.int64
    # Sums of `size` products in float32; float16 has few bits left for the smallest weights.
    slack = 1e-4 if dtype == torch.float16 else 2e-6
    reach = tokens.double().norm(dim=-1) * weights.double().norm(dim=-1).amax(-1, keepdim=True)
    assert bool((chosen >= scores.amax(dim=-1) - slack * (reach + bias.abs().amax())).all())


def test_labels_are_torchs_for_numbers_that_round_nowhere(kernel_device: torch.device) -> None:
    """Small whole numbers make many ties: the lowest index wins, within a tile and across."""
    tokens = normal(2, 3, 40, 32).mul(2).round().bfloat16().to(kernel_device)
    weights = normal(2, 3, 37, 32, seed=1).sign().to(kernel_device)
    weights[:, :, 20:] = weights[:, :, :17]  # equal centroids, in another tile
    bias = torch.zeros(2, 3, 37, device=kernel_device)
    scores = exact_scores(tokens, weights, bias)
    first = (scores == scores.amax(dim=-1, keepdim=True)).int().argmax(dim=-1)
    assert torch.equal(assign(tokens, weights, tile=SMALL), first)
    assert bool(((scores == scores.amax(dim=-1, keepdim=True)).sum(dim=-1) > 1).any())


def test_weights_beyond_float16(kernel_device: torch.device) -> None:
    tokens = normal(1, 2, 30, 32, dtype=torch.float16).to(kernel_device)
    weights = normal(1, 2, 9, 32, seed=1).to(kernel_device)
    assert torch.equal(assign(tokens, weights * 1e6), assign(tokens, weights))
    nothing = torch.zeros_like(weights)
    assert assign(tokens, nothing).unique().tolist() == [0]


def test_strided_tokens_and_offsets_beyond_32_bits(kernel_device: torch.device) -> None:
    tokens = normal(1, 3, 20, 32, dtype=torch.bfloat16).to(kernel_device)
    weights = normal(1, 3, 9, 32, seed=1).to(kernel_device)
    plain = assign(tokens, weights, tile=SMALL)
    as_diffusers = tokens.transpose(1, 2).contiguous().transpose(1, 2)
    columns = tokens.transpose(2, 3).contiguous().transpose(2, 3)
    for strided in (as_diffusers, columns, far_apart(tokens)):
        assert not strided.is_contiguous()
        assert torch.equal(assign(strided, weights, tile=SMALL), plain)


def test_the_count_covers_every_tile() -> None:
    assert multiply_adds(33, 17, 20, Tile(16, 16, 1, 1)) == (3 * 16) * (2 * 16) * 32
