"""What decides a recording, in words and hashes: the provenance of its profile."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from svoo.errors import ConfigError
from svoo.plugin.adapters import find_transformers
from svoo.plugin.apply import recognise

_SIZES = {  # the pipelines' words and the profile's
    "width": "width",
    "height": "height",
    "num_frames": "frames",
    "num_inference_steps": "asked steps",
    "guidance_scale": "guidance",
}


def describe_recording(
    pipe: Any,  # noqa: ANN401 (any pipeline class)
    inputs: Sequence[Mapping[str, Any]],
    measuring: Mapping[str, Any],
    call: Mapping[str, Any],
) -> dict[str, str]:
    """Return all that decides what a recording measures, as the provenance of its profile.

    `measuring` are the fields of a `RecordConfig`, `call` what every call is given.
    """
    model = recognise(pipe)
    signature = inspect.signature(type(pipe).__call__).parameters
    facts = {"model": model.name if model else _name(pipe), "weights": hash_weights(pipe)}
    # What begins with _ is diffusers' own: versions, and a list in the order of the hash seed.
    settings = {name: fact for name, fact in pipe.scheduler.config.items() if name[0] != "_"}
    facts["scheduler"] = f"{type(pipe.scheduler).__name__} {hash_settings(settings)}"
    for name, fact in _SIZES.items():
        default = signature[name].default if name in signature else None
        given = {str({**call, **entry}.get(name, default)) for entry in inputs}
        facts[fact] = given.pop() if len(given) == 1 else "varies"
    return describe_measuring(inputs, measuring, call) | facts


def describe_measuring(
    inputs: Sequence[Mapping[str, Any]], measuring: Mapping[str, Any], call: Mapping[str, Any]
) -> dict[str, str]:
    """Return the part of `describe_recording` that can be told without the pipeline, for inputs
    that have no sizes of their own."""
    shared = {name: value for name, value in call.items() if name not in _SIZES}
    facts = {fact: str(call[name]) for name, fact in _SIZES.items() if name in call}
    facts |= {
        "masses": " ".join(f"{mass:g}" for mass in measuring["masses"]),
        "every": str(measuring["every"]),
        "branch": measuring["branch"],
        "seed": str(measuring["seed"]),
        "inputs": " ".join(hash_settings({**shared, **entry}) for entry in inputs),
        "asked rows": say_rows(measuring["rows"]),
        "counted": "by sorting" if measuring["exact"] else "in bins",
    }
    for package in ("svoo", "torch", "diffusers"):
        facts[package] = metadata.version(package)
    return facts


def _name(pipe: Any) -> str:  # noqa: ANN401
    path = str(dict(getattr(pipe, "config", {})).get("_name_or_path") or "")
    return Path(path).name or type(pipe).__name__  # never the path of somebody's machine


def say_rows(rows: int | str | None) -> str:
    """Return how many query rows are sampled, in words."""
    return "all" if rows is None else str(rows)


def hash_settings(value: object) -> str:
    """Return a short name of a value that is the same in every process; refuse what has none."""
    return hashlib.sha256(_as_bytes(value)).hexdigest()[:12]


def _as_bytes(value: object) -> bytes:
    """Return bytes that tell a value from others in every process; refuse what has none."""
    data: list[bytes]
    if isinstance(value, Mapping):
        items = sorted(value.items(), key=lambda item: str(item[0]))
        kind, data = "mapping", [_as_bytes(part) for item in items for part in item]
    elif isinstance(value, list | tuple):
        kind, data = "list", [_as_bytes(part) for part in value]
    elif isinstance(value, Image.Image):
        kind = f"image {value.mode} {value.size}"
        data = [value.tobytes(), bytes(value.getpalette() or ())]
    elif isinstance(value, Tensor):
        kind = f"tensor {value.dtype} {list(value.shape)}"
        data = [value.detach().cpu().flatten().view(torch.uint8).numpy().tobytes()]
    elif isinstance(value, np.ndarray | np.generic) and value.dtype != object:
        kind, data = f"array {value.dtype} {value.shape}", [value.tobytes()]
    elif value is None or isinstance(value, str | bytes | int | float | torch.dtype | Path):
        kind, data = type(value).__name__, [repr(value).encode()]
    else:
        raise ConfigError(
            f"a recording cannot have a {type(value).__name__} among its settings, for nobody "
            "could tell whether it is the same when the recording goes on (seed= sets the noise)"
        )
    return b"".join(b"%d:%s" % (len(part), part) for part in (kind.encode(), *data))


def hash_weights(pipe: Any) -> str:  # noqa: ANN401
    """Return a fingerprint of some numbers of every parameter: enough to tell a retrained
    model."""
    return _hash_modules([transformer for transformer, _ in find_transformers(pipe)])


def hash_components(pipe: Any) -> str:  # noqa: ANN401
    """Return a fingerprint of the weights of all parts of a pipeline: transformers, autoencoder,
    text encoder."""
    parts = dict(sorted(pipe.components.items()))
    return _hash_modules([part for part in parts.values() if isinstance(part, nn.Module)])


def _hash_modules(modules: Sequence[nn.Module]) -> str:
    digest = hashlib.sha256()
    for module in modules:
        for value in module.parameters():
            if value.is_meta:  # offloaded one by one: there is nothing to read
                return "unknown"
            some = value.detach().flatten()[:: max(1, value.numel() // 64)]
            digest.update(some.float().cpu().numpy().tobytes())
    return digest.hexdigest()[:12]
