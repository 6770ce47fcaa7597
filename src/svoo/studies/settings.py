"""The methods as studies compare them: the paper's five, ours, and all others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from svoo.errors import ConfigError
from svoo.methods import available_methods, find_method
from svoo.methods.base import MethodConfig
from svoo.methods.svoo.config import SVOOConfig
from svoo.studies.lab import Lab
from svoo.studies.runs import Setting

PAPER = "SVOO (paper)"
OURS = "ours"
BASELINES = ("spargeattn", "svg1", "svg2", "radial")  # of the paper's tables
_ALSO = ("sol", "clusterattention")  # the strongest that came after it
RIVALS = (PAPER, *BASELINES, *_ALSO)  # the main methods that ours is compared with


def check_methods(names: Sequence[str]) -> None:
    """Refuse a name that no method has."""
    known = [row.name for row in available_methods() if row.name != "dense"]
    for name in names:
        if name not in known:
            raise ConfigError(f"no method called {name!r}; there are {', '.join(known)}")


def main_settings(lab: Lab, warm_up: float) -> list[Setting]:
    """Return the rows of the paper's tables and the strongest others, with one warm-up for
    all."""
    names = [name for name in (*BASELINES, *_ALSO) if lab.wants(name)]
    configs: dict[str, MethodConfig] = {name: find_method(name, lab.model_name) for name in names}
    if lab.wants("svoo"):
        configs[PAPER] = paper_mode(lab)
        configs[OURS] = our_mode(lab)
    return [Setting(name, lab.prepare(config, warm_up)) for name, config in configs.items()]


def other_settings(lab: Lab, warm_up: float) -> list[Setting]:
    """Return every method that `main_settings` has not, and ours with other tolerances."""
    known = ("dense", "svoo", *BASELINES, *_ALSO)
    configs: dict[str, MethodConfig] = {}
    if lab.wants("svoo"):
        configs[f"{OURS}, fast"] = SVOOConfig.fast()
        configs[f"{OURS}, careful"] = SVOOConfig.careful()
    for row in available_methods():
        if row.name not in known and lab.wants(row.name):
            configs[row.name] = find_method(row.name, lab.model_name)
    return [Setting(name, lab.prepare(config, warm_up)) for name, config in configs.items()]


def paper_mode(lab: Lab) -> SVOOConfig:
    """Return SVOO with the paper's numbers for the model."""
    return SVOOConfig.paper(lab.model_name)


def our_mode(lab: Lab) -> SVOOConfig:
    """Return our default mode for the model."""
    config = find_method("svoo", lab.model_name)
    assert isinstance(config, SVOOConfig)
    return config


def changed(lab: Lab, base: MethodConfig, **changes: Any) -> MethodConfig:  # noqa: ANN401 (settings)
    """Return a config with some settings changed, as studies run it."""
    return replace(lab.prepare(base), **changes)
