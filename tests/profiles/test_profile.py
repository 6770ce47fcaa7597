import io
import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import save

from svoo import Profile, SVOOConfig
from svoo.app.inspection import leave_out, spread
from svoo.app.tables import profile_tables
from svoo.catalogue import find_model
from svoo.errors import ConfigError, FileError, ModelError, ProfileError
from svoo.methods.base import Call, Run
from svoo.methods.svoo.method import SVOOMethod
from svoo.methods.warm_up import warm_up
from svoo.profiles.profile import flow_sigmas

OFFICIAL = {  # the model and its mean density
    "sparsity_wan_1.3B_t2v.csv": ("wan2.1-t2v-1.3b", 0.127),
    "sparsity_wan_14B_t2v.csv": ("wan2.1-t2v-14b", 0.240),
    "sparsity_wan_14B_i2v.csv": ("wan2.1-i2v-14b", 0.209),
    "sparsity_wan22_A14B_t2v.csv": ("wan2.2-t2v-a14b", 0.239),
    "sparsity_wan22_A14B_i2v.csv": ("wan2.2-i2v-a14b", 0.196),
    "sparsity_hunyuan10_13B_t2v.csv": ("hunyuanvideo-t2v", 0.148),
    "sparsity_hunyuan10_13B_i2v.csv": ("hunyuanvideo-i2v", 0.160),
}


WAN = {"steps": (0.015, 0.027), "heads": (0.15, 0.22), "layers": (0.07, 0.12)}
HUNYUAN = {"steps": (0.015, 0.027), "heads": (0.11, 0.11), "layers": (0.17, 0.18)}


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


@pytest.mark.parametrize("name", OFFICIAL)
def test_the_authors_tables(official_profiles: Path, name: str) -> None:
    model, mean = OFFICIAL[name]
    profile = Profile.from_official_csv(official_profiles / name, model)
    found = spread(leave_out(profile, 0.2))
    assert found.mean == pytest.approx(mean, abs=6e-4)
    for axis, (least, most) in (WAN if "wan" in model else HUNYUAN).items():
        assert least - 0.006 < getattr(found, axis) < most + 0.006  # PEERS.md has two digits
    assert found.sampling is None and "rows" not in profile.provenance
    tokens = "75600" if "wan" in model else "118800"
    sizes = [profile.provenance[name] for name in ("tokens", "height", "width", "frames")]
    assert sizes == [tokens, "720", "1280", "81" if "wan" in model else "129"]
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
    lines = path.read_text().splitlines()
    (tmp_path / "twice.csv").write_text("\n".join([*lines, lines[7], lines[8]]))
    with pytest.raises(ProfileError, match=r"twice\.csv has 2 entries a second time"):
        Profile.from_official_csv(tmp_path / "twice.csv", "wan2.1-t2v-1.3b")
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


@pytest.mark.parametrize("name", OFFICIAL)
def test_an_authors_table_drives_the_release_mode(official_profiles: Path, name: str) -> None:
    model = OFFICIAL[name][0]
    profile = Profile.from_official_csv(official_profiles / name, model)
    config = SVOOConfig.release(model)
    steps = len(profile.sigma)
    whole = _start(config, profile, profile.sigma, profile.stage)
    fewer = _start(config, profile, *_run(model, 30))
    for step in range(steps):
        _check_targets(whole, step, profile.density[0, step, 5, :, 0])
    for step, (sigma, stage) in enumerate(zip(*_run(model, 30), strict=True)):
        here = profile.stage == stage  # by hand, head by head
        levels, table = profile.sigma[here].flip(0), profile.density[0, here, 5, :, 0].flip(0)
        expected = [np.interp(sigma, levels, head) for head in table.T]
        _check_targets(fewer, step, torch.tensor(expected, dtype=torch.float32))


def _start(
    config: SVOOConfig, profile: Profile, sigmas: torch.Tensor, stages: torch.Tensor
) -> SVOOMethod:
    run = Run(steps=len(sigmas), sigmas=sigmas, stage_of_step=stages, profile=profile)
    return SVOOMethod(config, run)


def _check_targets(method: SVOOMethod, step: int, table: torch.Tensor) -> None:
    """Layer 5 has the table's budgets, clipped, in all steps after the warm-up."""
    call = Call(step, 5)
    if warm_up(method.config, method.run.steps, call) is None:
        _, budgets = method.targets(call, len(table))
        clipped = table.clamp(*method.config.budget_range)
        torch.testing.assert_close(budgets, clipped, atol=1e-5, rtol=0)


def _run(model: str, steps: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Noise levels and stages of a shorter run."""
    known = find_model(model)
    sigma = flow_sigmas(steps, known.flow_shift)
    stage = torch.zeros(steps, dtype=torch.int64)
    return sigma, stage if known.boundary is None else (sigma < known.boundary).long()
