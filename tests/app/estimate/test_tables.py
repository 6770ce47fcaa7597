from pathlib import Path

from svoo.app.estimate.data import find_card, latencies
from svoo.app.estimate.estimate import estimate
from svoo.app.estimate.roofline import card_rates
from svoo.app.estimate.tables import all_models, lines, markdown, whole_video
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


def test_all_models_in_both_modes() -> None:
    rows = list(all_models(RATES))
    assert {row.model for row in rows} == set(latencies())
    assert len(rows) == 7 * 2 * 4 - 2  # twelve heads cannot be divided by eight
    assert {row.method for row in rows} == {"paper", "svoo"}


def test_the_page_holds_what_the_command_prints() -> None:
    page = (ROOT / "docs" / "scale.md").read_text()
    assert markdown(RATES) in page
