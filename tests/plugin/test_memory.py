import platform
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

from svoo.catalogue import find_model
from svoo.errors import ConfigError
from svoo.plugin.memory import check_memory, least_bytes, total_bytes
from svoo.plugin.request import Request

BASE: dict[str, Any] = {"prompt": "x", "out": Path("x.mp4")}


def test_the_estimate_counts_pixels_and_tokens() -> None:
    mini = find_model("mini")
    pixels = 49 * 144 * 256 * 24
    tokens = 4 * 7488 * mini.heads * mini.head_dim * 4
    assert least_bytes(Request(**BASE, dtype="float32"), mini) == pixels + tokens
    assert least_bytes(Request(**BASE), None) == 0
    assert least_bytes(Request(**BASE, frames=9, height=64, width=32), None) == 9 * 64 * 32 * 24


def test_the_papers_sizes_fit_where_the_models_do() -> None:
    for name in ("wan2.1-t2v-14b", "hunyuanvideo-t2v"):
        assert least_bytes(Request(**BASE), find_model(name)) < 80e9 / 10


def test_what_cannot_fit_is_refused_with_both_numbers() -> None:
    assert (total_bytes(torch.device("cpu")) or 0) > 1e8
    check_memory(Request(**BASE), find_model("mini"))
    huge = Request(**BASE, frames=1_000_001, height=14_400, width=25_600, device="cpu")
    with pytest.raises(ConfigError, match=r"1000001 frames of 25600 x 14400 .* GB.*cpu has .* GB"):
        check_memory(huge, find_model("mini"))


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_what_was_freed_stays_with_the_process() -> None:
    script = textwrap.dedent("""
        import resource, torch
        from svoo.plugin.memory import keep_freed_memory

        def faults():
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            for _ in range(20):
                torch.ones(16 << 20)  # 64 MB, which are freed
            return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

        print(faults(), keep_freed_memory(), faults() and faults())
    """)
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    before, kept, after = told.stdout.decode().split()
    assert kept == "True" and int(after) < int(before) / 10
