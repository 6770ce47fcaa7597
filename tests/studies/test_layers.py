import numpy as np
import pytest
import studying
from numpy.typing import NDArray

from svoo.studies.layers import LayersStudy, bootstrap, over_heads, over_inputs, over_layers
from svoo.studies.results import Results


def made_up(density: NDArray[np.float64]) -> Results:
    """Results with densities `[prompts, layers, heads]` at both masses."""
    results = studying.empty()
    for number, table in enumerate(density):
        both = np.stack((table, table), axis=-1).tolist()
        row = {"prompt": f"prompt {number}", "tokens": 9, "by_head": both, "sigma": [1.0]}
        results.add("layers", str(number), row)
    return results


def density(inputs: float, layers: float, prompts: int = 8) -> NDArray[np.float64]:
    chance = np.random.default_rng(0)
    by_layer = 0.4 + layers * np.linspace(-1, 1, 6)
    moved = by_layer + inputs * chance.normal(size=(prompts, 6))
    return np.asarray(np.repeat(moved[..., None], 4, axis=2))


@pytest.mark.parametrize(
    ("inputs", "layers", "verdicts"),
    [
        (0.005, 0.2, ["holds", "holds"]),
        (0.08, 0.2, ["holds", "does not hold"]),
        (0.1, 0.01, ["does not hold", "does not hold"]),
    ],
)
def test_verdicts_follow_the_deviations(inputs: float, layers: float, verdicts: list[str]) -> None:
    section = LayersStudy().show(made_up(density(inputs, layers)))
    assert [claim.verdict for claim in section.claims] == verdicts
    assert len(section.parts) == 3


def test_few_prompts_and_none_tell_nothing() -> None:
    section = LayersStudy().show(made_up(density(0.01, 0.2, prompts=2)))
    assert {claim.verdict for claim in section.claims} == {"cannot be told here"}
    assert LayersStudy().show(studying.empty()).parts == ()


def test_deviations_are_along_one_axis_each() -> None:
    table = np.zeros((2, 3, 4))
    table[1] += 0.2  # inputs
    assert over_inputs(table) == pytest.approx(np.std([0, 0.2], ddof=1))
    assert max(over_layers(table), over_heads(table)) < 1e-12
    table = np.zeros((2, 3, 4))
    table[:, :, 0] = 1  # heads
    assert over_heads(table) == pytest.approx(np.std([1, 0, 0, 0]))
    assert np.isnan(over_inputs(table[:1]))


def test_a_bootstrap_never_draws_one_prompt_alone() -> None:
    table = density(0.1, 0.1, prompts=2)
    low, high = bootstrap(table, over_inputs)
    assert 0 < low <= high


def test_one_layer_that_stands_out_does_not_make_the_others_stable() -> None:
    table = density(0.01, 0.02)
    table[:, 2] += 5.0
    claims = LayersStudy().show(made_up(table)).claims
    assert claims[1].verdict == "cannot be told here"
    assert "without layer 2, the densest" in claims[1].figure
