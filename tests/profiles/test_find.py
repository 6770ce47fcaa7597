from dataclasses import replace
from pathlib import Path

import pytest
import torch

import svoo
from svoo import Profile
from svoo.catalogue import find_model
from svoo.errors import ProfileError
from svoo.mini import load
from svoo.profiles.find import find_profile
from svoo.profiles.profile import flow_sigmas
from svoo.storage import cache_folder


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


def test_the_embedded_model_finds_the_profile_that_is_shipped_with_it(cache: Path) -> None:
    mini = find_model("mini")
    profile("mini", mini.layers, mini.heads).save(cache / "a.safetensors")  # it comes second
    pipe = load()
    with svoo.apply(pipe, "paper") as handle:
        found = handle._runtime.profile
        assert found is not None and found.inputs >= 8
        assert found.provenance["model"] == "mini" and found.provenance["rows"] == "512"
        assert "from a profile (" in handle.stats().budgets
    shipped = Profile.load(Path(svoo.__file__).parent / "mini" / "profile.safetensors")
    assert torch.equal(found.density, shipped.density)


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
    refusal = r"c\.safetensors: .*has 30 layers x 12 heads, the model has 3 x 4"
    with pytest.raises(ProfileError, match=refusal):
        find_profile(model, 3, 4)
    other_mass = replace(found, masses=torch.tensor([0.9], dtype=torch.float64))
    other_mass.save(cache / "c.safetensors")
    with pytest.raises(ProfileError, match=r"c\.safetensors: .*0\.95"):
        find_profile(model, 30, 12)
