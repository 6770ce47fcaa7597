"""A method's life in one video without diffusers, and methods that a user writes."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from making import chance, normal
from synthetic import clustered_tokens
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from svoo import (
    BlockPlan,
    Call,
    Corrected,
    Dense,
    DenseConfig,
    Method,
    MethodConfig,
    Run,
    Session,
    SVOOConfig,
    VideoLayout,
)
from svoo.errors import ConfigError, ShapeError, StrictError
from svoo.methods.svoo.method import SVOOMethod

LAYOUT = VideoLayout(3, 4, 5, text=4, valid_text=torch.tensor([4, 2]))
SPARSE = SVOOConfig(dense_steps=1, dense_layers=0, query_clusters=4, key_clusters=8, mass=0.5)


def tokens(seed: int = 0) -> list[Tensor]:
    return [normal(2, 2, LAYOUT.tokens, 8, seed=seed + place) for place in range(3)]


@dataclass(frozen=True, kw_only=True)
class LocalConfig(MethodConfig):
    """Blocks of eight tokens; each sees itself and its neighbours, and the output is doubled."""

    name: ClassVar[str] = "local"
    heads_at_a_time: int = 2

    def start(self, run: Run) -> Method:
        assert run.steps == 4
        return LocalMethod(self)


class LocalMethod:
    state_bytes = 0

    def __init__(self, config: LocalConfig) -> None:
        self.config = config
        self.calls: list[Call] = []

    def heads_per_plan(self, _query: Tensor, _key: Tensor) -> int:
        return self.config.heads_at_a_time

    def plan(self, query: Tensor, key: Tensor, value: Tensor, call: Call) -> Corrected:
        self.calls.append(call)
        assert query.shape == key.shape == value.shape and query.shape[2] == LAYOUT.video
        labels = torch.arange(query.shape[2]).expand(query.shape[:3]) // 8
        place = torch.arange(int(labels.max()) + 1)
        near = (place[:, None] - place).abs() <= 1
        plan = BlockPlan.from_labels(labels, labels, near.expand(*query.shape[:2], *near.shape))
        return Corrected(plan, lambda output, _lse: 2 * output, extra=0.25)


def test_a_session_plans_runs_and_counts() -> None:
    session = Session(SPARSE, steps=4, layers=2, heads=2)
    query, key, value = tokens()
    real = LAYOUT.real_tokens()
    assert real is not None
    dense = scaled_dot_product_attention(query, key, value, attn_mask=real[:, None, None])
    for step in range(4):
        for layer in range(2):
            output = session.attend(query, key, value, step=step, layer=layer, layout=LAYOUT)
            assert output.shape == query.shape
            if step == 0:
                assert torch.equal(output, dense)
    stats = session.stats()
    assert [(row.sparse_calls, row.dense_calls) for row in stats.layers] == [(3, 1), (3, 1)]
    assert stats.density is not None and 0 < stats.density < 1
    assert "warm-up: the first 1 of 4 steps are dense" in session.summary()
    assert session.state_bytes > 0


def test_a_correction_reaches_the_video_and_counts_as_density() -> None:
    session = Session(LocalConfig(), steps=4, layers=1, heads=2)
    query, key, value = tokens()
    output = session.attend(query, key, value, step=0, layer=0, layout=LAYOUT)
    real = LAYOUT.real_tokens()
    assert real is not None
    dense = scaled_dot_product_attention(query, key, value, attn_mask=real[:, None, None])
    text = slice(LAYOUT.text_start, None)
    torch.testing.assert_close(output[:, :, text], dense[:, :, text])  # text is left as it is
    density = session.stats().density
    assert density is not None and density > 0.25


def test_heads_can_be_planned_in_groups() -> None:
    one, two = (
        Session(LocalConfig(heads_at_a_time=count), steps=4, layers=1, heads=2) for count in (1, 2)
    )
    query, key, value = tokens()
    outputs = [
        session.attend(query, key, value, step=0, layer=0, layout=LAYOUT) for session in (one, two)
    ]
    torch.testing.assert_close(*outputs)
    assert isinstance(one.method, LocalMethod) and isinstance(two.method, LocalMethod)
    assert [(call.head_offset, call.more_heads) for call in one.method.calls] == [
        (0, True), (1, False),
    ]  # fmt: skip
    assert [(call.head_offset, call.more_heads) for call in two.method.calls] == [(0, False)]
    assert one.stats().layers[0].density_by_head == two.stats().layers[0].density_by_head


@pytest.mark.parametrize("together", [1, 2])
def test_what_the_warm_up_measures_it_measures_of_all_heads(
    together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SVOOMethod, "heads_per_plan", lambda *_: together)
    config = replace(SPARSE, dense_steps=1, compensate="far")
    session = Session(config, steps=4, layers=1, heads=2, calibrate=True)
    query, key, value = tokens()
    for step in range(4):
        session.attend(query, key, value, step=step, layer=0, layout=LAYOUT)
    (layer,) = session.stats().layers
    assert (layer.dense_calls, layer.sparse_calls) == (1, 3)
    assert sum(layer.backends.values()) == 3  # a call counts once, in however many groups


def test_strict_makes_an_unplanned_dense_call_an_error() -> None:
    session = Session(SVOOConfig(strict=True, dense_steps=1), steps=4, layers=1, heads=2)
    query, key, value = tokens()
    session.attend(query, key, value, step=0, layer=0, layout=LAYOUT)  # the warm-up is planned
    call = session.describe_call(1, 0, LAYOUT, query.device)
    with pytest.raises(StrictError, match="layer 0 at step 1 would be dense: no reason"):
        session.attend_densely((query, key, value), call, Dense("no reason"))


def test_the_models_own_attention_runs_where_it_is_given() -> None:
    session = Session(DenseConfig(), steps=4, layers=1, heads=2)
    query, key, value = tokens()
    output = session.attend(query, key, value, step=0, layer=0, dense=lambda: query + 1)
    assert torch.equal(output, query + 1)


@pytest.mark.parametrize("bad", [0, -1, 2.5, "4"])
def test_bad_input(bad: Any) -> None:
    with pytest.raises(ConfigError, match="steps must be a whole number >= 1"):
        Session(SPARSE, steps=bad, layers=1, heads=1)
    query, key, value = tokens()
    session = Session(SPARSE, steps=4, layers=1, heads=2)
    with pytest.raises(ShapeError, match="but the tensors have 63"):
        session.attend(query[:, :, 1:], key, value, step=1, layer=0, layout=LAYOUT)


def test_the_error_of_a_run_is_that_of_its_outputs() -> None:
    """Estimated from eight queries of each call, without a dense run; no global chance."""
    session = Session(SVOOConfig(tolerance=0.01, densest=1.0), steps=40, layers=2, heads=3)
    wrong = right = 0.0
    state = torch.get_rng_state()
    made = [clustered_tokens(1, 3, 300, 16, generator=chance(step)) for step in range(40)]
    for step, (query, key, value) in enumerate(made):
        for layer in range(2):
            output = session.attend(query, key, value, step=step, layer=layer)
            dense = scaled_dot_product_attention(query, key, value)
            share = (output - dense).square().sum(dim=(2, 3)) / dense.square().sum(dim=(2, 3))
            wrong, right = wrong + float(share.mean()), right + 1
    stats = session.stats()
    assert torch.equal(state, torch.get_rng_state())
    assert stats.error is not None and stats.layers[0].error is not None
    assert stats.error == pytest.approx((wrong / right) ** 0.5, rel=0.2)
    assert stats.as_dict()["error"] == stats.error
    text = " ".join(session.summary().split())
    assert f"error of attention outputs {stats.error:.1%}, most in layer" in text
    without = Session(replace(session.config, measure_error=False), steps=2, layers=1, heads=3)
    without.attend(*made[0], step=0, layer=0)
    assert without.stats().error is None and "error of" not in without.summary()


def test_groups_of_heads_that_differ_in_size_are_measured_together() -> None:
    config = LocalConfig(heads_at_a_time=2, measure_error=True, measure_recall=True)
    session = Session(config, steps=4, layers=1, heads=3)
    parts = [normal(2, 3, LAYOUT.tokens, 8, seed=seed) for seed in range(3)]
    session.attend(*parts, step=0, layer=0, layout=LAYOUT)
    stats = session.stats()
    assert stats.error is not None and stats.error > 0 and stats.recall is not None
