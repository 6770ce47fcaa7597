from types import SimpleNamespace
from typing import Any

import pytest
import studying

from svoo.catalogue import find_model
from svoo.errors import ConfigError
from svoo.methods import available_methods
from svoo.studies.lab import Lab
from svoo.studies.scale import Scale
from svoo.studies.settings import (
    OURS,
    PAPER,
    changed,
    check_methods,
    main_settings,
    other_settings,
    our_mode,
)


def lab(methods: list[str] | None = None) -> Lab:
    pipelines: Any = SimpleNamespace(model=find_model("mini"))
    scale = Scale(None, None, 4)
    return Lab(pipelines, [], scale, studying.empty(), machine="m", backend="cpp", methods=methods)


def test_every_method_is_in_one_of_the_two_lists_with_the_same_warm_up_and_backend() -> None:
    settings = [*main_settings(lab(), 0.2), *other_settings(lab(), 0.2)]
    names = [setting.name for setting in settings]
    assert len(set(names)) == len(names)
    own = {OURS, PAPER, f"{OURS}, fast", f"{OURS}, careful"}
    others = {row.name for row in available_methods()} - {"dense", "svoo"}
    assert set(names) == others | own
    for setting in settings:
        assert setting.config is not None
        facts = setting.config.dense_steps, setting.config.dense_layers, setting.config.backend
        assert facts == (0.2, 0, "cpp")
    assert all(
        setting.config is not None and setting.config.dense_steps == 0
        for setting in main_settings(lab(), 0.0)
    )


def test_some_methods_can_be_chosen() -> None:
    assert [found.name for found in main_settings(lab(["svg2"]), 0.2)] == ["svg2"]
    assert [found.name for found in other_settings(lab(["pisa"]), 0.2)] == ["pisa"]
    check_methods(["svg2", "svoo"])
    with pytest.raises(ConfigError, match="no method called 'svg3'; there are svoo, "):
        check_methods(["svg3"])


def test_a_changed_setting_is_checked() -> None:
    assert changed(lab(), our_mode(lab()), share_branches=False).backend == "cpp"
    with pytest.raises(ConfigError, match="clustering"):
        changed(lab(), our_mode(lab()), clustering="no such")
