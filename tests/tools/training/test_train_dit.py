import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tools.training import codes as codes_module
from tools.training import measure as measure_module
from tools.training import train_dit as train_dit_module
from tools.training.build import make_vae
from tools.training.codes import Supply
from tools.training.curriculum import STAGES, Gate, Kind
from tools.training.train_dit import GateClosed, rate, read_statistics, train_dit

CELLS = (2, 4)
PICTURES = replace(
    STAGES[0],
    steps=4,
    kinds=(Kind(CELLS, 1, 2, 1.0),),
    measure_every=4,
    measured=Kind(CELLS, 1, 6, 1.0),
    gates=(),
)
CLIPS = replace(
    STAGES[2],
    steps=6,
    kinds=(Kind(CELLS, 1, 2, 1.0), Kind(CELLS, 2, 2, 1.0)),
    measure_every=6,
    measured=Kind(CELLS, 2, 1, 1.0),
    image_share=0.5,
    gates=(Gate(3, "cover", most=0.0),),
)


def test_training_stops_at_a_gate_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train_dit_module, "STATISTICS_CLIPS", 1)
    monkeypatch.setattr(codes_module, "SMALL", CELLS)
    monkeypatch.setattr(codes_module, "PICTURES", Supply(4, 1, 100))
    monkeypatch.setattr(codes_module, "CLIPS", Supply(2, 1, 100))
    for name, value in (("STEPS", 1), ("PROBES", 1), ("SMALL", CELLS)):
        monkeypatch.setattr(measure_module, name, value)
    ends: list[object] = []
    monkeypatch.setattr(train_dit_module, "look_at_ends", ends.append)
    torch.manual_seed(0)
    make_vae().half().save_pretrained(tmp_path / "weights" / "vae")
    where = (tmp_path / "out", tmp_path / "weights", tmp_path / "cache")
    with pytest.raises(GateClosed, match=r"few frames, step 3: cover is 0\.\d+, which should be"):
        train_dit(*where, resume=False, bfloat16=False, stages=(PICTURES, CLIPS))
    train_dit(*where, resume=True, bfloat16=False, stages=(PICTURES, CLIPS))
    rows = [json.loads(line) for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines()]
    assert [(row["stage"], row["step"]) for row in rows] == [("pictures", 4), ("few frames", 6)]
    assert len(ends) == 1  # not again after resuming
    resume = tmp_path / "out" / "resume.safetensors"
    assert resume.stat().st_size < 30 << 20
    assert bool((read_statistics(resume).spread > 0).all())
    assert len(list((tmp_path / "out" / "strips").iterdir())) == 5


def test_the_rate_rises_stays_and_falls() -> None:
    stage = replace(STAGES[-1], steps=1000, rate=1.0, fall=0.5)
    found = [rate(stage, step) for step in (0, 39, 499, 750, 1000)]
    assert found == pytest.approx([1 / 40, 1, 1, 0.51, 0.02])
    assert rate(replace(stage, fall=0.0), 999) == 1
