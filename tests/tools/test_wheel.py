"""The wheel is built and used as `make wheel` does it, but beside this environment's packages: an
empty one needs 75 s of CPU and 1.2 GB (`make wheel`)."""

import subprocess
import sys
import zipfile
from email.parser import Parser
from importlib.util import find_spec
from pathlib import Path

import pytest

import svoo
from tools import wheel

pytestmark = pytest.mark.skipif(
    find_spec("build") is None, reason="build is not installed; make test does"
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheel.build(tmp_path_factory.mktemp("wheel") / "out")


def test_it_has_the_package_and_nothing_else(built: Path) -> None:
    with zipfile.ZipFile(built) as archive:
        names = archive.namelist()
        metadata = next(name for name in names if name.endswith(".dist-info/METADATA"))
        facts = Parser().parsestr(archive.read(metadata).decode())
        entries = archive.read(metadata.replace("METADATA", "entry_points.txt")).decode()
    assert {name.split("/")[0] for name in names} == {"svoo", metadata.split("/")[0]}
    source = wheel.ROOT / "src" / "svoo"
    files = {
        f"svoo/{path.relative_to(source)}"
        for path in source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert files <= set(names)  # templates, weights, kernels and py.typed too
    assert "svoo/py.typed" in files and "svoo/app/templates/ui.html" in files
    assert facts["Version"] == svoo.__version__
    assert facts["License-Expression"] == "Apache-2.0" and facts["Requires-Python"] == ">=3.11"
    assert "svoo = svoo.app.cli:main" in entries


def test_it_works_where_there_is_no_checkout(built: Path, tmp_path: Path) -> None:
    target = tmp_path / "installed"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--no-deps", "--target", str(target), str(built)], check=True)
    wheel.use(Path(sys.executable), tmp_path / "use", more_path=target)


def test_every_file_that_names_the_version_names_this_one() -> None:
    citation = (wheel.ROOT / "CITATION.cff").read_text()
    changes = (wheel.ROOT / "CHANGELOG.md").read_text()
    assert f"\nversion: {svoo.__version__}\n" in citation
    assert changes.split("\n## ")[1].startswith(f"{svoo.__version__}\n")
