import pytest
import torch
import triton
import triton.language as tl
from making import normal
from torch import Tensor

from svoo.kernels.triton.launch import Launch, multiply, padded, products
from svoo.kernels.triton.tiles import Tile


def test_a_tile_holds_the_head_and_fits_a_tensor_core() -> None:
    assert [padded(size) for size in (1, 16, 17, 32, 80, 96, 128)] == [
        16,
        16,
        32,
        32,
        128,
        128,
        128,
    ]


@triton.jit  # type: ignore[untyped-decorator]
def _product(left, right, product, PRODUCTS: tl.constexpr) -> None:  # type: ignore[no-untyped-def] # noqa: ANN001
    rows, columns = tl.arange(0, 16)[:, None], tl.arange(0, 16)[None, :]
    a, b = tl.load(left + rows * 16 + columns), tl.load(right + rows * 16 + columns)
    tl.store(product + rows * 16 + columns, multiply(a, b, PRODUCTS))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_products_of_tiles(kernel_device: torch.device, dtype: torch.dtype) -> None:
    left = normal(16, 16, dtype=dtype).to(kernel_device)
    right = normal(16, 16, seed=1, dtype=dtype).to(kernel_device)
    product = torch.empty(16, 16, device=kernel_device)
    arguments: dict[str, Tensor | str] = {
        "left": left,
        "right": right,
        "product": product,
        "PRODUCTS": products(Tile(16, 16, 1, 1)),
    }
    Launch(_product, (1,), arguments, warps=1, stages=1).run()
    torch.testing.assert_close(product, left.float() @ right.float())
