"""SVOO: training-free sparse attention for video diffusion.

Importing this does nothing, and imports neither diffusers nor triton.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from svoo.backends import run_plan
from svoo.catalogue import models
from svoo.core.clustering import co_cluster
from svoo.core.density import required_density
from svoo.core.layout import VideoLayout
from svoo.core.plan import BlockPlan, add_text
from svoo.core.selection import select_blocks
from svoo.core.terms import FarTerms, GroupTerms, MeanTerms
from svoo.errors import SVOOError
from svoo.methods import available_methods
from svoo.methods.base import Call, Corrected, Dense, Method, MethodConfig, Run
from svoo.methods.dense import DenseConfig
from svoo.methods.svoo.config import SVOOConfig
from svoo.methods.svoo.labels import LabelState
from svoo.profiles.profile import Profile
from svoo.session import Session, make_plan, sparse_attention

if TYPE_CHECKING:
    from svoo.plugin.adapters import Adapter
    from svoo.plugin.apply import Handle

__version__ = "0.2.0"
__all__ = [
    "BlockPlan",
    "Call",
    "Corrected",
    "Dense",
    "DenseConfig",
    "FarTerms",
    "GroupTerms",
    "LabelState",
    "MeanTerms",
    "Method",
    "MethodConfig",
    "Profile",
    "Run",
    "SVOOConfig",
    "SVOOError",
    "Session",
    "VideoLayout",
    "add_text",
    "apply",
    "available_methods",
    "co_cluster",
    "make_plan",
    "models",
    "parallelise",
    "record_profile",
    "register_adapter",
    "required_density",
    "run_plan",
    "select_blocks",
    "sparse_attention",
]


def apply(
    target: object,
    method: MethodConfig | str | None = None,
    profile: Profile | Path | str | None = "auto",
) -> Handle:
    """Make the video self-attention of a diffusers pipeline (or a bare transformer) sparse.

    `method` is a `MethodConfig` or a name of `available_methods()`; see `svoo.plugin.apply`, which
    imports diffusers only now.
    """
    from svoo.plugin.version import check_version

    check_version()
    from svoo.plugin import apply as plugin

    return plugin.apply(target, method, profile)


def parallelise(pipe: object, *, uneven: bool = False) -> None:
    """Spread one video over all processes of `torch.distributed`, before or after `apply`.

    See `svoo.plugin.parallel.parallelise`; diffusers is imported only now.
    """
    from svoo.plugin.version import check_version

    check_version()
    from svoo.plugin import parallel

    parallel.parallelise(pipe, uneven=uneven)


def record_profile(pipe: object, inputs: Sequence[Any], **settings: Any) -> Profile:  # noqa: ANN401
    """Measure what every head of a pipeline needs on some inputs.

    See `svoo.plugin.record.record_profile`; diffusers is imported only now.
    """
    from svoo.plugin.version import check_version

    check_version()
    from svoo.plugin import record as recorder

    return recorder.record_profile(pipe, inputs, **settings)


def register_adapter(transformer_class: str, adapter: Adapter) -> None:
    """Teach the plug-in a transformer class by its name; see `svoo.plugin.adapters.Adapter`."""
    from svoo.plugin import adapters

    adapters.register_adapter(transformer_class, adapter)
