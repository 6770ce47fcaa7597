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

FOLDER = Path(__file__).parent
SOURCE = "kernels.cpp"  # which includes the headers beside it
COMPILERS = ("c++", "g++", "clang++")
# By what torch found the processor to have; any other gets the compiler's usual instructions.
INSTRUCTIONS = {
    "AVX512": ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma"),
    "AVX2": ("-mavx2", "-mfma"),
}
PAIRS = ("avx512_bf16", "-mavx512bf16")  # as Linux names it, and the compiler
OPTIONS = ("-std=c++17", "-O3", "-shared", "-fPIC", "-fvisibility=hidden")
_LONGEST = 300  # seconds that compiling may take; ten are usual


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
    flags = find_flags()
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


def find_flags() -> tuple[str, ...]:
    """Return the compiler's flags for the instructions that this processor has."""
    capability = torch.backends.cpu.get_cpu_capability()
    flags = INSTRUCTIONS.get(capability, ())
    described = Path("/proc/cpuinfo")  # Linux; elsewhere bfloat16 products are not used
    if capability == "AVX512" and described.exists() and PAIRS[0] in described.read_text().split():
        flags += PAIRS[1:]
    return flags


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
                (*compiler, *OPTIONS, *flags, str(FOLDER / SOURCE), "-o", str(unfinished)),
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
    sources = (path.read_text() for path in sorted(FOLDER.glob("*.[ch]*")))
    parts = (*sources, platform.system(), platform.machine(), *OPTIONS, *flags)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
