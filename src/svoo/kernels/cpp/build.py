"""The C++ kernels as a library: compiled at the first use, kept in the user's cache."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import torch

from svoo.errors import BackendUnavailableError
from svoo.storage import cache_folder

SOURCE = Path(__file__).with_name("kernels.cpp")
COMPILERS = ("c++", "g++", "clang++")
# By what torch found the processor to have; any other gets the compiler's usual instructions.
INSTRUCTIONS = {
    "AVX512": ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma"),
    "AVX2": ("-mavx2", "-mfma"),
}
OPTIONS = ("-std=c++17", "-O3", "-shared", "-fPIC")
_LONGEST = 300  # seconds that compiling may take; one is usual


@cache
def why_no_library() -> str | None:
    """Return why there is no library, or None if there is one."""
    try:
        load_library()
    except BackendUnavailableError as error:
        return str(error)
    return None


@cache
def load_library() -> ctypes.CDLL:
    """Return the library for this processor; compile it if no earlier run has."""
    flags = INSTRUCTIONS.get(torch.backends.cpu.get_cpu_capability(), ())
    try:
        path = cache_folder() / "cpp" / f"{_fingerprint(flags)}.so"
        if not path.exists():
            compile_library(path, flags)
        return ctypes.CDLL(str(path))
    # No home, no such folder, a full disk, a folder without execution, a file that is cut off.
    except (OSError, RuntimeError) as error:
        if isinstance(error, BackendUnavailableError):
            raise
        raise BackendUnavailableError(f"cannot build or load the kernels: {error}") from error


def compile_library(path: Path, flags: tuple[str, ...]) -> None:
    """Compile the kernels into a file, which is there whole or not at all."""
    # CXX is how users name a compiler, with its options, to every build.
    compiler = shlex.split(os.environ.get("CXX", "")) or [*filter(shutil.which, COMPILERS)][:1]
    if not compiler:
        raise BackendUnavailableError(
            f"needs a C++ compiler, and none of {', '.join(COMPILERS)} is installed"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        unfinished = Path(folder, path.name)
        try:
            done = subprocess.run(
                (*compiler, *OPTIONS, *flags, str(SOURCE), "-o", str(unfinished)),
                capture_output=True,
                text=True,
                timeout=_LONGEST,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise BackendUnavailableError(f"{compiler[0]} took over {_LONGEST} s") from error
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if "error" in line]
            reason = next(iter(lines), f"exit code {done.returncode}")
            raise BackendUnavailableError(f"{compiler[0]} cannot compile the kernels: {reason}")
        unfinished.replace(path)


def _fingerprint(flags: tuple[str, ...]) -> str:
    """Name what a compiled file depends on."""
    parts = (SOURCE.read_text(), platform.system(), platform.machine(), *OPTIONS, *flags)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
