import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from svoo import Profile, SVOOConfig
from svoo.catalogue import find_model
from svoo.errors import ConfigError, FileError, ModelError, ProfileError
from svoo.profile import flow_sigmas
from svoo.schedule import Dense, Schedule, Sparse

OFFICIAL = {
    "sparsity_wan_1.3B_t2v.csv": ("wan2.1-t2v-1.3b", 0.127),
    "sparsity_wan_14B_t2v.csv": ("wan2.1-t2v-14b", 0.240),
    "sparsity_wan_14B_i2v.csv": ("wan2.1-i2v-14b", 0.209),
    "sparsity_wan22_A14B_t2v.csv": ("wan2.2-t2v-a14b", 0.239),
    "sparsity_wan22_A14B_i2v.csv": ("wan2.2-i2v-a14b", 0.196),
    "sparsity_hunyuan10_13B_t2v.csv": ("hunyuanvideo-t2v", 0.148),
    "sparsity_hunyuan10_13B_i2v.csv": ("hunyuanvideo-i2v", 0.160),
}


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


def test_foreign_truncated_and_corrupt_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.safetensors"
    with pytest.raises(ProfileError, match="cannot read the profile"):
        Profile.load(path)
    random_profile().save(path)
    whole = path.read_bytes()
    for length in (0, 4, 8, 100, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ProfileError, match=r"is not a whole \.safetensors file"):
            Profile.load(path)
    path.write_bytes(b"PK\x03\x04 not this at all")
    with pytest.raises(ProfileError, match="not a whole"):
        Profile.load(path)
    save_file({"weight": torch.zeros(3)}, path)
    with pytest.raises(ProfileError, match="not a svoo-profile-1 one"):
        Profile.load(path)
    save_file(
        {"density": torch.zeros(1, 1, 1, 1, 1)},
        path,
        metadata={"svoo": '{"format": "svoo-profile-1"}'},
    )
    with pytest.raises(ProfileError, match="lacks masses, sigma, stage"):
        Profile.load(path)
    path.write_bytes(whole.replace(b'"dtype":"F32"', b'"dtype":"I32"'))
    with pytest.raises(ProfileError, match=r"p\.safetensors"):  # the file's bits are no densities
        Profile.load(path)


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


