import io
import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import save

from svoo import Profile
from svoo.app.tables import profile_tables
from svoo.errors import ConfigError, FileError, ProfileError
from svoo.profiles.profile import flow_sigmas


def random_profile(inputs: int = 3, steps: int = 6, stages: int = 2) -> Profile:
    density = torch.rand(inputs, steps, 4, 2, 2, generator=torch.Generator().manual_seed(0))
    stage = torch.arange(steps) * stages // steps
    masses = torch.tensor([0.9, 0.95], dtype=torch.float64)
    return Profile(density, flow_sigmas(steps, 5.0), stage, masses, {"model": "tiny"})


def test_saving_and_loading_gives_the_same_and_the_same_bytes(tmp_path: Path) -> None:
    profile = random_profile()
    profile.save(tmp_path / "a.safetensors")
    again = Profile.load(tmp_path / "a.safetensors")
    for name in ("density", "sigma", "stage", "masses"):
        assert torch.equal(getattr(again, name), getattr(profile, name))
    assert again.provenance == {"model": "tiny"}
    again.save(tmp_path / "b.safetensors")
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.safetensors", "b.safetensors"]


def test_a_failed_save_leaves_the_old_file_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "p.safetensors"
    random_profile().save(path)
    before = path.read_bytes()

    def full(_self: Path, _data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(FileError, match="cannot write .*No space left"):
        random_profile(inputs=1).save(path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["p.safetensors"]


def stored(**changes: torch.Tensor | str) -> bytes:
    """The bytes of a file with some of its tensors, or its facts, changed."""
    profile = random_profile()
    tensors: dict[str, torch.Tensor] = {
        name: getattr(profile, name) for name in ("density", "sigma", "stage", "masses")
    }
    facts = str(changes.pop("facts", '{"format": "svoo-profile-1"}'))
    return save(tensors | changes, metadata={"svoo": facts})  # type: ignore[arg-type]


def replaced(old: bytes, new: bytes) -> bytes:
    """The bytes of a file with its header changed."""
    whole = stored()
    header = int.from_bytes(whole[:8], "little")
    text = whole[8 : 8 + header].replace(old, new)
    return len(text).to_bytes(8, "little") + text + whole[8 + header :]


NESTED = b'{"__metadata__":{"svoo":' + json.dumps("[" * 100_000).encode() + b"}}"
NO_FILE = r"is not a whole \.safetensors file"
BAD_FILES = {
    **{f"cut at {at}": (stored()[:at], NO_FILE) for at in (0, 4, 8, 100, -1)},
    "a zip": (b"PK\x03\x04 not this at all", NO_FILE),
    "weights": (save({"weight": torch.zeros(3)}), "not a svoo-profile-1 one"),
    "another format": (stored(facts='{"format": "svoo-profile-9"}'), "not a svoo-profile-1 one"),
    "tensors missing": (
        save({"density": torch.zeros(1)}, metadata={"svoo": '{"format": "svoo-profile-1"}'}),
        "lacks masses, sigma, stage",
    ),
    "bits of integers": (stored().replace(b'"dtype":"F32"', b'"dtype":"I32"'), "density holds"),
    "a format torch has not": (replaced(b'"dtype":"F32"', b'"dtype":"F4"'), NO_FILE),
    "another it has not": (replaced(b'"dtype":"F32"', b'"dtype":"F8_E8M0"'), r"p\.safetensors"),
    "a header without end": (replaced(b'"format', b"[" * 100_000), NO_FILE),
    "facts without end": (len(NESTED).to_bytes(8, "little") + NESTED, NO_FILE),
    "complex numbers": (stored(sigma=torch.zeros(6, dtype=torch.complex64)), "complex numbers"),
    "a negative stage": (stored(stage=torch.arange(6) - 1), "stage must not be negative"),
    "half a character": (
        stored(facts=r'{"format": "svoo-profile-1", "model": "a\ud800b"}'),
        r"control characters or halves of characters: 'model' is 'a\\ud800b'",
    ),
    "a terminal's command": (
        stored(facts=r'{"format": "svoo-profile-1", "mo\u001b[2Jdel": "a"}'),
        r"control characters or halves of characters: 'mo\\x1b\[2Jdel' is 'a'",
    ),
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_foreign_truncated_and_corrupt_files_are_refused(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "p.safetensors"
    data, message = BAD_FILES[kind]
    path.write_bytes(data)
    with pytest.raises(ProfileError, match=message) as refused:
        Profile.load(path)
    assert str(path) in str(refused.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="cannot read the profile"):
        Profile.load(tmp_path / "p.safetensors")


@pytest.mark.parametrize("bad", [-0.1, 1.1, float("nan")])
def test_values_that_are_no_densities_are_refused(bad: float) -> None:
    profile = random_profile()
    density = profile.density.clone()
    density[0, 0, 0, 0, 0] = bad
    with pytest.raises(ProfileError, match=r"outside \[0, 1\] or NaN"):
        Profile(density, profile.sigma, profile.stage, profile.masses)
    with pytest.raises(ProfileError, match=r"sigma must be \[6\], got \[5\]"):
        Profile(profile.density, profile.sigma[1:], profile.stage, profile.masses)


def test_budgets_are_an_upper_quantile_over_inputs() -> None:
    profile = random_profile(inputs=50)
    density = profile.density[..., 1].double()
    z = 1.6448536269514722
    expected = (density.mean(dim=0) + z * density.std(dim=0, correction=0)).clamp(0, 1)
    torch.testing.assert_close(profile.budgets(0.95, 0.95), expected.float())
    torch.testing.assert_close(
        profile.budgets(0.9, over="max"), profile.density[..., 0].amax(dim=0)
    )
    torch.testing.assert_close(
        profile.budgets(0.9, over="mean"), profile.density[..., 0].mean(dim=0)
    )
    one = random_profile(inputs=1)
    torch.testing.assert_close(one.budgets(), one.density[0, ..., 1])
    with pytest.raises(ProfileError, match=r"no mass 0\.8, only 0\.9, 0\.95"):
        profile.budgets(0.8)
    with pytest.raises(ConfigError, match="quantile"):
        profile.budgets(quantile=1.0)


def test_another_step_count_is_interpolated_over_sigma_inside_a_stage() -> None:
    profile = random_profile(steps=6, stages=2)
    same = profile.at_sigmas(profile.sigma, profile.stage)
    torch.testing.assert_close(same.density, profile.density)
    middle = (profile.sigma[0] + profile.sigma[1]) / 2
    between = profile.at_sigmas(middle.view(1))
    torch.testing.assert_close(between.density[:, 0], profile.density[:, :2].mean(dim=1))
    # A noise level of stage 0's range asked for in stage 1 takes stage 1's nearest step, never a
    # mixture.
    other = profile.at_sigmas(profile.sigma[:1], torch.tensor([1]))
    torch.testing.assert_close(other.density[:, 0], profile.density[:, 3])
    lowest = profile.at_sigmas(torch.tensor([0.0]), torch.tensor([1]))
    torch.testing.assert_close(lowest.density[:, 0], profile.density[:, 5])
    with pytest.raises(ProfileError, match=r"no step of stage 2, only of \[0, 1\]"):
        profile.at_sigmas(torch.tensor([0.5]), torch.tensor([2]))


def test_a_model_of_another_shape_is_refused_with_both_numbers() -> None:
    random_profile().check_fits(4, 2)
    with pytest.raises(ProfileError, match="has 4 layers x 2 heads, the model has 30 x 12"):
        random_profile().check_fits(30, 12)


def test_a_pipeline_with_other_experts_is_refused_with_both_numbers() -> None:
    random_profile(stages=2).check_stages(2)
    message = r"has {} stages \(experts\), numbers {}; the pipeline has {}"
    with pytest.raises(ProfileError, match=message.format(2, r"\[0, 1\]", 1)):
        random_profile(stages=2).check_stages(1)
    with pytest.raises(ProfileError, match=message.format(1, r"\[0\]", 2)):
        random_profile(stages=1).check_stages(2)


def test_flow_sigmas_fall_from_one() -> None:
    sigma = flow_sigmas(50, 5.0)
    assert sigma[0] == 1
    assert bool((sigma.diff() < 0).all())
    assert sigma[25].item() == pytest.approx(5 * 0.5 / 3)


def mutate(data: bytes, chance: random.Random) -> bytes:
    """Damage a file: bytes changed, cut, doubled or inserted, most often in its header."""
    header = 8 + int.from_bytes(data[:8], "little")
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        place = chance.randrange(header if chance.random() < 0.8 else len(changed))
        end = place + chance.choice((1, 1, 2, 8, 64))
        kind = chance.randrange(5)
        if kind == 0:
            changed[place:end] = chance.randbytes(end - place)
        elif kind == 1:
            del changed[place:end]
        elif kind == 2:
            changed[place:place] = changed[place:end]
        elif kind == 3:
            changed[place:end] = chance.choice((b"-1", b"99999999999", b'"', b"{", b"null", b"[]"))
        else:
            del changed[place + 1 :]
        if not changed:
            break
    return bytes(changed)


def test_damaged_files_are_refused_clearly_or_still_hold_a_profile(tmp_path: Path) -> None:
    path = tmp_path / "p.safetensors"
    with_error = random_profile(steps=2, stages=1)
    with_error = replace(with_error, error=0.01 * torch.ones_like(with_error.density))
    with_error.save(path)
    whole = path.read_bytes()
    refused, console = 0, Console(file=io.TextIOWrapper(io.BytesIO(), "utf-8"))
    for seed in range(2500):
        path.write_bytes(mutate(whole, random.Random(seed)))
        try:
            loaded = Profile.load(path)
        except ProfileError as error:
            refused += 1
            assert str(path) in str(error)
        else:
            assert loaded.density.ndim == 5 and bool((loaded.density <= 1).all())
            console.print(*profile_tables(loaded))
    assert refused > 1500
    assert console.file.tell() > 0


def test_the_error_is_stored_interpolated_and_checked(tmp_path: Path) -> None:
    profile = random_profile()
    profile = replace(profile, error=torch.rand_like(profile.density))
    profile.save(tmp_path / "p.safetensors")
    again = Profile.load(tmp_path / "p.safetensors")
    assert again.error is not None and profile.error is not None
    assert torch.equal(again.error, profile.error)
    halved = again.at_sigmas(again.sigma[:3], again.stage[:3])
    assert halved.error is not None
    torch.testing.assert_close(halved.error, profile.error[:, :3])
    with pytest.raises(ProfileError, match="error must be like density"):
        replace(profile, error=torch.zeros(3))
    for bad in (-profile.error, profile.error / 0):
        with pytest.raises(ProfileError, match="negative values, infinity or NaN"):
            replace(profile, error=bad)


def test_merging_keeps_the_inputs_apart() -> None:
    one, two = random_profile(inputs=2), random_profile(inputs=3)
    two = replace(two, provenance={"model": "tiny", "prompts": "b"})
    one = replace(one, provenance={"model": "tiny", "prompts": "a"})
    both = Profile.merge([one, two])
    assert both.inputs == 5 and both.error is None
    assert torch.equal(both.density, torch.cat([one.density, two.density]))
    assert both.provenance == {"model": "tiny", "prompts": "a; b"}
    narrow = replace(two, sigma=two.sigma.float(), density=two.density.double())
    assert Profile.merge([one, narrow]).inputs == Profile.merge([narrow, one]).inputs == 5
    with pytest.raises(ProfileError, match="nothing to merge"):
        Profile.merge([])
    with pytest.raises(ProfileError, match="model is 'tiny' in one and 'other' in another"):
        Profile.merge([one, replace(two, provenance={"model": "other"})])
    with pytest.raises(ProfileError, match="sigma differs"):
        Profile.merge([one, replace(two, sigma=two.sigma / 2)])
    with pytest.raises(ProfileError, match="has 4 layers x 1 heads"):
        Profile.merge([one, replace(two, density=two.density[:, :, :, :1])])
