import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from making import normal
from torch import Tensor

from svoo import Session, VideoLayout, make_plan, run_plan
from svoo.core.morton import morton_order
from svoo.errors import ConfigError
from svoo.methods.sol import SolConfig


def slow_keep(query: Tensor, key: Tensor, config: SolConfig) -> Tensor:
    """The rule for one head, query and key `[N, D]` in block order, in float64."""
    scale = query.shape[1] ** -0.5
    query_means = [part.double().mean(0) for part in query.split(config.block)]
    key_means = torch.stack([part.double().mean(0) for part in key.split(config.block)])
    keep = torch.zeros(len(query_means), len(key_means), dtype=torch.bool)
    for i, mean in enumerate(query_means):
        scores = [float(mean @ other) * scale for other in key_means]
        if config.topk is not None:
            count = max(1, min(round(config.topk * len(scores)), len(scores) - 1))
            threshold = sorted(scores, reverse=True)[count - 1]
            chosen = [score >= threshold for score in scores]
        else:
            if config.spread == "diagonal":
                variance = float(mean.square() @ key_means.var(dim=0, correction=0)) * scale**2
            else:
                variance = float(np.var(scores))
            spread = (variance + 1e-6 * np.log(2) ** 2) ** 0.5
            chosen = [score - np.mean(scores) > config.tau * spread for score in scores]
        keep[i] = torch.tensor([c or abs(i - j) <= 1 for j, c in enumerate(chosen)])
    return keep


@settings(max_examples=40)
@given(
    sides=st.tuples(st.integers(1, 5), st.integers(1, 6), st.integers(1, 5)),
    tau=st.sampled_from([-0.5, 0.3, 1.0]),
    spread=st.sampled_from(["diagonal", "exact"]),
    order=st.sampled_from(["raster", "morton"]),
    topk=st.sampled_from([None, 0.2, 0.5, 1.0]),
    block=st.integers(1, 9),
    seed=st.integers(0, 1000),
)
def test_is_the_rule(
    sides: tuple[int, int, int],
    tau: float,
    spread: Any,
    order: Any,
    topk: float | None,
    block: int,
    seed: int,
) -> None:
    config = SolConfig(tau=tau, spread=spread, order=order, topk=topk, block=block)
    layout = VideoLayout(*sides)
    query, key, value = (normal(2, 2, layout.video, 4, seed=seed + i) for i in range(3))
    plan = make_plan(query, key, value, config, layout=layout)
    curve = torch.arange(layout.video)
    if order == "morton":
        curve = morton_order(layout, query.device)
    for batch in range(2):
        for head in range(2):
            sides_here = query[batch, head][curve], key[batch, head][curve]
            assert torch.equal(plan.keep[batch, head], slow_keep(*sides_here, config))
    assert torch.equal(replace(plan, check=True).permute_queries(query), query[:, :, curve])


def load(path: Path) -> tuple[Any, dict[str, Any], tuple[Tensor, Tensor, Tensor]]:
    stored = np.load(path)
    cases = json.loads(str(stored["meta_json"]))["cases"]
    query, key, value = (torch.from_numpy(stored[side]).double() for side in "qkv")
    return stored, cases, (query, key, value)


def test_is_nvidias(goldens: Path) -> None:
    stored, cases, tokens = load(goldens / "sol-nvidia-7x16x16-text40.npz")
    for case in cases:  # text is the last block, and here a block like others
        plan = make_plan(*tokens, SolConfig(tau=1.0))
        if "sink" in case:
            plan.keep[..., -1] = True
        assert np.array_equal(plan.keep.numpy(), stored[f"keep__{case}"])
        output = run_plan(*tokens, plan, backend="reference")
        np.testing.assert_allclose(output.numpy(), stored[f"output__{case}"], atol=2e-6, rtol=0)


def test_is_comfys(goldens: Path) -> None:
    stored, cases, tokens = load(goldens / "sol-comfy-8x16x16-text40.npz")
    for case, facts in cases.items():
        config = SolConfig(
            tau=facts.get("tau", 1.0),
            topk=facts.get("topk_ratio"),
            tail="block" if facts.get("tail", True) else None,
        )
        plan = make_plan(*tokens, config)
        if "sink" in case:  # text, as theirs has it: blocks like others; their tail leaves it out
            keep = plan.keep.clone()
            keep[..., slice(*facts["sink_blocks"])] = True
            keep[..., slice(*facts["sink_q"]), :] = True
            assert np.array_equal(keep.numpy(), stored[f"keep__{case}"])
            continue
        assert np.array_equal(plan.keep.numpy(), stored[f"keep__{case}"]), case
        output = run_plan(*tokens, plan, backend="reference")
        np.testing.assert_allclose(output.numpy(), stored[f"output__{case}"], atol=2e-6, rtol=0)


@pytest.mark.parametrize("order", ["raster", "morton"])
@pytest.mark.parametrize("tail", ["tokens", "block", None])
def test_the_tail_with_text_and_padding(order: Any, tail: Any) -> None:
    layout = VideoLayout(3, 5, 7, text=6, text_first=order == "raster",
                         valid_text=torch.tensor([6, 2]))  # fmt: skip
    config = SolConfig(block=8, tau=0.5, order=order, tail=tail)
    query, key, value = (normal(2, 2, layout.tokens, 8, seed=seed) for seed in range(3))
    session = Session(config.always_sparse(), steps=3, layers=1, heads=2)
    output = session.attend(query, key, value, step=1, layer=0, layout=layout)
    expected = slow_output(query, key, value, config, layout)
    torch.testing.assert_close(output, expected.float(), atol=1e-5, rtol=0)
    assert session.method.state_bytes == (8 * layout.video if order == "morton" else 0)


