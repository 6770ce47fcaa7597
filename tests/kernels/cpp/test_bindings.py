import ctypes
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
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
from svoo.kernels.cpp.far_field import moments


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


@pytest.mark.compiler
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_callers_at_once_get_what_each_alone_gets(threads: int) -> None:
    tokens = [normal(1, 2, 600, 16, seed=seed) for seed in range(24)]
    order = torch.arange(600).expand(1, 2, 600)
    sizes = torch.full((1, 2, 60), 10)

    def mean_of(each: torch.Tensor) -> torch.Tensor:
        torch.set_num_threads(threads)
        return moments(each, order, sizes)[0]

    before = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(4) as callers:
            found = list(callers.map(mean_of, tokens))
    finally:
        torch.set_num_threads(before)
    for each, mean in zip(tokens, found, strict=True):
        expected = each.unflatten(2, (60, 10)).mean(dim=3)
        torch.testing.assert_close(mean, expected, rtol=1e-5, atol=1e-6)


_FORKED = """
import os, torch
from svoo.kernels.cpp.far_field import moments
torch.set_num_threads(3)
tokens = torch.arange(600.0).view(1, 1, 300, 2)
sides = torch.arange(300).view(1, 1, 300), torch.full((1, 1, 30), 10)
expected = moments(tokens, *sides)[0]
child = os.fork()
if child == 0:
    os._exit(0 if torch.equal(moments(tokens, *sides)[0], expected) else 1)
assert os.waitpid(child, 0)[1] == 0
assert torch.equal(moments(tokens, *sides)[0], expected)
"""


@pytest.mark.compiler
@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
def test_a_forked_child_has_threads_of_its_own() -> None:
    subprocess.run([sys.executable, "-W", "ignore", "-c", _FORKED], check=True, timeout=120)
