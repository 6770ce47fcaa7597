"""Sparse-attention methods, one file each, and the table of them."""

from __future__ import annotations

from dataclasses import dataclass

from svoo.errors import ConfigError
from svoo.methods.base import MethodConfig
from svoo.methods.bsa import BSAConfig
from svoo.methods.dense import DenseConfig
from svoo.methods.draft import DraftAttentionConfig
from svoo.methods.svg2 import SVG2Config
from svoo.methods.svoo.config import SVOOConfig
from svoo.methods.vsa import VSAConfig


@dataclass(frozen=True)
class MethodRow:
    """One method: its config class, where it is from, what it keeps and what becomes of the rest.

    `trained`: its authors train the model with it; here its choice of blocks runs without.
    """

    name: str
    config: type[MethodConfig]
    paper: str
    keeps: str
    rest: str
    trained: bool = False


METHODS: tuple[MethodRow, ...] = (
    MethodRow("dense", DenseConfig, "", "everything", "nothing is left out"),
    MethodRow(
        "svoo",
        SVOOConfig,
        "SVOO, ICML 2026",
        "blocks of clusters, as many as each head needs",
        "one term per left-out block",
    ),
    MethodRow(
        "draft",
        DraftAttentionConfig,
        "DraftAttention, arXiv 2505.14708",
        "blocks above one threshold per head of pooled attention",
        "dropped",
    ),
    MethodRow(
        "vsa",
        VSAConfig,
        "VSA, arXiv 2505.13389",
        "the best 3-D tiles by their means",
        "dropped",
        trained=True,
    ),
    MethodRow(
        "bsa",
        BSAConfig,
        "BSA, arXiv 2509.01085",
        "3-D tiles that cover a mass, as the tile's unlike queries see it",
        "dropped",
        trained=True,
    ),
    MethodRow(
        "svg2",
        SVG2Config,
        "Sparse VideoGen2, arXiv 2505.18875",
        "blocks of k-means clusters that cover a mass",
        "dropped",
    ),
)
PRESETS = ("paper", "release")  # SVOO's, accepted as names of methods


def available_methods() -> tuple[MethodRow, ...]:
    """Return every method that can be chosen by name."""
    return METHODS


def find_method(name: str, model: str | None = None) -> MethodConfig:
    """Return the settings of a method by name, those for a model of the catalogue if one is
    given."""
    if name == "paper":
        return SVOOConfig.paper(model)
    if name == "release":
        if model is None:
            raise ConfigError(
                "the release preset needs a model of the catalogue (`svoo models`), and this "
                "pipeline was not recognised as one; use SVOOConfig.release(name)"
            )
        return SVOOConfig.release(model)
    for row in METHODS:
        if row.name == name:
            return row.config() if model is None else row.config.for_model(model)
    known = ", ".join((*(row.name for row in METHODS), *PRESETS))
    raise ConfigError(f"no method called {name!r}; there are {known}")
