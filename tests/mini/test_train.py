import subprocess
import sys


def test_the_command_lists_its_parts() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "svoo.mini.train", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert all(name in result.stdout for name in ("vae", "dit", "export", "check"))
