import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import studying

from svoo.errors import ConfigError
from svoo.studies.base import FIVE, Cell, Claim
from svoo.studies.report import (
    HTML,
    MARKDOWN,
    _mark,
    make_chapters,
    order_claims,
    write_report,
)
from svoo.studies.results import Results


@pytest.fixture
def results() -> Results:
    found = studying.empty()
    facts = {"machine": {"svoo": "1", "torch": "2"}, "commit": "abc", "begun": "now"}
    found.begin_session({**facts, "prompts": ["p <b>"], "scores": ["VBench: not here"]})
    runs = {"svg2": (30.0, 2.0), "radial": (20.0, 1.0), "pisa": (10.0, 0.5)}
    studying.add_runs(found, "quality", "text to video", **runs)
    found.add("run", "one", asdict(replace(studying.ROW, prompt="p <b>")))
    found.add("skipped", "quality | image to video", {"why": "takes no image"})
    return found


def test_the_page_needs_no_network_and_the_markdown_says_the_same(
    results: Results, tmp_path: Path
) -> None:
    claims = write_report(results, tmp_path)
    page = (tmp_path / HTML).read_text()
    assert all(claim.figure in page for claim in claims) and claims
    assert not re.search(r"""(src|href)=["'](https?:)?//""", page)
    assert "p &lt;b&gt;" in page and "p <b>" not in page
    assert "Left out: takes no image" in page and "VBench: not here" in page
    assert 'class="best">30.25' in page and 'class="second">20.25' in page
    text = (tmp_path / MARKDOWN).read_text()
    assert "**30.25" in text and "<u>20.25" in text and "Left out: takes no image" in text
    for picture in re.findall(r"\]\((\S+\.png)\)", text):
        assert (tmp_path / picture).read_bytes().startswith(b"\x89PNG")
    table = [line for line in text.splitlines() if line.startswith("| svg2")]
    header = [line for line in text.splitlines() if "PSNR" in line and line.startswith("|")]
    assert len(table) == 1 and table[0].count("|") == header[-1].count("|")


def test_it_is_printed_in_landscape_with_all_that_can_be_unfolded(
    results: Results, tmp_path: Path
) -> None:
    write_report(results, tmp_path)
    page = (tmp_path / HTML).read_text()
    assert "@page { size: landscape; }" in page and "window.onbeforeprint" in page
    (hidden,) = re.findall(r"nav.*\{ display: none; \}", page[page.index("@media print") :])
    assert "details" not in hidden


def test_the_same_results_make_the_same_page(results: Results, tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_report(results, tmp_path / name)
    for name in (HTML, MARKDOWN):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_a_study_with_results_or_reasons_has_a_chapter(results: Results, tmp_path: Path) -> None:
    (chapter,) = make_chapters(results)
    assert chapter.study.name == "quality" and chapter.skipped == ["takes no image"]
    assert [table.title for table in chapter.tables] == ["text to video"]
    with pytest.raises(ConfigError, match="hold no study yet"):
        write_report(studying.empty(), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_papers_five_claims_come_first_measured_or_not(
    results: Results, tmp_path: Path
) -> None:
    claims = write_report(results, tmp_path)
    assert [claim.text for claim in claims[:5]] == list(FIVE)
    assert claims[0].verdict == "cannot be told here" and "`svoo study layers`" in claims[0].figure
    assert "against svg2" not in claims[4].figure  # no paper mode was run
    found = Claim("ours", "holds", "a", of_paper=False), Claim(list(FIVE)[1], "holds", "b")
    ordered = order_claims(found)
    assert ordered[1] is found[1] and ordered[5:] == [found[0]]
    for name in (HTML, MARKDOWN):
        text = (tmp_path / name).read_text()
        assert text.index("The paper&#39;s five claims" if name == HTML else "five claims") < (
            text.index("Quality and speed of all methods")
        )


def test_marks_of_markdown() -> None:
    assert [_mark(Cell("a|b", rank)) for rank in (0, 1, 2)] == [
        "a\\|b",
        "**a\\|b**",
        "<u>a\\|b</u>",
    ]
    assert _mark(Cell("", 1)) == ""
