from types import SimpleNamespace
from typing import Any

import pytest
import studying

from svoo.catalogue import find_model
from svoo.errors import ConfigError
from svoo.studies.base import BARE, FIRST, MAIN, TABLES, Table
from svoo.studies.lab import Lab
from svoo.studies.quality import QualityStudy
from svoo.studies.scale import Scale, VideoSize
from svoo.studies.settings import OURS, PAPER, main_settings, other_settings

OTHERS = {
    "spargeattn": (25.0, 1.4),
    "svg1": (26.0, 1.5),
    "svg2": (28.0, 1.6),
    "radial": (24.0, 1.5),
}


@pytest.mark.parametrize(
    ("paper", "verdict"),
    [
        ((29.0, 1.9), "holds"),
        ((27.0, 1.9), "does not hold"),  # SVG2 is closer to dense
        ((29.0, 1.55), "does not hold"),  # SVG2 is faster
    ],
)
def test_best_of_five_means_closest_and_fastest(paper: tuple[float, float], verdict: str) -> None:
    results = studying.empty()
    group = "text to video, 100 tokens, 20% warm-up"
    studying.add_runs(results, "quality", group, **OTHERS, **{PAPER: paper})
    claim = QualityStudy().show(results).claims[0]
    assert claim.verdict == verdict and "against svg2" in claim.figure
    closer = "spargeattn, svg1" if paper[0] > 26 else "none"
    assert f"closer to dense than: {closer}" in claim.figure and "29.99 dB" in claim.said


def test_ours_is_judged_without_warm_up() -> None:
    results = studying.empty()
    group = "text to video, 100 tokens, no warm-up"
    studying.add_runs(results, "quality", group, **{PAPER: (22.0, 2.0), OURS: (32.0, 4.0)})
    claims = [claim for claim in QualityStudy().show(results).claims if not claim.of_paper]
    assert [claim.verdict for claim in claims] == ["holds", "holds"]


@pytest.mark.parametrize("warm_up", ["20% warm-up", "no warm-up"])
def test_ours_is_compared_with_each_main_method(warm_up: str) -> None:
    results = studying.empty()
    group = f"text to video, 100 tokens, {warm_up}"
    runs = {**OTHERS, OURS: (27.0, 1.6), "sol": (27.0, 1.7)}
    studying.add_runs(results, "quality", group, **runs)
    for number in range(6):
        facts = {"psnr": 99.0, "density": 1.0}
        studying.add_run(results, "quality", group, "sta", f"prompt {number}", **facts)
    parts = QualityStudy().show(results).parts
    (table,) = [p for p in parts if isinstance(p, Table) and p.title.startswith("Ours minus")]
    cells = {row[0].text: [cell.text for cell in row[1:]] for row in table.rows}
    assert set(cells) == {*OTHERS, "sol"}  # paper mode was not run
    assert cells["svg2"][0] == "-1.00 dB (-1.00 to -1.00, 6 prompts): svg2 is closer"
    assert cells["svg2"][1].endswith("6 prompts): cannot be told")  # as fast
    assert cells["radial"][0].endswith("ours is closer")
    assert cells["sol"][0].endswith("cannot be told") and cells["sol"][1].endswith("sol is faster")
    assert "closer to dense than ours: svg2; faster: sol." in table.note


def test_scores_are_columns_that_say_proxy() -> None:
    results = studying.empty()
    scores = {"subject consistency (proxy)": 0.98, "imaging quality (proxy, BRISQUE)": 20.0}
    studying.add_run(results, "quality", "g", "svg2", "p", scores=scores)
    tables = [part for part in QualityStudy().show(results).parts if isinstance(part, Table)]
    assert tables[1].title == "Scores that need no dense video: g"
    assert "subject consistency (proxy) ↑" in tables[1].columns
    assert "imaging quality (proxy, BRISQUE) ↓" in tables[1].columns
    assert not any("proxy" in column for column in tables[0].columns)


def test_best_of_five_is_judged_by_the_largest_videos_with_enough_prompts() -> None:
    small, large = (
        "all methods, text to video, 100 tokens, 20% w",
        "text to video, 900 tokens, 20% w",
    )
    results = studying.empty()
    studying.add_runs(results, "quality", small, **OTHERS, **{PAPER: (29.0, 1.9)})
    pictures = "image to video, 100 tokens, 20% w"
    studying.add_runs(results, "quality", pictures, **OTHERS, **{PAPER: (9.0, 0.9)})
    for name, (psnr, _) in {**OTHERS, PAPER: (20.0, 1.0)}.items():
        for number in range(4):
            facts = {"psnr": psnr + number, "tokens": 900}
            studying.add_run(results, "quality", large, name, f"prompt {number}", **facts)
    section = QualityStudy().show(results)
    tables = [part.title for part in section.parts if isinstance(part, Table)]
    assert tables == [large, small, pictures]
    assert section.claims[0].verdict == "holds" and section.claims[0].figure.startswith(small)
    for name, (psnr, _) in {**OTHERS, PAPER: (20.0, 1.0)}.items():
        studying.add_run(results, "quality", large, name, "prompt 4", psnr=psnr, tokens=900)
    claim = QualityStudy().show(results).claims[0]
    assert claim.verdict == "does not hold" and claim.figure.startswith(large)


class TextAndImage:
    """Pipelines that open nothing; `takes_image`: also from a picture."""

    def __init__(self, *, takes_image: bool) -> None:
        self.model = find_model("mini")
        self.takes_image = takes_image

    def needs_image(self) -> bool:
        return False

    def open(self, task: str, dtype: str | None) -> Any:  # noqa: ARG002
        if task == "image" and not self.takes_image:
            raise ConfigError("mini makes video from text: it takes no image")
        return SimpleNamespace()


@pytest.mark.parametrize("takes_image", [False, True])
@pytest.mark.parametrize("sizes", [1, 2])
def test_every_method_is_run_once_in_each_table(sizes: int, takes_image: bool) -> None:
    small = VideoSize(9, 32, 48)
    scale = Scale(small if sizes == 1 else VideoSize(9, 64, 96), small, 4)
    pipelines: Any = TextAndImage(takes_image=takes_image)
    inputs = [{"prompt": "one"}, {"prompt": "two"}]
    lab = Lab(pipelines, inputs, scale, studying.empty(), machine="m", backend="cpp")
    jobs = QualityStudy().jobs(lab)
    assert all(job.scored for job in jobs if job.cost)
    keys = [job.key for job in jobs]
    assert len(set(keys)) == len(keys)
    main = 1 + len(main_settings(lab, 0.2))
    counts = {turn: sum(job.turn == turn for job in jobs) for turn in (FIRST, MAIN, BARE, TABLES)}
    others = 2 * len(other_settings(lab, 0.2)) + (2 * main if takes_image else 1)
    large = 2 * main if sizes == 2 else 0  # of one size there is one table with warm-up
    assert counts == {FIRST: 2 * main, MAIN: large, BARE: 2 * main, TABLES: others}


def test_nothing_run_tells_nothing() -> None:
    section = QualityStudy().show(studying.empty())
    assert section.parts == [] and section.claims[0].verdict == "cannot be told here"
