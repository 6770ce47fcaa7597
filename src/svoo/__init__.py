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

    `method` is one of:

    - None: SVOO's default mode. Videos too small to gain anything stay dense;
    - a name of `available_methods()`: that method with its settings for the recognised model;
    - "paper" or "release": SVOO with the paper's numbers, or those of the authors' scripts;
    - a `MethodConfig`, such as `SVOOConfig.careful()`, or one that you wrote.

    `profile` matters only to methods that use one (default mode does not). It is a `Profile`, the
    path of one, None for none, or "auto": a stored profile of the model, and if there is none the
    method measures for itself.

    The pipeline is changed in place and then used as before. `Handle.summary` tells what happened,
    `Handle.remove` restores the pipeline, and applying again replaces what was applied before.
    diffusers is imported only now.
    """
    from svoo.plugin.version import check_version

    check_version()
    from svoo.plugin import apply as plugin

    return plugin.apply(target, method, profile)


def parallelise(pipe: object, *, uneven: bool = False) -> None:
    """Spread one video over all processes of `torch.distributed` by Ulysses.

    Call it before or after `apply`, in every process. It does what diffusers' `enable_parallelism`
    does, for all experts (transformers) of the pipeline at once, also for HunyuanVideo, which
    diffusers has no plan for, and also on the CPU. The number of processes must divide the heads,
    and the tokens too unless `uneven=True`. diffusers is imported only now.
    """
    from svoo.plugin.version import check_version

    check_version()
    from svoo.plugin import parallel

    parallel.parallelise(pipe, uneven=uneven)


def record_profile(pipe: object, inputs: Sequence[Any], **settings: Any) -> Profile:  # noqa: ANN401
    """Run a pipeline densely on every input and return what its heads needed.

    `inputs` are prompts, or mappings of call arguments such as prompt and image. `settings` are:

    - those of the measuring: `rows`, `every` and the others of `svoo.plugin.record.RecordConfig`;
    - `out`: a file that holds what is done after every input. The same request goes on from there
      after a crash; `restart=True` begins anew where it holds another request;
    - `on_step(done, total)`, for progress;
    - anything else: it goes to every call of the pipeline, such as `num_inference_steps`.

    diffusers is imported only now.
    """
    from svoo.plugin.version import check_version

    check_version()
    from svoo.plugin import record as recorder

    return recorder.record_profile(pipe, inputs, **settings)


def register_adapter(transformer_class: str, adapter: Adapter) -> None:
    """Teach `apply` a transformer class that it does not know, by the name of the class.

    `svoo.plugin.adapters.Adapter` says where its self-attention sits and how its tokens lie.
    """
    from svoo.plugin import adapters

    adapters.register_adapter(transformer_class, adapter)
