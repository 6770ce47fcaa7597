import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from svoo.app.cli import app
from svoo.metrics.video import write_video


def test_compare_says_how_alike_videos_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    frames = np.random.default_rng(0).uniform(size=(3, 48, 64, 3)).astype(np.float32)
    write_video(frames, tmp_path / "a.mp4")
    write_video(frames[:, ::-1], tmp_path / "b.npy")
    same = CliRunner().invoke(app, ["compare", *[str(tmp_path / "a.mp4")] * 2])
    assert "PSNR inf dB, SSIM 1.0000" in same.output
    assert "LPIPS unavailable: its weights are not here" in same.output
    command = ["compare", str(tmp_path / "a.mp4"), str(tmp_path / "b.npy")]
    other = CliRunner().invoke(app, command)
    assert other.exit_code == 0 and "inf" not in other.output
    found = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)
    assert found["equal"] is False and f"PSNR {found['psnr']:.2f}" in other.output
