"""The pinned set must install with the CUDA build of torch, which needs more than the CPU one."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]


def wanted() -> list[str]:
    """What `make setup` asks for: the package's own needs and those of its extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [need for extra in project["optional-dependencies"].values() for need in extra]
    needs = [*project["dependencies"], *extras]
    return [need for need in needs if Requirement(need).name != "svoo"]


def test_the_constraints_resolve_with_the_cuda_build_of_torch(tmp_path: Path) -> None:
    """A dry run: pip reads the wheels' metadata and downloads none of them."""
    report = tmp_path / "report.json"
    # Without the folders and settings of this machine, which may hold a CPU build.
    environment = {name: value for name, value in os.environ.items() if name != "PIP_FIND_LINKS"}
    environment["PIP_CONFIG_FILE"] = os.devnull
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--dry-run",
        "--ignore-installed",
    ]
    command += ["--disable-pip-version-check", "--only-binary", ":all:", "--report", str(report)]
    command += ["--constraint", str(ROOT / "constraints.txt"), *wanted()]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode and "ResolutionImpossible" not in done.stderr:
        pytest.skip(f"pip cannot reach its registry: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    found = json.loads(report.read_text())["install"]
    torch, triton = (
        next(row["metadata"] for row in found if row["metadata"]["name"] == name)
        for name in ("torch", "triton")
    )
    if not any("cuda" in need for need in torch["requires_dist"]):
        pytest.skip("the registry's torch is no CUDA build on this platform")
    pins = [Requirement(need) for need in torch["requires_dist"] if need.startswith("triton")]
    assert pins and all(triton["version"] in pin.specifier for pin in pins)
