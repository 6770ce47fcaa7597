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

from svoo import Session, VideoLayout, make_plan, sparse_attention
from svoo.errors import ConfigError
from svoo.methods import pisa
from svoo.methods.pisa import PISAConfig


def slow_head(
    q: Tensor, k: Tensor, v: Tensor, text: tuple[Tensor, Tensor], config: PISAConfig
) -> tuple[Tensor, Tensor]:
    """The rule for one head `[N, D]` in float64: which blocks are kept `[Cq, Ck]`, the output."""
    scale, tokens = q.shape[1] ** -0.5, len(k)
    keys, values = k.split(config.block), v.split(config.block)
    slopes = [(part - part.mean(0)).T @ value for part, value in zip(keys, values, strict=True)]
    count = max(1, int(config.density * len(keys)))
    keep = torch.zeros(len(q.split(config.block)), len(keys), dtype=torch.bool)
    rows = []
    for i, queries in enumerate(q.split(config.block)):
        scores = [float(queries.mean(0) @ part.mean(0)) * scale for part in keys]
        if config.bias:
            scores = [
                s + float((h.norm() + 1e-5).log()) for s, h in zip(scores, slopes, strict=True)
            ]
        best = sorted(range(len(keys)), key=lambda j: -scores[j])[:count]
        keep[i, best] = True
        for token in queries:
            top = (token @ text[0].T * scale).exp() @ text[1]
            bottom, left = (token @ text[0].T * scale).exp().sum(), torch.tensor(0.0)
            for j, (part, value) in enumerate(zip(keys, values, strict=True)):
                if j in best:
                    top = top + (part @ token * scale).exp() @ value
                    bottom = bottom + (part @ token * scale).exp().sum()
                elif config.compensate == "mean":
                    weight = len(part) * (part.mean(0) @ token * scale).exp()
                    top, left = top + weight * value.mean(0), left + weight
            if config.first_order:
                top = top + left * scale / tokens * token @ sum(slopes)
            rows.append(top / (bottom + left))
    return keep, torch.stack(rows)


@settings(max_examples=30)
@given(
    queries=st.integers(1, 40),
    keys=st.integers(1, 40),
    density=st.sampled_from([0.0, 0.3, 0.6, 1.0]),
    first_order=st.booleans(),
    bias=st.booleans(),
    compensate=st.sampled_from([False, "mean"]),
    block=st.integers(1, 9),
    seed=st.integers(0, 1000),
)
def test_is_the_rule(queries: int, keys: int, seed: int, **choices: Any) -> None:
    config = PISAConfig(**choices)
    query = normal(2, 2, queries, 4, seed=seed, dtype=torch.float64)
    key, value = (normal(2, 2, keys, 4, seed=seed + i, dtype=torch.float64) for i in (1, 2))
    plan = replace(make_plan(query, key, value, config), check=True)
    output = sparse_attention(query, key, value, config)
    nothing = key[0, 0, :0], value[0, 0, :0]
    for b in range(2):
        for h in range(2):
            keep, rows = slow_head(query[b, h], key[b, h], value[b, h], nothing, config)
            assert torch.equal(plan.keep[b, h], keep)
            torch.testing.assert_close(output[b, h], rows)


def test_is_theirs(goldens: Path) -> None:
    stored = np.load(goldens / "pisa-4x12x20.npz")
    query, key, value = (torch.from_numpy(stored[side]).double() for side in "qkv")
    for case, facts in json.loads(str(stored["meta_json"]))["cases"].items():
        config = PISAConfig(density=facts["density"], bias=facts["use_bias"], backend="reference")
        keep = make_plan(query, key, value, config).keep
        assert np.array_equal(keep.numpy(), stored[f"keep__{case}"]), case
        output = sparse_attention(query, key, value, config)
        np.testing.assert_allclose(output.numpy(), stored[f"output__{case}"], atol=2e-6, rtol=0)


