import ctypes
import re

import pytest
from making import normal

from svoo.kernels.cpp.bindings import (
    Assignment,
    Attention,
    Centroids,
    FarField,
    Moments,
    Tiers,
    point_to,
)
from svoo.kernels.cpp.build import SOURCE


def test_a_pointer_says_where_the_tokens_are() -> None:
    tokens = normal(2, 5, 3, 4).transpose(1, 2)
    found = point_to(tokens)
    assert found.data == tokens.data_ptr()
    strides = found.batch_stride, found.head_stride, found.token_stride
    assert (*strides, 1) == tokens.stride()
    assert ctypes.cast(found.data, ctypes.POINTER(ctypes.c_float))[0] == tokens[0, 0, 0, 0]


@pytest.mark.parametrize("structure", [Attention, Assignment, Centroids, Moments, FarField, Tiers])
def test_fields_stand_in_the_order_of_the_source(structure: type[ctypes.Structure]) -> None:
    text = SOURCE.with_name("calls.h").read_text()
    body = text[text.index(f"struct {structure.__name__} {{") :]
    body = body[: body.index("};")]
    body = re.sub(r"//.*", "", body)
    names = [field[0] for field in structure._fields_]
    assert re.findall(r"(\w+)[,;]", body) == names
