"""Hostile profiles: refused with one clear error that names the file.

`tests/profiles/test_profile.py` damages files at random; these are made on purpose.
"""

import json
import struct
from pathlib import Path

import pytest
import torch
from making import made_profile
from safetensors.torch import save
from torch import Tensor

from svoo import Profile
from svoo.errors import ProfileError
from svoo.plugin.provenance import hash_settings
from svoo.storage import locked

FACTS = {"svoo": '{"format": "svoo-profile-1"}'}


def tensors(**changes: Tensor) -> dict[str, Tensor]:
    profile = made_profile()
    names = ("density", "sigma", "stage", "masses")
    return {name: getattr(profile, name).contiguous() for name in names} | changes


def headed(header: object, body: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def entry(dtype: str, shape: list[int], start: int, end: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


WHOLE = save(tensors(), metadata=FACTS)
FILES = {
    "nothing": b"",
    "a header longer than the file": struct.pack("<Q", 2**63) + b"{}",
    "a header of two gigabytes": struct.pack("<Q", 2**31) + b"{" + b" " * 1000,
    "cut in the header": WHOLE[:50],
    "cut in the numbers": WHOLE[:-7],
    "numbers behind the end": WHOLE + b"more",
    "a shape that overflows": headed({"density": entry("F32", [2**62, 4], 0, 0)}),
    "a negative place": headed({"density": entry("F32", [1], -4, 0)}, bytes(4)),
    "two tensors in one place": headed(
        {"density": entry("F32", [1], 0, 4), "sigma": entry("F32", [1], 0, 4)}, bytes(4)
    ),
    "whole numbers for densities": save(
        tensors(density=torch.full((3, 4, 3, 2, 2), 7, dtype=torch.int32)), metadata=FACTS
    ),
    "yes and no for noise levels of another length": save(
        tensors(sigma=torch.ones(99, dtype=torch.bool)), metadata=FACTS
    ),
    "no axes at all": save(tensors(density=torch.tensor(0.5)), metadata=FACTS),
    "NaN": save(tensors(density=torch.full((3, 4, 3, 2, 2), torch.nan)), metadata=FACTS),
    "facts that are a list": save(tensors(), metadata={"svoo": "[1, 2]"}),
    "facts that are no JSON": save(tensors(), metadata={"svoo": "{"}),
    "a terminal's commands": save(
        tensors(),
        metadata={"svoo": json.dumps({"format": "svoo-profile-1", "model": "\x1b[2J"})},
    ),
}


@pytest.mark.parametrize("kind", FILES)
def test_hostile_profiles(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "p.safetensors"
    path.write_bytes(FILES[kind])
    with pytest.raises(ProfileError) as refused:
        Profile.load(path)
    assert str(path) in str(refused.value)


def test_a_folder_is_no_profile(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="it is a folder"):
        Profile.load(tmp_path)


def test_a_profile_does_not_change_with_its_file(tmp_path: Path) -> None:
    path = tmp_path / "p.safetensors"
    made_profile().save(path)
    loaded = Profile.load(path)
    path.write_bytes(b"")  # what is mapped from a file would now be gone
    assert torch.equal(loaded.density, made_profile().density)


def test_names_that_lead_elsewhere_stay_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert "/" not in hash_settings({"../../etc/passwd": "../.."})
    with locked(Path("../" * 30 + "etc/passwd")):
        found = [path.relative_to(tmp_path) for path in tmp_path.rglob("*.lock")]
    assert len(found) == 1 and found[0].parts[:3] == ("cache", "svoo", "locks")
