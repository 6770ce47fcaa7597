"""The machine that a figure was made on."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import torch


def describe_machine() -> dict[str, Any]:
    """Return what a figure depends on: processor, threads, device, versions."""
    found = {
        "processor": _processor(),
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


def _processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the processor's name; family and model beside it, for a name alone ("AMD EPYC") may
    be that of several generations."""
    if not cpuinfo.exists():
        return platform.processor()
    facts = dict(re.findall(r"^(.*\S)\s*: (.*)$", cpuinfo.read_text(), re.MULTILINE))
    name = facts.get("model name", platform.processor())
    if "cpu family" not in facts or "model" not in facts:  # not an x86 processor
        return name
    return f"{name} (family {facts['cpu family']}, model {facts['model']})"


def name_machine(machine: Mapping[str, Any]) -> str:
    """Return what tells machines apart whose times must not be mixed."""
    processor, instructions, device = (machine[n] for n in ("processor", "instructions", "device"))
    return f"{processor}, {instructions}, {machine['threads']} threads, {device}"


class OtherWork:
    """How busy the machine was with something else: times of a busy machine say little."""

    def __init__(self, stat: Path = Path("/proc/stat")) -> None:
        """Begin to count."""
        self._stat = stat
        self._before = self._read()

    def share(self) -> float | None:
        """Return the share of all cores that other processes used since; None where the system
        does not tell."""
        now = self._read()
        if self._before is None or now is None:
            return None
        every, busy, own = (
            after - before for after, before in zip(now, self._before, strict=True)
        )
        return min(1.0, max(0.0, (busy - own) / every)) if every > 0 else 0.0

    def _read(self) -> tuple[float, float, float] | None:
        """Return seconds of all cores: in all, busy, and of this process."""
        try:
            line = self._stat.read_text().partition("\n")[0]
            ticks = [int(word) for word in line.split()[1:9]]  # guests are counted in user
            second = os.sysconf("SC_CLK_TCK")
        except (OSError, ValueError, AttributeError):
            return None
        idle = sum(ticks[3:5])  # idle, and waiting for a disk
        own = os.times()
        return (
            sum(ticks) / second,
            (sum(ticks) - idle) / second,
            own.user + own.system + own.children_user + own.children_system,
        )


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
    commit = git("describe", "--always") if ours else None
    if commit is None:
        return "released"
    # Of the package alone: results that are being written do not change what it does.
    return f"{commit}-dirty" if git("status", "--porcelain", "--", "..") else commit
