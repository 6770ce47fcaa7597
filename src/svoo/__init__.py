"""SVOO: training-free sparse attention for video diffusion.

Importing this does nothing, and imports neither diffusers nor triton.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from svoo.attention import sparse_attention
from svoo.backends import run_plan
from svoo.catalogue import models
from svoo.clustering import co_cluster
from svoo.config import SVOOConfig
from svoo.density import required_density
from svoo.errors import SVOOError
from svoo.layout import VideoLayout
from svoo.methods.svoo import LabelState
from svoo.plan import BlockPlan
from svoo.profile import Profile
from svoo.selection import select_blocks

if TYPE_CHECKING:
    from svoo.plugin.adapters import Adapter
    from svoo.plugin.handle import Handle

__version__ = "0.1.0"
__all__ = [
    "BlockPlan",
    "LabelState",
    "Profile",
    "SVOOConfig",
    "SVOOError",
    "VideoLayout",
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

    See `svoo.plugin.handle.apply`; diffusers is imported only now.
    """
    from svoo.plugin.version import check_version

    check_version()
    from svoo.plugin import handle

    return handle.apply(target, config, profile, method)


def record_profile(pipe: object, inputs: Sequence[Any], **settings: Any) -> Profile:  # noqa: ANN401
    """Measure what every head of a pipeline needs on some inputs.

    See `svoo.plugin.recorder.record_profile`; diffusers is imported only now.
    """
    from svoo.plugin.version import check_version

    check_version()
    from svoo.plugin import recorder

    return recorder.record_profile(pipe, inputs, **settings)


def register_adapter(transformer_class: str, adapter: Adapter) -> None:
    """Teach the plug-in a transformer class by its name; see `svoo.plugin.adapters.Adapter`."""
    from svoo.plugin import adapters

    adapters.register_adapter(transformer_class, adapter)
