"""SGLang's diffusion plug-ins: the entry point `sglang.multimodal_gen.plugins`, name `svoo`.

Written from its contract and not run there. Being installed changes nothing: a pipeline of
SGLang's diffusers backend is made sparse where its `--attention-backend-config` names svoo.
Native pipelines of SGLang are not touched.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Literal

from svoo.errors import ConfigError
from svoo.integrations.settings import choose_config
from svoo.plugin.version import check_version

TARGET = (
    "sglang.multimodal_gen.runtime.pipelines.diffusers_pipeline"
    ".DiffusersPipeline._load_diffusers_pipeline"
)
NAME = "svoo"  # in SGLang's --attention-backend-config
SETTINGS = ("method", "quality", "dense_steps", "strict")
logger = logging.getLogger(__name__)


def register() -> None:
    """Ask SGLang to call `make_sparse` after its diffusers backend has loaded a pipeline."""
    from sglang.multimodal_gen.plugins import HookRegistry, HookType

    HookRegistry.register(TARGET, make_sparse, HookType.AFTER)


def make_sparse(
    pipe: object,
    _pipeline: object = None,
    model_path: object = None,  # noqa: ARG001 (the contract's: what the loading function was given)
    server_args: object = None,
) -> object:
    """Apply svoo to a loaded pipeline if the server's settings ask for it, and return it.

    Who asks for it gets it or an error: a pipeline that svoo does not know, a diffusers that it
    was not written for, and settings that it does not have end the start of the server.
    """
    asked = _read(getattr(server_args, "attention_backend_config", None))
    if asked is None:
        return pipe
    check_version()
    from svoo.plugin.apply import apply, recognise  # diffusers is imported only now

    model = recognise(pipe)
    name = model.name if model else None
    apply(pipe, None if asked is True else choose_config(**asked, model=name))
    logger.warning("svoo: the video self-attention of %s is sparse", type(pipe).__name__)
    return pipe


def _read(settings: object) -> dict[str, Any] | Literal[True] | None:
    """Return what SGLang's settings say of svoo: arguments of `choose_config`, True for svoo's own
    choice for the model, or None where svoo is not asked for."""
    value = settings.get(NAME) if isinstance(settings, Mapping) else None
    if value is None or isinstance(value, bool):
        return True if value else None
    if isinstance(value, str):
        value = {"quality": value}
    if not isinstance(value, Mapping) or not set(value) <= set(SETTINGS):
        raise ConfigError(
            f"{NAME} in --attention-backend-config must be true, a quality, or settings of "
            f"{', '.join(SETTINGS)}, got {value!r}"
        )
    choose_config(**value)  # refused before the pipeline is looked at
    return dict(value)
