"""The machine that a figure was made on."""

from __future__ import annotations

import os
import platform
import re
import subprocess
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


def describe_commit() -> str:
    """Return the commit of the checkout that svoo runs from; "released" where there is none."""

    def git(*command: str) -> str | None:
        try:
            done = subprocess.run(
                ("git", *command),
                capture_output=True,
                text=True,
                cwd=Path(__file__).parent,
                check=False,
            )
        except OSError:  # no git here
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    ours = git("ls-files", "--error-unmatch", Path(__file__).name)  # not somebody else's checkout
    return (git("describe", "--always", "--dirty") if ours else None) or "released"
