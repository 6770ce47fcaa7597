import pytest
import studying
import torch

from svoo.methods.base import Call
from svoo.studies.reuse import INTERVALS, LabelWatch, ReuseStudy, _own_interval


def test_the_same_tokens_have_the_same_labels_at_every_step() -> None:
    tokens = torch.randn(1, 2, 2000, 8, generator=torch.Generator().manual_seed(0))
    watch = LabelWatch(first=1, seed=0)
    for step in range(4):
        for layer in range(2):
            watch.observe(Call(step, layer), tokens, tokens)
    row = watch.row("p")
    assert row.steps == [2, 3]
    assert [value for line in row.shared for value in line] == pytest.approx([1.0] * 4)
    assert all(0 < value < 1 for value in row.other_draw)  # another draw gives other labels


def test_a_run_of_one_step_has_nothing_to_compare() -> None:
    watch = LabelWatch(first=0, seed=0)
    watch.observe(Call(0, 0), torch.ones(1, 1, 5, 4), torch.ones(1, 1, 5, 4))
    assert watch.row("p").steps == []


@pytest.mark.parametrize(
    ("loss", "verdict"), [(0.1, "holds"), (2.0, "does not hold"), (0.5, "cannot be told here")]
)
def test_half_a_decibel_is_the_limit(loss: float, verdict: str) -> None:
    results = studying.empty()
    runs = {"every_1": (30.0, 2.0), "every_8": (30.0 - loss, 2.2), "every_20": (20.0, 2.3)}
    studying.add_runs(results, "reuse", "intervals", **runs)
    labels = {"prompt": "p", "steps": [1, 2], "shared": [[0.9, 0.8]], "other_draw": [0.9]}
    results.add("reuse", "labels", labels)
    section = ReuseStudy().show(results)
    assert section.claims[0].verdict == verdict and "8 steps" in section.claims[0].text
    assert len(section.parts) == 3
    assert ReuseStudy().show(studying.empty()).claims == []


@pytest.mark.parametrize(
    ("last", "prompts", "verdict"),
    [
        (0.8, 6, "holds"),
        (0.2, 6, "does not hold"),
        (0.2, 4, "cannot be told here"),  # too few prompts
        (0.58, 6, "cannot be told here"),  # some prompts below the limit, some above
    ],
)
def test_labels_stay_alike_where_another_draw_is_no_closer(
    last: float, prompts: int, verdict: str
) -> None:
    results = studying.empty()
    for number in range(prompts):
        labels = {"prompt": str(number), "steps": [1, 2], "other_draw": [0.7, 0.7]}
        labels["shared"] = [[0.8, 0.8 + 0.01 * number], [0.8, last + 0.01 * number]]
        results.add("reuse", str(number), labels)
    (claim,) = ReuseStudy().show(results).claims
    assert claim.verdict == verdict and f"{last:.2f} to" in claim.figure
    assert claim.figure.endswith("has: 1" if verdict == "does not hold" else "has: none")


def test_the_interval_is_that_of_the_model_and_is_measured() -> None:
    assert (_own_interval("mini"), _own_interval("somebody's"), INTERVALS[-2]) == (8, 20, 8)
    results = studying.empty()
    studying.add_runs(results, "reuse", "intervals", every_1=(30.0, 2.0), every_20=(30.0, 2.2))
    (claim,) = ReuseStudy().show(results).claims
    assert claim.verdict == "cannot be told here" and "every 8 steps" in claim.figure
