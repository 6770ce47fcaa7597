import pytest
import torch

from tools.training.muon import Muon, orthogonalise


@pytest.mark.parametrize("shape", [(8, 8), (4, 16), (16, 4)])
def test_singular_values_come_near_one(shape: tuple[int, int]) -> None:
    matrices = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0))
    found = orthogonalise(matrices)
    values = torch.linalg.svdvals(found)
    assert bool(((values > 0.3) & (values < 1.4)).all())
    # The directions stay: along those of the matrix it is diagonal.
    left, _, right = torch.linalg.svd(matrices, full_matrices=False)
    turned = left.mT @ found @ right.mT
    torch.testing.assert_close(turned, torch.diag_embed(turned.diagonal(dim1=-2, dim2=-1)))


def test_steps_are_torchs_own() -> None:
    torch.manual_seed(0)
    ours = [torch.nn.Parameter(torch.randn(6, 10)), torch.nn.Parameter(torch.randn(6, 10))]
    theirs = [torch.nn.Parameter(value.detach().clone()) for value in ours]
    one = Muon([{"params": ours}], lr=0.02, momentum=0.9, weight_decay=0.1)
    two = torch.optim.Muon(
        theirs, lr=0.02, momentum=0.9, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"
    )
    before = ours[0].detach().clone()
    for _ in range(3):
        for mine, other in zip(ours, theirs, strict=True):
            mine.grad = torch.randn_like(mine)
            other.grad = mine.grad.clone()
        one.step()
        two.step()
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, atol=2e-3, rtol=0)  # theirs is in bfloat16
    assert float((ours[0].detach() - before).abs().mean()) > 0.003
