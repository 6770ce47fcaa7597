import subprocess
import sys

import pytest
import studying

from svoo.studies.seeds import _PROBE, HALF, SEED, STEP, SeedsStudy, computes_in_half
from svoo.studies.settings import OURS


def test_a_loss_is_judged_beside_what_a_seed_and_a_step_do() -> None:
    results = studying.empty()
    levels = {SEED: 12.0, STEP: 35.0, HALF: 45.0, OURS: 32.0}
    for number in range(6):
        rows = [
            {"prompt": str(number), "change": name, "psnr": level + number, "ssim": 0.9}
            for name, level in levels.items()
        ]
        results.add("seeds", str(number), {"rows": rows})
    section = SeedsStudy().show(results)
    assert [claim.verdict for claim in section.claims] == ["does not hold", "holds"]
    assert SeedsStudy().show(studying.empty()).parts == ()


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
