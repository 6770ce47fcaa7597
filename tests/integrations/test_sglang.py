"""The plug-in against a stub of SGLang's hooks, written from its contract."""

import logging
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from svoo import SVOOConfig
from svoo.errors import ConfigError, SVOOError
from svoo.integrations import sglang
from svoo.methods.svg2 import SVG2Config
from svoo.mini import load
from svoo.mini.pipeline import MiniPipeline


class Hooks:
    """SGLang's registry: an AFTER hook gets the result and the arguments, and may return
    another result."""

    def __init__(self) -> None:
        self.hooks: dict[str, Any] = {}

    def register(self, target: str, hook: Any, kind: str) -> None:
        assert kind == "after"
        self.hooks[target] = hook

    def patch(self, target: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def patched(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            other = self.hooks[target](result, *args, **kwargs)
            return result if other is None else other

        return patched


@pytest.fixture
def hooks(monkeypatch: pytest.MonkeyPatch) -> Hooks:
    registry = Hooks()
    plugins: Any = ModuleType("sglang.multimodal_gen.plugins")
    plugins.HookRegistry, plugins.HookType = registry, SimpleNamespace(AFTER="after")
    for name in ("sglang", "sglang.multimodal_gen"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "sglang.multimodal_gen.plugins", plugins)
    return registry


@pytest.fixture(scope="module")
def pipe() -> MiniPipeline:
    return load()


def loaded(hooks: Hooks, pipe: Any, config: object) -> Any:
    """Load a pipeline as SGLang's diffusers backend does, with `--attention-backend-config`."""
    sglang.register()
    assert list(hooks.hooks) == [sglang.TARGET]

    class DiffusersPipeline:
        def _load_diffusers_pipeline(self, model_path: str, server_args: Any) -> Any:
            assert model_path == "mini" and server_args.attention_backend_config is config
            return pipe

    patched = hooks.patch(sglang.TARGET, DiffusersPipeline._load_diffusers_pipeline)
    arguments = SimpleNamespace(attention_backend_config=config)
    return patched(DiffusersPipeline(), "mini", server_args=arguments)


@pytest.mark.parametrize("config", [None, {}, {"sparsity": 0.5}, {"svoo": False}])
def test_being_installed_changes_nothing(
    hooks: Hooks, pipe: MiniPipeline, config: object, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        assert loaded(hooks, pipe, config) is pipe
    assert not hasattr(pipe.transformer, "_svoo_handle") and not caplog.records


def test_a_pipeline_is_sparse_where_the_server_is_asked(
    hooks: Hooks, pipe: MiniPipeline, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        found = loaded(hooks, pipe, {"svoo": True})
    assert "self-attention of MiniPipeline is sparse" in caplog.text
    handle = found.transformer._svoo_handle
    sizes = {"height": 32, "width": 32, "num_frames": 5, "num_inference_steps": 1}
    found("a red circle", **sizes, output_type="latent")
    assert handle.stats().dense_calls > 0  # so small a video gains nothing; the calls were ours
    handle.remove()


@pytest.mark.parametrize(
    ("asked", "config"),
    [
        ("careful", SVOOConfig.careful()),
        (
            {"quality": "fast", "dense_steps": 2},
            SVOOConfig(tolerance=SVOOConfig.fast().tolerance, dense_steps=2),
        ),
        ({"method": "svg2"}, SVG2Config.for_model("mini")),
    ],
)
def test_settings_come_from_the_server(
    hooks: Hooks, pipe: MiniPipeline, asked: object, config: object
) -> None:
    handle = loaded(hooks, pipe, {"svoo": asked}).transformer._svoo_handle
    assert handle.config == config
    handle.remove()


@pytest.mark.parametrize("asked", ["best", {"mass": 0.9}, 3, {"quality": "best"}])
def test_settings_that_svoo_does_not_have_are_refused(
    hooks: Hooks, pipe: MiniPipeline, asked: object
) -> None:
    with pytest.raises(ConfigError, match="must be"):
        loaded(hooks, pipe, {"svoo": asked})
    assert not hasattr(pipe.transformer, "_svoo_handle")


def test_a_pipeline_that_svoo_does_not_know_is_refused_only_where_it_is_asked(
    hooks: Hooks,
) -> None:
    other = SimpleNamespace(transformer=torch.nn.Linear(1, 1))
    assert loaded(hooks, other, {}) is other
    with pytest.raises(SVOOError, match="Linear is no video transformer that svoo knows"):
        loaded(hooks, other, {"svoo": True})
