"""The plug-in against a stub of SGLang's hooks, written from its contract."""

import logging
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from svoo.integrations import sglang
from svoo.mini import load


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


def test_a_loaded_pipeline_is_sparse(hooks: Hooks, caplog: pytest.LogCaptureFixture) -> None:
    sglang.register()
    assert list(hooks.hooks) == [sglang.TARGET]

    class DiffusersPipeline:
        def _load_diffusers_pipeline(self, model_path: str, server_args: object) -> Any:
            assert model_path == "mini" and server_args is None
            return load()

    patched = hooks.patch(sglang.TARGET, DiffusersPipeline._load_diffusers_pipeline)
    with caplog.at_level(logging.WARNING):
        pipe = patched(DiffusersPipeline(), "mini", None)
    assert "self-attention of MiniPipeline is sparse" in caplog.text
    handle = pipe.transformer._svoo_handle
    sizes = {"height": 32, "width": 32, "num_frames": 5, "num_inference_steps": 1}
    pipe("a red circle", **sizes, output_type="latent")
    assert handle.stats().dense_calls > 0  # so small a video gains nothing; the calls were ours
    handle.remove()


def test_what_svoo_does_not_know_stays_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    pipe = SimpleNamespace(transformer=torch.nn.Linear(1, 1))
    with caplog.at_level(logging.WARNING):
        assert sglang.make_sparse(pipe, "self", "path") is pipe
    assert "stays dense: Linear is no video transformer that svoo knows" in caplog.text
