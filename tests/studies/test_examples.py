import base64

import numpy as np
import studying

from svoo.studies.base import Videos
from svoo.studies.examples import ExamplesStudy, decode, encode


def test_videos_come_back_and_are_shown_side_by_side() -> None:
    frames = np.linspace(0, 1, 5 * 32 * 48 * 3, dtype=np.float32).reshape(5, 32, 48, 3)
    video = encode(frames)
    assert decode(video).shape == frames.shape
    results = studying.empty()
    for name in ("dense", "ours"):
        row = {"prompt": "p", "setting": name, "mp4": base64.b64encode(video).decode()}
        results.add("examples", name, row)
    videos, strip = ExamplesStudy().show(results).parts
    assert isinstance(videos, Videos)
    assert videos.videos == {"dense": video, "ours": video} and strip.title == "Strips: p"
    assert ExamplesStudy().show(studying.empty()).parts == []
