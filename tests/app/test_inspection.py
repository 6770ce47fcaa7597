import json
import re
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import torch
from making import made_profile
from PIL import Image

from svoo.app.inspection import (
    compare,
    draw,
    layer_rows,
    leave_out,
    spread,
    write_page,
    write_picture,
)
from svoo.errors import ConfigError, FileError, ProfileError


def test_rows_are_the_statistics_of_their_layer() -> None:
    profile = made_profile()
    rows = layer_rows(profile, 0.9)
    assert [row.layer for row in rows] == [0, 1, 2, 3, 4]
    here = profile.density[:, :, 3, :, 0].numpy()
    row = rows[3]
    assert row.mean == pytest.approx(here.mean())
    assert (row.least, row.most) == pytest.approx((here.min(), here.max()))
    assert row.over_heads == pytest.approx(here.std(axis=2).mean())
    assert row.over_inputs == pytest.approx(here.std(axis=0).mean())
    assert row.over_steps == pytest.approx(here.std(axis=1).mean())
    with pytest.raises(ProfileError, match=r"no mass 0\.5"):
        layer_rows(profile, 0.5)


def test_spread_finds_the_axis_that_varies() -> None:
    flat = torch.full((3, 4, 5, 2, 2), 0.5)
    for axis, name in ((0, "inputs"), (1, "steps"), (2, "layers"), (3, "heads")):
        shape = [1] * 5
        shape[axis] = flat.shape[axis]
        varied = flat + torch.linspace(-0.2, 0.2, flat.shape[axis]).view(shape)
        found = vars(spread(replace(made_profile(), density=varied)))
        for other in ("inputs", "steps", "layers", "heads"):
            assert (found[other] > 0.1) == (other == name)


def test_standard_errors_have_a_mean_and_a_maximum_or_are_unknown() -> None:
    profile = made_profile()
    assert profile.error is not None
    error = profile.error[..., 1].double().numpy()
    of_head = np.sqrt((error**2).sum(axis=1)) / error.shape[1]
    found = spread(profile).sampling
    assert found is not None
    assert (found.entry, found.worst_entry) == pytest.approx((error.mean(), error.max()))
    assert (found.head, found.worst_head) == pytest.approx((of_head.mean(), of_head.max()))
    assert spread(replace(profile, error=None)).sampling is None


def test_the_first_steps_are_left_out() -> None:
    profile = made_profile()
    later = leave_out(profile, 0.25)
    assert torch.equal(later.density, profile.density[:, 1:])
    assert torch.equal(later.sigma, profile.sigma[1:]) and len(later.stage) == 3
    assert later.error is not None and later.error.shape == later.density.shape
    with pytest.raises(ConfigError, match="0.9 of 4 steps left out leaves none"):
        leave_out(profile, 0.9)
    for part in (-0.1, 1.0, float("nan")):
        with pytest.raises(ConfigError, match="to leave out must be from 0 to below 1"):
            leave_out(profile, part)


def test_comparison_agrees_with_scipy_and_names_the_worst_heads() -> None:
    first, second = made_profile(0), made_profile(1)
    found = compare(first, second)
    mine = first.density[..., 1].mean(dim=(0, 1)).flatten().double()
    theirs = second.density[..., 1].mean(dim=(0, 1)).flatten().double()
    assert found.correlation == pytest.approx(scipy.stats.pearsonr(mine, theirs).statistic)
    assert found.rank_correlation == pytest.approx(scipy.stats.spearmanr(mine, theirs).statistic)
    assert found.mean_difference == pytest.approx(float((mine - theirs).mean()))
    layer, head, one, other = found.worst[0]
    assert abs(one - other) == pytest.approx(float((mine - theirs).abs().max()))
    assert one == pytest.approx(float(mine[2 * layer + head]))
    same = compare(first, first)
    assert same.correlation == pytest.approx(1) and same.mean_distance == 0


def test_heads_that_are_all_alike_have_no_correlation() -> None:
    profile = made_profile()
    same = replace(profile, density=torch.ones_like(profile.density))
    found = compare(same, same, 0.9)
    assert found.correlation is None and found.rank_correlation is None
    json.dumps(asdict(found), allow_nan=False)


def test_profiles_of_other_steps_are_compared_at_the_same_noise_levels() -> None:
    first = made_profile()
    fewer = first.at_sigmas(first.sigma[::2])
    assert compare(fewer, first).mean_distance == pytest.approx(0, abs=1e-6)


def test_profiles_that_do_not_belong_together() -> None:
    first = made_profile()
    with pytest.raises(ProfileError, match="5 layers x 1 heads, the model has 5 x 2"):
        compare(first, replace(first, density=first.density[..., :1, :], error=None))
    with pytest.raises(ProfileError, match="different stages"):
        compare(replace(first, stage=torch.tensor([0, 0, 1, 1])), first)


def test_page_and_picture(tmp_path: Path) -> None:
    write_picture(made_profile(), tmp_path / "new" / "p.png")
    with Image.open(tmp_path / "new" / "p.png") as picture:
        assert picture.width > 800
    write_page(made_profile(), tmp_path / "p.html")
    page = (tmp_path / "p.html").read_text()
    assert "&lt;tiny &amp; mean&gt;" in page and "<tiny" not in page
    assert page.count("<tr><td>") >= 5
    found = spread(made_profile()).sampling
    assert found is not None
    for figure in vars(found).values():
        assert f"{figure:.4f}" in page
    write_page(replace(made_profile(), error=None), tmp_path / "unknown.html")
    assert "sampling rows: unknown." in (tmp_path / "unknown.html").read_text()
    assert not re.search(r'(src|href)="(?!data:)', page)  # nothing is fetched from elsewhere
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(FileError, match="cannot write"):
        write_page(made_profile(), tmp_path / "file" / "p.html")


def test_pictures_say_what_they_show() -> None:
    heat, by_layer, by_step, budget = draw(made_profile()).axes[:4]
    for axis in (heat.xaxis, heat.yaxis, by_layer.xaxis, budget.xaxis, budget.yaxis):
        assert all(float(place).is_integer() for place in axis.get_ticklocs())
    assert "band over inputs" in by_layer.get_title()
    assert "noise level" in by_step.get_title()
    one = made_profile().density[:1]
    alone = draw(replace(made_profile(), density=one, error=None)).axes[1]
    assert "one input: no band" in alone.get_title()
