"""Tests with the C++ kernels under AddressSanitizer and UndefinedBehaviorSanitizer of GCC.

`python -m tools.sanitize [arguments of pytest]` (`make sanitize`) compiles the kernels so
that they report what they read or write outside of a tensor and what C++ leaves undefined, first
shows that both are seen, then runs the tests. It fails where a test fails or anything is reported.
As a plug-in of pytest (`-p tools.sanitize`) this only compiles the kernels so. GCC may
not watch stores past the cache (`_mm512_stream_ps`); the test of the usual instructions has none.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import torch

from svoo.kernels.cpp import build

ROOT = Path(__file__).parents[1]
TESTS = ("tests/attacks", "tests/backends/test_cpp.py", "tests/kernels/cpp")
# Not optimised as far as the kernels that users get: those would take minutes to compile.
OPTIONS = ("-O1", "-g1", "-fsanitize=address,undefined", "-fsanitize-recover=address")
KINDS = {"address": "AddressSanitizer", "undefined": "runtime error"}  # what a report says


def pytest_configure() -> None:
    """Let every library that is compiled from now on report."""
    build.OPTIONS += OPTIONS
    build._LONGEST *= 10


def go_wrong() -> None:
    """Do to the library under test what both must report; ends this process."""
    pytest_configure()
    numbers = torch.zeros(17)
    library, start = build.load_library(), ctypes.c_void_p(numbers.data_ptr())
    library.powers_of_two(start, ctypes.c_int64(2**62))  # numbers: a product that wraps to 0
    library.powers_of_two(start, ctypes.c_int64(2))  # 15 numbers too many
    os._exit(0)  # with memory that may be spoilt


def surroundings() -> dict[str, str]:
    """Return the environment of a process that reports to stderr."""
    compiler = shutil.which("g++")
    if compiler is None:
        sys.exit("expected GCC's g++, whose AddressSanitizer is used here; found none: install it")
    # The second one is looked for when the first one starts, long before torch brings it.
    libraries = [_find(compiler, name) for name in ("libasan.so", "libstdc++.so.6")]
    return os.environ | {
        "CXX": compiler,
        "LD_PRELOAD": " ".join(libraries),
        # Python never frees all it has; some tests ask torch for more memory than there is.
        "ASAN_OPTIONS": "detect_leaks=0:halt_on_error=0:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }


def _find(compiler: str, name: str) -> str:
    command = [compiler, f"-print-file-name={name}"]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    if not Path(found).is_absolute():
        sys.exit(f"expected {name} beside {compiler}, found none: install GCC's sanitizers")
    return found


def run(*command: str) -> tuple[int, str]:
    """Run Python with arguments; return how it ended and what it wrote to stderr."""
    done = subprocess.run(
        [sys.executable, *command],
        env=surroundings(),
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    return done.returncode, done.stderr


def kinds(said: str) -> list[str]:
    """Return which kinds of reports are in a text."""
    return [kind for kind, words in KINDS.items() if words in said]


def main(arguments: list[str] | None = None) -> None:
    """Show that reports come, then run the tests; exits with 1 where one fails or reports."""
    parser = argparse.ArgumentParser(prog="python -m tools.sanitize", description=__doc__)
    _, given = parser.parse_known_args(arguments)
    ended, said = run("-c", "from tools import sanitize; sanitize.go_wrong()")
    if len(kinds(said)) < len(KINDS):
        sys.exit(
            f"{said}\nexpected reports of {', '.join(KINDS)}, for each a fault was made on "
            f"purpose; got {', '.join(kinds(said)) or 'none'} "
            f"(exit code {ended}): no test would show a fault"
        )
    sys.stdout.write("Faults made on purpose were reported; now the tests.\n")
    sys.stdout.flush()
    # pytest must not take what the kernels write to stderr.
    options = ("-p", "tools.sanitize", "--capture=sys")
    ended, said = run("-m", "pytest", *options, *(given or TESTS))
    sys.stderr.write(said)
    sys.stdout.write(f"\nreports: {', '.join(kinds(said)) or 'none'}\n")
    sys.exit(1 if ended or kinds(said) else 0)


if __name__ == "__main__":
    main()
