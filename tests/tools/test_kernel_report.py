import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import triton

from svoo.errors import BackendUnavailableError
from tools import kernel_report as report

SMALLEST_CALL = """
import torch
from svoo.core.plan import BlockPlan
from svoo.core.terms import MeanTerms
from svoo.kernels.triton import assign, launch, sparse
from tools import kernel_report as report

one = torch.ones(1, 1, 1, dtype=torch.int64)
token, launched = torch.ones(1, 1, 1, 8), []
launch.Launch.run = lambda self: launched.append(self)
assign.assign(token, token)
plan = BlockPlan(None, None, one, one, one.bool().unsqueeze(-1), MeanTerms(one.bool()))
sparse.sparse_attention(token, token, token, plan, scale=1.0, return_lse=True)
print(*(report.describe_launch(each.kernel.__name__, each, 90).name for each in launched))
"""


KNOWN_SPILLS = {("3.9.0", "attention, far terms and groups", "sm_120"): 64}
"""Bytes, with other versions than the one that torch needs (`make test-triton`)."""


def compiling(*command: str) -> str:
    """Run Python with Triton's compiler instead of its interpreter, and return what it prints."""
    without = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, "-W", "error", *command],
        env=without,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The command as a user runs it: what it prints, and the file it writes."""
    path = tmp_path_factory.mktemp("report") / "kernels.json"
    return compiling("-m", "tools.kernel_report", "--json", str(path)), path


def test_the_default_kernels_fit_their_devices(printed: tuple[str, Path]) -> None:
    found = json.loads(printed[1].read_text())["kernels"]
    names = {name for name, _ in report.launches(90, everything=False)}
    assert len(names) == 13
    for architecture, limits in report.ARCHITECTURES.items():
        rows = [row for row in found if row["arch"] == f"sm_{architecture}"]
        everything = architecture in report.DEFAULT_ARCHITECTURES
        assert {row["name"] for row in rows} == (names if everything else set(report.HEAVIEST))
        for row in rows:
            known = (triton.__version__, row["name"], row["arch"])
            assert row["spills"] == KNOWN_SPILLS.get(known, 0), row
            assert row["registers"] > 0, row
            assert row["shared"] <= limits.block_shared, row
            assert 0 < row["occupancy"] <= 1, row


def test_it_compiles_for_amd(printed: tuple[str, Path]) -> None:
    """tf32 products, which these have not, are asked for in float32 only and on NVIDIA only."""
    found = json.loads(printed[1].read_text())["kernels"]
    for architecture in report.AMD:
        rows = [row for row in found if row["arch"] == architecture]
        assert {row["name"] for row in rows} == set(report.HEAVIEST)
        for row in rows:
            assert row["shared"] <= 64 << 10, row


def test_keys_and_values_are_loaded_tiles_ahead(printed: tuple[str, Path]) -> None:
    """Three dependent loads (the list, the order, the tokens) are under way while one computes."""
    found = json.loads(printed[1].read_text())["kernels"]
    rows = [row for row in found if row["name"].startswith("attention") and "sm" in row["arch"]]
    assert len(rows) >= 12 + 4
    for row in rows:
        assert row["buffers"] >= 2, row
        assert row["pending"] >= 4, row


LOOPS = {
    "attention": (7, 40, 42),
    "terms alone": (7, 48, 62),
    "far field": (10.5, 48, 60),
    "assign, features": (10, 33, 80),
    "assign": (9, 40, 48),
}
"""Instructions of a main loop for each that multiplies tiles, at most: by sm_80's, by sm_90's and
by sm_100's, which do more at a time. Attention's loop had 647 on sm_90, 54 for each."""


def test_main_loops_stay_short(printed: tuple[str, Path]) -> None:
    found = json.loads(printed[1].read_text())["kernels"]
    kind = {"sm_90": 1, "sm_100": 2, "sm_103": 2}
    bounded = set()
    for row in found:
        name = next((name for name in LOOPS if row["name"].startswith(name)), None)
        if "sm" in row["arch"] and name is not None:
            bounded.add(row["name"])
            assert 0 < row["per_product"] <= LOOPS[name][kind.get(row["arch"], 0)], row
        else:  # sums, lists and thresholds multiply no tiles
            assert row["per_product"] is None, row
    assert len(bounded) == 4 + 4


def test_co_clustering_takes_a_quarter_of_the_two_pass_form(printed: tuple[str, Path]) -> None:
    flops = json.loads(printed[1].read_text())["flops"]
    assert flops["ratio"] == flops["co_clustering"] / flops["two_pass"] <= 0.3
    # By hand, without the padding of tiles: two products of W a side, one pass of all tokens.
    tokens, queries, keys, size = 75_600, 256, 1024, 128
    ours = 2 * (tokens * size * (queries + keys) + 4 * queries * keys * size)
    assert flops["co_clustering"] == pytest.approx(ours, rel=0.002)
    theirs = 2 * tokens * (size * (queries + keys) + 2 * queries * keys)
    assert flops["two_pass"] == pytest.approx(theirs, rel=0.002)


def test_the_table_holds_every_row(printed: tuple[str, Path]) -> None:
    output, path = printed
    found = json.loads(path.read_text())
    assert output.strip() == report.as_table(found).strip()
    assert output.count("| sm_") + output.count("| gfx") == len(found["kernels"])


def test_the_docs_show_what_the_command_prints(printed: tuple[str, Path]) -> None:
    page = Path(__file__).parents[2] / "docs" / "kernels.md"
    assert printed[0].strip() in page.read_text(), "copy the command's output into docs/kernels.md"


def test_a_call_on_one_token_compiles() -> None:
    """Triton makes constants of arguments that are None or 1, which changes types."""
    names = compiling("-c", SMALLEST_CALL).split()
    assert names == [
        "_assign",
        "_keep_pieces",
        "_means",
        "_means",
        "_keep_pieces",
        "attend",
    ]


def test_occupancy_by_hand() -> None:
    h100 = report.ARCHITECTURES[90]
    assert h100.occupancy(registers=32, shared=0, warps=4) == 1
    assert h100.occupancy(registers=128, shared=0, warps=4) == 0.25  # 65,536 / (32 x 128) warps
    assert h100.occupancy(registers=32, shared=100 << 10, warps=8) == 2 * 8 / 64
    assert h100.occupancy(registers=255, shared=0, warps=8) == 8 / 64


def test_the_interpreter_cannot_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "interpreted", lambda: True)
    with pytest.raises(BackendUnavailableError, match="unset TRITON_INTERPRET"):
        report.report(everything=False)