@pytest.mark.parametrize("text_first", [False, True])
def test_text_and_padding(*, text_first: bool) -> None:
    layout = VideoLayout(2, 5, 7, text=6, text_first=text_first, valid_text=torch.tensor([6, 2]))
    config = PISAConfig(block=8, density=0.3)
    query, key, value = (normal(2, 2, layout.tokens, 8, seed=seed) for seed in range(3))
    session = Session(config.always_sparse(), steps=3, layers=1, heads=2)
    output = session.attend(query, key, value, step=1, layer=0, layout=layout)
    for b, valid in enumerate((6, 2)):
        text = slice(layout.text_start, layout.text_start + valid)
        for h in range(2):
            q, k, v = (layout.video_part(s)[b, h].double() for s in (query, key, value))
            words = key[b, h, text].double(), value[b, h, text].double()
            rows = slow_head(q, k, v, words, config)[1].float()
            found = layout.video_part(output)[b, h]
            torch.testing.assert_close(found, rows, atol=1e-5, rtol=0)
    density = session.stats().density
    plain = make_plan(query, key, value, config, layout=layout).density(layout.padding).mean()
    assert density == pytest.approx(float(plain) + 9 / 70)
    assert session.stats().work == {"correction": 8 / 70}


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    query, key, value = (normal(1, 2, 75, 8, seed=seed) for seed in range(3))
    config = PISAConfig(block=8)
    whole = sparse_attention(query, key, value, config)
    monkeypatch.setattr(pisa, "_CHUNK", 2 * 10 * 8 * 3)  # three query blocks at a time
    torch.testing.assert_close(sparse_attention(query, key, value, config), whole)


def test_large_logits_do_not_overflow() -> None:
    """Theirs does not rescale a sum when the running maximum grows."""
    query, key, value = (normal(1, 1, 64, 8, seed=seed) for seed in range(3))
    config = PISAConfig(block=8)
    output = sparse_attention(300 * query, key, value, config)
    exact = sparse_attention(300 * query.double(), key.double(), value.double(), config)
    torch.testing.assert_close(output, exact.float(), atol=1e-3, rtol=1e-3)


def left_out_share(logits: Tensor, group: int, *, rescale: bool) -> Tensor:
    """The share of the softmax that blocks of key means hold, group after group of them, with a
    running maximum; logits `[tokens, blocks]`, of kept tokens those that stand in the last."""
    top = torch.full(logits.shape[:1], -torch.inf).to(logits)
    total, left = torch.zeros_like(top), torch.zeros_like(top)
    for part in logits.split(group, dim=1):
        new = torch.maximum(top, part.amax(dim=1))
        total = total * (top - new).exp() + (part - new[:, None]).exp().sum(dim=1)
        left = left * ((top - new).exp() if rescale else 1) + (part - new[:, None]).exp().sum(
            dim=1
        )
        top = new
    return left / total


def test_their_share_of_the_left_out_depends_on_how_it_is_summed() -> None:
    """Theirs does not rescale it when the running maximum grows: here they are far off."""
    logits = torch.linspace(0, 20, 16).double().repeat(3, 1)  # each block larger than those before
    for group in (1, 4, 16):
        right = left_out_share(logits, group, rescale=True)
        torch.testing.assert_close(right, torch.ones_like(right))
    shares = [float(left_out_share(logits, group, rescale=False)[0]) for group in (1, 4, 16)]
    assert shares[0] > 1.75 * shares[2] and shares[1] > 1.01 * shares[2]
    # Ours: the correction is this share, rescaled, times what the definition says.
    key = torch.zeros(1, 1, 64, 4).double()
    key[..., 0] = torch.arange(64) // 4 / 2
    query, value = torch.ones(1, 1, 64, 4).double() * 2, normal(1, 1, 64, 4).double()
    for first_order in (False, True):
        config = PISAConfig(block=4, density=0.0, first_order=first_order)
        output = sparse_attention(query, key, value, config)
        nothing = key[0, 0, :0], value[0, 0, :0]
        expected = slow_head(query[0, 0], key[0, 0], value[0, 0], nothing, config)[1]
        torch.testing.assert_close(output[0, 0], expected)


def test_published_settings() -> None:
    for name, steps in (("wan2.1-t2v-1.3b", 0.3), ("wan2.1-t2v-14b", 0.2)):
        config = PISAConfig.for_model(name)
        assert (config.density, config.dense_steps, config.dense_layers) == (0.125, steps, 1)


@pytest.mark.parametrize(
    ("setting", "value"), [("density", 1.5), ("first_order", 1), ("bias", "no"), ("block", 0)]
)
def test_bad_settings(setting: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{setting} must be"):
        PISAConfig(**{setting: value})
