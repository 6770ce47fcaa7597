import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from making import Case, cases, normal
from torch.utils._python_dispatch import TorchDispatchMode

from svoo import required_density
from svoo.core import density as density_module
from svoo.core.density import BIN_WIDTH, logit_variance
from svoo.errors import ConfigError, NonFiniteError, ShapeError


def density_by_definition(query: torch.Tensor, key: torch.Tensor, mass: float) -> torch.Tensor:
    """The paper's words: per row, the shortest prefix of the sorted probabilities whose sum
    reaches mass."""
    result = torch.zeros(query.shape[:2], dtype=torch.float64)
    for b, h in torch.cartesian_prod(torch.arange(query.shape[0]), torch.arange(query.shape[1])):
        logits = query[b, h].double() @ key[b, h].double().T / math.sqrt(query.shape[-1])
        for row in logits.softmax(dim=-1):
            total, count = 0.0, 0
            for probability in sorted(row.tolist(), reverse=True):
                total, count = total + probability, count + 1
                if total >= mass:
                    break
            result[b, h] += count / len(row) / len(logits)
    return result


@given(case=cases(max_tokens=25), mass=st.sampled_from((0.3, 0.5, 0.9, 0.95)))
def test_it_is_the_papers_definition(case: Case, mass: float) -> None:
    query, key, _ = case.tokens(torch.float64)
    estimate = required_density(query, key, mass=mass)
    assert torch.allclose(estimate.value, density_by_definition(query, key, mass))
    assert torch.equal(estimate.error, torch.zeros_like(estimate.value))


@pytest.mark.parametrize("exact", [True, False])
def test_chunks_do_not_change_it(monkeypatch: pytest.MonkeyPatch, exact: bool) -> None:
    query, key = normal(2, 2, 33, 8), normal(2, 2, 21, 8, seed=1)
    whole = required_density(query, key, exact=exact).value
    monkeypatch.setattr(density_module, "_SORTED_ELEMENTS", 21 * 5)
    monkeypatch.setattr(density_module, "_BINNED_ELEMENTS", 21 * 5)
    assert torch.equal(required_density(query, key, exact=exact).value, whole)


class Largest(TorchDispatchMode):
    """The most numbers that a tensor made meanwhile has."""

    numbers = 0

    def __torch_dispatch__(
        self, function: Any, _types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = function(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor):
            self.numbers = max(self.numbers, made.numel())
        return made


def test_histograms_of_all_rows_are_never_held_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(density_module, "_BINNED_ELEMENTS", 1 << 13)
    query, key = normal(1, 1, 400, 8), normal(1, 1, 50, 8, seed=1)
    with Largest() as largest:  # type: ignore[no-untyped-call]
        required_density(query, key, exact=False)
    assert largest.numbers <= 1 << 13  # 400 rows of 1024 bins would be 50 times as many


@given(
    case=cases(max_tokens=40),
    mass=st.sampled_from((0.3, 0.5, 0.9, 0.95, 0.999, 1.0)),
    spread=st.sampled_from((0.0, 0.1, 1.0, 5.0, 40.0)),
)
def test_bins_count_to_their_stated_resolution(case: Case, mass: float, spread: float) -> None:
    query, key, _ = case.tokens(torch.float64)
    query = query * spread
    slack = math.exp(BIN_WIDTH) * (1 + 1e-9)
    least, most = (mass / (mass + (1 - mass) * odds) for odds in (slack, 1 / slack))
    low, high = required_density(query, key, mass=[least, most]).value.unbind(dim=-1)
    binned = required_density(query, key, mass=mass, exact=False).value
    assert bool((low - 1e-9 <= binned).all()) and bool((binned <= high + 1e-9).all())


def test_bins_are_as_good_as_sorting_at_a_real_size() -> None:
    query, key = 2.5 * normal(1, 2, 64, 32), normal(1, 2, 3000, 32, seed=1)
    masses = (0.5, 0.8, 0.95)
    binned = required_density(query, key, mass=masses, exact=False)
    sorted_ = required_density(query, key, mass=masses)
    torch.testing.assert_close(binned.value, sorted_.value, atol=1e-3, rtol=0)


def test_several_masses_in_one_pass() -> None:
    query, key = 3 * normal(1, 2, 30, 8), normal(1, 2, 40, 8, seed=1)
    together = required_density(query, key, mass=[0.5, 0.9, 1.0])
    assert together.value.shape == (1, 2, 3)
    for place, mass in enumerate((0.5, 0.9, 1.0)):
        torch.testing.assert_close(
            together.value[..., place], required_density(query, key, mass=mass).value
        )
    assert bool((together.value[..., 2] == 1).all())


def test_sampled_rows_come_with_an_honest_error() -> None:
    query, key = 3 * normal(1, 4, 400, 16), normal(1, 4, 100, 16, seed=1)
    exact = required_density(query, key).value
    misses, total = 0, 0
    for seed in range(40):
        generator = torch.Generator().manual_seed(seed)
        estimate = required_density(query, key, rows=50, generator=generator)
        misses += int(((estimate.value - exact).abs() > 2 * estimate.error).sum())
        total += exact.numel()
    assert misses / total < 0.10  # two standard errors cover about 95 %
    assert required_density(query, key, rows=400).error.max() == 0
    assert required_density(query, key, rows=1).error.min() == math.inf


def test_half_precision_and_extreme_rows() -> None:
    query, key = normal(1, 1, 10, 8), normal(1, 1, 20, 8, seed=1)
    full, half = (
        required_density(query, key).value,
        required_density(query.half(), key.half()).value,
    )
    assert half.dtype == torch.float32
    assert torch.allclose(full, half, atol=0.02)
    one_key = required_density(1000 * query, key).value
    assert torch.allclose(one_key, torch.tensor(1 / 20))
    flat = required_density(0 * query, key, mass=0.95).value
    assert torch.allclose(flat, torch.tensor(0.95))


def test_bad_input() -> None:
    query, key = normal(1, 1, 10, 8), normal(1, 1, 20, 8)
    with pytest.raises(ConfigError, match="mass"):
        required_density(query, key, mass=[0.9, 1.2])
    with pytest.raises(ShapeError, match="rows must be between 1 and the 10 query tokens, got 11"):
        required_density(query, key, rows=11)
    with pytest.raises(ShapeError, match="rows"):
        required_density(query, key, rows=0)
    with pytest.raises(NonFiniteError):
        required_density(query * math.nan, key)


@given(case=cases())
def test_logit_variance_is_the_mean_variance_of_rows(case: Case) -> None:
    query, key, _ = case.tokens(torch.float64)
    logits = query @ key.transpose(2, 3) / math.sqrt(case.size)
    exact = logits.var(dim=-1, correction=0).mean(dim=-1)
    assert torch.allclose(logit_variance(query, key), exact, atol=1e-12)
