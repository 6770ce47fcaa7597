import wave
from pathlib import Path

import numpy as np
import pytest

from svoo.errors import ConfigError, FileError
from svoo.metrics.video import read_video, write_video


def clip() -> np.ndarray:
    ramp = np.linspace(0, 1, 48)[None, None, :, None]
    return np.broadcast_to(ramp, (6, 32, 48, 3))


def test_frames_come_back_nearly_the_same(tmp_path: Path) -> None:
    write_video(clip(), tmp_path / "v.mp4")
    again = read_video(tmp_path / "v.mp4")
    assert again.shape == (6, 32, 48, 3)
    assert np.abs(again / 255 - clip()).max() < 0.05
    assert [path.name for path in tmp_path.iterdir()] == ["v.mp4"]


def test_a_failed_write_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "v.mp4").write_bytes(b"old")

    def fail(_self: Path, _target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(FileError, match="cannot write .*No space"):
        write_video(clip(), tmp_path / "v.mp4")
    assert (tmp_path / "v.mp4").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["v.mp4"]


def test_what_is_no_video_is_refused(tmp_path: Path) -> None:
    (tmp_path / "v.mp4").write_text("words")
    with pytest.raises(ConfigError, match="cannot read the video"):
        read_video(tmp_path / "v.mp4")
    with pytest.raises(ConfigError, match="cannot read the video"):
        read_video(tmp_path / "none.mp4")
    with wave.open(str(tmp_path / "sound.wav"), "wb") as sound:
        sound.setparams((1, 2, 8000, 0, "NONE", ""))
        sound.writeframes(bytes(1600))
    with pytest.raises(ConfigError, match="it holds no video"):
        read_video(tmp_path / "sound.wav")


def test_odd_sides_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="mp4 needs even sides, got 48 x 31"):
        write_video(clip()[:, :31], tmp_path / "v.mp4")
    assert list(tmp_path.iterdir()) == []
