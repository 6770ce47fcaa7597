import wave
from pathlib import Path

import numpy as np
import pytest

from svoo.errors import ConfigError, FileError
from svoo.metrics.video import ENDINGS, check_video_path, read_video, write_video


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


@pytest.mark.parametrize("name", [*(f"v{ending}" for ending in ENDINGS), "pictures"])
def test_every_format_comes_back(name: str, tmp_path: Path) -> None:
    moving = np.stack([np.roll(clip()[0], 4 * step, axis=1) for step in range(6)])
    path = tmp_path / "new" / name
    write_video(moving, path)
    again = read_video(path)
    assert again.shape == moving.shape
    scale = 1 if name.endswith("npy") else 255
    assert np.abs(again / scale - moving).mean() < 0.02
    write_video(moving[:2], path, fps=7.5)  # an earlier one is replaced as a whole
    assert len(read_video(path)) == 2
    assert [entry.name for entry in path.parent.iterdir()] == [name]


def test_pictures_are_read_by_their_numbers(tmp_path: Path) -> None:
    from PIL import Image

    for number in range(11):
        Image.new("RGB", (4, 4), (number, 0, 0)).save(tmp_path / f"{number}.png")
    assert read_video(tmp_path)[:, 0, 0, 0].tolist() == list(range(11))


def test_a_folder_behind_a_link_is_replaced_there(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    for count in (2, 3):
        write_video(clip()[:count], tmp_path / "link")
    assert len(read_video(tmp_path / "real")) == 3 and (tmp_path / "link").is_symlink()
    assert {path.name for path in tmp_path.iterdir()} == {"link", "real"}


def test_a_folder_that_cannot_be_replaced_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_video(clip()[:2], tmp_path / "v")
    replace = Path.replace

    def fail(path: Path, target: Path) -> Path:
        if path.name == ".v.partial":
            raise OSError(16, "Device or resource busy")
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(FileError, match="resource busy"):
        write_video(clip()[:3], tmp_path / "v")
    assert len(read_video(tmp_path / "v")) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["v"]


def test_a_mount_and_a_name_that_is_none_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="must have a name"):
        check_video_path(Path())
    with pytest.raises(FileError, match="File name too long"):
        check_video_path(tmp_path / f"{'n' * 245}.mp4")
    with pytest.raises(FileError, match="File name too long"):
        check_video_path(tmp_path / ("n" * 300))
    with pytest.raises(ConfigError, match="cannot read the video"):
        read_video(tmp_path / ("n" * 300))
    monkeypatch.setattr(Path, "is_mount", lambda _path: True)
    (tmp_path / "v").mkdir()
    with pytest.raises(FileError, match="or a mount"):
        check_video_path(tmp_path / "v")


def test_an_archive_is_no_video(tmp_path: Path) -> None:
    with (tmp_path / "v.npy").open("wb") as file:
        np.savez(file, frames=clip())
    with pytest.raises(ConfigError, match="cannot read the video"):
        read_video(tmp_path / "v.npy")


def test_an_array_keeps_its_numbers(tmp_path: Path) -> None:
    frames = np.random.default_rng(0).uniform(size=(2, 5, 7, 3)).astype(np.float32)
    write_video(frames, tmp_path / "v.npy")
    assert np.array_equal(read_video(tmp_path / "v.npy"), frames)


def test_other_endings_and_folders_of_others_are_refused(tmp_path: Path) -> None:
    for name in ("v.json", "v.avi", ".mp4.x"):
        with pytest.raises(ConfigError, match="the video must end in"):
            check_video_path(tmp_path / name)
    for name in (".mp4", ".GIF"):
        with pytest.raises(ConfigError, match="must have a name before its ending, got"):
            check_video_path(tmp_path / name)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("keep me")
    with pytest.raises(FileError, match="holds other files than pictures"):
        write_video(clip(), tmp_path / "mine")
    assert (tmp_path / "mine" / "letter.txt").exists()
    with pytest.raises(FileError, match="are free there"):
        check_video_path(tmp_path / "v.npy", (10**6, 10**5, 10**5))


def test_an_interrupt_leaves_the_earlier_video(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    for name in ("v.mp4", "pictures"):
        write_video(clip(), tmp_path / name)
        with monkeypatch.context() as patch:
            patch.setattr("svoo.metrics.video._as_pixels", stop)
            with pytest.raises(KeyboardInterrupt):
                write_video(clip()[:1], tmp_path / name)
        assert len(read_video(tmp_path / name)) == 6
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["pictures", "v.mp4"]
