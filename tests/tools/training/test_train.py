from pathlib import Path

import pytest
from typer.testing import CliRunner

from tools.training.train import app


def test_the_command_lists_its_parts() -> None:
    result = CliRunner().invoke(app, ["--help"])
    assert all(name in result.output for name in ("vae", "dit", "export", "check"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("export",), "has neither vae.safetensors nor resume.safetensors"),
        (("dit", "--resume"), "leave out --resume"),
        (("vae", "--resume"), "leave out --resume"),
    ],
)
def test_what_is_not_there_is_told(
    arguments: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    result = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "t")])
    assert result.exit_code == 2
    assert message in " ".join(result.output.replace("│", " ").split())
