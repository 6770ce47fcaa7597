from dataclasses import replace
from importlib import metadata, util
from typing import Any

import pytest
import torch
from making import Case, normal
from torch._subclasses.fake_tensor import FakeTensorMode

from svoo import FarTerms, MeanTerms
from svoo.core import needs as needs_module
from svoo.core.needs import Needs, Package, find_version

CASE = Case(1, 1, 4, 4, 8, 2, 2, seed=0)
TOKENS = normal(1, 1, 4, 8)


def test_nothing_needed_is_anything() -> None:
    for plan in (CASE.plan(compensate=False), CASE.plan(compensate=True), CASE.far_plan()):
        for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
            assert Needs().why_not(TOKENS.to(dtype), plan.terms) is None


@pytest.mark.parametrize(
    ("needs", "reason"),
    [
        ({"device": "cuda"}, "needs a CUDA tensor, got cpu"),
        ({"dtypes": (torch.float16,)}, "runs float16, got float32"),
        ({"head_sizes": (64, 128)}, "runs head sizes 64, 128, got 8"),
        ({"largest_head": 4}, "runs head sizes up to 4, got 8"),
        ({"head_sizes": (8,), "largest_head": 8}, None),
        ({"terms": (FarTerms,)}, "runs far terms, got mean terms"),
        ({"terms": ()}, "runs no terms, got mean terms"),
        (
            {"for_terms": Needs(device="cuda")},
            "has no mean terms, and the kernel that would add them needs a CUDA tensor, got cpu",
        ),
        (
            {"package": Package("no_such", "no-such", "pip install no-such")},
            "needs no_such, which is not installed: pip install no-such",
        ),
        (
            {"package": Package("torch", "torch", "", ("0.1", "0.2"))},
            f"needs torch 0.1 or 0.2, got {metadata.version('torch')}",
        ),
    ],
)
def test_the_reasons(needs: dict[str, Any], reason: str | None) -> None:
    terms = CASE.plan(compensate=True).terms
    assert Needs(**needs).why_not(TOKENS, terms) == reason
    if "terms" in needs or "for_terms" in needs:
        assert Needs(**needs).why_not(TOKENS) is None  # a plan without terms needs neither


def test_a_device_that_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeTensorMode():
        tokens = torch.empty(1, 1, 4, 8, device="cuda")
    needs = Needs(device="cuda", capability=(9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (8, 6))
    assert needs.why_not(tokens) == "needs compute capability 9.0 or newer, got 8.6"
    assert replace(needs, capability=(8, 6)).why_not(tokens) is None


def test_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_version("torch", "torch") == metadata.version("torch")
    assert find_version("no_such_module", "torch") is None
    assert find_version("json", "no-such-distribution") == ""
    monkeypatch.setattr(needs_module, "find_version", lambda *_: "1.20.0")
    assert Package("a", "a", "", ("1.2",)).why_not() == "needs a 1.2, got 1.20.0"
    assert util.find_spec("torch") is not None


def test_described_in_words() -> None:
    triton = Package("triton", "triton", "pip install triton")
    needs = Needs(
        device="cuda",
        capability=(8, 0),
        dtypes=(torch.bfloat16, torch.float16),
        head_sizes=(64, 128),
        package=Package("some", "some-python", "", ("0.6", "0.7")),
        tool="a compiler",
        terms=(MeanTerms,),
        for_terms=Needs(package=triton, terms=(MeanTerms,)),
    )
    assert needs.describe() == {
        "device": "cuda",
        "compute capability": "8.0",
        "dtypes": "bfloat16, float16",
        "head sizes": "64, 128",
        "terms": "mean (with triton)",
        "installed": "some-python 0.6 or 0.7, a compiler",
    }
    assert Needs().describe() == {
        "device": "any",
        "compute capability": "any",
        "dtypes": "float64, float32, bfloat16, float16",
        "head sizes": "any",
        "terms": "mean, far",
        "installed": "torch alone",
    }
