from pathlib import Path

import pytest
import torch

from svoo.app.doctor import CALLS, Finding, examine, report
from svoo.backends import BACKENDS
from svoo.kernels.cpp.build import why_no_library


def test_every_backend_and_package_has_a_line() -> None:
    findings = {finding.name: finding for finding in examine()}
    for backend in BACKENDS:
        assert findings[f"backend {backend.name}"].text
    assert findings["diffusers"].good
    assert findings["device"].text
    assert findings["torch"].text


def test_the_ladder_is_told_in_order_with_reasons() -> None:
    findings = examine()
    ladder = [finding for finding in findings if finding.name.startswith("backend ")]
    names = [finding.name.removeprefix("backend ") for finding in ladder]
    assert names == [*(backend.name for backend in BACKENDS), "auto"]
    texts = dict(zip(names, (finding.text for finding in ladder), strict=True))
    assert texts["blocked"] == texts["reference"] == "runs here"
    assert texts["auto"].count(" for ") == len(CALLS)
    if not torch.cuda.is_available():
        on_the_cpu = "blocked" if why_no_library() else "cpp"
        assert texts["triton"] == "needs a CUDA tensor, got cpu"
        assert texts["auto"].startswith(f"{on_the_cpu} for bfloat16, head size 128, far terms;")


def test_a_home_that_is_the_root_hides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    finding = [Finding("x", good=True, text="/usr/bin/g++")]
    monkeypatch.setattr(Path, "home", lambda: Path("/"))
    assert report(finding)["findings"][0]["text"] == "/usr/bin/g++"
    monkeypatch.setattr(Path, "home", lambda: Path("/usr"))
    assert report(finding)["findings"][0]["text"] == "~/bin/g++"

    def nobody() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", nobody)
    assert report(finding)["findings"][0]["text"] == "/usr/bin/g++"


def test_a_report_says_what_each_backend_needs_and_names_no_home() -> None:
    home = str(Path.home())
    found = report([Finding("cache", good=True, text=f"{home}/cache")])
    assert found["findings"] == [{"name": "cache", "good": True, "text": "~/cache"}]
    assert found["needs"] == {backend.name: backend.needs.describe() for backend in BACKENDS}
    assert found["needs"]["triton"]["device"] == "cuda"
