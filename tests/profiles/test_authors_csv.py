from pathlib import Path

import numpy as np
import pytest
import torch

from svoo import Profile, SVOOConfig
from svoo.app.inspection import leave_out, spread
from svoo.catalogue import find_model
from svoo.errors import ModelError, ProfileError
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
