import math

import pytest
import torch
from making import normal

from svoo.core.validate import (
    accumulation_dtype,
    check_budgets,
    check_mass,
    check_tokens,
    check_type,
    default_scale,
    inference_only,
    is_finite,
)
from svoo.errors import ConfigError, NonFiniteError, ShapeError

Q, K = normal(2, 3, 5, 4), normal(2, 3, 7, 4, seed=1)


def test_good_tokens_pass() -> None:
    check_tokens(Q, K, K)


@pytest.mark.parametrize(
    ("query", "key", "value", "message"),
    [
        (Q[0], K, K, r"query must be \[batch, heads, tokens, head size\], got 3 axes"),
        (Q, K[..., None], K, "key must be .* got 5 axes"),
        (Q, K[:1], K, "batch differs between"),
        (Q, K[:, :2], K, "heads differs between"),
        (Q, K[..., :3], K, "head size differs between"),
        (Q, K, K[:, :, :6], "key has 7 tokens, but value has 6"),
        (Q[:, :, :0], K, K, "query has an empty axis"),
        (Q, K[:, :, :0], K, "key has an empty axis"),
        (Q.long(), K, K, "query must be floating point"),
        (Q, K.half(), K, r"key is torch\.float16 on cpu, but query is torch\.float32"),
    ],
)
def test_bad_shapes_are_refused(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, message: str
) -> None:
    with pytest.raises(ShapeError, match=message):
        check_tokens(query, key, value)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["query", "key"])
def test_nan_and_infinity_are_refused_unless_told_not_to_look(bad: float, name: str) -> None:
    tokens = {"query": Q.clone(), "key": K.clone()}
    tokens[name][1, 2, 3, 0] = bad
    with pytest.raises(NonFiniteError, match=f"{name} holds NaN or infinity"):
        check_tokens(tokens["query"], tokens["key"])
    check_tokens(tokens["query"], tokens["key"], finite=False)


@pytest.mark.parametrize("mass", [0.0, -0.5, 1.5, math.nan])
def test_mass_outside_its_range(mass: float) -> None:
    with pytest.raises(ConfigError, match=r"mass must be in \(0, 1\]"):
        check_mass(0.5, mass)


def test_budgets_of_another_shape() -> None:
    check_budgets(torch.tensor([0.0, 0.5, 1.0]), 2, 3)
    with pytest.raises(ShapeError, match=r"budgets must be \[3\] or \[2, 3\], got \[2\]"):
        check_budgets(torch.zeros(2), 2, 3)


@pytest.mark.parametrize(
    ("bad", "told"), [(-0.1, "-0.1 to 0.2"), (1.1, "0.1 to 1.1"), (math.nan, "nan to nan")]
)
def test_budgets_outside_their_range(bad: float, told: str) -> None:
    with pytest.raises(ConfigError, match=rf"must be in \[0, 1\], got {told}"):
        check_budgets(torch.tensor([0.1, bad, 0.2]), 2, 3)


def test_inference_only_is_without_gradients_and_autocast() -> None:
    @inference_only
    def product(tokens: torch.Tensor) -> torch.Tensor:
        return tokens @ tokens.mT

    with torch.autocast("cpu", torch.bfloat16):
        found = product(Q.clone().requires_grad_())
        assert product.__name__ == "product" and torch.is_autocast_enabled("cpu")
    assert found.dtype == torch.float32 and not found.requires_grad


def test_small_helpers() -> None:
    assert default_scale(Q, None) == 0.5
    assert default_scale(Q, 0.0) == 0.0
    assert accumulation_dtype(Q.bfloat16()) == torch.float32
    assert accumulation_dtype(Q.double()) == torch.float64


def test_another_type_is_refused_with_advice() -> None:
    check_type("config", 3, str, int)
    with pytest.raises(ConfigError, match="^config must be a int or str, got dict: use int()"):
        check_type("config", {}, int, str, advice="use int()")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("place", [0, 61, 119])
def test_one_number_that_is_not_finite_is_found(dtype: torch.dtype, place: int) -> None:
    tensor = normal(2, 5, 3, 4).to(dtype).transpose(1, 2)
    most = torch.finfo(dtype).max
    for number in (math.nan, math.inf, -math.inf, most, -most):
        tensor.transpose(1, 2).view(-1)[place] = number
        assert is_finite(tensor) == bool(torch.isfinite(tensor).all()) == (abs(number) == most)
