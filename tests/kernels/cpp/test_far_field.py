import pytest
import torch
from making import normal

from svoo.kernels.cpp.far_field import moments, see_blocks

pytestmark = pytest.mark.compiler


def test_tokens_in_any_layout() -> None:
    """The definition is in tests/core/test_far_field.py."""
    tokens = normal(2, 30, 3, 8).transpose(1, 2)
    order = normal(2, 3, 30, seed=1).argsort(dim=-1)
    sizes = torch.tensor([10, 0, 20]).expand(2, 3, 3)
    means, variances = moments(tokens, order, sizes)
    again = moments(tokens.mT.contiguous().mT, order.mT.contiguous().mT, sizes.contiguous())
    assert torch.equal(means, again[0]) and torch.equal(variances, again[1])
    parts = means[:, :, :2], means, tokens, tokens.flip(2), order, sizes
    seen = see_blocks(*parts, 0.5)
    q, c, k, v, o, s = (part.mT.contiguous().mT for part in parts)
    for one, two in zip(seen, see_blocks(q, c, k, v, o, s, 0.5), strict=True):
        assert torch.equal(one, two)


@pytest.mark.usefixtures("two_threads")
def test_threads_agree_with_one() -> None:
    tokens = normal(1, 3, 900, 32)
    order = torch.arange(900).expand(1, 3, 900)
    sizes = torch.full((1, 3, 90), 10)
    two = see_blocks(tokens[:, :, :50], tokens[:, :, :90], tokens, tokens, order, sizes, 0.2)
    torch.set_num_threads(1)
    one = see_blocks(tokens[:, :, :50], tokens[:, :, :90], tokens, tokens, order, sizes, 0.2)
    assert all(torch.equal(x, y) for x, y in zip(one, two, strict=True))
