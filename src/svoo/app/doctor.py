"""What can run here: the machine, the backends with their reasons, the optional packages."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from svoo.backends import BACKENDS, resolve
from svoo.core.plan import BlockPlan
from svoo.core.terms import MeanTerms
from svoo.plugin.machine import describe_machine

OPTIONAL = {
    "diffusers": "the plug-in: svoo.apply, svoo generate",
    "transformers": "text encoders of the pipelines",
    "accelerate": "offloading",
    "av": "reading and writing mp4",
    "matplotlib": "pictures of profiles and benchmarks",
    "fastapi": "svoo ui",
    "uvicorn": "svoo ui",
    "python-multipart": "svoo ui",
    "triton": "GPU kernels",
    "flashinfer-python": "GPU attention over variable blocks",
}

CALLS = (  # dtype, head size, compensation: the usual one first
    (torch.bfloat16, 128, True),
    (torch.bfloat16, 128, False),
    (torch.bfloat16, 256, False),
    (torch.float32, 128, True),
)


@dataclass(frozen=True)
class Finding:
    """One line: what, whether it is there, and what to know about it."""

    name: str
    good: bool
    text: str


def examine() -> list[Finding]:
    """Return the findings in the order to show them."""
    cuda = torch.cuda.is_available()
    devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    threads = f"cpu with {torch.get_num_threads()} threads"
    found = [
        Finding("python", good=True, text=platform.python_version()),
        Finding("torch", good=True, text=torch.__version__),
        Finding(
            "device", good=True, text=", ".join(devices) if cuda else f"{threads}, no CUDA device"
        ),
    ]
    found += _ladder(torch.device("cuda" if cuda else "cpu"))
    for package, use in OPTIONAL.items():
        try:
            version = metadata.version(package)
        except metadata.PackageNotFoundError:
            text = f"not installed; needed for {use}"
            found.append(Finding(package, good=False, text=text))
        else:
            found.append(Finding(package, good=True, text=f"{version}, for {use}"))
    return found


def report(findings: Iterable[Finding]) -> dict[str, Any]:
    """Return the findings and the machine as plain data for a bug report; the user's home is not
    named."""
    home = str(Path.home())
    rows = [asdict(finding) for finding in findings]
    for row in rows:
        row["text"] = row["text"].replace(home, "~")
    return {
        "svoo": metadata.version("svoo"),
        "system": platform.platform(),
        "machine": describe_machine(),
        "findings": rows,
    }


def _ladder(device: torch.device) -> list[Finding]:
    """Return the backends in order of preference, each with why it cannot run the usual call, and
    which of them "auto" takes for this and other calls."""
    query, plan = _call(device, torch.bfloat16, 128, compensate=True)
    found = []
    for backend in BACKENDS:
        reason = backend.why_not(query, plan)
        text = "runs here" if reason is None else reason
        found.append(Finding(f"backend {backend.name}", good=reason is None, text=text))
    chosen = (
        f"{resolve('auto', *_call(device, dtype, size, compensate=compensate)).name} for "
        f"{str(dtype).removeprefix('torch.')}, head size {size}"
        f"{', compensated' if compensate else ''}"
        for dtype, size, compensate in CALLS
    )
    return [*found, Finding("backend auto", good=True, text="; ".join(chosen))]


def _call(
    device: torch.device, dtype: torch.dtype, size: int, *, compensate: bool
) -> tuple[Tensor, BlockPlan]:
    query = torch.zeros(1, 1, 2, size, dtype=dtype, device=device)
    sizes = torch.ones(1, 1, 2, dtype=torch.int64, device=device)
    keep = torch.ones(1, 1, 2, 2, dtype=torch.bool, device=device)
    terms = MeanTerms(keep[:, :, 0]) if compensate else None
    return query, BlockPlan(None, None, sizes, sizes, keep, terms)
