"""The site is built as `make docs` does it: a dead link or a missing page is an error."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

import svoo
from tools import docs

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(
    find_spec("mkdocs") is None, reason="mkdocs is not installed; make test does"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("site")
    done = docs.build(folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_is_there_and_nothing_comes_from_elsewhere(site: Path) -> None:
    pages = {path.stem.replace("README", "index") for path in (ROOT / "docs").rglob("*.md")}
    built = {path.stem: path.read_text() for path in site.rglob("*.html")}
    assert pages <= set(built)
    for name, text in built.items():
        assert not re.findall(r"<(?:script|img|source)[^>]+src=\"(?:https?:)?//", text), name
        assert not re.findall(r"<link[^>]+stylesheet[^>]+href=\"(?:https?:)?//", text), name


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    text = (site / "api.html").read_text() + (site / "settings.html").read_text()
    anchors = set(re.findall(r'id="svoo\.(?:errors\.)?(\w+)"', text))
    assert set(svoo.__all__) - anchors == set()


def test_the_logo_is_a_picture(site: Path) -> None:
    """Not a link to one, which git may store as a file that holds a path."""
    page = ROOT / "src" / "svoo" / "app" / "templates" / "favicon.svg"
    assert (site / "favicon.svg").read_bytes() == page.read_bytes()
    assert page.read_bytes().startswith(b"<svg")


def test_a_dead_link_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("[gone](gone.md) and [lost](#lost)")
    settings = "site_name: x\nvalidation: {links: {not_found: warn, anchors: warn}}\n"
    (tmp_path / "mkdocs.yml").write_text(settings)
    monkeypatch.setattr(docs, "ROOT", tmp_path)
    done = docs.build(tmp_path / "site")
    assert done.returncode == 1 and "gone.md" in done.stderr and "#lost" in done.stderr


LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)")


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"])
def test_links_of_the_other_pages_lead_somewhere(page: str) -> None:
    for link in LINK.findall((ROOT / page).read_text()):
        assert (ROOT / link).exists(), f"{page} links to {link}"
