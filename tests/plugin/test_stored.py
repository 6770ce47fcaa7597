from pathlib import Path

import pytest
import torch

from svoo import Profile
from svoo.catalogue import find_model
from svoo.errors import ProfileError
from svoo.files import cache_folder
from svoo.plugin.stored import find_profile
from svoo.profile import flow_sigmas


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = cache_folder() / "profiles"
    folder.mkdir(parents=True)
    return folder


def profile(model: str, layers: int, heads: int) -> Profile:
    masses = torch.tensor([0.95], dtype=torch.float64)
    density = torch.full((1, 4, layers, heads, 1), 0.3)
    return Profile(density, flow_sigmas(4, 5.0), torch.zeros(4).long(), masses, {"model": model})


def test_a_profile_is_found_by_its_model(cache: Path) -> None:
    model = find_model("wan2.1-t2v-1.3b")
    assert find_profile(model, 30, 12) is None
    assert find_profile(None, 30, 12) is None
    (cache / "a.safetensors").write_bytes(b"not a profile")
    profile("wan2.1-t2v-14b", 40, 40).save(cache / "b.safetensors")
    profile("wan2.1-t2v-1.3b", 30, 12).save(cache / "c.safetensors")
    found = find_profile(model, 30, 12)
    assert found is not None
    assert found.provenance["model"] == "wan2.1-t2v-1.3b"
    with pytest.raises(ProfileError, match="has 30 layers x 12 heads, the model has 3 x 4"):
        find_profile(model, 3, 4)
