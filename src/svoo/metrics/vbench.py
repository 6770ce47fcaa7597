"""The real VBench, where a user has the package and its weights: a thin adapter."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from svoo.errors import ModelError
from svoo.metrics.video import write_video

DIMENSIONS = {
    "subject_consistency": "subject consistency (VBench)",
    "background_consistency": "background consistency (VBench)",
    "imaging_quality": "imaging quality (VBench)",
    "aesthetic_quality": "aesthetic quality (VBench)",
}
_FILES = (
    "clip_model/ViT-B-32.pt",
    "clip_model/ViT-L-14.pt",
    "pyiqa_model/musiq_spaq_ckpt-358bb6af.pth",
    "aesthetic_model/emb_reader/sa_0_4_vit_l_14_linear.pth",
    "dino_model/facebookresearch_dino_main",
)
_DINO = "hub/checkpoints/dino_vitbase16_pretrain.pth"
_PACKAGES = ("vbench", "decord", "clip", "pyiqa")


def why_no_vbench() -> str | None:
    """Return what is missing for VBench's scores, in a sentence; None: nothing."""
    for package in _PACKAGES:
        if importlib.util.find_spec(package) is None:
            return f"the package {package} is not installed"
    for file in (*(_cache() / name for name in _FILES), _torch_home() / _DINO):
        if not file.exists():
            return f"{file} is not there"
    return None


def _cache() -> Path:
    """Return VBench's own folder of weights."""
    return Path(os.environ.get("VBENCH_CACHE_DIR", Path.home() / ".cache" / "vbench"))


def _torch_home() -> Path:
    return Path(os.environ.get("TORCH_HOME", Path.home() / ".cache" / "torch"))


class VBenchScores:
    """Scores of a video by VBench; it loads its networks anew at every call."""

    names = tuple(DIMENSIONS.values())

    def __init__(self, device: str = "cpu") -> None:
        """Refuse at once where something is missing."""
        missing = why_no_vbench()
        if missing is not None:
            raise ModelError(f"VBench's scores cannot be had: {missing}")
        try:
            self._vbench: Any = importlib.import_module("vbench")
        except Exception as error:  # whatever its own imports raise; say so before a video is made
            raise ModelError(
                f"VBench's scores cannot be had: importing it failed ({type(error).__name__}: "
                f"{error}); vbench 0.1.5 needs pkg_resources, which new setuptools lack"
            ) from error
        self._device = device

    def __call__(self, frames: NDArray[np.floating[Any]]) -> dict[str, float]:
        """Return the four dimensions of frames `[frames, height, width, 3]` in [0, 1]; imaging
        quality is in [0, 1], as its set's score is."""
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            write_video(np.asarray(frames, dtype=np.float32), folder / "videos" / "video.mp4")
            about = Path(self._vbench.__file__).parent / "VBench_full_info.json"
            judge = self._vbench.VBench(self._device, str(about), str(folder))
            judge.evaluate(
                videos_path=str(folder / "videos"),
                name="scores",
                dimension_list=list(DIMENSIONS),
                local=True,
                mode="custom_input",
            )
            found = json.loads((folder / "scores_eval_results.json").read_text())
        return {shown: float(found[dimension][0]) for dimension, shown in DIMENSIONS.items()}
