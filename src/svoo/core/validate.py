"""What every entrance asks of its tensors: checked once there, then trusted."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

from svoo.errors import ConfigError, NonFiniteError, ShapeError

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
Given = ParamSpec("Given")
Result = TypeVar("Result")


def inference_only(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Run a function of tensors without gradients, outside autocast (which would round what has
    to be accumulated in float32), and outside the graphs of `torch.compile`."""

    def call(*given: Given.args, **named: Given.kwargs) -> Result:
        devices = (getattr(value, "device", None) for value in (*given, *named.values()))
        kinds = [device.type for device in devices if isinstance(device, torch.device)]
        kind = next((kind for kind in kinds if kind != "cpu"), "cpu")
        known = kind if torch.amp.is_autocast_available(kind) else "cpu"
        with torch.no_grad(), torch.autocast(known, enabled=False):
            return function(*given, **named)

    @wraps(function)
    def run(*given: Given.args, **named: Given.kwargs) -> Result:
        if torch.compiler.is_compiling():  # asked here, because `disable` imports the compiler
            outside: Callable[Given, Result] = torch.compiler.disable(call)
            return outside(*given, **named)
        return call(*given, **named)

    return run


def check_type(name: str, value: object, *types: type, advice: str = "") -> None:
    """Refuse a value that is of none of these types; `advice` says what to write instead."""
    if not isinstance(value, types):
        wanted = " or ".join(kind.__name__ for kind in types)
        more = f": {advice}" if advice else ""
        raise ConfigError(f"{name} must be a {wanted}, got {type(value).__name__}{more}")


def check_tensor(name: str, tensor: object) -> None:
    """Refuse what is no plain tensor with numbers in it."""
    if not isinstance(tensor, Tensor):
        raise ShapeError(
            f"{name} must be a torch.Tensor, got {type(tensor).__name__}: use torch.as_tensor(...)"
        )
    if tensor.layout != torch.strided or tensor.is_nested or tensor.device.type == "meta":
        raise ShapeError(
            f"{name} must be a dense tensor with numbers, got {tensor.layout} on {tensor.device}"
        )


def check_tokens(
    query: Tensor, key: Tensor, value: Tensor | None = None, *, finite: bool = True
) -> None:
    """Refuse tensors that are not `[B, H, N, D]`, `[B, H, M, D]`, `[B, H, M, D]` or (if `finite`)
    hold NaN or infinity.

    The finite check waits for the device; pass `finite=False` where that costs too much.
    """
    given = {"query": query, "key": key} | ({} if value is None else {"value": value})
    for name, tensor in given.items():
        check_tensor(name, tensor)
        if tensor.ndim != 4:
            raise ShapeError(
                f"{name} must be [batch, heads, tokens, head size], got {tensor.ndim} axes: "
                f"{_shape(tensor)}"
            )
        if tensor.dtype not in DTYPES:
            names = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
            raise ShapeError(f"{name} must be floating point ({names}), got {tensor.dtype}")
        if 0 in tensor.shape:
            raise ShapeError(f"{name} has an empty axis: {_shape(tensor)}")
        if (tensor.dtype, tensor.device) != (query.dtype, query.device):
            raise ShapeError(
                f"{name} is {tensor.dtype} on {tensor.device}, but query is {query.dtype} on "
                f"{query.device}"
            )
    for name, axis in (("batch", 0), ("heads", 1), ("head size", 3)):
        sizes = [tensor.shape[axis] for tensor in given.values()]
        if len(set(sizes)) > 1:
            shapes = ", ".join(f"{name} {_shape(tensor)}" for name, tensor in given.items())
            raise ShapeError(f"{name} differs between {shapes}")
    if value is not None and value.shape[2] != key.shape[2]:
        raise ShapeError(f"key has {key.shape[2]} tokens, but value has {value.shape[2]}")
    if finite:
        for name, tensor in given.items():
            if name != "value" and not is_finite(tensor):
                raise NonFiniteError(
                    f"{name} holds NaN or infinity; the attention logits would too"
                )


def is_finite(tensor: Tensor) -> bool:
    """Return whether a tensor holds neither NaN nor infinity; waits for the device.

    Its extremes say it (NaN is both of them), and hold no second copy of the tensor, as
    `torch.isfinite` does.
    """
    return bool(torch.isfinite(torch.stack((tensor.amax(), tensor.amin()))).all())


def check_mass(*masses: float) -> None:
    """Refuse a mass outside (0, 1]."""
    for mass in masses:
        if not isinstance(mass, int | float) or not 0 < mass <= 1:
            raise ConfigError(f"mass must be in (0, 1], got {mass!r}")


def check_budgets(budgets: Tensor, batch: int, heads: int, *, values: bool = True) -> None:
    """Refuse budgets that are not `[H]` or `[B, H]` or (if `values`, which waits for the device)
    not in [0, 1]."""
    check_tensor("budgets", budgets)
    if budgets.shape not in ((heads,), (batch, heads)):
        raise ShapeError(f"budgets must be [{heads}] or [{batch}, {heads}], got {_shape(budgets)}")
    if values and not bool(((budgets >= 0) & (budgets <= 1)).all()):  # false for NaN too
        low, high = (float(extreme) for extreme in budgets.aminmax())
        raise ConfigError(
            f"budgets are kept fractions and must be in [0, 1], got {low:g} to {high:g}"
        )


def default_scale(query: Tensor, scale: float | None) -> float:
    """Return the logit scale: the given one, else 1 / sqrt(head size)."""
    if scale is None:
        return 1 / math.sqrt(query.shape[-1])
    if not isinstance(scale, float | int) or not math.isfinite(scale):
        raise ConfigError(f"scale must be a finite number, got {scale!r}")
    return float(scale)


def accumulation_dtype(tensor: Tensor) -> torch.dtype:
    """Return float64 for float64 and float32 for everything narrower."""
    return torch.promote_types(tensor.dtype, torch.float32)


def _shape(tensor: Tensor) -> str:
    return str(list(tensor.shape))
