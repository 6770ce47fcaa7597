import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from svoo.kernels.cpp import build
from tools import sanitize as tool


def has_sanitizers() -> bool:
    names = ("libasan.so", "libubsan.so")  # GCC's full path of each, or the bare name
    return shutil.which("g++") is not None and all(
        subprocess.run(["g++", f"-print-file-name={name}"], capture_output=True, check=True).stdout
        != f"{name}\n".encode()
        for name in names
    )


needs_sanitizers = pytest.mark.skipif(not has_sanitizers(), reason="needs GCC's sanitizers")
# As the library's function of this name, but it compiles at once.
SOURCE = """
#include <cstdint>
extern "C" void powers_of_two(float *numbers, int64_t vectors) {
    for (int64_t i = 0; i < vectors * 16; i++) numbers[i] *= 2;
}
"""
BEGIN = """
from pathlib import Path
from svoo.kernels.cpp import build
from tools import sanitize
build.SOURCE = Path("little.cpp")
"""
RIGHT = """
import ctypes, torch
sanitize.pytest_configure()
numbers = torch.ones(32)
build.load_library().powers_of_two(ctypes.c_void_p(numbers.data_ptr()), ctypes.c_int64(2))
assert numbers.sum() == 64
"""


@pytest.fixture
def _little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "little.cpp").write_text(SOURCE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", f"{tool.ROOT / 'src'}:{tool.ROOT}")
    monkeypatch.chdir(tmp_path)


@needs_sanitizers
@pytest.mark.usefixtures("_little")
@pytest.mark.parametrize(
    ("script", "kinds"),
    [("sanitize.go_wrong()", ["address", "undefined"]), (RIGHT, [])],
    ids=["wrong", "right"],
)
def test_faults_are_reported_and_nothing_else(script: str, kinds: list[str]) -> None:
    ended, said = tool.run("-c", BEGIN + script)
    assert (ended, tool.kinds(said)) == (0, kinds), said
    for words in ("heap-buffer-overflow", "signed integer overflow"):
        assert (words in said) == bool(kinds)


def test_every_library_is_compiled_to_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "OPTIONS", ("-O3",))
    monkeypatch.setattr(build, "_LONGEST", 3)
    tool.pytest_configure()
    assert list(build.OPTIONS) == ["-O3", *tool.OPTIONS]
    assert build._LONGEST == 30


@pytest.mark.parametrize(
    ("ended", "said", "reports", "code"),
    [
        (0, "", "none", 0),
        (1, "", "none", 1),
        (0, "==1==ERROR: AddressSanitizer: heap-use-after-free", "address", 1),
        (0, "a.h:1:2: runtime error: shift", "undefined", 1),
    ],
)
def test_a_failed_test_or_a_report_is_a_failure(
    ended: int,
    said: str,
    reports: str,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    commands = []

    def run(*command: str) -> tuple[int, str]:
        commands.append(command)
        return (0, " ".join(tool.KINDS.values())) if command[0] == "-c" else (ended, said)

    monkeypatch.setattr(tool, "run", run)
    with pytest.raises(SystemExit) as end:
        tool.main(["-n", "0", "tests/attacks"])
    assert end.value.code == code
    assert commands[1][-3:] == ("-n", "0", "tests/attacks") and "tools.sanitize" in commands[1]
    told = capsys.readouterr()
    assert told.out.endswith(f"reports: {reports}\n") and told.err == said


def test_without_its_own_faults_seen_it_tests_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool, "run", lambda *_command: (0, "AddressSanitizer"))
    with pytest.raises(SystemExit, match="reports of address, undefined, .* got address"):
        tool.main([])


def test_the_usual_tests_are_there_and_are_run(monkeypatch: pytest.MonkeyPatch) -> None:
    commands = []

    def run(*command: str) -> tuple[int, str]:
        commands.append(command)
        return 0, "AddressSanitizer runtime error" if command[0] == "-c" else ""

    monkeypatch.setattr(tool, "run", run)
    with pytest.raises(SystemExit):
        tool.main([])
    assert commands[1][-len(tool.TESTS) :] == tool.TESTS
    assert all((tool.ROOT / path).exists() for path in tool.TESTS)


def test_without_gcc_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    with pytest.raises(SystemExit, match=r"expected GCC's g\+\+, .* found none"):
        tool.surroundings()


@pytest.mark.skipif(sys.platform != "linux", reason="needs a shell script as a compiler")
def test_without_the_sanitizers_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "g++"
    compiler.write_text('#!/bin/sh\necho "${1#-print-file-name=}"\n')  # as GCC names what is not
    compiler.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda _name: str(compiler))
    with pytest.raises(SystemExit, match="expected libasan.so beside .*, found none: install"):
        tool.surroundings()
