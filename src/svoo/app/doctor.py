"""What can run here: the machine, the backends with their reasons, the optional packages."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from svoo.backends import BACKENDS, resolve
from svoo.core.plan import BlockPlan
from svoo.core.terms import FarTerms, MeanTerms, Terms
from svoo.plugin.machine import describe_machine

TermKind = Literal["far", "mean", "no"]
"""What stands for left-out blocks in a call."""
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

CALLS: tuple[tuple[torch.dtype, int, TermKind], ...] = (  # the usual one first: default mode's
    (torch.bfloat16, 128, "far"),
    (torch.bfloat16, 128, "mean"),
    (torch.bfloat16, 128, "no"),
    (torch.bfloat16, 256, "no"),
    (torch.float32, 128, "far"),
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
    """Return the findings, the machine and what each backend needs as plain data for a bug report;
    the user's home is not named."""
    rows = [asdict(finding) for finding in findings]
    with suppress(RuntimeError):  # a user without a home
        home = Path.home()
        for row in rows:
            if home != Path(home.root):  # as some containers have it
                row["text"] = row["text"].replace(f"{home}/", "~/")
    return {
        "svoo": metadata.version("svoo"),
        "system": platform.platform(),
        "machine": describe_machine(),
        "findings": rows,
        "needs": {backend.name: backend.needs.describe() for backend in BACKENDS},
    }


def _ladder(device: torch.device) -> list[Finding]:
    """Return the backends in order of preference, each with why it cannot run the usual call, and
    which of them "auto" takes for this and other calls."""
    query, plan = _call(device, *CALLS[0])
    found = []
    for backend in BACKENDS:
        reason = backend.why_not(query, plan)
        text = "runs here" if reason is None else reason
        found.append(Finding(f"backend {backend.name}", good=reason is None, text=text))
    chosen = (
        f"{resolve('auto', *_call(device, dtype, size, kind)).name} for "
        f"{str(dtype).removeprefix('torch.')}, head size {size}, {kind} terms"
        for dtype, size, kind in CALLS
    )
    return [*found, Finding("backend auto", good=True, text="; ".join(chosen))]


def _call(
    device: torch.device, dtype: torch.dtype, size: int, kind: TermKind
) -> tuple[Tensor, BlockPlan]:
    """Return the smallest call of a kind: its queries and its plan."""
    query = torch.zeros(1, 1, 2, size, dtype=dtype, device=device)
    sizes = torch.ones(1, 1, 2, dtype=torch.int64, device=device)
    keep = torch.ones(1, 1, 2, 2, dtype=torch.bool, device=device)
    bias = torch.zeros(1, 1, 2, 2, device=device)
    value = torch.zeros(1, 1, 2, 2, size, dtype=dtype, device=device)
    terms: dict[TermKind, Terms | None] = {
        "far": FarTerms(~keep, bias, value),
        "mean": MeanTerms(keep[:, :, 0]),
        "no": None,
    }
    return query, BlockPlan(None, None, sizes, sizes, keep, terms[kind])
