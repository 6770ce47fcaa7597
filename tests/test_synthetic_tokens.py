import torch
from synthetic import clustered_tokens

from svoo import required_density
from svoo.core.random import seeded


def test_tokens_are_sparse_and_seeded() -> None:
    query, key, value = clustered_tokens(2, 3, 400, 32, generator=seeded(1))
    assert query.shape == key.shape == value.shape == (2, 3, 400, 32)
    assert required_density(query, key, mass=0.9).value.max() < 0.5
    again = clustered_tokens(2, 3, 400, 32, generator=seeded(1))
    assert torch.equal(again[0], query)
    assert torch.equal(again[2], value)
