"""`make wheel`: build it, install it into an empty environment, and use it there."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

from rich.console import Console

ROOT = Path(__file__).parents[1]
SMALL = ("--steps", "2", "--frames", "5", "--height", "48", "--width", "64")
PROMPT = "a red circle moves left over a checkered floor"


def build(folder: Path) -> Path:
    """Build the wheel into a folder and return its path; the build's packages are those here."""
    shutil.rmtree(folder, ignore_errors=True)
    command = ["-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    _run([sys.executable, *command])
    return next(folder.glob("*.whl"))


def install(wheel: Path, folder: Path) -> Path:
    """Install a wheel and all it needs into a new environment; return its python."""
    venv.create(folder, with_pip=True, clear=True)
    python = folder / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    pip += ["--constraint", str(ROOT / "constraints.txt")]
    _run([*pip, "torch"])
    _run([*pip, f"{wheel}[ui]"])
    return python


def use(python: Path, folder: Path, more_path: Path | None = None) -> None:
    """Run the commands of an installed svoo in a folder that has nothing of the checkout."""
    folder.mkdir(parents=True, exist_ok=True)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if more_path is not None:
        environment["PYTHONPATH"] = str(more_path)
    where = "import svoo; print(svoo.__file__)"
    for command in (
        ("-c", where),
        ("-m", "svoo", "--version"),
        ("-m", "svoo", "doctor"),
        ("-m", "svoo", "ui", "--help"),
        ("-m", "svoo", "generate", "--prompt", PROMPT, *SMALL, "--out", "small.mp4"),
    ):
        said = _run([str(python), *command], cwd=folder, env=environment)
        if where in command and Path(said.strip()).is_relative_to(ROOT / "src"):
            sys.exit(f"not the installed svoo was used: {said}")
    if not (folder / "small.mp4").stat().st_size:
        sys.exit("the small video is empty")


def _run(command: list[str], **where: Any) -> str:  # noqa: ANN401 (folder and environment)
    """Run a command and return what it says; end with that where it fails."""
    done: subprocess.CompletedProcess[str] = subprocess.run(
        command, capture_output=True, text=True, check=False, **where
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out.resolve()
    console = Console(stderr=True)
    with console.status("building the wheel"):
        built = build(out)
    with console.status(f"installing {built.name} into an empty environment"):
        installed = install(built, out / "venv")
    with console.status("svoo doctor and a small video there"):
        use(installed, out / "use")
    shutil.rmtree(out / "venv")
    console.print(f"{built} works in an empty environment", highlight=False, soft_wrap=True)
