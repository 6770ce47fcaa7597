import pytest
import torch
from torch import Tensor

from svoo import Call, Dense, DenseConfig, Run
from svoo.methods.warm_up import SparseMethod, warm_up


def test_first_steps_and_first_layers_are_dense() -> None:
    config = DenseConfig(dense_steps=0.2, dense_layers=1)
    dense = [
        [warm_up(config, 10, Call(step, layer)) is not None for layer in range(3)]
        for step in range(10)
    ]
    assert dense[:2] == [[True] * 3] * 2
    assert dense[2:] == [[True, False, False]] * 8
    reason = "warm-up: the first 2 of 10 steps are dense"
    assert warm_up(config, 10, Call(0, 2)) == Dense(reason, planned=True)
    layers = Dense("the first 1 layers are dense", planned=True)
    assert warm_up(config, 10, Call(5, 0)) == layers


class Toy(SparseMethod[DenseConfig]):
    """Keeps nothing but its own word."""

    def choose(self, query: Tensor, key: Tensor, value: Tensor, call: Call) -> Dense:  # noqa: ARG002
        """Say the step."""
        return Dense(f"chosen at {call.step}")


def test_a_sparse_method_chooses_after_its_warm_up() -> None:
    tokens = (torch.zeros(1, 1, 4, 2),) * 3
    toy = Toy(DenseConfig(dense_steps=1), Run(steps=3))
    assert toy.plan(*tokens, Call(0, 0)) == warm_up(toy.config, 3, Call(0, 0))
    assert toy.plan(*tokens, Call(1, 0)) == Dense("chosen at 1")
    assert toy.state_bytes == 0
    with pytest.raises(NotImplementedError, match="SparseMethod must say what it keeps"):
        SparseMethod(DenseConfig(), Run(steps=1)).plan(*tokens, Call(0, 0))
