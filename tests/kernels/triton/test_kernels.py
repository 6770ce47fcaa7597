import subprocess
import sys

import pytest
import torch
from making import normal
from torch._subclasses.fake_tensor import FakeTensorMode

from svoo.core import needs
from svoo.kernels.triton import why_no_kernels


def on_a_gpu(size: int, dtype: torch.dtype) -> torch.Tensor:
    with FakeTensorMode():
        return torch.empty(1, 1, 4, size, dtype=dtype, device="cuda")


def test_the_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (9, 0))
    assert why_no_kernels(normal(1, 1, 4, 128)) == "needs a CUDA tensor, got cpu"
    assert why_no_kernels(on_a_gpu(128, torch.bfloat16)) is None
    assert why_no_kernels(on_a_gpu(5, torch.float32)) is None
    assert why_no_kernels(on_a_gpu(256, torch.bfloat16)) == "runs head sizes up to 128, got 256"
    assert (
        why_no_kernels(on_a_gpu(128, torch.float64))
        == "runs bfloat16, float16, float32, got float64"
    )
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (7, 5))
    reason = why_no_kernels(on_a_gpu(128, torch.float16))
    assert reason == "needs compute capability 8.0 or newer, got 7.5"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (9, 0))
    monkeypatch.setattr(needs, "find_version", lambda *_names: None)
    reason = why_no_kernels(on_a_gpu(128, torch.bfloat16))
    assert reason == "needs triton, which is not installed: pip install 'svoo[gpu]'"


def test_the_library_runs_without_triton() -> None:
    """In a process where importing triton or flashinfer fails."""
    program = (
        "import sys; sys.modules['triton'] = sys.modules['flashinfer'] = None\n"
        "import torch, svoo, svoo.app.doctor\n"
        "x = torch.randn(1, 1, 64, 8, generator=torch.Generator().manual_seed(0))\n"
        "svoo.sparse_attention(x, x, x, svoo.SVOOConfig(query_clusters=2, key_clusters=4))\n"
        "svoo.app.doctor.examine()\n"
        "print(svoo.kernels.triton.NEEDS.package.why_not())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "needs triton, which is not installed: pip install 'svoo[gpu]'"
