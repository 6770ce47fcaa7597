"""Tensors whose memory is not what it seems: each is refused, or gives what its copy gives."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from making import Case, chance, normal
from torch import Tensor

from svoo import SVOOConfig, co_cluster, make_plan, required_density, run_plan, sparse_attention
from svoo.errors import ConfigError, ShapeError
from svoo.kernels.cpp.clusters import assign, update_centroids

on_every_backend = pytest.mark.parametrize(
    "backend", ["reference", "blocked", pytest.param("cpp", marks=pytest.mark.compiler)]
)
CASE = Case(2, 3, 20, 20, 8, 3, 4, seed=0)


def overlapping(strides: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    def view(tokens: Tensor) -> Tensor:
        return tokens.flatten().as_strided(tokens.shape, strides)

    return view


def imaginary(tokens: Tensor) -> Tensor:
    """The imaginary part of a conjugate, which torch negates only when it is read."""
    part = torch.complex(torch.zeros_like(tokens), -tokens).conj().imag
    assert part.is_neg() and part.stride(-1) == 2
    return part


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "lazily negated": torch._neg_view,
    "of a conjugate": imaginary,
    "overlapping, last stride 1": overlapping((0, 1, 1, 1)),
    "overlapping, last stride 0": overlapping((7, 3, 1, 0)),
    "one number": overlapping((0, 0, 0, 0)),
    "expanded heads": lambda tokens: tokens[:, :1].expand(tokens.shape),
    "expanded tokens": lambda tokens: tokens[:, :, :1].expand(tokens.shape),
    "every second": lambda tokens: tokens.repeat_interleave(2, dim=3)[..., ::2],
    "transposed": lambda tokens: tokens.mT.contiguous().mT,
    "tokens first": lambda tokens: tokens.transpose(1, 2).contiguous().transpose(1, 2),
    "a channel alone": lambda tokens: tokens.permute(3, 0, 1, 2).contiguous().permute(1, 2, 3, 0),
}


@on_every_backend
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("which", ["query", "key", "value", "all"])
def test_views_run_as_their_copies(backend: str, view: str, which: str) -> None:
    plan = CASE.plan(compensate=True)
    query, key, value = (
        VIEWS[view](tokens) if which in (name, "all") else tokens
        for name, tokens in zip(("query", "key", "value"), CASE.tokens(), strict=True)
    )
    got = run_plan(query, key, value, plan, backend=backend)
    query, key, value = (torch.empty(x.shape).copy_(x) for x in (query, key, value))
    torch.testing.assert_close(got, run_plan(query, key, value, plan, backend="reference"))


@pytest.mark.compiler
@pytest.mark.parametrize("view", VIEWS)
def test_views_are_clustered_as_their_copies(view: str) -> None:
    tokens = VIEWS[view](normal(2, 3, 20, 8))
    weights = VIEWS[view](normal(2, 3, 5, 8, seed=1))
    plain_tokens, plain_weights = (torch.empty(x.shape).copy_(x) for x in (tokens, weights))
    labels = assign(plain_tokens, plain_weights)
    assert torch.equal(assign(tokens, weights), labels)
    means, sizes = update_centroids(tokens, torch._neg_view(-labels), weights)
    expected = update_centroids(plain_tokens, labels, plain_weights)
    assert torch.equal(means, expected[0]) and torch.equal(sizes, expected[1])


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (np.zeros((1, 2, 20, 8), dtype=np.float32), "must be a torch.Tensor, got ndarray: use to"),
        ([[[[0.0]]]], "must be a torch.Tensor, got list"),
        (None, "must be a torch.Tensor, got NoneType"),
        (
            normal(1, 2, 20, 8).to(torch.float8_e4m3fn),
            "must be floating point .* torch.float8",
        ),
        (
            normal(1, 2, 20, 8).to(torch.complex64),
            "must be floating point .* torch.comp",
        ),
        (normal(1, 2, 20, 8).int(), "must be floating point .*, got torch.int32"),
        (normal(1, 2, 20, 8).to_sparse(), "must be a dense tensor with numbers, got torch.spars"),
        (normal(1, 2, 20, 8).to("meta"), "must be a dense tensor with numbers, .* on meta"),
    ],
)
def test_what_is_no_tensor_of_tokens(bad: Tensor, message: str) -> None:
    good, plan = normal(1, 2, 20, 8), Case(1, 2, 20, 20, 8, 3, 4, seed=0).plan(compensate=True)
    for place, name in enumerate(("query", "key", "value")):
        query, key, value = (bad if place == at else good for at in range(3))
        with pytest.raises(ShapeError, match=f"{name} {message}"):
            run_plan(query, key, value, plan)
    with pytest.raises(ShapeError, match=f"query {message}"):
        co_cluster(bad, good, 2, 3)
    with pytest.raises(ShapeError, match=f"key {message}"):
        required_density(good, bad)


@pytest.mark.parametrize("bad", [[0.5, 0.5], np.full(2, 0.5), 0.5])
def test_budgets_that_are_no_tensor(bad: Tensor) -> None:
    query, key, value = (normal(1, 2, 20, 8, seed=seed) for seed in range(3))
    with pytest.raises(ShapeError, match="budgets must be a torch.Tensor, got"):
        sparse_attention(query, key, value, SVOOConfig(), budgets=bad)


@pytest.mark.parametrize("bad", [math.nan, math.inf, "0.1", torch.tensor(0.1), 1j])
def test_scales_that_are_no_number(bad: float) -> None:
    with pytest.raises(ConfigError, match="scale must be a finite number, got"):
        run_plan(*CASE.tokens(), CASE.plan(compensate=False), scale=bad)


def test_a_function_that_attends_can_be_compiled() -> None:
    query, key, value = (normal(1, 2, 60, 8, seed=seed) for seed in range(3))
    config = SVOOConfig(query_clusters=4, key_clusters=8)

    def attend(query: Tensor) -> Tensor:
        return 2 * sparse_attention(query + 1, key, value, config, generator=chance(0))

    expected = attend(query)
    torch.compiler.reset()
    assert torch.equal(torch.compile(attend, backend="eager")(query), expected)
    plan = Case(1, 2, 60, 60, 8, 3, 4, seed=0).plan(compensate=True)
    compiled = torch.compile(lambda x: run_plan(x + 1, key, value, plan) - 1, backend="eager")
    assert torch.equal(compiled(query), run_plan(query + 1, key, value, plan) - 1)


@pytest.mark.parametrize("config", [{}, None, "svoo", SVOOConfig])
def test_configs_that_are_none(config: SVOOConfig) -> None:
    query, key, value = (normal(1, 2, 20, 8, seed=seed) for seed in range(3))
    for entrance in (sparse_attention, make_plan):
        with pytest.raises(ConfigError, match="config must be a MethodConfig such as"):
            entrance(query, key, value, config)
