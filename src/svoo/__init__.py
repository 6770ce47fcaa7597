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

    `method` is a `MethodConfig` (one that you wrote, too), or a name of `available_methods()` with
    its settings for the recognised model; "paper" and "release" are presets of SVOO. None: SVOO's
    default mode for the recognised model, where videos too small to gain anything stay dense.

    `profile` is a `Profile`, or the path of one. "auto": a stored profile of the model, or if
    there is none the method measures for itself (default mode needs neither). None: no profile.

    Applying again replaces what was applied before; `Handle.remove` restores the pipeline.
    diffusers is imported only now.
    """
    from svoo.plugin.version import check_version

    check_version()
    from svoo.plugin import apply as plugin

    return plugin.apply(target, method, profile)


def parallelise(pipe: object, *, uneven: bool = False) -> None:
    """Spread one video over all processes of `torch.distributed` by Ulysses, before or after
    `apply`.

    The same as diffusers' `enable_parallelism`, for all experts at once, with a plan where
    diffusers has none (HunyuanVideo), and on the CPU too. `uneven`: the tokens need not divide by
    the ranks. diffusers is imported only now.
    """
    from svoo.plugin.version import check_version

    check_version()
    from svoo.plugin import parallel

    parallel.parallelise(pipe, uneven=uneven)


def record_profile(pipe: object, inputs: Sequence[Any], **settings: Any) -> Profile:  # noqa: ANN401
    """Run a pipeline densely on every input and return what its heads needed.

    `inputs` are prompts, or mappings of call arguments such as prompt and image. `settings`: those
    of the measuring (`rows`, `every`, ...), `out` (a file that has what is done so far after every
    input, so that the same request goes on after a crash), `restart` (begin anew where `out` holds
    another request), `on_step(done, total)`; all others go to every call of the pipeline.
    diffusers is imported only now.
    """
    from svoo.plugin.version import check_version

    check_version()
    from svoo.plugin import record as recorder

    return recorder.record_profile(pipe, inputs, **settings)


def register_adapter(transformer_class: str, adapter: Adapter) -> None:
    """Teach the plug-in a transformer class by its name; see `svoo.plugin.adapters.Adapter`."""
    from svoo.plugin import adapters

    adapters.register_adapter(transformer_class, adapter)
