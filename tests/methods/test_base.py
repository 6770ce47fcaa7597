from typing import Any

import pytest

from svoo import Call, DenseConfig, MethodConfig, Run, VideoLayout, available_methods
from svoo.errors import ConfigError
from svoo.methods import find_method


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("dense_steps", 1.5),
        ("dense_steps", -1),
        ("dense_steps", True),
        ("dense_layers", 0.5),
        ("compensate", True),
        ("compensate", "none"),
        ("backend", None),
        ("seed", -1),
        ("strict", 1),
        ("measure_recall", "yes"),
    ],
)
def test_bad_values_are_refused_by_name(setting: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^{setting} must be .* got "):
        DenseConfig(**{setting: value})


def test_every_method_has_a_row_and_starts() -> None:
    for row in available_methods():
        assert row.config.name == row.name
        config = find_method(row.name, "wan2.1-t2v-1.3b")
        assert isinstance(config, row.config) and config.as_dict()["method"] == row.name
        assert config.start(Run(steps=20, layers=30, heads=12)).state_bytes == 0
        sparse = find_method(row.name).always_sparse()
        assert (sparse.dense_steps, sparse.dense_layers) == (0, 0)
    with pytest.raises(ConfigError, match="no method called 'magic'; there are dense, svoo"):
        find_method("magic")
    with pytest.raises(NotImplementedError, match="MethodConfig must say how it starts"):
        MethodConfig().start(Run(steps=1))


def test_which_video_a_sample_belongs_to() -> None:
    assert Call(0, 0).videos(3) == [0, 1, 2]
    assert Call(0, 0, branch=("uncond", "uncond", "cond", "cond")).videos(4) == [0, 1, 0, 1]
    assert Call(0, 0, branch=("cond", "uncond")).videos(2) == [0, 0]


def test_a_method_that_needs_the_grid_says_so() -> None:
    layout = VideoLayout(1, 2, 3)
    assert Call(0, 0, layout).need_layout("radial") is layout
    with pytest.raises(ConfigError, match="radial needs the grid of the video"):
        Call(0, 0).need_layout("radial")


def test_chance_depends_on_the_place_in_the_run_not_on_the_branch() -> None:
    def draw(call: Call) -> int:
        return int(call.chance(0).initial_seed())

    assert draw(Call(1, 2)) == draw(Call(1, 2, branch="uncond", head_offset=3))
    assert len({draw(Call(1, 2)), draw(Call(2, 1)), draw(Call(1, 2, stage=1))}) == 3
