import torch
from making import normal

from svoo.core.features import VALUE_SHARE, key_features, main_axes, query_features


def test_axes_are_those_of_largest_variance() -> None:
    tokens = normal(2, 3, 4000, 6) * torch.tensor([5.0, 0.1, 3.0, 0.1, 0.1, 0.1]) + 7
    axes, spread = main_axes(tokens, 2)
    assert axes.shape == (2, 3, 6, 2)
    torch.testing.assert_close(axes[..., 0, 0].abs(), torch.ones(2, 3), atol=0.1, rtol=0)
    torch.testing.assert_close(axes[..., 2, 1].abs(), torch.ones(2, 3), atol=0.1, rtol=0)
    torch.testing.assert_close(spread, torch.full((2, 3), 34**0.5), atol=1.0, rtol=0)


def test_values_stand_beside_keys_at_their_share() -> None:
    key, value = normal(1, 2, 800, 32), 50 * normal(1, 2, 800, 32, seed=1)
    found = key_features(key, value)
    assert found.shape == (1, 2, 800, 16) and query_features(key).shape == (1, 2, 800, 16)
    whole = key.var(dim=2).sum(dim=-1)
    # Four of 32 equal axes of the values, scaled to the share of all of the keys' spread.
    share = found[..., 12:].var(dim=2).sum(dim=-1) / whole
    torch.testing.assert_close(
        share, torch.full((1, 2), VALUE_SHARE**2 * 4 / 32), atol=0.1, rtol=0
    )


def test_one_token_narrow_heads_and_equal_values() -> None:
    key = normal(1, 1, 1, 4)
    assert key_features(key, torch.zeros_like(key)).isfinite().all()
    assert query_features(key).shape == (1, 1, 1, 4)
    assert key_features(key.bfloat16(), key.bfloat16()).dtype == torch.float32
