"""Sparse-attention methods, one file each, and the table of them."""

from __future__ import annotations

from dataclasses import dataclass

from svoo.errors import ConfigError
from svoo.methods.adacluster import AdaClusterConfig
from svoo.methods.adaspa import AdaSpaConfig
from svoo.methods.base import MethodConfig
from svoo.methods.bsa import BSAConfig
from svoo.methods.clusterattention import ClusterAttentionConfig
from svoo.methods.dense import DenseConfig
from svoo.methods.draft import DraftAttentionConfig
from svoo.methods.dsv import DSVConfig
from svoo.methods.knobs import Knob
from svoo.methods.pisa import PISAConfig
from svoo.methods.radial import RadialConfig
from svoo.methods.rainfusion import RainFusionConfig
from svoo.methods.rainfusion2 import RainFusion2Config
from svoo.methods.repaired import RepairedConfig
from svoo.methods.sol import SolConfig
from svoo.methods.spargeattn import SpargeAttnConfig
from svoo.methods.sparsepr import SparsePRConfig
from svoo.methods.sta import STAConfig
from svoo.methods.svg1 import SVG1Config
from svoo.methods.svg2 import SVG2Config
from svoo.methods.svg_ear import SVGEARConfig
from svoo.methods.svoo.config import SVOOConfig
from svoo.methods.vmoba import VMoBAConfig
from svoo.methods.vsa import VSAConfig
from svoo.methods.xattention import XAttentionConfig

__all__ = [
    "METHODS",
    "TOLERANCE_KNOB",
    "AdaClusterConfig",
    "AdaSpaConfig",
    "BSAConfig",
    "ClusterAttentionConfig",
    "DSVConfig",
    "DenseConfig",
    "DraftAttentionConfig",
    "Knob",
    "MethodConfig",
    "MethodRow",
    "PISAConfig",
    "RadialConfig",
    "RainFusion2Config",
    "RainFusionConfig",
    "RepairedConfig",
    "STAConfig",
    "SVG1Config",
    "SVG2Config",
    "SVGEARConfig",
    "SVOOConfig",
    "SolConfig",
    "SpargeAttnConfig",
    "SparsePRConfig",
    "VMoBAConfig",
    "VSAConfig",
    "XAttentionConfig",
    "available_methods",
    "find_method",
    "uses_profile",
]

TOLERANCE_KNOB = Knob("tolerance", 10.0, 1e-6, geometric=True)


@dataclass(frozen=True)
class MethodRow:
    """One method: its config class, where it is from, what it keeps and what becomes of the rest.

    `trained`: its authors train the model with it; here its choice of blocks runs without. `knob`
    is the setting that makes it keep more or less, if it has one.
    """

    name: str
    config: type[MethodConfig]
    paper: str
    keeps: str
    rest: str
    trained: bool = False
    knob: Knob | None = None


