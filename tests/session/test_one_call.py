import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from making import Case, cases, normal
from synthetic import clustered_tokens
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from svoo import (
    LabelState,
    SVOOConfig,
    VideoLayout,
    co_cluster,
    make_plan,
    select_blocks,
    sparse_attention,
)
from svoo.core.random import seeded
from svoo.errors import (
    BackendUnavailableError,
    ConfigError,
    NonFiniteError,
    ShapeError,
    StrictError,
)
from svoo.methods.base import Compensate


@given(case=cases())
def test_mass_one_is_dense_attention(case: Case) -> None:
    query, key, value = case.tokens()
    config = SVOOConfig(mass=1.0, query_clusters=case.query_blocks, key_clusters=case.key_blocks)
    torch.testing.assert_close(
        sparse_attention(query, key, value, config),
        scaled_dot_product_attention(query, key, value),
        atol=2e-5,
        rtol=2e-5,
    )


def by_definition(
    query: Tensor, key: Tensor, value: Tensor, config: SVOOConfig, layout: VideoLayout, seed: int
) -> Tensor:
    """The method, a query at a time: labels and kept blocks from the functions that have their own
    definitions, all else written out."""
    video = slice(layout.video_start, layout.video_start + layout.video)
    text = range(layout.text_start, layout.text_start + layout.text)
    assert config.query_clusters is not None and config.key_clusters is not None
    assert config.mass is not None
    clusters = co_cluster(
        query[:, :, video],
        key[:, :, video],
        config.query_clusters,
        config.key_clusters,
        generator=seeded(seed),
    )
    keep = select_blocks(clusters, mass=config.mass)
    output = torch.zeros_like(query)
    for b, h, n in ((b, h, n) for b in range(len(query)) for h in range(query.shape[1])
                    for n in range(query.shape[2])):  # fmt: skip
        valid = layout.text if layout.valid_text is None else int(layout.valid_text[b])
        keys, values = [key[b, h, t] for t in text[:valid]], [value[b, h, t] for t in text[:valid]]
        logs = [0.0] * valid
        for j in range(config.key_clusters):
            members = (clusters.key.labels[b, h] == j).nonzero().flatten() + layout.video_start
            if n in text or keep[b, h, clusters.query.labels[b, h, n - layout.video_start], j]:
                keys += list(key[b, h, members])
                values += list(value[b, h, members])
                logs += [0.0] * len(members)
            elif config.compensate and len(members):
                keys.append(key[b, h, members].mean(dim=0))
                values.append(value[b, h, members].mean(dim=0))
                logs.append(math.log(len(members)))
        logits = torch.stack(keys) @ query[b, h, n] / math.sqrt(query.shape[3])
        weights = (logits + torch.tensor(logs, dtype=logits.dtype)).softmax(dim=0)
        output[b, h, n] = weights @ torch.stack(values)
    return output