def slow_output(
    query: Tensor, key: Tensor, value: Tensor, config: SolConfig, layout: VideoLayout
) -> Tensor:
    """Token by token: kept blocks, text, and the tail; text queries see all that is real."""
    start, output = layout.video_start, torch.zeros_like(query, dtype=torch.float64)
    curve = torch.arange(layout.video)
    if config.order == "morton":
        curve = morton_order(layout, query.device)
    blocks = (start + curve).split(config.block)
    real = layout.real_tokens()
    assert real is not None
    scale = query.shape[3] ** -0.5
    for b in range(query.shape[0]):
        text = [t for t in range(layout.text_start, layout.text_start + layout.text) if real[b, t]]
        for h in range(query.shape[1]):
            q, k, v = (side[b, h].double() for side in (query, key, value))
            places = torch.cat(blocks)
            keep = slow_keep(q[places], k[places], config)
            middle = torch.stack([k[part].mean(0) for part in blocks]).mean(0)
            for row in range(query.shape[2]):
                mine = next((i for i, part in enumerate(blocks) if row in part.tolist()), None)
                logits, values = [q[row] @ k[t] * scale for t in text], [v[t] for t in text]
                for j, part in enumerate(blocks):
                    if mine is None or keep[mine, j]:
                        logits += [q[row] @ k[t] * scale for t in part]
                        values += [v[t] for t in part]
                    elif config.tail is not None:
                        logit = q[row] @ k[part].mean(0)
                        if config.tail == "block":
                            logit = q[blocks[mine]].mean(0) @ (k[part].mean(0) - middle)
                            logit += q[row] @ middle
                        logits.append(logit * scale + np.log(len(part)))
                        values.append(v[part].mean(0))
                output[b, h, row] = torch.stack(logits).softmax(0) @ torch.stack(values)
    return output


def test_their_clock_counts_model_calls() -> None:
    """Two calls of the model are a step under guidance: of two dense steps theirs makes one."""
    tokens = [normal(1, 1, 24, 4, seed=seed) for seed in range(3)]

    def dense_calls(calls_per_step: int) -> int:
        config = SolConfig(dense_steps=2, dense_layers=0, block=4)
        session = Session(config, steps=8, layers=1, heads=1)
        for call in range(8):
            branch = ("cond", "uncond")[call % 2]
            step = call // calls_per_step
            session.attend(*tokens, step=step, layer=0, branch=branch, layout=VideoLayout(2, 3, 4))
        return session.stats().dense_calls

    assert dense_calls(2) == 4
    assert dense_calls(1) == 2  # as theirs counts


def test_their_exact_spread_is_a_difference_of_almost_equal_numbers() -> None:
    """The second moment in bfloat16 less the squared mean, where keys share a large mean."""
    query, key = normal(1, 1, 200, 16), normal(1, 1, 200, 16, seed=1) + 10
    config = SolConfig(spread="exact", block=4)
    means = [side[0, 0].unflatten(0, (-1, 4)).mean(dim=1) for side in (query, key)]
    scale = 16**-0.5
    exact = (means[0].double() @ means[1].double().T * scale).var(dim=1, correction=0)
    moment = (means[1].T @ means[1] / len(means[1])).bfloat16().float()
    second = ((means[0] @ moment) * means[0]).sum(dim=1)
    theirs = (second - (means[0] @ means[1].mean(dim=0)).square()) * scale**2
    assert float(((theirs - exact) / exact).abs().median()) > 0.1
    kept = make_plan(query, key, key, config, layout=VideoLayout(2, 10, 10)).keep[0, 0]
    assert torch.equal(kept, slow_keep(query[0, 0], key[0, 0], config))


def test_compensation_is_one_switch() -> None:
    query, key, value = (normal(1, 2, 200, 8, seed=seed) for seed in range(3))
    for tail in ("tokens", "block", None):
        plan = make_plan(query, key, value, SolConfig(block=8, tail=tail, compensate=False))
        assert plan.terms is None


def test_published_settings() -> None:
    wan = SolConfig.for_model("wan2.1-t2v-14b")
    assert (wan.order, wan.dense_steps, wan.dense_layers, wan.tau) == ("morton", 0.2, 1, 1.0)
    assert SolConfig.for_model("wan2.2-t2v-a14b").order == "raster"
    assert SolConfig.for_model("hunyuanvideo-t2v").dense_steps == 0


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("tau", "1"),
        ("tau", float("nan")),
        ("spread", "both"),
        ("order", None),
        ("tail", "none"),
        ("topk", 1.5),
        ("block", 0),
    ],
)
def test_bad_settings(setting: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{setting} must be"):
        SolConfig(**{setting: value})
    with pytest.raises(ConfigError, match="sol needs the grid"):
        make_plan(*(normal(1, 1, 9, 4),) * 3, SolConfig(order="morton"))
