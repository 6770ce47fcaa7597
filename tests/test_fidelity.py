"""The figures of `benchmarks/fidelity.py` that no clock gives."""

import pytest
import torch
from fidelity import Fidelity, run_decision, term_share
from making import normal

import svoo
from svoo.core.terms import GroupTerms
from svoo.methods.base import Corrected, Run
from svoo.methods.svg2 import SVG2Config

TOKENS = normal(1, 2, 12, 8), normal(1, 2, 12, 8, seed=1), normal(1, 2, 12, 8, seed=2)
SIZES = torch.tensor([[5, 7, 0]]).expand(1, 2, 3)
KEEP = torch.tensor([[1, 0, 0], [0, 1, 0], [0, 1, 0]], dtype=torch.bool).expand(1, 2, 3, 3)
PLAN = svoo.BlockPlan(None, None, SIZES, SIZES, KEEP)
KEPT = (5 * 5 + 7 * 7) / 144
CALL = svoo.Call(0, 0)


def test_terms_are_counted_for_the_queries_that_see_them() -> None:
    assert term_share(PLAN) == 0
    means = svoo.MeanTerms(SIZES > 0)
    filled = svoo.BlockPlan(None, None, SIZES, SIZES, KEEP, means)
    assert term_share(filled) == pytest.approx(12 / 144)  # an empty block has none
    middle = torch.zeros_like(KEEP)
    middle[:, :, 0, 1] = True
    bias, value = torch.zeros(1, 2, 3, 3), torch.zeros(1, 2, 3, 3, 8)
    far = svoo.FarTerms(middle, bias, value)
    assert term_share(svoo.BlockPlan(None, None, SIZES, SIZES, KEEP, far)) == pytest.approx(
        5 / 144
    )
    groups = GroupTerms(
        torch.tensor([0.0, -torch.inf]).expand(1, 2, 3, 2),
        torch.zeros(1, 2, 3, 2, 8),
        torch.zeros(1, 2, 3, 2, 8),
    )
    far = svoo.FarTerms(middle, bias, value, groups)
    assert term_share(svoo.BlockPlan(None, None, SIZES, SIZES, KEEP, far)) == pytest.approx(
        (5 + 12) / 144
    )


def test_a_decision_is_run_and_its_extra_work_counts() -> None:
    exact = torch.nn.functional.scaled_dot_product_attention(*TOKENS)
    config = SVG2Config()
    found = run_decision(TOKENS, CALL, config, PLAN, exact)
    assert found["work"] == pytest.approx(KEPT) and found["error"] > 0.01
    everything = svoo.BlockPlan(None, None, SIZES, SIZES, torch.ones_like(KEEP))
    whole = run_decision(TOKENS, CALL, config, everything, exact)
    assert whole["error"] < 1e-5 and whole["recall"] == pytest.approx(1)
    corrected = Corrected(PLAN, lambda output, _: output * 0 + exact, extra=0.1)
    mended = run_decision(TOKENS, CALL, config, corrected, exact)
    assert mended["error"] < 1e-6 and mended["work"] == pytest.approx(KEPT + 0.1)


def test_a_method_counts_its_own_planning_and_the_warm_up_is_left_out() -> None:
    ours = svoo.SVOOConfig(query_clusters=3, key_clusters=6, densest=1.0)
    seen = Fidelity({"late": SVG2Config(dense_steps=1), "ours": ours})
    seen.look(Run(steps=2, layers=1, heads=2), CALL, *TOKENS)
    assert not seen.failed and seen.figures()["late"] == {}
    # Two rounds of k-means on all eight numbers of a token, and query means over all keys.
    planning = 2 * (3 + 6) / 12 + 3 / 12
    assert planning < seen.figures()["ours"]["work"] <= planning + 1 + 6 / 12
