import json
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn
from torch.optim.swa_utils import AveragedModel

from tools.training.muon import Muon
from tools.training.training import (
    Log,
    average,
    cosine_rate,
    load_resume,
    read_facts,
    save_grid,
    save_resume,
)


def setup() -> tuple[nn.Linear, AveragedModel, torch.optim.Optimizer]:
    torch.manual_seed(0)
    module = nn.Linear(3, 2)
    return module, average(module, 0.9), torch.optim.AdamW(module.parameters(), lr=0.1)


def train(
    module: nn.Linear, averaged: AveragedModel, optimiser: torch.optim.Optimizer, steps: range
) -> None:
    for step in steps:
        inputs = torch.randn(4, 3, generator=torch.Generator().manual_seed(step))
        optimiser.zero_grad()
        module(inputs).square().mean().backward()
        optimiser.step()
        averaged.update_parameters(module)


def test_resuming_goes_on_as_if_never_stopped(tmp_path: Path) -> None:
    path = tmp_path / "resume.safetensors"
    whole, averaged, optimiser = setup()
    train(whole, averaged, optimiser, range(20))
    half, half_average, half_optimiser = setup()
    train(half, half_average, half_optimiser, range(10))
    save_resume(path, half, half_average, [half_optimiser], {"step": 10, "seconds": 2.5})
    again, again_average, again_optimiser = setup()
    facts = load_resume(path, again, again_average, [again_optimiser])
    assert facts == {"step": 10, "seconds": 2.5}
    train(again, again_average, again_optimiser, range(10, 20))
    # The moments were rounded to bfloat16, so the two runs are near, not equal.
    torch.testing.assert_close(again.weight, whole.weight, atol=2e-3, rtol=0)
    torch.testing.assert_close(
        again_average.module.weight, averaged.module.weight, atol=2e-3, rtol=0
    )
    assert [file.name for file in tmp_path.iterdir()] == ["resume.safetensors"]


def test_parameters_that_are_newer_than_the_file_stay_as_they_begin(tmp_path: Path) -> None:
    path = tmp_path / "resume.safetensors"
    old, averaged, optimiser = setup()
    train(old, averaged, optimiser, range(3))
    parts = nn.ModuleDict({"old": old})
    save_resume(path, parts, average(parts, 0.9), [optimiser], {"step": 3})
    torch.manual_seed(1)
    grown = nn.ModuleDict({"old": nn.Linear(3, 2), "new": nn.Linear(2, 2)})
    new, known = grown["new"], grown["old"]
    assert isinstance(new, nn.Linear) and isinstance(known, nn.Linear)
    begin = new.weight.clone()
    again = torch.optim.AdamW(grown.parameters(), lr=0.1)
    load_resume(path, grown, average(grown, 0.9), [again])
    assert torch.equal(known.weight, old.weight)
    assert torch.equal(new.weight, begin)


def test_muon_resumes_too_and_averages_may_begin_anew(tmp_path: Path) -> None:
    path = tmp_path / "resume.safetensors"
    torch.manual_seed(0)
    module = nn.Linear(3, 2)
    averaged = average(module, 0.9)

    def two() -> list[torch.optim.Optimizer]:
        return [Muon([{"params": [module.weight]}]), torch.optim.AdamW([module.bias])]

    optimisers = two()
    for _ in range(3):
        module(torch.ones(1, 3)).sum().backward()
        for optimiser in optimisers:
            optimiser.step()
    averaged.n_averaged.zero_()
    save_resume(path, module, averaged, optimisers, {})
    again = two()
    load_resume(path, module, averaged, again)
    torch.testing.assert_close(
        again[0].state[module.weight]["momentum_buffer"],
        optimisers[0].state[module.weight]["momentum_buffer"],
        atol=0.05,
        rtol=0.01,
    )
    assert int(again[1].state[module.bias]["step"]) == 3
    assert int(averaged.n_averaged) == 0
    assert read_facts(path) == {}


def test_the_average_follows() -> None:
    module, averaged, _ = setup()
    with torch.no_grad():
        module.weight.fill_(1.0)
    for _ in range(100):
        averaged.update_parameters(module)
    torch.testing.assert_close(
        averaged.module.state_dict()["weight"], torch.ones(2, 3), atol=1e-3, rtol=0
    )


def test_the_rate_falls_as_a_cosine() -> None:
    rates = [cosine_rate(step, 100, 1.0) for step in (0, 50, 100, 120)]
    assert rates == pytest.approx([1.0, 0.515, 0.03, 0.03])


def test_the_log_counts_earlier_runs(tmp_path: Path) -> None:
    log = Log(tmp_path / "log.jsonl", seconds_before=100)
    log.write(step=3, loss=0.5)
    row = json.loads((tmp_path / "log.jsonl").read_text())
    assert row["step"] == 3
    assert 100 <= row["seconds"] < 101


def test_a_grid_has_a_row_a_clip(tmp_path: Path) -> None:
    save_grid(
        [torch.zeros(9, 3, 8, 12), torch.ones(5, 3, 8, 12)], tmp_path / "grid.png", columns=4
    )
    picture = Image.open(tmp_path / "grid.png")
    assert picture.size == (48, 16)
    assert picture.getpixel((0, 15)) == (255, 255, 255)
