import pytest
import torch
from making import normal

from svoo.core import far_view
from svoo.core.far_view import look


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    key, value = normal(2, 2, 50, 8, seed=1), normal(2, 2, 50, 8, seed=2)
    sizes = torch.tensor([20, 0, 5, 25]).expand(2, 2, 4)
    query, centroids = normal(2, 2, 3, 8, seed=3), normal(2, 2, 4, 8, seed=4)
    whole = look(query, centroids, key, value, sizes, scale=0.3)
    monkeypatch.setattr(far_view, "_CHUNK_ELEMENTS", 1)
    parts = look(query, centroids, key, value, sizes, scale=0.3)
    torch.testing.assert_close(parts.log_sum, whole.log_sum)
    torch.testing.assert_close(parts.value, whole.value)
    assert bool((whole.log_sum[..., 1] == -torch.inf).all())
    assert bool((whole.value[..., 1, :] == 0).all())
