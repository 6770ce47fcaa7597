from pathlib import Path
from typing import Any

import pytest
import torch
from golden import Golden

from svoo.errors import ProfileError
from svoo.profiles.windows import WindowTable, search_windows


def test_chooses_as_their_code_does(goldens: Path) -> None:
    golden = Golden(goldens / "sta-head-choice.npz")
    candidates = [(t, h, w) for t, h, w in golden.meta["candidates"]]
    frames, height, width = golden.meta["full"]
    table = search_windows(
        golden["l2_losses"], candidates, (frames, height, width), golden.meta["skip_time_steps"]
    )
    assert torch.equal(table.windows, golden["chosen_window"].to(torch.uint8))


def test_a_table_survives_a_file(tmp_path: Path) -> None:
    table = WindowTable(torch.randint(1, 9, (4, 3, 2, 3)))
    table.save(tmp_path / "windows.safetensors")
    assert torch.equal(WindowTable.load(tmp_path / "windows.safetensors").windows, table.windows)


def test_another_number_of_steps_takes_the_same_place() -> None:
    table = WindowTable(torch.arange(1, 51).view(50, 1, 1, 1).expand(50, 2, 3, 3))
    assert [int(table.at(step, 50, 1)[0, 0]) for step in (0, 7, 49)] == [1, 8, 50]
    assert [int(table.at(step, 5, 0)[0, 0]) for step in range(5)] == [6, 16, 26, 36, 46]
    assert int(table.at(120, 100, 0)[0, 0]) == 50  # beyond the end: the last
    with pytest.raises(ProfileError, match="for 2 layers, and layer 2"):
        table.at(0, 50, 2)


@pytest.mark.parametrize(
    "windows",
    [torch.ones(2, 3, 3).int(), torch.ones(1, 1, 1, 3), torch.zeros(1, 1, 1, 3).int()],
)
def test_what_are_no_windows(windows: Any) -> None:
    with pytest.raises(ProfileError, match="windows must "):
        WindowTable(windows)


def test_bad_files_and_losses(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="cannot read windows"):
        WindowTable.load(tmp_path / "none.safetensors")
    bad = tmp_path / "bad.safetensors"
    bad.write_bytes(b"12345678nonsense")
    with pytest.raises(ProfileError, match="cannot read windows"):
        WindowTable.load(bad)
    with pytest.raises(ProfileError, match="losses must be .inputs, 1 candidates"):
        search_windows(torch.ones(1, 2, 3, 4, 5), [(1, 1, 1)], (2, 2, 2), 0)
