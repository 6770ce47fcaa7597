from dataclasses import replace

import pytest

from svoo.app.estimate.data import far_field_densities, mean_densities
from svoo.app.estimate.work import count_work
from svoo.catalogue import find_model
from svoo.errors import ConfigError
from svoo.methods import available_methods, find_method
from svoo.methods.svoo.config import SVOOConfig
from svoo.profiles.find import find_profile

MODEL = find_model("wan2.1-t2v-14b")
GRID = (21, 45, 80)


def test_paper_mode_keeps_the_authors_densities() -> None:
    work = count_work(find_method("paper", MODEL.name), MODEL, GRID, 50)
    found = mean_densities(MODEL)
    assert found is not None
    assert work.density == pytest.approx(sum(found.mean[1:]) / 39)
    assert (work.dense_steps, work.dense_layers, work.terms) == (10, 1, 0)
    assert work.dense_calls(50, 40) == pytest.approx(1 - 0.8 * 39 / 40)
    assert work.clustering == pytest.approx(2 * (256 + 1024) / (2 * 75_600) / 20 / 2)


def test_ours_keeps_less_and_has_terms() -> None:
    paper = count_work(find_method("paper", MODEL.name), MODEL, GRID, 50)
    ours = count_work(find_method("svoo", MODEL.name), MODEL, GRID, 50)
    assert 0 < ours.density < paper.density and 0 < ours.terms < 0.05
    assert "embedded model" in ours.source


def test_by_mass_the_embedded_model_has_its_own_profile_and_ramp() -> None:
    mini = find_model("mini")
    flat = SVOOConfig(mass=0.45, dense_steps=0, dense_layers=0)
    work = count_work(replace(flat, ramp=0.5), mini, (13, 18, 32), 20)
    assert "stored profile" in work.source and work.dense_steps == 0
    assert work.density > count_work(flat, mini, (13, 18, 32), 20).density > 0


def test_the_far_field_keeps_what_was_measured_and_looks_from_its_query_means() -> None:
    narrow, ours, wide = (
        count_work(config, MODEL, GRID, 50)
        for config in (SVOOConfig.careful(), SVOOConfig(), SVOOConfig.fast())
    )
    assert narrow.density > ours.density > wide.density > 0
    tolerances = SVOOConfig.careful().tolerance, SVOOConfig().tolerance
    assert tolerances[0] is not None and tolerances[1] is not None
    middle = (tolerances[0] * tolerances[1]) ** 0.5
    between = count_work(SVOOConfig(tolerance=middle), MODEL, GRID, 50)
    assert ours.density < between.density < narrow.density
    assert ours.dense_calls(50, 40) == 0
    assert ours.selection > 256 / 75_600


def test_on_other_models_the_far_fields_density_is_a_guess_and_says_so() -> None:
    mini = find_model("mini")
    there = count_work(SVOOConfig(), mini, (13, 18, 32), 20)
    assert not there.guessed and there.otherwise == ()
    default = SVOOConfig().tolerance
    assert default is not None
    measured = far_field_densities().by_tokens[7488]
    assert there.density == pytest.approx(measured[default])
    ours = count_work(SVOOConfig(), MODEL, GRID, 50)
    assert ours.guessed and ours.source.startswith("not measured on this model")
    profile = find_profile(mini, mini.layers, mini.heads)
    densities = mean_densities(MODEL)
    assert profile is not None and densities is not None
    required = sum(densities.mean) / 40
    at_most = float(profile.at_mass(0.95).mean())
    assert ours.density == pytest.approx(there.density * required / at_most)
    (_, keys), (_, paper) = ours.otherwise
    assert keys == pytest.approx(there.density * 7488 / 75_600)
    assert paper == pytest.approx(required)
    assert keys < ours.density < paper
    by_mass = count_work(SVOOConfig(mass=0.7), MODEL, GRID, 50)
    assert by_mass.guessed and by_mass.otherwise == ()
    for known in ("paper", "svg1", "sta"):
        assert not count_work(find_method(known, MODEL.name), MODEL, GRID, 50).guessed
    assert not count_work(SVOOConfig(), MODEL, GRID, 50, density=0.1).guessed


@pytest.mark.parametrize(
    ("name", "density"),
    [("dense", 1), ("svg1", 0.3), ("pisa", 0.125), ("vsa", 0.1), ("clusterattention", 0.2)],
)
def test_densities_that_settings_fix(name: str, density: float) -> None:
    work = count_work(find_method(name, MODEL.name), MODEL, GRID, 50)
    assert work.density == pytest.approx(density)


def test_densities_that_the_grid_fixes_and_noise_levels() -> None:
    small = count_work(find_method("sta", MODEL.name), MODEL, (6, 16, 16), 50)
    large = count_work(find_method("sta", MODEL.name), MODEL, (12, 32, 32), 50)
    assert 0 < large.density < small.density <= 1
    draft = count_work(find_method("draft", MODEL.name), MODEL, GRID, 50)
    assert 0 < draft.dense_steps < 50


def test_every_other_method_says_what_to_do() -> None:
    refused = []
    for row in available_methods():
        config = row.config.for_model(MODEL.name)
        try:
            count_work(config, MODEL, (4, 8, 8), 50)
        except ConfigError as error:
            assert "depends on the video: give --density" in str(error)
            refused.append(row.name)
        assert count_work(config, MODEL, (4, 8, 8), 50, density=0.2).density == 0.2
    assert {"svg2", "xattention"} <= set(refused)
    with pytest.raises(ConfigError, match="depends on the video: give --density"):
        count_work(SVOOConfig.release(MODEL.name), MODEL, GRID, 50)
    with pytest.raises(ConfigError, match="--density must be a number above 0 and up to 1, got 2"):
        count_work(SVOOConfig(), MODEL, GRID, 50, density=2)
