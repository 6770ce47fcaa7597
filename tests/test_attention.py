import math

import pytest
import torch
from hypothesis import given
from making import Case, cases, normal
from torch.nn.functional import scaled_dot_product_attention

from svoo import LabelState, SVOOConfig, VideoLayout, sparse_attention
from svoo.checks import seeded
from svoo.errors import BackendUnavailableError, ConfigError, NonFiniteError, ShapeError
from svoo.synthetic import clustered_tokens


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


@pytest.mark.parametrize("backend", ["reference", "blocked"])
def test_it_is_close_to_dense_where_there_is_structure(backend: str) -> None:
    query, key, value = clustered_tokens(2, 2, 500, 32, generator=seeded(0))
    dense = scaled_dot_product_attention(query, key, value)
    errors = {}
    for compensate in (False, True):
        config = SVOOConfig(
            mass=0.9, query_clusters=24, key_clusters=48, compensate=compensate, backend=backend
        )
        output = sparse_attention(query, key, value, config)
        errors[compensate] = float((output - dense).norm() / dense.norm())
    assert errors[True] < 0.5 * errors[False] < 0.15


def test_state_carries_labels_to_the_next_call() -> None:
    query, key, value = (normal(1, 2, 80, 8, seed=seed) for seed in range(3))
    config = SVOOConfig(query_clusters=4, key_clusters=8, recluster_every=2)
    state = LabelState()
    sparse_attention(query, key, value, config, state=state)
    labels = state.labels
    assert labels is not None
    state.step = 1
    sparse_attention(-query, key, value, config, state=state)
    assert state.labels is labels
    state.step = 2
    sparse_attention(-query, key, value, config, state=state)
    assert state.labels is not labels
    assert state.nbytes == 2 * 2 * 80 * 2


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


def test_bad_input() -> None:
    query, key, value = (normal(1, 2, 24, 8, seed=seed) for seed in range(3))
    config = SVOOConfig()
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
    with pytest.raises(ConfigError, match="key_clusters must be between 1 and the 24"):
        sparse_attention(query, key, value, SVOOConfig(key_clusters=99))
    with pytest.raises(BackendUnavailableError):
        sparse_attention(query, key, value, SVOOConfig(backend="tpu"))
