"""Where `profile="auto"` looks: beside the embedded model, then in the user's cache."""

from __future__ import annotations

from pathlib import Path

from svoo.catalogue import Model
from svoo.errors import ProfileError
from svoo.profiles.profile import PROFILE_MASS, Profile
from svoo.storage import cache_folder

_SHIPPED = Path(__file__).parents[1] / "mini" / "profile.safetensors"


def find_profile(model: Model | None, layers: int, heads: int) -> Profile | None:
    """Return the first stored profile of a recognised model that has its layers and heads."""
    if model is None:
        return None
    for path in (_SHIPPED, *sorted((cache_folder() / "profiles").glob("*.safetensors"))):
        if path.exists():
            try:
                profile = Profile.load(path)
            except ProfileError:
                continue  # somebody else's file; one that is asked for by name is never skipped
            if profile.provenance.get("model") == model.name:
                try:
                    profile.check_fits(layers, heads)
                    profile.at_mass(PROFILE_MASS)
                except ProfileError as error:
                    raise ProfileError(f"{path}: {error}") from error
                return profile
    return None
