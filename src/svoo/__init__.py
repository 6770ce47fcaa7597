"""SVOO: training-free sparse attention for video diffusion.

Importing this does nothing, and imports neither diffusers nor triton.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from svoo.backends import run_plan
from svoo.catalogue import models
from svoo.core.clustering import co_cluster
from svoo.core.density import required_density
from svoo.core.layout import VideoLayout
from svoo.core.plan import BlockPlan, add_text
from svoo.core.selection import select_blocks
from svoo.core.terms import FarTerms, GroupTerms, MeanTerms
from svoo.errors import SVOOError
from svoo.methods.svoo.config import SVOOConfig
from svoo.methods.svoo.method import LabelState
from svoo.profiles.profile import Profile
from svoo.session import sparse_attention

if TYPE_CHECKING:
    from svoo.plugin.adapters import Adapter
    from svoo.plugin.apply import Handle

__version__ = "0.1.0"
__all__ = [
    "BlockPlan",
    "FarTerms",
    "GroupTerms",
    "LabelState",
    "MeanTerms",
    "Profile",
    "SVOOConfig",
    "SVOOError",
    "VideoLayout",
    "add_text",
    "apply",
    "co_cluster",
    "models",
    "record_profile",
    "register_adapter",
    "required_density",
    "run_plan",
    "select_blocks",
    "sparse_attention",
]


def apply(
    target: object,
    config: SVOOConfig | None = None,
    profile: Profile | Literal["auto"] | None = "auto",
    method: Literal["svoo", "dense"] = "svoo",
) -> Handle:
    """Make the video self-attention of a diffusers pipeline (or a bare transformer) sparse.

    See `svoo.plugin.apply.apply`; diffusers is imported only now.
    """
    from svoo.plugin.version import check_version

    check_version()
    from svoo.plugin import apply as handle

    return handle.apply(target, config, profile, method)


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
