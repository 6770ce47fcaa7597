"""Hostile videos and pictures: refused with one clear error, never a crash or a wrong answer."""

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from svoo.errors import ConfigError
from svoo.metrics.video import read_video, write_video
from svoo.plugin.load import read_image


def array_file(header: str, body: bytes = b"") -> bytes:
    """An npy file with any header."""
    text = header.encode() + b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + body


def described(dtype: str, shape: str) -> str:
    return f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}}}"


def pickled() -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([[[[print]]]], dtype=object), allow_pickle=True)
    return file.getvalue()


ARRAYS = {
    "nothing": b"",
    "words": b"words",
    "cut in its header": array_file(described("<f4", "(2, 4, 4, 3)"))[:40],
    "cut in its numbers": array_file(described("<f4", "(2, 4, 4, 3)"), bytes(100)),
    "terabytes that are not there": array_file(described("<f4", "(1000000, 10000, 10000, 3)")),
    "a size that overflows": array_file(described("<f4", f"({2**62}, {2**62}, 4, 3)")),
    "a negative size": array_file(described("<f4", "(-2, 4, 4, 3)"), bytes(400)),
    "a huge header": array_file(described("<f4", f"({'1, ' * 15_000})")),
    "a program in its header": array_file("__import__('os').mkdir('trap')"),
    "a pickle": pickled(),
    "complex numbers": array_file(described("<c8", "(1, 1, 1, 3)"), bytes(24)),
    "words for numbers": array_file(described("<U1", "(1, 1, 1, 3)"), bytes(12)),
    "one axis too few": array_file(described("<f4", "(4, 4, 3)"), bytes(192)),
    "four channels": array_file(described("<f4", "(1, 1, 1, 4)"), bytes(16)),
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_arrays(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "v.npy").write_bytes(ARRAYS[kind])
    with pytest.raises(ConfigError, match=r"cannot read the video .*v\.npy"):
        read_video(tmp_path / "v.npy")
    assert [path.name for path in tmp_path.iterdir()] == ["v.npy"]


@pytest.mark.parametrize("ending", ["mp4", "webm", "gif"])
def test_cut_and_damaged_files_are_refused_or_shorter(ending: str, tmp_path: Path) -> None:
    frames = np.random.default_rng(0).uniform(size=(4, 32, 32, 3))
    path = tmp_path / f"v.{ending}"
    write_video(frames, path)
    whole = path.read_bytes()
    chance = np.random.default_rng(1)
    refused = 0
    for length in (0, 7, 20, 100, len(whole) // 2, len(whole) - 1):
        damaged = bytearray(whole[:length])
        for spot in chance.integers(0, max(1, length), size=3 if length > 100 else 0):
            damaged[spot] ^= 0xFF
        path.write_bytes(damaged)
        try:
            found = read_video(path)
        except ConfigError:
            refused += 1
        else:
            assert found.ndim == 4 and found.dtype == np.uint8
    assert refused >= 3


def picture(width: int, height: int) -> bytes:
    """A PNG that claims a size and has no pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        checked = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + checked

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def test_pictures(tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    folder.mkdir()
    with pytest.raises(ConfigError, match="without numbered PNG pictures"):
        read_video(folder)
    for data in (b"words", b"\x89PNG\r\n\x1a\n", picture(60_000, 60_000), picture(8, 8)[:40]):
        (folder / "0000.png").write_bytes(data)
        with pytest.raises(ConfigError, match="cannot read the video"):
            read_video(folder)
        with pytest.raises(ConfigError, match="cannot read the image"):
            read_image(folder / "0000.png")


def test_pictures_of_different_sizes_are_no_video(tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number, side in enumerate((8, 9)):
        Image.new("RGB", (side, side)).save(folder / f"{number:04d}.png")
    with pytest.raises(ConfigError, match="cannot read the video"):
        read_video(folder)
