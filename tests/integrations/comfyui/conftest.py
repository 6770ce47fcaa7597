import sys
from types import ModuleType

import comfy_stub
import pytest


@pytest.fixture(autouse=True)
def _comfyui_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "comfy", ModuleType("comfy"))
    monkeypatch.setitem(sys.modules, "comfy.patcher_extension", comfy_stub.patcher_extension())
