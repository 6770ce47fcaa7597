"""The machine that a figure was made on."""

from __future__ import annotations

import os
import platform
import re
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import torch


def describe_machine() -> dict[str, Any]:
    """Return what a figure depends on: processor, threads, device, versions."""
    processor, cpuinfo = platform.processor(), Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = re.findall(r"^model name\s*: (.*)$", cpuinfo.read_text(), re.MULTILINE)
        processor = names[0] if names else processor
    found = {
        "processor": processor,
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "python": platform.python_version(),
    }
    for package in ("svoo", "torch", "diffusers", "transformers"):
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found
