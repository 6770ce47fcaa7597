import subprocess
import sys

import pytest
import studying

from svoo.studies.seeds import _PROBE, SEED, STEP, SeedsStudy, computes_in_half
from svoo.studies.settings import OURS


def test_a_loss_is_judged_beside_what_a_seed_and_a_step_do() -> None:
    results = studying.empty()
    levels = {SEED: 12.0, STEP: 35.0, "bfloat16": 45.0, OURS: 32.0}
    for number in range(6):
        for name, level in levels.items():
            row = {"prompt": str(number), "change": name, "psnr": level + number, "ssim": 0.9}
            results.add("seeds", f"{name} | {number} | x", {**row, "settings": "x"})
    section = SeedsStudy().show(results)
    assert [claim.verdict for claim in section.claims] == ["does not hold", "holds"]
    assert SeedsStudy().show(studying.empty()).parts == ()
    # Rows of ours with other settings than the latest are not mixed with these.
    row = {"prompt": "0", "change": OURS, "psnr": 40.0, "ssim": 0.9, "settings": "y"}
    results.add("seeds", f"{OURS} | 0 | y", row)
    claims = SeedsStudy().show(results).claims
    assert [claim.verdict for claim in claims] == ["cannot be told here"] * 2


def test_half_precision_is_tried_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[list[str]] = []

    def crash(command: list[str], **_: object) -> subprocess.CompletedProcess[bytes]:
        tried.append(command)
        return subprocess.CompletedProcess(command, -4)  # an instruction that is not there

    monkeypatch.setattr("svoo.studies.seeds.subprocess.run", crash)
    computes_in_half.cache_clear()
    assert not computes_in_half() and not computes_in_half()
    assert tried == [[sys.executable, "-c", _PROBE]]
    computes_in_half.cache_clear()
