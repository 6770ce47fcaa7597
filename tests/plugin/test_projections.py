"""Output projections: read where they are plain, asked where they are not."""

import torch
from torch import Tensor, nn

from svoo.plugin.projections import Projection, weigh_projection

LIKE = torch.zeros(0)


class Hidden(nn.Module):
    """A projection whose weight nobody can read."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = (100 * weight).to(torch.int8)  # bytes, as quantised ones are
        self.layer = nn.Linear(weight.shape[1], weight.shape[0])
        with torch.no_grad():
            self.layer.weight.copy_(weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)  # type: ignore[no-any-return]


def test_each_head_is_weighed_by_the_norm_of_its_slice() -> None:
    weight = torch.randn(48, 12, generator=torch.Generator().manual_seed(0))
    weight[:, :4] *= 3
    layer = nn.Linear(12, 48)
    with torch.no_grad():
        layer.weight.copy_(weight)
    slices = torch.stack([weight[:, :4].norm() / 2, weight[:, 4:8].norm() / 2])
    found = weigh_projection(Projection(layer, 2, 8, 12), LIKE)  # the last four are no heads
    torch.testing.assert_close(found, slices)
    asked = weigh_projection(Projection(Hidden(weight), 2, 8, 12), LIKE)
    torch.testing.assert_close(asked, slices, rtol=0.15, atol=0)
