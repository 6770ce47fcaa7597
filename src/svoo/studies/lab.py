"""The laboratory: pipelines, inputs and sizes of a study, and runs that are never made twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from svoo.catalogue import Model
from svoo.core.random import seeded
from svoo.errors import ConfigError, ModelError
from svoo.methods.base import Call, MethodConfig
from svoo.methods.dense import DenseConfig
from svoo.metrics.compare import compare_videos
from svoo.plugin.apply import apply
from svoo.plugin.machine import OtherWork
from svoo.plugin.provenance import hash_settings
from svoo.plugin.record import record_profile, samples_by_branch
from svoo.plugin.run import LoopTimer
from svoo.plugin.trial import Trial, run_trial, warm_up
from svoo.studies.base import Skipped
from svoo.studies.pipelines import Pipelines
from svoo.studies.results import Results
from svoo.studies.runs import Setting, make_row
from svoo.studies.scale import Scale, Size
from svoo.studies.scoring import Scoring

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Frames = NDArray[np.float32]

MASSES = (0.8, 0.95)  # of the paper's Fig. 2, and of its profile
_STALE = 2  # sparse runs after which dense is timed again
BUSY = 0.1  # of the machine: if others take more while a run is timed, its time says little
Task = Literal["text", "image"]


@dataclass
class _Reference:
    """The dense video that runs are compared with, how busy others were while it was timed, and
    how many sparse runs were made since."""

    key: str
    trial: Trial
    others: float | None
    age: int = 0


class Lab:
    """What all studies share."""

    def __init__(
        self,
        pipelines: Pipelines,
        inputs: Sequence[Mapping[str, Any]],
        scale: Scale,
        results: Results,
        *,
        machine: str,
        backend: str,
        seed: int = 0,
        methods: Sequence[str] | None = None,
        scoring: Scoring | None = None,
        retime: bool = False,
        timed: bool = True,
        commit: str = "",
    ) -> None:
        """Measure on these inputs; `methods` restricts the other methods to some names. `retime`:
        runs whose time does not count are made again. Not `timed`: no time will count, so the
        dense video of an input is made once."""
        self.pipelines = pipelines
        self.inputs = inputs
        self.scale = scale
        self.results = results
        self.machine = machine
        self.backend = backend
        self.seed = seed
        self.methods = methods
        self.scoring = scoring or Scoring()
        self.retime = retime
        self.timed = timed
        self.commit = commit
        self.on_step: Callable[[int, int], None] | None = None
        self._reference: _Reference | None = None
        self._warm: set[tuple[Task, Size]] = set()
        self._first_frames: dict[str, Any] = {}

    @property
    def model(self) -> Model | None:
        """The catalogue's row of the model, if it has one."""
        return self.pipelines.model

    @property
    def model_name(self) -> str | None:
        """The name that methods look up their settings by."""
        return self.model.name if self.model else None

    def wants(self, name: str) -> bool:
        """Return whether a method is to be studied."""
        return self.methods is None or name in self.methods

    def tokens(self, size: Size) -> int | None:
        """Return the tokens of a video of this size, where the model is known."""
        if self.model is None or size is None:
            return None
        return self.model.count_tokens(size.frames, size.height, size.width)

    def prepare(self, config: MethodConfig, warm_up: float | None = None) -> MethodConfig:
        """Return a config as every study runs it: one backend for all and, if given, one
        warm-up."""
        same: dict[str, Any] = {"backend": self.backend}
        if warm_up is not None:
            same["dense_steps"] = float(warm_up)
            same["dense_layers"] = self.model.dense_layers if self.model and warm_up else 0
        return replace(config, **same)

    def call(self, entry: Mapping[str, Any], size: Size, task: Task = "text") -> dict[str, Any]:
        """Return the arguments of a pipeline's call for an input."""
        arguments = self.pipelines.call_sizes() | {"num_inference_steps": self.scale.steps}
        if size is not None:
            arguments |= {"num_frames": size.frames, "height": size.height, "width": size.width}
        arguments["prompt"] = entry["prompt"]
        if task == "image" or self.pipelines.needs_image():
            arguments["image"] = entry.get("image") or self._first_frame(entry, size)
        return arguments

    def _first_frame(self, entry: Mapping[str, Any], size: Size) -> Any:  # noqa: ANN401 (a picture)
        """Return a picture for image-to-video where none is given: the first frame of a dense
        video of the same prompt, from other noise."""
        from PIL import Image

        if self.pipelines.needs_image():
            raise ConfigError(f"{self.pipelines.name} makes video from an image: give --images")
        key = hash_settings([entry["prompt"], str(size)])
        if key not in self._first_frames:
            frames = self.frames(Setting("picture", None, seed=1), entry, size)
            pixels = (frames[0].clip(0, 1) * 255).round().astype("uint8")
            self._first_frames[key] = Image.fromarray(pixels)
        return self._first_frames[key]

    def run_key(
        self, setting: Setting, entry: Mapping[str, Any], size: Size, task: Task = "text"
    ) -> str:
        """Return a name of all that decides a run."""
        config = self.prepare(setting.config or DenseConfig())
        facts = {
            **{name: value for name, value in vars(setting).items() if name != "name"},
            "config": config.as_dict(),
            "input": self.input_facts(entry, task),
            "size": str(size),
            "steps": self.scale.steps,
            "task": task,
        }
        return hash_settings(facts)

    def input_facts(self, entry: Mapping[str, Any], task: Task = "text") -> dict[str, Any]:
        """Return what of an input decides a run: its picture only where one is taken."""
        takes_image = task == "image" or self.pipelines.needs_image()
        return {name: facts for name, facts in entry.items() if takes_image or name != "image"}

    def run(
        self,
        setting: Setting,
        entry: Mapping[str, Any],
        size: Size,
        task: Task = "text",
        *,
        score: bool = False,
    ) -> str:
        """Make a run if no study has made it yet; return its key in the file. `score`: also by
        scores that need no dense video."""
        key = self.run_key(setting, entry, size, task)
        scored = f"{key} scored"
        wanted = score and self.scoring.scorer is not None
        if wanted or (self.has_run(scored) and not self.has_run(key)):
            key = scored  # one with scores serves those who ask for none
        if not self.has_run(key, scored=score):
            dense = self.reference(entry, size, task)
            busy = [self._reference.others] if self._reference else []
            if setting.config is None:
                trial, likeness = dense, None
            else:
                watch = OtherWork()
                trial = self._trial(setting, entry, size, task)
                busy.append(watch.share())
                likeness = compare_videos(dense.frames, trial.frames)
                self._count_sparse()
            facts = {
                "prompt": entry["prompt"],
                "machine": self.machine,
                "tokens": self.tokens(size),
                "steps": self.scale.steps,
                "seed": self.seed,
                "scores": self.scoring.score(trial.frames) if score else {},
                "timed": self.timed,
                "others": max((share for share in busy if share is not None), default=None),
                "commit": self.commit,
            }
            self.results.add("run", key, asdict(make_row(trial, dense, likeness, **facts)))
        return key

    def has_run(self, key: str, *, scored: bool = False) -> bool:
        """Return whether the file has a run whose time can stand; `scored`: and that lacks no
        score that can be had here."""
        found = self.results.find("run", key)
        if found is None or (scored and self.scoring.is_lacking(found)):
            return False
        if not self.retime:
            return True
        idle = found.get("timed", True) and (found["others"] or 0.0) <= BUSY
        return found["machine"] == self.machine and idle

    def has(self, study: str, key: str, *, scored: bool = False) -> bool:
        """Return whether a result of a study is in the file; `scored`: with all its scores."""
        found = self.results.find(study, key)
        if found is None:
            return False
        return "run" not in found or self.has_run(found["run"], scored=scored)

    def reference(self, entry: Mapping[str, Any], size: Size, task: Task = "text") -> Trial:
        """Return the dense video of an input; where times count it is made anew after a few sparse
        runs, so that both sides of a speed-up were timed at about the same moment."""
        dense = Setting("dense", None)
        key = self.run_key(dense, entry, size, task)
        before = self._reference
        stale = self.timed and before is not None and before.age >= _STALE
        if before is None or before.key != key or stale:
            watch = OtherWork()
            trial = self._trial(dense, entry, size, task)
            self._reference = _Reference(key, trial, watch.share())
        assert self._reference is not None
        return self._reference.trial

    def _count_sparse(self) -> None:
        if self._reference is not None:
            self._reference.age += 1

    def time_dense(self, size: Size) -> float:
        """Return about how many seconds a dense run of this size takes, from one step of it; say
        so where the pipeline refuses the size, or another argument."""
        call = {**self.call(self.inputs[0], size), "num_inference_steps": 1}
        pipe = self.pipelines.open("text", None)
        try:
            self._warm_up(pipe, call, "text", size)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{self.pipelines.name} refuses this video: {error}") from error
        with apply(pipe, DenseConfig(), None):
            start = time.perf_counter()
            pipe(**call, generator=seeded(self.seed), output_type="latent")
        return (time.perf_counter() - start) * self.scale.steps

    def frames(
        self, setting: Setting, entry: Mapping[str, Any], size: Size, task: Task = "text"
    ) -> Frames:
        """Return the frames of a run that is not timed or kept."""
        return self._trial(setting, entry, size, task).frames

    def _trial(self, setting: Setting, entry: Mapping[str, Any], size: Size, task: Task) -> Trial:
        call = self.call(entry, size, task)
        call["num_inference_steps"] = max(1, self.scale.steps - setting.fewer_steps)
        pipe = self.pipelines.open(task, setting.dtype)
        if setting.dtype is None:
            self._warm_up(pipe, call, task, size)
        config = setting.config if setting.config is None else self.prepare(setting.config)
        return run_trial(
            pipe,
            setting.name,
            config,
            call=call,
            profile=setting.profile,
            seed=self.seed + setting.seed,
            on_step=self.on_step,
        )

    def _warm_up(self, pipe: Any, call: Mapping[str, Any], task: Task, size: Size) -> None:  # noqa: ANN401 (any pipeline class)
        if (task, size) not in self._warm:
            warm_up(pipe, call)
            self._warm.add((task, size))

    def look(
        self,
        entry: Mapping[str, Any],
        size: Size,
        observer: Callable[[Call, Tensor, Tensor], None],
    ) -> None:
        """Run an input densely and show every call's video queries and keys `[B, H, N, D]` of the
        first branch to the observer; nothing is kept, so that large models can be looked at."""

        seen = 0

        def show(call: Call, query: Tensor, key: Tensor) -> None:
            nonlocal seen
            layout = call.need_layout("a study")
            wanted = dict(samples_by_branch(call, len(query))).get("cond")
            if wanted is not None:
                seen += 1
                sides = (layout.video_part(side[wanted[:1]]) for side in (query, key))
                observer(call, *sides)

        pipe = self.pipelines.open("text", None)
        call = {**self.call(entry, size), "output_type": "latent"}
        with apply(pipe, DenseConfig(), None) as handle:
            handle.observe(show)
            timer = LoopTimer(self.on_step).as_argument(pipe)
            pipe(**call, generator=seeded(self.seed), **timer)
        if not seen:
            raise ModelError("no dense call of the guided branch was seen: nothing to look at")

    def densities(self, entry: Mapping[str, Any], size: Size) -> dict[str, Any]:
        """Return required densities of an input at `MASSES`: by layer and head `[layers, heads,
        masses]` over steps, by step and layer `[steps, layers, masses]` over heads."""
        facts = {"input": self.input_facts(entry), "size": str(size), "steps": self.scale.steps}
        key = hash_settings(facts)
        found = self.results.find("profile", key)
        if found is None:
            call = self.call(entry, size)
            profile = record_profile(
                self.pipelines.open("text", None),
                [call],
                masses=MASSES,
                every=self.scale.every,
                seed=self.seed,
                on_step=self.on_step,
            )
            density = profile.density[0].double()  # [steps, layers, heads, masses]
            found = {
                "by_head": density.mean(dim=0).round(decimals=4).tolist(),
                "by_step": density.mean(dim=2).round(decimals=4).tolist(),
                "sigma": profile.sigma.double().round(decimals=4).tolist(),
            }
            self.results.add("profile", key, found)
        return found

    def require_image(self) -> None:
        """Stop a part of a study that needs image-to-video where the model has none."""
        try:
            self.pipelines.open("image", None)
        except (ConfigError, ModelError) as error:
            raise Skipped(str(error)) from error
