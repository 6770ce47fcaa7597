import subprocess
import sys
from pathlib import Path

import pytest


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tools.training.train", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_command_lists_its_parts() -> None:
    result = run("--help")
    assert all(name in result.stdout for name in ("vae", "dit", "export", "check"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("export",), "nothing to export"),
        (("dit", "--resume"), "leave out --resume"),
        (("vae", "--resume"), "leave out --resume"),
    ],
)
def test_what_is_not_there_is_told(
    arguments: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    result = run(*arguments, "--out", str(tmp_path / "t"))
    assert result.returncode == 2
    assert message in " ".join(result.stderr.replace("│", " ").split())
