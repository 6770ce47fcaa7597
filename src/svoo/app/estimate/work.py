"""What a method computes of attention: its warm-up, density and overheads, as far as they can be
known before a run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import mean
from typing import Any

import numpy as np
import torch

from svoo.app.estimate.data import (
    Densities,
    far_field_densities,
    find_architecture,
    mean_densities,
    paper_mode_density,
)
from svoo.catalogue import Model, find_model
from svoo.core.cluster_counts import default_clusters, far_fineness
from svoo.core.features import FEATURES
from svoo.core.layout import VideoLayout
from svoo.errors import ConfigError
from svoo.methods.base import MethodConfig
from svoo.methods.dense import DenseConfig
from svoo.methods.svoo.config import SVOOConfig
from svoo.methods.warm_up import count_dense_steps
from svoo.profiles.find import find_profile
from svoo.profiles.profile import PROFILE_MASS, Profile, flow_sigmas
from svoo.session.one_call import make_plan

# Settings of other methods that say how much is kept, whatever the video shows.
_KEPT = {"density": 1, "keep": 1, "topk": 1, "sparsity": -1}
LOW = 0.1  # theta: heads of no more than this keep at least their budget
GUESSED = "not measured on this model"
_BY_GRID = ("radial", "sta")
_BY_CONTENT = ("rainfusion", "sol", "vmoba")  # there they are no share of all pairs


@dataclass(frozen=True)
class Work:
    """A method's part of attention: the calls that stay dense, and of the others the share of
    dense attention that each part computes."""

    dense_steps: int
    dense_layers: int
    density: float
    terms: float
    clustering: float
    selection: float
    source: str  # of the density
    iterations: float = 0.0  # of clustering, per sparse call
    guessed: bool = False  # the density was not measured on this model, nor is it a setting
    otherwise: tuple[tuple[str, float], ...] = ()  # then: other densities, and when they hold

    def dense_calls(self, steps: int, layers: int) -> float:
        """Return the share of calls that stay dense."""
        sparse = (1 - self.dense_steps / steps) * (1 - min(1.0, self.dense_layers / layers))
        return 1 - sparse


def count_work(
    config: MethodConfig,
    model: Model,
    grid: tuple[int, int, int],
    steps: int,
    density: float | None = None,
) -> Work:
    """Return the work of a method over a grid of tokens (frames, rows, columns); `density`
    replaces what is known of it. Refuse a method whose density depends on the video, with what to
    do."""
    tokens = math.prod(grid)
    dense_steps = count_dense_steps(config, steps)
    if hasattr(config, "dense_sigma"):
        levels = flow_sigmas(steps, model.flow_shift)
        dense_steps = max(dense_steps, int((levels > config.dense_sigma + 1e-6).sum()))
    if density is not None and not 0 < density <= 1:
        raise ConfigError(f"--density must be a number above 0 and up to 1, got {density:g}")
    otherwise: tuple[tuple[str, float], ...] = ()
    if density is not None:
        kept, source = density, "given"
    elif isinstance(config, SVOOConfig) and config.mass is None:
        kept, source, otherwise = _density_of_far_field(config, model, tokens)
    elif model.name == "mini" and config == SVOOConfig.paper("mini"):
        kept, source = paper_mode_density(tokens)
    elif isinstance(config, SVOOConfig):
        kept, source = _density_of_svoo(config, model, dense_steps, steps)
    elif config.name in _BY_GRID:
        kept, source = _density_on(grid, config), "its mask, which the grid of tokens fixes"
    else:
        kept, source = _density_of(config)
    parts = _parts_of_svoo(config, model, tokens, kept) if isinstance(config, SVOOConfig) else {}
    if isinstance(config, DenseConfig):
        parts = {"terms": 0.0, "clustering": 0.0, "selection": 0.0}
    elif not parts:
        blocks = tokens / getattr(config, "block", 64)
        summed = blocks / tokens * (1 - kept) if config.compensate else 0.0
        parts = {"terms": summed, "clustering": 0.0, "selection": blocks**2 / tokens**2 / 2}
    guessed = bool(otherwise) or GUESSED in source
    return Work(
        dense_steps,
        config.dense_layers,
        kept,
        source=source,
        guessed=guessed,
        otherwise=otherwise,
        **parts,
    )


def _density_on(grid: tuple[int, int, int], config: MethodConfig) -> float:
    """Return the density of a mask that needs no tokens to look at: of one head with zeros."""
    empty = torch.zeros(1, 1, math.prod(grid), 1)
    plan = make_plan(
        empty, empty, empty, config.always_sparse(), layout=VideoLayout(*grid), check=False
    )
    return float(plan.density().mean())


def _density_of(config: MethodConfig) -> tuple[float, str]:
    """Return the density that a method's own settings fix."""
    settings: dict[str, Any] = config.as_dict()
    if isinstance(config, DenseConfig):
        return 1.0, "dense"
    for name, sign in _KEPT.items():
        value = settings.get(name)
        if isinstance(value, float) and config.name not in _BY_CONTENT:
            return (value if sign > 0 else 1 - value), f"its setting {name}={value:g}"
    raise ConfigError(
        f"how much {config.name} keeps depends on the video: give --density, such as the one that "
        f"`svoo generate --method {config.name}` reports"
    )


