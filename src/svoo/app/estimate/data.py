"""What estimates are made from: cards, models, the authors' densities and the paper's latencies,
each file with its source."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from svoo.catalogue import Model
from svoo.errors import ConfigError


@dataclass(frozen=True)
class Card:
    """A GPU: peak in FLOP/s of dense bfloat16, bandwidth of its memory and of the link to others
    (one direction) in bytes/s, memory in bytes, and where these are from."""

    name: str
    title: str
    peak: float
    bandwidth: float
    memory: float
    link: float
    source: str


@dataclass(frozen=True)
class Architecture:
    """What the catalogue does not say of a model: `parameters` are those of all its transformers,
    `beside` those of its encoders and autoencoder, `forwards` the runs of the transformer per
    step."""

    feed_forward: int
    text_tokens: int
    joint_text: bool
    forwards: int
    parameters: float
    beside: float
    source: str


@cache
def read(name: str) -> dict[str, Any]:
    """Return one of the data files beside this module."""
    text = (resources.files("svoo.app.estimate") / f"{name}.json").read_text()
    found: dict[str, Any] = json.loads(text)
    return found


def find_card(name: str) -> Card:
    """Return a card by its name; refuse others with the list."""
    cards = read("cards")["cards"]
    if name.lower() not in cards:
        raise ConfigError(
            f"--gpu must be one of {', '.join(cards)}, got {name!r}; on a machine with another "
            "one use --calibrate"
        )
    return Card(name.lower(), **cards[name.lower()])


def find_architecture(model: Model) -> Architecture:
    """Return the sizes of a model of the catalogue."""
    return Architecture(**read("architectures")["models"][model.name])


@dataclass(frozen=True)
class Densities:
    """Required density (mass 0.95) of each layer: the mean over its heads, and the part of that
    mean that heads of at most 0.1 make."""

    mean: list[float]
    low: list[float]


def mean_densities(model: Model) -> Densities | None:
    """Return the authors' densities of a model, or None."""
    found = read("densities")["models"].get(model.name)
    return None if found is None else Densities(**found)


@dataclass(frozen=True)
class FarFieldDensities:
    """The share of pairs that the far field keeps on the embedded model: `by_tokens` has, for a
    number of tokens, the share by tolerance."""

    by_tokens: dict[int, dict[float, float]]
    source: str

    def at(self, tolerance: float, tokens: float) -> float:
        """Return the share at a tolerance and a size: between those measured on straight lines
        through logarithms, beyond them as many keys per query."""
        sizes = sorted(self.by_tokens)
        shares = [_on_line(tolerance, self.by_tokens[size]) for size in sizes]
        inside = min(max(tokens, sizes[0]), sizes[-1])
        share = math.exp(np.interp(math.log(inside), np.log(sizes), np.log(shares)))
        return min(1.0, share * inside / tokens)


def _on_line(at: float, measured: Mapping[float, float] | Mapping[int, float]) -> float:
    """Return the share at a tolerance or a size; the nearest measured one beyond them."""
    points = sorted(measured.items())
    shares = [share for _, share in points]
    measured_at = [point for point, _ in points]
    near = min(max(at, measured_at[0]), measured_at[-1])
    return math.exp(np.interp(math.log(near), np.log(measured_at), np.log(shares)))


def far_field_densities() -> FarFieldDensities:
    """Return what was measured on the embedded model."""
    found = read("densities")["far_field"]
    by_tokens = {
        int(tokens): {float(tolerance): share for tolerance, share in shares.items()}
        for tokens, shares in found["by_tokens"].items()
    }
    return FarFieldDensities(by_tokens, found["source"])


def paper_mode_density(tokens: int) -> tuple[float, str]:
    """Return the share of pairs that the embedded model keeps in paper mode, and its source; on a
    straight line through logarithms, the nearest measured one beyond them."""
    found = read("densities")["paper_mode"]
    shares = {int(size): share for size, share in found["by_tokens"].items()}
    return _on_line(tokens, shares), found["source"]


def latencies() -> dict[str, dict[str, float]]:
    """Return the paper's seconds, dense and svoo, of each of its seven models."""
    found: dict[str, dict[str, float]] = read("latencies")["seconds"]
    return found


def latency_card() -> str:
    """Return the name of the card that the paper's seconds are of."""
    found: str = read("latencies")["card"]
    return found
