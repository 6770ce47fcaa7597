from pathlib import Path

from svoo.catalogue import SEAM_TESTED, models
from tools.docs_hooks import MODELS, TESTED, on_config, on_page_markdown


def test_pages_get_the_tables_of_the_package() -> None:
    text = on_page_markdown(f"before\n\n{MODELS}\n\n{TESTED}\n", page=None)
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(rows) == 4 + len(models()) + len(SEAM_TESTED)
    assert "| `wan2.1-t2v-14b` | `Wan-AI/Wan2.1-T2V-14B-Diffusers` | 40 x 40 |" in text
    assert "75,600" in text and "two experts" in text and text.startswith("before")


def test_the_page_of_models_asks_for_them() -> None:
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    assert MODELS in page and TESTED in page


def test_a_page_that_nobody_listed_is_listed(tmp_path: Path) -> None:
    (tmp_path / "report").mkdir()
    for name in ("index.md", "new.md", "report/table.md", "picture.png"):
        (tmp_path / name).write_text("")
    config = {"docs_dir": str(tmp_path), "nav": [{"Start": "index.md"}]}
    more = {"More": ["new.md", "report/table.md"]}
    assert on_config(config)["nav"] == [{"Start": "index.md"}, more]
    nested = {"docs_dir": str(tmp_path), "nav": ["index.md", {"A": [{"B": "new.md"}, more]}]}
    assert len(on_config(nested)["nav"]) == 2
