"""Reading and writing videos, whole or not at all: mp4, webm, gif, npy, or a folder of PNG
pictures."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from svoo.errors import ConfigError, FileError
from svoo.storage import LEAST_ROOM, atomically, check_writable, is_folder

if TYPE_CHECKING:
    import numpy as np

    Frames = np.ndarray[Any, Any]

FPS = 16
GIF_FPS = 50  # the most: viewers show shorter pictures for a tenth of a second
ENDINGS = (".mp4", ".gif", ".webm", ".npy")
_CODECS = {".mp4": ("libx264", "14"), ".webm": ("libvpx-vp9", "20")}  # and how lossy (crf)


def check_video_path(path: Path, shape: tuple[int, int, int] | None = None) -> None:
    """Refuse an output that cannot be written as a video, before any work is done.

    `shape` is frames, height and width of the video, where they are known.
    """
    if path.suffix.lower() not in (*ENDINGS, ""):
        raise ConfigError(
            f"the video must end in {', '.join(ENDINGS)} or be a folder of PNG pictures (no "
            f"ending), got {path}"
        )
    if path.name.lower() in ("", *ENDINGS):  # to Python that is a name without an ending
        raise ConfigError(f"the video must have a name before its ending, got {path}")
    path = path.resolve()
    needed = LEAST_ROOM
    if shape is not None:
        frames, height, width = shape
        needed += frames * height * width * 3 * (4 if path.suffix == ".npy" else 1)
    if path.suffix:
        check_writable(path, needed)
        return
    if is_folder(path) and (
        path.is_mount() or any(not _is_picture(entry) for entry in path.iterdir())
    ):
        raise FileError(
            f"cannot write {path}: it is a folder that holds other files than pictures of a "
            "video, or a mount; give a file name such as video.mp4, or another folder"
        )
    check_writable(path, needed, folder=True)


def write_video(frames: Frames, path: Path, fps: float = FPS) -> None:
    """Write frames `[frames, height, width, 3]` in [0, 1] in the format that the path's ending
    says; an earlier file stays until it is whole.

    mp4, webm and gif are lossy: compute metrics on arrays, or on npy, which keeps the numbers.
    """
    check_video_path(path)
    ending = path.suffix.lower()
    if ending in _CODECS and (frames.shape[1] % 2 or frames.shape[2] % 2):
        raise FileError(
            f"cannot write {path}: {ending[1:]} needs even sides, got {frames.shape[2]} x "
            f"{frames.shape[1]}"
        )
    if not ending:
        _write_pictures(frames, path)
        return
    with atomically(path) as unfinished:
        if ending == ".npy":
            _write_array(frames, unfinished)
        elif ending == ".gif":
            _write_gif(_as_pixels(frames), unfinished, fps)
        else:
            _encode(_as_pixels(frames), unfinished, fps, ending)


def _as_pixels(frames: Frames) -> Frames:
    return cast("Frames", (frames.clip(0, 1) * 255).round().astype("uint8"))


def _encode(pixels: Frames, path: Path, fps: float, ending: str) -> None:
    from fractions import Fraction

    import av

    codec, quality = _CODECS[ending]
    with av.open(str(path), "w", format=ending[1:]) as container:
        rate = Fraction(fps).limit_denominator(1001)
        stream = container.add_stream(codec, rate=rate, options={"crf": quality})
        stream.height, stream.width = pixels.shape[1:3]
        stream.pix_fmt = "yuv420p"
        for picture in pixels:
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def _write_gif(pixels: Frames, path: Path, fps: float) -> None:
    from PIL import Image

    first, *others = (Image.fromarray(picture) for picture in pixels)
    length = 10 * round(100 / fps)  # milliseconds of a picture; the format counts in hundredths
    first.save(path, "GIF", save_all=True, append_images=others, duration=length, loop=0)


def _write_array(frames: Frames, path: Path) -> None:
    import numpy as np

    with path.open("wb") as file:
        np.save(file, frames.astype(np.float32), allow_pickle=False)


def _write_pictures(frames: Frames, path: Path) -> None:
    """Write a folder of pictures: all of them beside it, then instead of the earlier ones."""
    from PIL import Image

    path = path.resolve()
    unfinished, earlier = (path.with_name(f".{path.name}.{end}") for end in ("partial", "old"))
    try:
        for folder in (unfinished, earlier):
            shutil.rmtree(folder, ignore_errors=True)
        unfinished.mkdir(parents=True)
        for number, picture in enumerate(_as_pixels(frames)):
            Image.fromarray(picture).save(unfinished / f"{number:04d}.png")
        if path.is_dir():
            path.replace(earlier)
        unfinished.replace(path)
    except OSError as error:
        raise FileError(f"cannot write {path}: {error}") from error
    finally:
        if earlier.is_dir() and not path.exists():
            earlier.replace(path)
        for folder in (unfinished, earlier):
            shutil.rmtree(folder, ignore_errors=True)


def _is_picture(path: Path) -> bool:
    return path.suffix == ".png" and path.stem.isdecimal()


def read_video(path: Path) -> Frames:
    """Return the frames of a video `[frames, height, width, 3]`: uint8, or what an npy holds."""
    read: Callable[[Path], Frames] = _decode
    if is_folder(path):
        read = _read_pictures
    elif path.suffix.lower() == ".npy":
        read = _read_array
    try:
        return read(path)
    # PIL knows broken syntax; sizes that overflow are arithmetic.
    except (OSError, ValueError, SyntaxError, MemoryError, EOFError, ArithmeticError) as error:
        raise ConfigError(f"cannot read the video {path}: {error}") from error


def _decode(path: Path) -> Frames:
    import av
    import numpy as np

    try:
        with av.open(str(path)) as container:
            if not container.streams.video:
                raise ValueError("it holds no video")
            frames = container.decode(video=0)
            return np.stack([frame.to_ndarray(format="rgb24") for frame in frames])
    except av.FFmpegError as error:  # some of them are no errors of files or values
        raise ValueError(str(error)) from error


def _read_pictures(path: Path) -> Frames:
    import numpy as np
    from PIL import Image

    found = (entry for entry in path.iterdir() if _is_picture(entry))
    pictures = sorted(found, key=lambda entry: int(entry.stem))
    if not pictures:
        raise ValueError("it is a folder without numbered PNG pictures")
    try:
        return np.stack([np.asarray(Image.open(entry).convert("RGB")) for entry in pictures])
    except Image.DecompressionBombError as error:
        raise ValueError(str(error)) from error


def _read_array(path: Path) -> Frames:
    import numpy as np

    with np.errstate(all="raise"):  # a size that overflows
        mapped = np.lib.format.open_memmap(path, mode="r")  # its size is checked by mapping
    if mapped.ndim != 4 or mapped.shape[-1] != 3 or mapped.dtype.kind not in "fu":
        raise ValueError(
            f"expected [frames, height, width, 3] of floats or bytes, got {list(mapped.shape)} of "
            f"{mapped.dtype}"
        )
    return np.array(mapped)