METHODS: tuple[MethodRow, ...] = (
    MethodRow("dense", DenseConfig, "", "everything", "nothing is left out"),
    MethodRow(
        "svoo",
        SVOOConfig,
        "SVOO, ICML 2026",
        "blocks of clusters whose term would err by more than the tolerance",
        "one term per left-out block, or per group of them",
        knob=TOLERANCE_KNOB,
    ),
    MethodRow(
        "spargeattn",
        SpargeAttnConfig,
        "SpargeAttn, arXiv 2502.18137",
        "the best blocks by the attention of their means, and those that no mean speaks for",
        "dropped",
        knob=Knob("topk", 0.0, 1.0),
    ),
    MethodRow(
        "radial",
        RadialConfig,
        "Radial Attention, arXiv 2506.19852",
        "a fixed window that shrinks with the distance of frames",
        "dropped",
        knob=Knob("decay", 1e-3, 1e3, geometric=True),
    ),
    MethodRow(
        "sol",
        SolConfig,
        "Sol-Attn, arXiv 2607.24027",
        "blocks whose mean logit stands out of its row, and neighbours",
        "one mean term per left-out block",
        knob=Knob("tau", 6.0, -6.0),
    ),
    MethodRow(
        "pisa",
        PISAConfig,
        "PISA, arXiv 2602.01077",
        "the best blocks by their means",
        "mean terms and one first-order correction",
        knob=Knob("density", 0.0, 1.0),
    ),
    MethodRow(
        "xattention",
        XAttentionConfig,
        "XAttention, arXiv 2503.16428",
        "blocks that cover a mass, estimated along antidiagonals",
        "dropped",
        knob=Knob("mass", 0.0, 1.0),
    ),
    MethodRow(
        "sta",
        STAConfig,
        "Sliding Tile Attention, arXiv 2502.04507",
        "a window of 3-D tiles, per step, layer and head",
        "dropped",
    ),
    MethodRow(
        "vmoba",
        VMoBAConfig,
        "VMoBA, arXiv 2506.23858",
        "chunks of the video for each query token",
        "dropped",
        trained=True,
        knob=Knob("threshold", 0.0, 1.0),
    ),
    MethodRow(
        "dsv",
        DSVConfig,
        "DSV, arXiv 2502.07590",
        "the best key tokens for groups of queries",
        "dropped",
        trained=True,
        knob=Knob("sparsity", 1.0, 0.0),
    ),
    MethodRow(
        "draft",
        DraftAttentionConfig,
        "DraftAttention, arXiv 2505.14708",
        "blocks above one threshold per head of pooled attention",
        "dropped",
        knob=Knob("sparsity", 1.0, 0.0),
    ),
    MethodRow(
        "vsa",
        VSAConfig,
        "VSA, arXiv 2505.13389",
        "the best 3-D tiles by their means",
        "dropped",
        trained=True,
        knob=Knob("sparsity", 1.0, 0.0),
    ),
    MethodRow(
        "bsa",
        BSAConfig,
        "BSA, arXiv 2509.01085",
        "3-D tiles that cover a mass, as the tile's unlike queries see it",
        "dropped",
        trained=True,
        knob=Knob("mass", 0.0, 1.0),
    ),
    MethodRow(
        "rainfusion",
        RainFusionConfig,
        "RainFusion, arXiv 2505.21036",
        "a band in the order of tokens that suits the head, and the first frame",
        "dropped",
        knob=Knob("sparsity", 1.0, 0.0),
    ),
    MethodRow(
        "rainfusion2",
        RainFusion2Config,
        "RainFusion 2, Ascend MindIE-SD",
        "the best blocks of windows by their means, and the first frame",
        "dropped",
        knob=Knob("sparsity", 1.0, 0.0),
    ),
    MethodRow(
        "adaspa",
        AdaSpaConfig,
        "AdaSpa, arXiv 2502.21079",
        "the best blocks of exact attention at two steps",
        "dropped",
        knob=Knob("sparsity", 1.0, 0.0),
    ),
    MethodRow(
        "svg1",
        SVG1Config,
        "Sparse VideoGen, arXiv 2502.01776",
        "a band in the order of space or of time, per head",
        "dropped",
        knob=Knob("density", 1e-3, 1.0),
    ),
    MethodRow(
        "svg2",
        SVG2Config,
        "Sparse VideoGen2, arXiv 2505.18875",
        "blocks of k-means clusters that cover a mass",
        "dropped",
        knob=Knob("mass", 1e-3, 1.0),
    ),
    MethodRow(
        "svg-ear",
        SVGEARConfig,
        "SVG-EAR, arXiv 2603.08982",
        "blocks of k-means clusters with the largest error",
        "one term per left-out block",
        knob=Knob("mass", 1e-3, 1.0),
    ),
    MethodRow(
        "clusterattention",
        ClusterAttentionConfig,
        "ClusterAttention, arXiv 2608.26965",
        "a share of equal-size clusters, made in the other side's metric",
        "one term per left-out block",
        knob=Knob("keep", 1e-3, 1.0),
    ),
    MethodRow(
        "adacluster",
        AdaClusterConfig,
        "AdaCluster, arXiv 2604.18348",
        "the best key clusters by their centroids",
        "dropped",
        knob=Knob("keep", 1, 1243, whole=True),
    ),
    MethodRow(
        "sparsepr",
        SparsePRConfig,
        "SparsePR, arXiv 2608.18484",
        "a fixed number of keys, by k-means clusters with the largest error",
        "dropped, then the output is repaired from a few exact rows",
        knob=Knob("density", 1e-3, 1.0),
    ),
)
PRESETS = ("paper", "release")  # SVOO's, accepted as names of methods


def available_methods() -> tuple[MethodRow, ...]:
    """Return every method that can be chosen by name, one row each.

    A row has the `name` that `svoo.apply` takes, the `config` class, the `paper`, what the method
    `keeps`, what becomes of the `rest`, and its `knob`.
    """
    return METHODS


def uses_profile(config: MethodConfig) -> bool:
    """Say whether a method reads the profile of its run. Of ours only SVOO does, where no
    tolerance decides; one that somebody wrote may."""
    if isinstance(config, RepairedConfig):
        return uses_profile(config.of)
    if isinstance(config, SVOOConfig):
        return config.tolerance is None
    return type(config) not in {row.config for row in METHODS}


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
