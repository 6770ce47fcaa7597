"""The models that have presets: everything special about one is a row of data here."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from svoo.errors import ModelError, ShapeError

SIDE_STEP = 16  # what the pipelines of all these models ask of height and width
FRAME_STEP = 4  # their frames are coded as one and then by fours


@dataclass(frozen=True)
class ReleaseNumbers:
    """Settings of the authors' released script for a model, where they differ from the paper's."""

    mass: float
    dense_steps: int
    dense_layers: int
    budget_range: tuple[float, float]
    recluster_every: int


@dataclass(frozen=True)
class Model:
    """One model: how to find it, its sizes, and the numbers that its sampler runs with."""

    name: str
    hub_id: str
    pipeline: str
    layers: int
    heads: int
    head_dim: int
    steps: int
    frames: int
    height: int
    width: int
    guidance: tuple[float, ...]
    flow_shift: float
    token: tuple[int, int, int]  # frames, rows and columns of pixels to a token
    warm_up: float  # fraction of the steps that stay dense, in the paper
    fps: int = 16  # what it was trained on
    dense_layers: int = 1  # the first layers, dense in the paper
    recluster_every: int = 20  # of 50 steps, in the paper
    boundary: float | None = None  # noise level where the second expert takes over
    takes_image: bool = False  # goes on from a picture as well, where one is given
    release: ReleaseNumbers | None = None
    call_defaults: dict[str, int] = field(default_factory=dict)

    @property
    def stages(self) -> int:
        """Number of experts that take turns."""
        return 1 if self.boundary is None else 2

    def count_tokens(self, frames: int, height: int, width: int) -> int:
        """Return the tokens of a video of this size in pixels."""
        sizes = zip((frames, height, width), self.token, strict=True)
        return math.prod(math.ceil(size / part) for size, part in sizes)


_TOKEN = (4, 16, 16)


def _wan(name: str, hub_id: str, release: ReleaseNumbers, **facts: object) -> Model:
    sizes: dict[str, object] = {
        "layers": 40,
        "heads": 40,
        "steps": 40,
        "frames": 81,
        "guidance": (5.0,),
        "pipeline": "WanImageToVideoPipeline" if "i2v" in name else "WanPipeline",
    }
    return Model(
        name,
        f"Wan-AI/{hub_id}-Diffusers",
        head_dim=128,
        height=720,
        width=1280,
        flow_shift=5.0,
        token=_TOKEN,
        warm_up=0.2,
        release=release,
        **(sizes | facts),  # type: ignore[arg-type]  # the rows below give each field its type
    )


def _hunyuan(name: str, hub_id: str, pipeline: str, guidance: float) -> Model:
    return Model(
        name,
        f"hunyuanvideo-community/{hub_id}",
        pipeline,
        layers=60,
        heads=24,
        head_dim=128,
        steps=50,
        frames=129,
        height=720,
        width=1280,
        guidance=(guidance,),
        flow_shift=7.0,
        token=_TOKEN,
        warm_up=0.1,
        fps=24,
        release=ReleaseNumbers(0.88, 5, 1, (0.05, 0.10), 50),
    )


_MODELS = (
    Model(
        "mini",
        "svoo/mini",
        "WanPipeline",
        layers=7,
        heads=2,
        head_dim=64,
        steps=20,
        frames=49,
        height=144,
        width=256,
        guidance=(3.0,),
        flow_shift=3.0,
        token=(4, 8, 8),
        warm_up=0.2,
        dense_layers=0,  # one of seven would be a seventh of the time
        recluster_every=8,  # of 20 steps
        call_defaults={"max_sequence_length": 32},
        takes_image=True,
    ),
    _wan(
        "wan2.1-t2v-1.3b",
        "Wan2.1-T2V-1.3B",
        ReleaseNumbers(0.90, 10, 0, (0.15, 0.20), 20),
        layers=30,
        heads=12,
        steps=50,
    ),
    _wan(
        "wan2.1-t2v-14b",
        "Wan2.1-T2V-14B",
        ReleaseNumbers(0.90, 10, 1, (0.15, 0.20), 40),
        steps=50,
    ),
    _wan(
        "wan2.1-i2v-14b",
        "Wan2.1-I2V-14B-720P",
        ReleaseNumbers(0.90, 8, 1, (0.10, 0.15), 20),
    ),
    _wan(
        "wan2.2-t2v-a14b",
        "Wan2.2-T2V-A14B",
        ReleaseNumbers(0.90, 8, 1, (0.20, 0.22), 40),
        guidance=(5.0, 3.0),
        boundary=0.875,
    ),
    _wan(
        "wan2.2-i2v-a14b",
        "Wan2.2-I2V-A14B",
        ReleaseNumbers(0.90, 8, 1, (0.20, 0.25), 40),
        guidance=(3.5, 3.0),
        boundary=0.9,
    ),
    _hunyuan("hunyuanvideo-t2v", "HunyuanVideo", "HunyuanVideoPipeline", 6.0),
    _hunyuan("hunyuanvideo-i2v", "HunyuanVideo-I2V", "HunyuanVideoImageToVideoPipeline", 6.0),
)


# Reached by the same seam and tested with tiny random weights; nobody has published settings.
SEAM_TESTED = {
    "Wan2.2 TI2V 5B": "WanPipeline, WanImageToVideoPipeline",
    "Wan VACE": "WanVACEPipeline",
    "SkyReels-V2": "SkyReelsV2Pipeline",
    "HunyuanVideo-1.5": "HunyuanVideo15Pipeline",
    "LTX-Video": "LTXPipeline",
    "CogVideoX": "CogVideoXPipeline",
    "Mochi": "MochiPipeline",
}


def models() -> tuple[Model, ...]:
    """Return every model that has presets, as `svoo models` lists them."""
    return _MODELS


def find_model(name: str) -> Model:
    """Return the model with a short name or hub id; refuse others with the list of names."""
    for model in _MODELS:
        if name in (model.name, model.hub_id):
            return model
    known = ", ".join(model.name for model in _MODELS)
    raise ModelError(f"no model called {name!r} in the catalogue; it has {known}")


def check_sizes(frames: int, height: int, width: int) -> None:
    """Refuse the size of a video that no model of the catalogue can make."""
    for name, size in (("height", height), ("width", width)):
        if size < SIDE_STEP or size % SIDE_STEP:
            raise ShapeError(
                f"{name} must be a multiple of {SIDE_STEP}, got {size}; the nearest is "
                f"{max(SIDE_STEP, round(size / SIDE_STEP) * SIDE_STEP)}"
            )
    if frames < 1 or frames % FRAME_STEP != 1:
        near = max(0, round((frames - 1) / FRAME_STEP)) * FRAME_STEP + 1
        raise ShapeError(
            f"num_frames must be a multiple of {FRAME_STEP} plus 1, got {frames}; the nearest is "
            f"{near}"
        )
