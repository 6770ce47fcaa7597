"""SGLang's diffusion plug-ins: the entry point `sglang.multimodal_gen.plugins`, name `svoo`.

Written from its contract and not run there. Where svoo is installed, pipelines that SGLang's
diffusers backend loads are made sparse; `SGLANG_PLUGINS`, SGLang's own list of what it loads,
leaves it out. Native pipelines of SGLang are not touched.
"""

from __future__ import annotations

import logging

from svoo.errors import SVOOError
from svoo.plugin.version import check_version

TARGET = (
    "sglang.multimodal_gen.runtime.pipelines.diffusers_pipeline"
    ".DiffusersPipeline._load_diffusers_pipeline"
)
logger = logging.getLogger(__name__)


def register() -> None:
    """Ask SGLang to call `make_sparse` after its diffusers backend has loaded a pipeline."""
    from sglang.multimodal_gen.plugins import HookRegistry, HookType

    HookRegistry.register(TARGET, make_sparse, HookType.AFTER)


def make_sparse(pipe: object, *_arguments: object, **_settings: object) -> object:
    """Apply svoo to a loaded pipeline and return it; one that svoo does not know stays as it is,
    with the reason in the log."""
    try:
        check_version()
        from svoo.plugin.apply import apply  # diffusers is imported only now

        apply(pipe)
    except SVOOError as error:
        logger.warning("svoo: %s stays dense: %s", type(pipe).__name__, error)
    else:
        logger.warning(
            "svoo: the video self-attention of %s is sparse; set SGLANG_PLUGINS to a list without "
            "svoo to have it dense",
            type(pipe).__name__,
        )
    return pipe
