import json
import subprocess
import sys
from pathlib import Path

from svoo.app.estimate.data import find_card, latencies
from svoo.app.estimate.estimate import estimate
from svoo.app.estimate.roofline import card_rates
from svoo.app.estimate.tables import against_paper, all_models, lines, markdown, whole_video
from svoo.catalogue import find_model
from svoo.methods import find_method

ROOT = Path(__file__).parents[3]
RATES = card_rates(find_card("h200"))


def test_lines_fit_and_say_that_nothing_was_measured() -> None:
    model = find_model("wan2.2-t2v-a14b")
    paper = find_method("paper", model.name)
    text = lines(estimate(whole_video(model), RATES, paper))
    assert "MODELLED, not measured" in text[1] and any("kept pairs" in line for line in text)
    assert text[-1].endswith("fits")
    small = card_rates(find_card("4090"))
    assert "DOES NOT FIT" in lines(estimate(whole_video(model), small, paper))[-1]


def test_a_guessed_density_cannot_be_missed() -> None:
    model = find_model("wan2.1-t2v-14b")
    found = estimate(whole_video(model), RATES, find_method("svoo", model.name))
    text = lines(found)
    assert text[2].startswith(f"DENSITY {found.density:.3f} IS A GUESS, not measured on this")
    assert "as many keys per query" in text[3] and "as much as in paper mode" in text[4]
    ups = [other.speed_up for other in found.otherwise]
    assert ups[0] > found.speed_up > ups[1] > 1
    assert f"{ups[1]:.2f}x instead of {found.speed_up:.2f}x" in text[4]
    row = next(line for line in markdown(RATES).splitlines() if "14b | ours" in line)
    assert f"({found.speed_up:.2f}x) [{ups[1]:.2f}-{ups[0]:.2f}x]" in row
    assert "THE DENSITY OF OURS IS A GUESS" in markdown(RATES)
    plain = found.as_dict()
    assert plain["density_guessed"] is True and len(plain["otherwise"]) == 2
    paper = lines(estimate(whole_video(model), RATES, find_method("paper", model.name)))
    assert paper[2].startswith("Density 0.243: the authors'")


def test_all_models_in_both_modes() -> None:
    rows = list(all_models(RATES))
    assert {row.model for row in rows} == set(latencies())
    assert len(rows) == 7 * 2 * 4 - 2  # twelve heads cannot be divided by eight
    assert {row.method for row in rows} == {"paper", "svoo"}


def test_the_page_holds_what_the_command_prints() -> None:
    page = (ROOT / "docs" / "scale.md").read_text()
    assert markdown(RATES) in page
    assert against_paper(RATES) in page


def test_the_page_holds_the_table_of_the_benchmark() -> None:
    saved = ROOT / "docs" / "benchmarks" / "estimate.json"
    page = (ROOT / "docs" / "scale.md").read_text()
    between = page.split("<!-- estimate: begin -->\n")[1].split("\n<!-- estimate: end -->")[0]
    if not saved.exists():
        assert between == "No run has passed with the present weights yet."
        return
    command = [sys.executable, "benchmarks/estimate.py", "--show", str(saved)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert between == done.stdout.strip()
    assert all(abs(row["error"]) <= 0.2 for row in json.loads(saved.read_text())["rows"])
