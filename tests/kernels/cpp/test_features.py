import pytest
import torch
from making import normal

from svoo.core.features import find_features

pytestmark = pytest.mark.compiler


@pytest.mark.usefixtures("two_threads")
def test_threads_agree_with_one_and_layouts_with_another() -> None:
    """The definition is in tests/core/test_features.py."""
    tokens = [normal(2, 90, 3, 24, seed=seed).transpose(1, 2) for seed in range(3)]
    two = find_features(*tokens, implementation="cpp")
    torch.set_num_threads(1)
    one = find_features(*(side.contiguous() for side in tokens), implementation="cpp")
    assert torch.equal(one[0], two[0]) and torch.equal(one[1], two[1])
