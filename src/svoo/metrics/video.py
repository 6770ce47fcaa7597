"""Reading and writing mp4, whole or not at all."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from svoo.errors import ConfigError, FileError

if TYPE_CHECKING:
    import numpy as np

    Frames = np.ndarray[Any, Any]

FPS = 16


def write_video(frames: Frames, path: Path, fps: int = FPS) -> None:
    """Write frames `[frames, height, width, 3]` in [0, 1] as mp4; an earlier file stays until it
    is whole.

    mp4 is lossy: compute metrics on arrays.
    """
    import av

    if frames.shape[1] % 2 or frames.shape[2] % 2:
        raise FileError(
            f"cannot write {path}: mp4 needs even sides, got {frames.shape[2]} x {frames.shape[1]}"
        )
    pixels = (frames.clip(0, 1) * 255).round().astype("uint8")
    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".svoo-") as folder:
            unfinished = Path(folder) / "video.mp4"
            with av.open(str(unfinished), "w") as container:
                stream = container.add_stream("libx264", rate=fps, options={"crf": "14"})
                stream.height, stream.width = pixels.shape[1:3]
                stream.pix_fmt = "yuv420p"
                for picture in pixels:
                    frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
                    container.mux(stream.encode(frame))
                container.mux(stream.encode())
            unfinished.replace(path)
    except OSError as error:
        raise FileError(f"cannot write {path}: {error}") from error


def read_video(path: Path) -> Frames:
    """Return the frames of a video file, uint8 `[frames, height, width, 3]`."""
    import av
    import numpy as np

    try:
        with av.open(str(path)) as container:
            if not container.streams.video:
                raise ValueError("it holds no video")
            return np.stack(
                [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
            )
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read the video {path}: {error}") from error
