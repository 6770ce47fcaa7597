import copy
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from svoo.plugin.provenance import hash_settings, say_rows

PICTURE = Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": [1, 2]}, {"a": [1, 3]}),
        ({"a": {"b": 1}}, {"a": {"b": 2}}),
        ({"a": "1"}, {"a": 1}),
        ({"a": ["b", "c"]}, {"a": ["bc"]}),
        ({"a": np.arange(2000)}, {"a": np.where(np.arange(2000) == 1000, 0, np.arange(2000))}),
        ({"a": np.zeros(4)}, {"a": np.zeros((2, 2))}),
        ({"a": torch.zeros(2, dtype=torch.bfloat16)}, {"a": torch.zeros(2)}),
        ({"a": torch.zeros(2, 3)}, {"a": torch.zeros(3, 2)}),
        ({"a": PICTURE}, {"a": Image.frombytes("RGB", (2, 8), PICTURE.tobytes())}),
        ({"a": PICTURE}, {"a": Image.frombytes("HSV", (4, 4), PICTURE.tobytes())}),
        ({"a": [PICTURE]}, {"a": [PICTURE.rotate(90)]}),
    ],
)
def test_settings_that_differ_are_told_apart(one: dict[str, Any], other: dict[str, Any]) -> None:
    first, second = hash_settings(one), hash_settings(other)
    assert first != second
    assert first == hash_settings(copy.deepcopy(one))
    assert second == hash_settings(copy.deepcopy(other))


def test_settings_are_the_same_in_any_order() -> None:
    one, other = {"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"d": 3, "c": 2}, "a": 1}
    assert hash_settings(one) == hash_settings(other)


def test_rows_in_words() -> None:
    assert [say_rows(rows) for rows in (None, "auto", 5)] == ["all", "auto", "5"]
