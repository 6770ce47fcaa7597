"""What estimates are made from: cards, models, the authors' densities and the paper's latencies,
each file with its source."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from svoo.catalogue import Model
from svoo.errors import ConfigError


@dataclass(frozen=True)
class Card:
    """A GPU: peak in FLOP/s of dense bfloat16, bandwidth of its memory and of the link to others
    (one direction) in bytes/s, memory in bytes."""

    name: str
    title: str
    peak: float
    bandwidth: float
    memory: float
    link: float


@dataclass(frozen=True)
class Architecture:
    """What the catalogue does not say of a model: `beside` are the parameters of its encoders and
    autoencoder, `forwards` the runs of the transformer per step."""

    feed_forward: int
    text_tokens: int
    joint_text: bool
    forwards: int
    beside: float


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
    """The share of pairs that the far field keeps of so many tokens, by tolerance."""

    tokens: int
    density: dict[float, float]
    source: str


def far_field_densities() -> FarFieldDensities:
    """Return what was measured on the embedded model."""
    found = read("densities")["far_field"]
    density = {float(tolerance): kept for tolerance, kept in found["density"].items()}
    return FarFieldDensities(found["tokens"], density, found["source"])


def latencies() -> dict[str, dict[str, float]]:
    """Return the paper's seconds, dense and svoo, of each of its seven models."""
    found: dict[str, dict[str, float]] = read("latencies")["seconds"]
    return found
