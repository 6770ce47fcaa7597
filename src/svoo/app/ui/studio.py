"""The maker of videos: one pipeline, loaded once, made sparse for every video and restored."""

from __future__ import annotations

import inspect
import io
import math
import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from svoo.app.density_map import draw_density
from svoo.app.ui.queue import OnProgress, Outcome
from svoo.app.ui.settings import ModelFacts, Settings
from svoo.app.ui.store import PICTURE, VARIANTS
from svoo.catalogue import FRAME_STEP, SIDE_STEP, Model
from svoo.errors import ConfigError
from svoo.methods import PRESETS, available_methods
from svoo.methods.base import MethodConfig
from svoo.methods.dense import DenseConfig
from svoo.metrics.compare import compare_videos
from svoo.metrics.video import FPS, write_video
from svoo.mini.vocabulary import example_prompt, grammar
from svoo.plugin.load import check_takes, open_pipeline, read_image
from svoo.plugin.machine import describe_machine
from svoo.plugin.memory import check_memory
from svoo.plugin.request import (
    QUALITIES,
    Request,
    call_sizes,
    choose_method,
    count_tokens,
    known_model,
)
from svoo.plugin.run import Made, call_arguments, check_finite, run_applied
from svoo.session.stats import RunStats
from svoo.storage import write_atomically

if TYPE_CHECKING:
    from svoo.metrics.video import Frames

_SIZES = ("width", "height", "num_frames", "num_inference_steps", "guidance_scale")


class Studio:
    """A loaded pipeline that makes one video after another."""

    def __init__(self, pipe: Any, request: Request) -> None:  # noqa: ANN401 (any pipeline class)
        """Work with a pipeline; `request` says what it is called and where it runs."""
        self._pipe, self._request = pipe, request
        self._pipe_for_pictures: Any = None
        self._model = known_model(request.model)
        self.facts = _facts(pipe, request, self._model)

    @classmethod
    def open(cls, request: Request) -> Studio:
        """Load the pipeline of a request."""
        return cls(open_pipeline(request, known_model(request.model)), request)

    def check(self, settings: Settings) -> None:
        """Refuse what the pipeline cannot make, before it is queued."""
        request = self._ask(settings, Path("video.mp4"))
        choose_method(request, self._model)
        if not (settings.picture and self._pictures_have_their_own):
            check_takes(request, self._pipe, image=settings.picture)
        if settings.width % 2 or settings.height % 2:
            raise ConfigError(f"mp4 needs even sides, got {settings.size}")
        check_memory(request, self._model)

    def make(self, settings: Settings, folder: Path, on_progress: OnProgress) -> Outcome:
        """Make a video, and the dense one from the same noise if it is asked for."""
        request = self._ask(settings, folder / VARIANTS["video"][0])
        method, pipe = choose_method(request, self._model), self._pipe_of(settings, folder)
        passes: list[tuple[str, MethodConfig | None]] = [("denoising", method)]
        if settings.dense:
            passes.append(("dense video", DenseConfig()))
        made: list[Made] = []
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            for phase, config in passes:

                def on_step(done: int, steps: int, phase: str = phase) -> None:
                    shown = "decoding" if done == steps else phase
                    on_progress(shown, len(made) * steps + done, len(passes) * steps)

                on_step(0, settings.steps)
                arguments = call_arguments(request, self._model) | _picture(settings, folder)
                profile = None if isinstance(config, DenseConfig) else "auto"
                made.append(run_applied(pipe, config, profile, arguments, on_step))
            for one in made:
                check_finite(one)
            # The last moment to cancel.
            on_progress("writing", len(passes) * settings.steps, len(passes) * settings.steps)
        _write(made, settings, folder)
        notes = [str(entry.message) for entry in caught if entry.category is UserWarning]
        notes += _why_dense(made[0])
        return Outcome(self._figures(request, made), list(dict.fromkeys(notes)))

    @property
    def _pictures_have_their_own(self) -> bool:
        """Whether the model goes on from pictures too, by another pipeline than that for text."""
        return self._model is not None and self._model.takes_image

    def _pipe_of(self, settings: Settings, folder: Path) -> Any:  # noqa: ANN401 (any pipeline class)
        if not (settings.picture and self._pictures_have_their_own):
            return self._pipe
        if self._pipe_for_pictures is None:
            request = replace(self._request, image=folder / PICTURE)
            self._pipe_for_pictures = open_pipeline(request, self._model)
        return self._pipe_for_pictures

    def _ask(self, settings: Settings, out: Path) -> Request:
        mine = self._request
        return Request(
            prompt=settings.prompt,
            out=out,
            model=mine.model,
            negative_prompt=settings.negative_prompt,
            method=settings.method,
            quality=settings.quality,
            steps=settings.steps,
            frames=settings.frames,
            height=settings.height,
            width=settings.width,
            fps=settings.fps,
            seed=settings.seed,
            guidance=settings.guidance,
            dtype=mine.dtype,
            device=mine.device,
        )

    def _figures(self, request: Request, made: list[Made]) -> dict[str, Any]:
        stats = made[0].stats
        figures = {
            "method": stats.method,
            "tokens": count_tokens(request, self._model),
            "density": stats.density,
            "error": stats.error,  # of attention outputs against exact ones, on a few rows
            "sparse_calls": stats.sparse_calls,
            "dense_calls": stats.dense_calls,
            "seconds": {"denoising": made[0].denoising, "total": made[0].total},
            "machine": describe_machine(),
        }
        if len(made) > 1:
            alike = compare_videos(made[1].frames, made[0].frames)
            figures["against_dense"] = {
                "seconds": {"denoising": made[1].denoising, "total": made[1].total},
                "speed_up": made[1].denoising / made[0].denoising,
                "psnr": None if math.isinf(alike.psnr) else alike.psnr,  # None: they are equal
                "ssim": alike.ssim,
                "lpips": alike.lpips,
            }
        return figures