@pytest.mark.parametrize("name", OFFICIAL)
def test_the_authors_tables(official_profiles: Path, name: str) -> None:
    model, mean = OFFICIAL[name]
    profile = Profile.from_official_csv(official_profiles / name, model)
    steps = profile.density.shape[1]
    assert profile.density[:, steps // 5 :].mean().item() == pytest.approx(mean, abs=6e-4)
    assert profile.stage.tolist() == sorted(profile.stage.tolist())
    assert len(set(profile.stage.tolist())) == (2 if "2.2" in model else 1)
    assert profile.budgets().shape == profile.density.shape[1:4]


def test_a_table_for_another_model_is_refused(official_profiles: Path, tmp_path: Path) -> None:
    path = official_profiles / "sparsity_wan_1.3B_t2v.csv"
    with pytest.raises(ProfileError, match="18000 entries, wan2.1-t2v-14b needs 80000"):
        Profile.from_official_csv(path, "wan2.1-t2v-14b")
    with pytest.raises(ProfileError, match="has only"):
        Profile.from_official_csv(
            official_profiles / "sparsity_wan_14B_t2v.csv", "wan2.1-t2v-1.3b"
        )
    with pytest.raises(ModelError, match="no model called"):
        Profile.from_official_csv(path, "sora")
    foreign = tmp_path / "x.csv"
    foreign.write_text("a,b\n1,2\n")
    with pytest.raises(ProfileError, match="not a table of the authors"):
        Profile.from_official_csv(foreign, "wan2.1-t2v-1.3b")
    with pytest.raises(ProfileError, match="cannot read"):
        Profile.from_official_csv(tmp_path / "none.csv", "wan2.1-t2v-1.3b")


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
    refused = 0
    for seed in range(2500):
        path.write_bytes(mutate(whole, random.Random(seed)))
        try:
            loaded = Profile.load(path)
        except ProfileError as error:
            refused += 1
            assert str(path) in str(error)
        else:
            assert loaded.density.ndim == 5 and bool((loaded.density <= 1).all())
    assert refused > 1500


def test_number_formats_that_torch_has_not_and_endless_nesting(tmp_path: Path) -> None:
    path = tmp_path / "p.safetensors"
    random_profile().save(path)
    whole = path.read_bytes()
    header = int.from_bytes(whole[:8], "little")
    for old, new in (
        (b'"dtype":"F32"', b'"dtype":"F4"'),
        (b'"dtype":"F32"', b'"dtype":"F8_E8M0"'),
        (b'"model', b"[" * 100_000),
    ):
        text = whole[8 : 8 + header].replace(old, new)
        path.write_bytes(len(text).to_bytes(8, "little") + text + whole[8 + header :])
        with pytest.raises(ProfileError, match=r"p\.safetensors"):
            Profile.load(path)
    nested = json.dumps("[" * 100_000).encode()
    text = b'{"__metadata__":{"svoo":' + nested + b"}}"
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    with pytest.raises(ProfileError, match=r"p\.safetensors"):
        Profile.load(path)


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
    with pytest.raises(ProfileError, match="negative values or NaN"):
        replace(profile, error=-profile.error)


def test_merging_keeps_the_inputs_apart() -> None:
    one, two = random_profile(inputs=2), random_profile(inputs=3)
    two = replace(two, provenance={"model": "tiny", "prompts": "b"})
    one = replace(one, provenance={"model": "tiny", "prompts": "a"})
    both = Profile.merge([one, two])
    assert both.inputs == 5 and both.error is None
    assert torch.equal(both.density, torch.cat([one.density, two.density]))
    assert both.provenance == {"model": "tiny", "prompts": "a; b"}
    with pytest.raises(ProfileError, match="nothing to merge"):
        Profile.merge([])
    with pytest.raises(ProfileError, match="model is 'tiny' in one and 'other' in another"):
        Profile.merge([one, replace(two, provenance={"model": "other"})])
    with pytest.raises(ProfileError, match="sigma differs"):
        Profile.merge([one, replace(two, sigma=two.sigma / 2)])
    with pytest.raises(ProfileError, match="has 4 layers x 1 heads"):
        Profile.merge([one, replace(two, density=two.density[:, :, :, :1])])


@pytest.mark.parametrize("name", OFFICIAL)
def test_an_authors_table_drives_the_release_mode(official_profiles: Path, name: str) -> None:
    model = OFFICIAL[name][0]
    profile = Profile.from_official_csv(official_profiles / name, model)
    config = SVOOConfig.release(model)
    steps = len(profile.sigma)
    schedule = Schedule(config, steps, profile.budgets())
    assert isinstance(schedule.at(0, 5), Dense)
    decision = schedule.at(steps - 1, 5)
    assert isinstance(decision, Sparse) and decision.budgets is not None
    table = profile.density[0, steps - 1, 5, :, 0]
    torch.testing.assert_close(decision.budgets, table.clamp(*config.budget_range))
    fewer = profile.at_sigmas(*_run(model, 30))
    serve = Schedule(config, 30, fewer.budgets())
    late = serve.at(29, 5)
    assert isinstance(late, Sparse) and late.budgets is not None
    below = (profile.sigma - fewer.sigma[29]).abs().argmin()
    near = profile.density[0, max(0, int(below) - 1) : int(below) + 2, 5, :, 0]
    low, high = (edge.clamp(*config.budget_range) for edge in (near.amin(0), near.amax(0)))
    assert bool(((low - 1e-6 <= late.budgets) & (late.budgets <= high + 1e-6)).all())


def _run(model: str, steps: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Noise levels and stages of a shorter run."""
    known = find_model(model)
    sigma = flow_sigmas(steps, known.flow_shift)
    stage = torch.zeros(steps, dtype=torch.int64)
    return sigma, stage if known.boundary is None else (sigma < known.boundary).long()
