"""Which diffusers the plug-in was written for: asked before any private name of it is imported."""

from __future__ import annotations

from importlib import metadata

from svoo.errors import ModelError

SUPPORTED = ((0, 42), (0, 43))


def check_version() -> None:
    """Refuse a missing diffusers, or one whose private names may differ."""
    low, high = (".".join(map(str, version)) for version in SUPPORTED)
    needed = f"the plug-in needs diffusers >= {low}, < {high}"
    advice = "pip install 'svoo[diffusers]'"
    try:
        found = metadata.version("diffusers")
    except metadata.PackageNotFoundError as error:
        raise ModelError(f"{needed}, and none is installed; {advice}") from error
    if not SUPPORTED[0] <= tuple(int(part) for part in found.split(".")[:2]) < SUPPORTED[1]:
        raise ModelError(f"{needed}, found {found}; {advice}")