def _picture(settings: Settings, folder: Path) -> dict[str, Any]:
    return {"image": read_image(folder / PICTURE)} if settings.picture else {}


def _write(made: list[Made], settings: Settings, folder: Path) -> None:
    """Write videos, a small picture of the middle frame, and the density map of a sparse run."""
    for variant, one in zip(("video", "dense"), made, strict=False):
        write_video(one.frames, folder / VARIANTS[variant][0], settings.fps)
    _write_thumbnail(made[0].frames, folder / VARIANTS["thumbnail"][0])
    stats: RunStats = made[0].stats
    if stats.density is not None:
        picture = draw_density({stats.method: stats})
        write_atomically(folder / VARIANTS["density"][0], picture)


def _write_thumbnail(frames: Frames, path: Path) -> None:
    from PIL import Image

    middle = frames[len(frames) // 2].clip(0, 1) * 255
    picture = Image.fromarray(middle.round().astype("uint8"))
    picture.thumbnail((320, 320))
    file = io.BytesIO()
    picture.save(file, "WEBP")
    write_atomically(path, file.getvalue())


def _why_dense(made: Made) -> list[str]:
    """Return why calls were dense, and what else the run tells."""
    reasons: Counter[str] = Counter()
    for layer in made.stats.layers:
        reasons.update(layer.dense_reasons)
    dense = [f"{count} dense calls: {reason}" for reason, count in reasons.items()]
    return [*dense, *made.stats.notes]


def _facts(pipe: Any, request: Request, model: Model | None) -> ModelFacts:  # noqa: ANN401 (any pipeline class)
    """Return what the page shows: the catalogue's numbers, else the pipeline's own defaults."""
    own = inspect.signature(type(pipe).__call__).parameters
    usual = {name: own[name].default for name in _SIZES if name in own}
    usual = {name: value for name, value in usual.items() if isinstance(value, int | float)}
    usual |= call_sizes(request, model)
    mini, needs_picture = request.model == "mini", "ImageToVideo" in type(pipe).__name__
    return ModelFacts(
        name=request.model if model else Path(request.model).name,
        width=usual.get("width"),
        height=usual.get("height"),
        frames=usual.get("num_frames"),
        steps=usual.get("num_inference_steps"),
        guidance=usual.get("guidance_scale"),
        fps=model.fps if model else FPS,
        side_step=SIDE_STEP if model else 1,
        frame_step=FRAME_STEP if model else 1,
        takes_picture=needs_picture or (model is not None and model.takes_image),
        needs_picture=needs_picture,
        methods=(*(row.name for row in available_methods()), *PRESETS),
        qualities=QUALITIES,
        hint=grammar() if mini else "",
        example=example_prompt() if mini else "",
    )