@given(
    grid=st.tuples(*[st.integers(1, 3)] * 3),
    text=st.integers(0, 5),
    text_first=st.booleans(),
    padded=st.booleans(),
    compensate=st.sampled_from((False, "mean")),
    mass=st.sampled_from((0.3, 0.7)),
    backend=st.sampled_from(("reference", "blocked")),
    seed=st.integers(0, 100),
)
def test_it_is_the_definition(
    grid: tuple[int, int, int],
    text: int,
    text_first: bool,
    padded: bool,
    compensate: Compensate,
    mass: float,
    backend: str,
    seed: int,
) -> None:
    valid = torch.tensor([text, text // 2]) if padded else None
    layout = VideoLayout(*grid, text=text, text_first=text_first, valid_text=valid)
    tokens = [
        normal(2, 2, layout.tokens, 8, seed=seed + place, dtype=torch.float64)
        for place in range(3)
    ]
    config = SVOOConfig(
        mass=mass,
        query_clusters=min(3, layout.video),
        key_clusters=min(5, layout.video),
        clustering="co",
        compensate=compensate,
        backend=backend,
    )
    query, key, value = tokens
    output = sparse_attention(query, key, value, config, layout=layout, generator=seeded(seed))
    torch.testing.assert_close(
        output, by_definition(query, key, value, config, layout, seed), atol=1e-9, rtol=1e-9
    )


@pytest.mark.parametrize("backend", ["reference", "blocked", "auto"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_gradients_and_autocast_change_nothing(backend: str, dtype: torch.dtype) -> None:
    query, key, value = (normal(1, 2, 80, 8, seed=seed, dtype=dtype) for seed in range(3))
    config = SVOOConfig(query_clusters=4, key_clusters=8, backend=backend)
    plain = sparse_attention(query, key, value, config)
    assert plain.dtype == dtype
    query.requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        again = sparse_attention(query, key, value, config)
    assert torch.equal(plain, again)
    assert not again.requires_grad


@pytest.mark.parametrize("backend", ["reference", "blocked"])
def test_it_is_close_to_dense_where_there_is_structure(backend: str) -> None:
    query, key, value = clustered_tokens(2, 2, 500, 32, generator=seeded(0))
    dense = scaled_dot_product_attention(query, key, value)
    errors: dict[Compensate, float] = {}
    choices: tuple[Compensate, ...] = (False, "mean")
    for compensate in choices:
        config = SVOOConfig(
            mass=0.9, query_clusters=24, key_clusters=48, compensate=compensate, backend=backend
        )
        output = sparse_attention(query, key, value, config)
        errors[compensate] = float((output - dense).norm() / dense.norm())
    assert errors["mean"] < 0.5 * errors[False] < 0.15


def test_state_carries_labels_to_the_next_call() -> None:
    query, key, value = (normal(1, 2, 80, 8, seed=seed) for seed in range(3))
    config = SVOOConfig(query_clusters=4, key_clusters=8, recluster_every=2)
    state = LabelState()
    sparse_attention(query, key, value, config, state=state)
    sides = state.sides
    assert sides is not None
    state.step = 1
    sparse_attention(-query, key, value, config, state=state)
    assert state.sides is sides
    state.step = 2
    sparse_attention(-query, key, value, config, state=state)
    assert state.sides is not sides
    assert state.nbytes == 2 * 2 * (80 + 80 + 4 + 8)  # orders and sizes in int16


def test_budgets_are_clipped_to_the_configs_range() -> None:
    query, key, value = (normal(1, 2, 80, 8, seed=seed) for seed in range(3))
    clipped = SVOOConfig(mass=1.0, query_clusters=4, key_clusters=20, budget_range=(0.3, 0.3))
    plain = SVOOConfig(mass=1.0, query_clusters=4, key_clusters=20)
    one = sparse_attention(query, key, value, clipped, budgets=torch.tensor([0.9, 0.2]))
    two = sparse_attention(query, key, value, plain, budgets=torch.tensor([0.3, 0.3]))
    assert torch.equal(one, two)


def test_a_generator_decides_the_draw() -> None:
    query, key, value = (normal(1, 1, 80, 8, seed=seed) for seed in range(3))
    config = SVOOConfig(mass=0.5, query_clusters=4, key_clusters=8)
    runs = [
        sparse_attention(query, key, value, config, generator=seeded(seed)) for seed in (1, 1, 2)
    ]
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


def test_every_reclustering_draws_anew() -> None:
    query, key, value = (normal(1, 1, 80, 8, seed=seed) for seed in range(3))
    config = SVOOConfig(query_clusters=4, key_clusters=8, recluster_every=1)
    state, labels = LabelState(), []
    for state.step in range(2):
        sparse_attention(query, key, value, config, state=state)
        assert state.sides is not None
        labels.append(state.sides[1].labels())
    assert not torch.equal(*labels)


@pytest.mark.parametrize(
    ("valid", "message"),
    [
        (torch.tensor([5]), r"valid_text must be between 0 and the 4 text tokens, got \[5\]"),
        (torch.tensor([-2]), r"got \[-2\]"),
        (torch.tensor([2.5]), r"valid_text must be \[1\] whole numbers, .* got torch.float32"),
        (torch.tensor([1, 2]), r"got torch.int64 \[2\]"),
    ],
)
def test_counts_of_real_text_that_are_none(valid: Tensor, message: str) -> None:
    query, key, value = (normal(1, 2, 24, 8, seed=seed) for seed in range(3))
    layout = VideoLayout(2, 2, 5, text=4, valid_text=valid)
    with pytest.raises(ShapeError, match=message):
        sparse_attention(query, key, value, SVOOConfig(), layout=layout)


def test_unchecked_counts_of_real_text_do_no_harm() -> None:
    query, key, value = (normal(1, 2, 24, 8, seed=seed) for seed in range(3))
    outputs = [
        sparse_attention(
            query,
            key,
            value,
            SVOOConfig(),
            layout=VideoLayout(2, 2, 5, text=4, valid_text=torch.tensor([count])),
            check=False,
        )
        for count in (99, 4, -7, 0)
    ]
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[2], outputs[3])


def test_strict_refuses_what_would_be_dense() -> None:
    query, key, value = (normal(1, 2, 60, 8, seed=seed) for seed in range(3))
    loose = SVOOConfig(query_clusters=4, key_clusters=8, tolerance=1e-9)  # keeps nearly every pair
    plan = make_plan(query, key, value, loose)
    assert plan.keep.shape[2:] == (1, 1) and bool(plan.keep.all())
    dense = scaled_dot_product_attention(query, key, value)
    torch.testing.assert_close(sparse_attention(query, key, value, loose), dense)
    strict = replace(loose, strict=True)
    for entrance in (make_plan, sparse_attention):
        with pytest.raises(StrictError, match="strict: this call would be dense: keeping .* pay"):
            entrance(query, key, value, strict)
    warm_up = make_plan(query, key, value, replace(strict, dense_steps=1), step=0, steps=4)
    assert bool(warm_up.keep.all())  # planned


def test_more_clusters_than_tokens() -> None:
    query, key, value = (normal(1, 2, 24, 8, seed=seed) for seed in range(3))
    with pytest.raises(ConfigError, match="key_clusters must be between 1 and the 24"):
        sparse_attention(query, key, value, SVOOConfig(key_clusters=99))


def test_bad_input() -> None:
    query, key, value = (normal(1, 2, 24, 8, seed=seed) for seed in range(3))
    config = SVOOConfig(mass=0.7)
    with pytest.raises(ShapeError, match="3 axes"):
        sparse_attention(query[0], key, value, config)
    with pytest.raises(NonFiniteError, match="query"):
        sparse_attention(query * math.inf, key, value, config)
    with pytest.raises(ShapeError, match="= 23, but the tensors have 24"):
        sparse_attention(query, key, value, config, layout=VideoLayout(2, 2, 5, text=3))
    with pytest.raises(ConfigError, match="budgets"):
        sparse_attention(query, key, value, config, budgets=torch.tensor([0.5, 1.5]))
    with pytest.raises(ShapeError, match="budgets"):
        sparse_attention(query, key, value, config, budgets=torch.tensor([0.5]))
    with pytest.raises(ConfigError, match="budgets and a tolerance are two ways"):
        sparse_attention(query, key, value, SVOOConfig(), budgets=torch.tensor([0.5, 0.5]))
    with pytest.raises(BackendUnavailableError):
        sparse_attention(query, key, value, SVOOConfig(backend="tpu"))


@pytest.mark.parametrize("carried", [False, True])
@pytest.mark.parametrize("sharpness", [0.0, 0.3, 1.0, 4.0])
def test_tokens_without_structure_end_right(sharpness: float, carried: bool) -> None:
    """Isotropic noise, as random weights make it: a tolerance says little there."""
    query, key, value = (normal(1, 2, 1500, 16, seed=seed) for seed in range(3))
    query, config = query * sharpness, SVOOConfig()
    state = LabelState() if carried else None
    dense = scaled_dot_product_attention(query, key, value)
    output = sparse_attention(query, key, value, config, state=state)
    assert float((output - dense).norm() / dense.norm()) < 0.3
    if sharpness >= 1:
        torch.testing.assert_close(output, dense, atol=1e-5, rtol=1e-5)
        with pytest.raises(StrictError, match="would not pay|outputs would be"):
            sparse_attention(query, key, value, replace(config, strict=True), state=state)
