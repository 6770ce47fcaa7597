"""`make docs`: the documentation site, with every warning an error and without a network."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def build(site: Path) -> subprocess.CompletedProcess[str]:
    """Build the site into a folder; what is wrong stands in the error stream."""
    # No --quiet: it hides warnings from --strict too.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    # Its makers announce their next tool at every build.
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(
        [*command, "--config-file", str(ROOT / "mkdocs.yml"), "--site-dir", str(site)],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )


if __name__ == "__main__":
    done = build(ROOT / "out" / "site")
    if done.returncode:
        sys.stderr.write(done.stderr)
    sys.exit(done.returncode)
