import subprocess
import sys
from pathlib import Path

import pytest
import torch
from making import normal

from tools.comfyui.check import alike


def test_latents_are_compared_by_the_range_of_the_first() -> None:
    latent = normal(1, 16, 2, 3, 4)
    span = float(latent.max() - latent.min())
    assert alike(latent, latent + span / 10) == pytest.approx(20, abs=0.01)
    assert alike(latent, latent) == float("inf")
    assert torch.equal(latent, normal(1, 16, 2, 3, 4))


def test_a_folder_that_is_no_checkout_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tools.comfyui.check", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "is no checkout of ComfyUI" in done.stderr


@pytest.mark.comfyui
@pytest.mark.timeout(3600)
def test_the_node_pack_in_a_real_comfyui(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    checkout = request.config.getoption("--comfyui")
    command = [sys.executable, "-m", "tools.comfyui.check", checkout, "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
