"""The import directions of DESIGN.md, a test file for every module, short files, and an import
that does nothing."""

import ast
import inspect
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from svoo.methods import MethodRow, available_methods

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "svoo"
# Each row may import from the rows above it, and from its own.
ROWS = (
    ("errors", "storage"),
    ("catalogue",),
    ("core", "kernels"),
    ("backends", "profiles"),
    ("methods",),
    ("session",),
    ("plugin", "metrics", "mini"),
    ("fleet", "integrations"),
    ("studies",),
    ("app",),
    ("__init__", "__main__"),
)
LONGEST, MEDIAN = 350, 114  # lines of a file in src/
SHARED_BY_METHODS = ("__init__.py", "base.py", "k_means.py", "repaired.py", "warm_up.py")
RANK = {name: rank for rank, row in enumerate(ROWS) for name in row}
MODULES = sorted(path.relative_to(SOURCE) for path in SOURCE.rglob("*.py"))
TOOLS = sorted(path.relative_to(ROOT) for path in (ROOT / "tools").rglob("*.py"))
UNTESTED = {"errors.py", "__main__.py", "backends/base.py", "methods/base.py"}  # nothing to run


def imports(path: Path) -> list[str]:
    found: list[str] = []
    for node in ast.walk(ast.parse((SOURCE / path).read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.append(node.module)
    return found


def test_a_bare_import_is_found(tmp_path: Path) -> None:
    for line in ("import svoo", "from svoo import Profile", "from svoo import plugin as own"):
        (tmp_path / "module.py").write_text(f"def late() -> None:\n    {line}\n")
        assert imports(tmp_path / "module.py") == ["svoo"]


def part(path: Path) -> str:
    return path.parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_imports_point_one_way(path: Path) -> None:
    for name in imports(path):
        top, *rest = name.split(".")
        assert top != "tools", f"{path} imports {name}, which is not shipped"
        assert name != "svoo" or part(path) in ROWS[-1], f"{path} imports the bare package"
        if top == "svoo" and rest:
            assert RANK[rest[0]] <= RANK[part(path)], f"{path} imports {name}"
            if part(path) == rest[0] == "backends" and path.name != "__init__.py":
                assert rest[1] == "base", f"{path} imports another backend: {name}"
            if part(path) == rest[0] == "methods" and path.parts[1] not in SHARED_BY_METHODS:
                own = path.parts[1].removesuffix(".py")
                allowed = (*(shared.removesuffix(".py") for shared in SHARED_BY_METHODS), own)
                assert rest[1] in allowed, f"{path} imports another method: {name}"
        if top in ("diffusers", "transformers"):
            assert part(path) in ("plugin", "mini"), f"{path} imports {name}"
        if top == "triton":
            assert path.parts[:2] == ("kernels", "triton") or str(path) == "backends/triton.py"
        if top == "ray":
            assert part(path) == "fleet", f"{path} imports {name}"
        if top == "flashinfer":
            assert str(path) == "backends/flashinfer.py"


@pytest.mark.parametrize("row", available_methods(), ids=lambda row: row.name)
def test_a_method_is_one_file_that_can_be_read_at_once(row: MethodRow) -> None:
    path = Path(inspect.getfile(row.config)).resolve()
    if row.name not in ("dense", "svoo"):  # nothing to plan; a package of its own
        assert path.parent == SOURCE / "methods"
        assert len(path.read_text().splitlines()) <= 160


def test_files_are_short() -> None:
    lengths = {path: len((SOURCE / path).read_text().splitlines()) for path in MODULES}
    assert {path: lines for path, lines in lengths.items() if lines > LONGEST} == {}
    assert statistics.median(lengths.values()) <= MEDIAN


@pytest.mark.parametrize("path", [*MODULES, *TOOLS], ids=str)
def test_every_module_has_its_test_file(path: Path) -> None:
    if path.name != "__init__.py" and str(path) not in UNTESTED:
        assert (ROOT / "tests" / path.parent / f"test_{path.name}").exists()


def test_importing_does_nothing() -> None:
    program = (
        "import sys, torch; before = torch.get_rng_state(); import svoo;"
        "assert torch.equal(before, torch.get_rng_state());"
        "heavy = ('triton', 'flashinfer', 'diffusers', 'transformers', 'ray', 'typer');"
        "print([name for name in heavy if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert (result.stdout.strip(), result.stderr) == ("[]", "")
