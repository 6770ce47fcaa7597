"""The C++ kernels as a library: compiled at the first use, kept in the user's cache."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shlex
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from functools import cache
from pathlib import Path
from threading import Timer

import torch

from svoo.errors import BackendUnavailableError
from svoo.storage import cache_folder

SOURCE = Path(__file__).with_name("kernels.cpp")  # which includes the headers beside it
COMPILERS = ("c++", "g++", "clang++")
# By what torch found the processor to have; any other gets the compiler's usual instructions.
INSTRUCTIONS = {
    "AVX512": ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma"),
    "AVX2": ("-mavx2", "-mfma"),
}
PAIRS = ("avx512_bf16", "-mavx512bf16")  # as Linux names it, and the compiler
OPTIONS: tuple[str, ...] = ("-std=c++17", "-O3", "-shared", "-fPIC", "-pthread")
_LONGEST = 300  # seconds that compiling may take; ten are usual
_PATIENCE = 2.0  # seconds of compiling before the user is told
_UNFINISHED = ".compiling-"
_log = logging.getLogger(__name__)


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
    """Return the library for this processor; compile it if no earlier run has.

    Without a cache that can be used and trusted it is compiled for this process alone.
    """
    flags = find_flags()
    try:
        return _load_from(open_folder(cache_folder() / "cpp"), flags)
    except BackendUnavailableError:  # the compiler's fault, not the cache's
        raise
    except (OSError, RuntimeError) as error:  # no home, a full disk, another user's folder
        _log.warning("no cache for the C++ kernels, they are compiled at every start: %s", error)
    try:
        with tempfile.TemporaryDirectory() as folder:  # what is loaded stays when the file goes
            return _load_from(Path(folder), flags)
    except OSError as error:
        raise BackendUnavailableError(f"cannot build or load the kernels: {error}") from error


def find_flags() -> tuple[str, ...]:
    """Return the compiler's flags for the instructions that this processor has."""
    capability = torch.backends.cpu.get_cpu_capability()
    flags = INSTRUCTIONS.get(capability, ())
    described = Path("/proc/cpuinfo")  # Linux; elsewhere bfloat16 products are not used
    if capability == "AVX512" and described.exists() and PAIRS[0] in described.read_text().split():
        flags += PAIRS[1:]
    return flags


def open_folder(folder: Path) -> Path:
    """Return a folder that nobody else can write to, made if need be; refuse another user's.

    A library in it runs as code of this process.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_uid != _user(found.st_uid):
        raise PermissionError(f"{folder} belongs to user {found.st_uid}, not to this one")
    if stat.S_IMODE(found.st_mode) != 0o700:
        folder.chmod(0o700)
    _clean(folder)
    return folder


def _user(default: int) -> int:
    """Return who runs this process; systems that have no such numbers give the default."""
    return os.getuid() if hasattr(os, "getuid") else default


def _clean(folder: Path) -> None:
    """Remove what killed compilations have left."""
    for left in folder.glob(f"{_UNFINISHED}*"):
        if time.time() - left.stat().st_mtime > 2 * _LONGEST:
            shutil.rmtree(left, ignore_errors=True)


def _load_from(folder: Path, flags: tuple[str, ...]) -> ctypes.CDLL:
    """Load the library of a folder; compile it where there is none that is whole."""
    name = _fingerprint(flags)
    for path in sorted(folder.glob(f"{name}-*.so")):
        if path.name == f"{name}-{_hash(path)}.so":
            return ctypes.CDLL(str(path))
        path.unlink()  # cut short, changed, or not ours
    with tempfile.TemporaryDirectory(dir=folder, prefix=_UNFINISHED) as unfinished:
        made = Path(unfinished, "kernels.so")
        compile_library(made, flags)
        path = made.replace(folder / f"{name}-{_hash(made)}.so")
    return ctypes.CDLL(str(path))


def _hash(path: Path) -> str | None:
    """Return what a library's content is named by; None for what another user could have written,
    or no file."""
    found = path.lstat()
    is_own = found.st_uid == _user(found.st_uid) and not found.st_mode & 0o022
    if not (stat.S_ISREG(found.st_mode) and is_own):
        return None
    return hashlib.sha256(path.read_bytes()).hexdigest()[:32]


def compile_library(path: Path, flags: tuple[str, ...]) -> None:
    """Compile the kernels into a file; say so in the log if it takes long."""
    compiler = _find_compiler()
    notice = Timer(
        _PATIENCE,
        _log.warning,
        ("compiling the C++ kernels for this processor with %s, once", compiler[0]),
    )
    notice.daemon = True
    notice.start()
    try:
        code, complaint = _run((*compiler, *OPTIONS, *flags, str(SOURCE), "-o", str(path)))
    except subprocess.TimeoutExpired as error:
        raise BackendUnavailableError(f"{compiler[0]} took over {_LONGEST} s") from error
    except OSError as error:
        raise BackendUnavailableError(f"cannot run the compiler {compiler[0]}: {error}") from error
    finally:
        notice.cancel()
    if code or not path.is_file():
        lines = [line for line in complaint.splitlines() if "error" in line]
        reason = next(iter(lines), f"exit code {code}")
        raise BackendUnavailableError(f"{compiler[0]} cannot compile the kernels: {reason}")
    path.chmod(0o700)  # whatever the user's mask says


def _run(command: tuple[str, ...]) -> tuple[int, str]:
    """Run a compiler; return its exit code and what it complained of.

    What it started ends with it when it is given up: most of the work is another process's.
    """
    with subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            _, complaint = process.communicate(timeout=_LONGEST)
        except BaseException:  # too long, or Ctrl-C
            if hasattr(os, "killpg"):
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            raise
    return process.returncode, complaint


def _find_compiler() -> list[str]:
    """Return the command of a compiler: CXX is how users name one, with its options, to every
    build."""
    named = os.environ.get("CXX", "")
    try:
        compiler = shlex.split(named) or [*filter(shutil.which, COMPILERS)][:1]
    except ValueError as error:
        raise BackendUnavailableError(f"CXX is {named!r}, which is no command: {error}") from error
    if not compiler:
        raise BackendUnavailableError(
            f"needs a C++ compiler, and none of {', '.join(COMPILERS)} is installed"
        )
    return compiler


def _fingerprint(flags: tuple[str, ...]) -> str:
    """Name what a compiled file depends on."""
    sources = (path.read_text() for path in (SOURCE, *sorted(SOURCE.parent.glob("*.h"))))
    parts = (*sources, platform.system(), platform.machine(), *OPTIONS, *flags)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
