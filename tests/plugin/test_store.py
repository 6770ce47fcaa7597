from pathlib import Path

import pytest
import torch
from making import made_profile

from svoo import Profile
from svoo.errors import ProfileError
from svoo.plugin.store import Store


def same(one: Profile | None, other: Profile) -> bool:
    return one is not None and torch.equal(one.density, other.density)


def test_what_is_done_survives_and_ends_as_one_file(tmp_path: Path) -> None:
    path, profile = tmp_path / "p.safetensors", made_profile()
    store = Store(path, dict(profile.provenance))
    assert store.begin(restart=False) is None
    store.keep(profile)
    assert not path.exists() and same(store.begin(restart=False), profile)
    store.finish(profile)
    assert [entry.name for entry in tmp_path.iterdir()] == ["p.safetensors"]
    assert same(store.begin(restart=False), profile)
    assert store.begin(restart=True) is None


def test_another_request_is_refused_with_what_differs(tmp_path: Path) -> None:
    path, profile = tmp_path / "p.safetensors", made_profile()
    Store(path, profile.provenance).finish(profile)
    other = Store(path, {**profile.provenance, "rows": "7"})
    with pytest.raises(
        ProfileError, match=r"(?s)another request:.*rows: .* there, 7 now.*restart"
    ):
        other.begin(restart=False)
