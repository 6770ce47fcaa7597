import pytest
import torch
from making import chance

from svoo.core.sorting import SortedLabels, blocks_of_tokens, sort_labels, sort_sides


def draw(blocks: int, tokens: int = 50) -> torch.Tensor:
    return torch.randint(blocks, (2, 3, tokens), generator=chance(blocks))


@pytest.mark.parametrize("blocks", [1, 4, 200, 32_767, 32_768, 40_000])
def test_labels_are_sorted_and_found_again(blocks: int) -> None:
    """The way of a GPU, which is that of many blocks too, and the CPU's."""
    labels = draw(blocks)
    order, sizes = found = sort_labels(labels, blocks)
    assert torch.equal(order, labels.argsort(dim=-1, stable=True))
    assert torch.equal(sizes[1, 2], labels[1, 2].bincount(minlength=blocks))
    assert order.dtype == sizes.dtype == torch.int64
    assert torch.equal(found.labels(), labels)
    again = sort_sides((labels.short() if blocks < 2**15 else labels, labels), (blocks, blocks))
    assert all(torch.equal(side.order, order) for side in again)


def test_without_an_order_tokens_stand_as_they_are() -> None:
    sizes = torch.tensor([[[2, 0, 3]]])
    assert blocks_of_tokens(sizes, None, 5).flatten().tolist() == [0, 0, 2, 2, 2]


@pytest.mark.parametrize(
    ("tokens", "narrow"), [(50, torch.int16), (32_767, torch.int16), (32_768, torch.int32)]
)
def test_what_is_kept_is_narrow_and_says_the_same(tokens: int, narrow: torch.dtype) -> None:
    labels = draw(7, tokens)
    found = sort_labels(labels, 7)
    kept = found.narrowed()
    assert {part.dtype for part in kept} == {narrow}
    assert kept.nbytes == 2 * 3 * (tokens + 7) * narrow.itemsize
    assert torch.equal(kept.labels(), labels)
    for samples, expected in (([0, 1], labels), ([1, 0, 0], labels[[1, 0, 0]])):
        used = kept.of_samples(samples)
        assert isinstance(used, SortedLabels)
        assert used.order.dtype == used.sizes.dtype == torch.int64
        assert torch.equal(used.labels(), expected)