def _density_of_far_field(
    config: SVOOConfig, model: Model, tokens: int
) -> tuple[float, str, tuple[tuple[str, float], ...]]:
    """Return the share of pairs that the far field keeps, where it is from and, for every model
    but the embedded one, what else it could be.

    It was measured on the embedded model alone, for a few tolerances at two sizes, where the keys
    per query grow far less than the tokens. That does not carry over to other models: the authors'
    densities at 75,600 tokens are larger than the embedded model's at 7,488, not a tenth of it. So
    a model is taken to keep the same *share*, times its published required density over that of
    the embedded model.
    """
    measured = far_field_densities()
    tolerance = config.tolerance or 0.0
    largest = max(measured.by_tokens)
    share = measured.at(tolerance, min(tokens, largest))
    if model.name == "mini":
        return min(1.0, share * largest / max(tokens, largest)), measured.source, ()
    layers = mean_densities(model)
    mini = find_model("mini")
    profile = find_profile(mini, mini.layers, mini.heads)
    assert profile is not None  # it is in the package
    ratio, paper = 1.0, 1.0
    if layers is not None:
        paper = mean(layers.mean)
        ratio = paper / float(profile.at_mass(PROFILE_MASS).mean())
    kept = min(1.0, share * ratio)
    keys = measured.at(tolerance, largest) * largest
    source = (
        f"{GUESSED}: the embedded model keeps {share:.3f} by this tolerance, times {ratio:.2f}, "
        "this model's published required density over the embedded model's"
    )
    otherwise = (
        (f"as many keys per query as the embedded model ({keys:.0f})", min(1.0, keys / tokens)),
        ("as much as in paper mode", paper),
    )
    return kept, source, otherwise


def _density_of_svoo(
    config: SVOOConfig, model: Model, dense_steps: int, steps: int
) -> tuple[float, str]:
    """Return the mean density of SVOO's sparse calls and where it is from."""
    if config.theta >= 1:
        raise ConfigError(
            "a union of two sets depends on the video: give --density, such as a run reports"
        )
    layers, source = mean_densities(model), "the authors' mean densities"
    if layers is None:
        profile = find_profile(model, model.layers, model.heads)
        if profile is None:
            raise ConfigError(f"no densities of {model.name} are known: give --density")
        layers, source = _by_layer(profile), "the stored profile"
    total = mean(layers.mean[config.dense_layers :] or [1.0])
    low = mean(layers.low[config.dense_layers :] or [0.0])
    kept = total
    assert config.mass is not None  # else the tolerance decides
    if config.compensate and config.mass < PROFILE_MASS:
        ratio = _ratio(config.mass)  # heads with small budgets keep no less than these
        kept = low + ratio * (total - low)
        source = (
            f"{GUESSED}: {source} at mass {PROFILE_MASS:g}, of heads above 0.1 times {ratio:.2f}, "
            f"what mass {config.mass:g} needs of that on the embedded model"
        )
    shares = [config.dense_share(step, steps) for step in range(dense_steps, steps)]
    ramp = mean(shares) if shares else 1.0
    return ramp + (1 - ramp) * kept, source


def _by_layer(profile: Profile) -> Densities:
    density = profile.at_mass(PROFILE_MASS)
    low = density.where(density <= LOW, 0)
    return Densities(*(part.mean(dim=(0, 1, 3)).tolist() for part in (density, low)))


def _ratio(mass: float) -> float:
    """Return the embedded model's mean density at a mass over that at the paper's; between
    measured masses on a straight line, below them on one through zero."""
    mini = find_model("mini")
    profile = find_profile(mini, mini.layers, mini.heads)
    assert profile is not None  # it is in the package
    masses = [0.0, *profile.masses.tolist()]
    means = [0.0, *profile.density.mean(dim=(0, 1, 2, 3)).tolist()]
    last = masses.index(min(masses, key=lambda at: abs(at - PROFILE_MASS)))
    return float(np.interp(mass, masses, means) / means[last])


def _parts_of_svoo(
    config: SVOOConfig, model: Model, tokens: int, density: float
) -> dict[str, float]:
    """Return SVOO's overheads: a dense call is two products of all queries with all keys."""
    query, key = default_clusters(tokens, config.fineness or far_fineness(tokens))
    query, key = config.query_clusters or query, config.key_clusters or key
    branches = find_architecture(model).forwards if config.share_branches else 1
    far = config.mass is None
    iterations = 1 if far else config.iterations  # labels go on from those of the last step
    clustering = iterations * (query + key) / (2 * tokens)
    if far:
        clustering *= min(1.0, FEATURES / model.head_dim)
    return {
        "terms": key / tokens * (1 - density) if config.compensate else 0.0,
        "clustering": clustering / config.recluster_every / branches,
        "iterations": iterations / config.recluster_every / branches,
        # Products of means; the far field's query means look at all keys and values besides.
        "selection": query * key / (2 * tokens**2) + (query / tokens if far else 0.0),
    }
