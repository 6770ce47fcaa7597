import ctypes
import os
import platform
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from svoo.errors import BackendUnavailableError
from svoo.kernels.cpp import build as library
from svoo.kernels.cpp.build import compile_library, load_library, open_folder, why_no_library


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    for function in (load_library, why_no_library):
        function.cache_clear()
    yield
    for function in (load_library, why_no_library):
        function.cache_clear()


@pytest.fixture
def _little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A source that compiles at once."""
    (tmp_path / "little.cpp").write_text('extern "C" int attend_float32() { return 7; }')
    monkeypatch.setattr(library, "SOURCE", tmp_path / "little.cpp")


def library_folder(cache: Path) -> Path:
    return cache / "svoo" / "cpp"


def library_file(cache: Path) -> Path:
    (path,) = library_folder(cache).iterdir()
    assert path.suffix == ".so"
    return path


def script(folder: Path, text: str) -> str:
    path = folder / "compiler"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.compiler
def test_it_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(load_library(), ctypes.CDLL)
    assert library_file(tmp_path).stat().st_mode & 0o077 == 0
    assert stat.S_IMODE(library_folder(tmp_path).stat().st_mode) == 0o700
    load_library.cache_clear()
    monkeypatch.setattr(library, "compile_library", pytest.fail)
    assert load_library().attend_float32


def test_another_source_or_processor_is_another_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {library._fingerprint(flags) for flags in ((), ("-mavx2",))}
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    names.add(library._fingerprint(()))
    monkeypatch.setattr(library, "SOURCE", tmp_path / "kernels.cpp")
    for name in ("kernels.cpp", "vectors.h"):
        (tmp_path / name).write_text("int x;")
        names.add(library._fingerprint(()))
    assert len(names) == 5


def test_without_a_compiler_the_reason_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    assert why_no_library() == "needs a C++ compiler, and none of c++, g++, clang++ is installed"


def test_a_compiler_that_fails_is_quoted_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    complaint = "echo note: there; echo kernels.cpp:1: error: no lanes >&2; exit 1"
    monkeypatch.setenv("CXX", script(tmp_path, complaint))
    reason = why_no_library()
    assert reason is not None
    assert reason.endswith("cannot compile the kernels: kernels.cpp:1: error: no lanes")
    assert list(library_folder(tmp_path).iterdir()) == []


def test_a_compiler_that_hangs_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", script(tmp_path, "exec sleep 60"))
    monkeypatch.setattr(library, "_LONGEST", 0.1)
    with pytest.raises(BackendUnavailableError, match="took over 0.1 s"):
        compile_library(tmp_path / "kernels.so", ())


@pytest.mark.parametrize("error", [subprocess.TimeoutExpired, KeyboardInterrupt])
def test_a_compiler_that_is_given_up_takes_along_what_it_started(
    error: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = tmp_path / "started"
    compiler = script(
        tmp_path, f"sleep 60 2>&- & echo $! > {started}.new; mv {started}.new {started}; wait"
    )

    def give_up(*_arguments: Any, **_settings: Any) -> None:
        while not started.exists():
            time.sleep(0.01)
        raise error("g++", 1)

    monkeypatch.setenv("CXX", compiler)
    monkeypatch.setattr(subprocess.Popen, "communicate", give_up)
    with pytest.raises((BackendUnavailableError, KeyboardInterrupt)):
        compile_library(tmp_path / "kernels.so", ())
    number = int(started.read_text())
    for _ in range(500):
        if not is_running(number):
            return
        time.sleep(0.01)
    os.kill(number, signal.SIGKILL)
    pytest.fail("what the compiler started goes on without it")


def is_running(number: int) -> bool:
    """Whether a process is there and has not ended, though perhaps nobody has asked how yet."""
    status = Path(f"/proc/{number}/stat")
    return status.exists() and status.read_text().rpartition(") ")[2][0] != "Z"


def test_a_compiler_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    reason = why_no_library()
    assert reason is not None
    assert "no-such-compiler" in reason


@pytest.mark.compiler
@pytest.mark.usefixtures("_little")
def test_a_cache_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(library, "cache_folder", lambda: tmp_path / "file")
    assert load_library().attend_float32  # compiled for this process alone
    assert "no cache for the C++ kernels, they are compiled at every start: " in caplog.text


@pytest.mark.compiler
@pytest.mark.usefixtures("_little")
def test_a_user_without_a_home(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(library, "cache_folder", fail)
    assert load_library().attend_float32
    assert "Could not determine home directory." in caplog.text


def test_nowhere_to_write_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file"))
    reason = why_no_library()
    assert reason is not None
    assert reason.startswith("cannot build or load the kernels: ")


@pytest.mark.compiler
@pytest.mark.usefixtures("_little")
@pytest.mark.parametrize("damage", ["cut short", "emptied", "changed", "another's", "a link"])
def test_a_library_that_is_not_what_was_compiled_is_made_anew(
    damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_library()
    path = library_file(tmp_path)
    whole = path.read_bytes()
    contents = {
        "cut short": whole[: len(whole) // 2],
        "emptied": b"",
        "changed": whole[:-1] + bytes([whole[-1] ^ 1]),
    }
    if damage in contents:
        path.unlink()  # this process runs the old one: its pages must stay
        path.write_bytes(contents[damage])
        path.chmod(0o700)
    elif damage == "another's":
        path.chmod(0o722)  # others could write to it
    else:
        path.rename(tmp_path / "elsewhere.so")
        path.symlink_to(tmp_path / "elsewhere.so")
    compiled = []

    def compile_again(target: Path, flags: tuple[str, ...]) -> None:
        compiled.append(flags)
        compile_library(target, flags)

    monkeypatch.setattr(library, "compile_library", compile_again)
    load_library.cache_clear()
    assert load_library().attend_float32
    assert len(compiled) == 1
    fresh = library_file(tmp_path)
    assert not fresh.is_symlink() and fresh.stat().st_mode & 0o077 == 0


@pytest.mark.compiler
@pytest.mark.usefixtures("_little")
def test_a_folder_of_another_user_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = library_folder(tmp_path)
    folder.mkdir(parents=True)
    monkeypatch.setattr(os, "getuid", lambda: folder.stat().st_uid + 1)
    with pytest.raises(PermissionError, match="belongs to user .*, not to this one"):
        open_folder(folder)
    monkeypatch.setattr(library, "_hash", lambda _path: "any")  # the temporary folder is ours
    assert load_library().attend_float32
    assert list(folder.iterdir()) == [] and "belongs to user" in caplog.text


def test_a_folder_that_others_can_write_to_is_closed_and_cleaned(tmp_path: Path) -> None:
    folder = library_folder(tmp_path)
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    old, new = folder / ".compiling-old", folder / ".compiling-new"
    for left in (old, new):
        left.mkdir()
        (left / "kernels.so").touch()
    os.utime(old, (0, 0))
    open_folder(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [*folder.iterdir()] == [new]  # another process may be at work in it


def test_a_compiler_command_with_half_a_quote(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", 'g++ "')
    assert why_no_library() == """CXX is 'g++ "', which is no command: No closing quotation"""


def test_a_compiler_that_speaks_no_utf_8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", script(tmp_path, r"printf 'error: \377\376 Datei\n' >&2; exit 1"))
    reason = why_no_library()
    assert reason is not None
    assert reason.endswith("cannot compile the kernels: error: \ufffd\ufffd Datei")


def test_a_compiler_that_makes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", script(tmp_path, "exit 0"))
    reason = why_no_library()
    assert reason is not None
    assert reason.endswith("cannot compile the kernels: exit code 0")


def test_a_long_compilation_says_what_it_is_doing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(library, "_PATIENCE", 0.01)
    monkeypatch.setenv("CXX", script(tmp_path, "sleep 0.5; exit 1"))
    assert why_no_library() is not None
    (record,) = caplog.records
    assert record.levelname == "WARNING"  # Python writes these to stderr unasked
    assert record.getMessage().startswith("compiling the C++ kernels for this processor with ")


def test_a_short_compilation_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", script(tmp_path, "exit 1"))
    assert why_no_library() is not None
    assert caplog.records == []


@pytest.mark.compiler
def test_a_compiler_may_be_named_with_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = next(filter(shutil.which, library.COMPILERS))
    monkeypatch.setenv("CXX", f"{compiler} -g0")
    compile_library(tmp_path / "kernels.so", ())
    assert ctypes.CDLL(str(tmp_path / "kernels.so")).assign_float32
