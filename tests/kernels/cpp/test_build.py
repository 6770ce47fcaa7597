import ctypes
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from svoo.errors import BackendUnavailableError
from svoo.kernels.cpp import build as library
from svoo.kernels.cpp.build import compile_library, load_library, why_no_library


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    for function in (load_library, why_no_library):
        function.cache_clear()
    yield
    for function in (load_library, why_no_library):
        function.cache_clear()


def script(folder: Path, text: str) -> str:
    path = folder / "compiler"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.compiler
def test_it_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(load_library(), ctypes.CDLL)
    (kept,) = (tmp_path / "svoo" / "cpp").iterdir()
    assert kept.suffix == ".so"
    load_library.cache_clear()
    monkeypatch.setattr(library, "compile_library", pytest.fail)
    assert load_library().attend_float32


def test_another_source_or_processor_is_another_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {library._fingerprint(flags) for flags in ((), ("-mavx2",))}
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    names.add(library._fingerprint(()))
    monkeypatch.setattr(library, "FOLDER", tmp_path)
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
    assert list((tmp_path / "svoo" / "cpp").iterdir()) == []


def test_a_compiler_that_hangs_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", script(tmp_path, "exec sleep 60"))
    monkeypatch.setattr(library, "_LONGEST", 0.1)
    with pytest.raises(BackendUnavailableError, match="took over 0.1 s"):
        compile_library(tmp_path / "kernels.so", ())


def test_a_compiler_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    reason = why_no_library()
    assert reason is not None
    assert "no-such-compiler" in reason


@pytest.mark.compiler
def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    reason = why_no_library()
    assert reason is not None
    assert reason.startswith("cannot build or load the kernels: ")


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", fail)
    assert why_no_library() == (
        "cannot build or load the kernels: Could not determine home directory."
    )


@pytest.mark.compiler
def test_a_compiler_may_be_named_with_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = next(filter(shutil.which, library.COMPILERS))
    monkeypatch.setenv("CXX", f"{compiler} -g0")
    compile_library(tmp_path / "kernels.so", ())
    assert ctypes.CDLL(str(tmp_path / "kernels.so")).assign_float32
