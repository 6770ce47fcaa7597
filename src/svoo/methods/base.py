"""What a sparse-attention method is: a config that anyone can write, and what it starts.

A `MethodConfig` is the choice of a method and its settings. For each video, `config.start(run)`
makes a new `Method`, so that nothing leaks from one video to the next. A method is shown the
*video* tokens of every attention call and returns a `BlockPlan` for them (perhaps `Corrected`), or
`Dense` with the reason. Text and padding are added to its plan afterwards, by `Session`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal, Protocol, Self

import torch
from torch import Tensor

from svoo.core.heads import Heads, all_are_here
from svoo.core.layout import VideoLayout
from svoo.core.plan import BlockPlan
from svoo.core.random import mix_seeds, seeded
from svoo.core.tiles import is_sizes
from svoo.errors import ConfigError
from svoo.profiles.profile import Profile

Compensate = Literal[False, "mean", "far"]
"""What becomes of left-out blocks: nothing, one term of their means, or far-field terms."""

Watch = Callable[[str], AbstractContextManager[None]]
"""Times a phase of a call ("clustering", "selection") by its name."""


def unwatched(_phase: str) -> AbstractContextManager[None]:
    """Time nothing."""
    return nullcontext()


def uncounted(_phase: str, _share: float) -> None:
    """Count no work."""


def unknown() -> None:
    """Know nothing."""


def unsaid(_note: str) -> None:
    """Tell nobody."""


@dataclass(frozen=True)
class Dense:
    """A method's answer that a call runs the model's own attention, with the reason.

    `planned`: it belongs to the method, as a warm-up does; otherwise `strict=True` makes it an
    error.
    """

    reason: str
    planned: bool = False


@dataclass(frozen=True, eq=False)
class Corrected:
    """A method's answer with a plan and a function that corrects the plan's output.

    `correct(output, lse)` gets the video rows of the output `[B, H, N, D]` and the log-sum-exp
    `[B, H, N]` of their softmax, terms included, and returns the output to use. `extra` is the
    share of all pairs that the correction computes besides; it counts as density.
    """

    plan: BlockPlan
    correct: Callable[[Tensor, Tensor], Tensor]
    extra: float = 0.0


@dataclass(frozen=True, eq=False)
class Run:
    """What is known of a video before its first step.

    `sigmas` `[steps]` are its noise levels and `stage_of_step` `[steps]` its expert by step, where
    known. `layers` is the number per expert. `profile`: measured densities, or None; `calibrate`:
    none was stored, and the user left it to the method to measure for itself. `head_weights()`
    `[stages, layers, heads]` says how much a head's output counts: the norm of its slice of the
    output projection over the square root of the head size; None: not known. `note` tells the
    user something, once.
    """

    steps: int
    layers: int = 1
    heads: int = 1
    stages: int = 1
    guidance: bool = True
    sigmas: Tensor | None = None
    stage_of_step: Tensor | None = None
    profile: Profile | None = None
    calibrate: bool = False
    head_weights: Callable[[], Tensor | None] = unknown
    note: Callable[[str], None] = unsaid


@dataclass(frozen=True, eq=False)
class Call:
    """Where in a run an attention call stands.

    `layout` says how the video tokens lie and how much text there is besides; None: not known.
    `branch` is the name of the guidance branch ("cond", "uncond"), or one name for each sample of
    the batch. `sample` counts the calls of one forward that attends sample by sample.
    `head_offset` is the number of the first head shown of `total_heads` (None: all are shown),
    where heads are planned in groups or spread over devices; `heads.gather` then asks the other
    devices for theirs, and `more_heads` says that a further group follows here. `watch` times a
    phase; `count(phase, share)` adds work, as a share of the pairs of dense attention, that is
    done besides the plan's own pairs and terms.
    """

    step: int
    layer: int
    layout: VideoLayout | None = None
    stage: int = 0
    branch: str | Sequence[str] = "cond"
    sample: int = 0
    head_offset: int = 0
    scale: float | None = None
    watch: Watch = unwatched
    count: Callable[[str, float], None] = uncounted
    generator: torch.Generator | None = None
    total_heads: int | None = None
    gather_heads: Callable[[Tensor], Tensor] = all_are_here
    more_heads: bool = False

    @property
    def heads(self) -> Heads:
        """Which heads are shown, and the way to the others: for what looks across heads."""
        return Heads(self.head_offset, self.total_heads, self.gather_heads)

    def need_layout(self, method: str) -> VideoLayout:
        """Return the layout, for a method that cannot do without it."""
        if self.layout is None:
            raise ConfigError(
                f"{method} needs the grid of the video: give layout=VideoLayout(...)"
            )
        return self.layout

    def chance(self, seed: int) -> torch.Generator:
        """Return the generator to draw from: the one given, else of its own for every stage, layer
        and step, the same on every device and for every branch."""
        if self.generator is not None:
            return self.generator
        return seeded(mix_seeds(seed, self.stage, self.layer, self.step))

    def videos(self, batch: int) -> list[int]:
        """Return which video each sample of a batch belongs to: the n-th sample of every branch
        belongs to video n."""
        if isinstance(self.branch, str) or len(self.branch) != batch:
            return list(range(batch))
        seen: Counter[str] = Counter()
        videos = []
        for name in self.branch:
            videos.append(seen[name])
            seen[name] += 1
        return videos


class Method(Protocol):
    """A method at work on one video: its decisions, and what it remembers between them."""

    def plan(
        self, query: Tensor, key: Tensor, value: Tensor, call: Call
    ) -> BlockPlan | Corrected | Dense:
        """Return a plan for the video tokens query `[B, H, N, D]` and key, value `[B, H, M, D]`,
        or dense with the reason. Also called in the dense steps of the warm-up."""

    @property
    def state_bytes(self) -> int:
        """Bytes remembered between calls."""


@dataclass(frozen=True, kw_only=True)
class MethodConfig:
    """Settings that every method has; a subclass adds its own settings and `start`.

    `dense_steps`: the first steps that stay dense, a count (int) or a fraction of all (float).
    `dense_layers`: how many of the first layers stay dense. `compensate`: what becomes of left-out
    blocks: `False` (dropped), "mean" (one term of their mean key and value) or "far" (terms as the
    query block sees them). `backend`: who computes; "auto" takes the first that can run, any other
    name runs or says why not. `seed`: of the method's random draws. `measure_recall`: measure
    the softmax mass that kept blocks hold (`RunStats.recall`). `measure_error`: compute a few
    queries of each sparse call exactly too (`RunStats.error`). `strict`: every dense call
    outside the warm-up is an error, so that a dense run is never taken for a sparse one.
    """

    name: ClassVar[str]

    dense_steps: int | float = 0.0
    dense_layers: int = 0
    compensate: Compensate = False
    backend: str = "auto"
    seed: int = 0
    measure_recall: bool = False
    measure_error: bool = False
    strict: bool = False

    def __post_init__(self) -> None:
        """Refuse values outside their range, by name."""
        if isinstance(self.dense_steps, float):
            expected = "a fraction in [0, 1] (a float) or a count (an int)"
            require("dense_steps", self.dense_steps, expected, fits=0 <= self.dense_steps <= 1)
        else:
            require_count("dense_steps", self.dense_steps, 0)
        require_count("dense_layers", self.dense_layers, 0)
        require_choice("compensate", self.compensate, (False, "mean", "far"))
        is_name = isinstance(self.backend, str)
        require("backend", self.backend, "the name of a backend", fits=is_name)
        require_count("seed", self.seed, 0)
        for name in ("measure_recall", "measure_error", "strict"):
            require_switch(name, getattr(self, name))

    @classmethod
    def for_model(cls, model: str) -> Self:  # noqa: ARG003 (a subclass that has them looks)
        """Return the method's own published settings for a model of the catalogue."""
        return cls()

    def start(self, run: Run) -> Method:
        """Return the method for a new video."""
        raise NotImplementedError(f"{type(self).__name__} must say how it starts")

    @property
    def corrects_output(self) -> bool:
        """Whether the method changes outputs after the attention: then no repair goes on top."""
        return False

    def always_sparse(self) -> Self:
        """Return these settings without any warm-up."""
        return replace(self, dense_steps=0, dense_layers=0)

    def as_dict(self) -> dict[str, Any]:
        """Return the settings as plain data, with the method's name first."""
        settings = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return {"method": self.name, **settings}


def require(name: str, value: object, expected: str, *, fits: bool) -> None:
    """Refuse a setting that does not fit."""
    if not fits:
        raise ConfigError(f"{name} must be {expected}, got {value!r}")


def require_number(name: str, value: float, low: float, high: float) -> None:
    """Refuse what is no number in [low, high]; NaN is none."""
    fits = isinstance(value, int | float) and not isinstance(value, bool)
    fits = fits and low <= value <= high
    require(name, value, f"a number from {low:g} to {high:g}", fits=fits)


def require_share(name: str, value: float) -> None:
    """Refuse what is no number above 0 and up to 1."""
    require_number(name, value, 0, 1)
    require(name, value, "a number above 0", fits=value > 0)


def require_count(name: str, value: int, least: int) -> None:
    """Refuse what is no whole number, or too small."""
    fits = isinstance(value, int) and not isinstance(value, bool) and value >= least
    require(name, value, f"a whole number >= {least}", fits=fits)


def require_sizes(name: str, value: object, axes: int) -> None:
    """Refuse what is no tuple of whole numbers >= 1, one per axis."""
    number = {2: "two", 3: "three"}[axes]
    require(name, value, f"{number} whole numbers >= 1", fits=is_sizes(value, axes))


def require_choice(name: str, value: object, choices: Sequence[object]) -> None:
    """Refuse what is not among the choices."""
    known = ", ".join(map(str, choices))
    fits = any(value is choice or (value == choice and not isinstance(value, bool | int | float))
               for choice in choices)  # fmt: skip
    require(name, value, f"one of {known}", fits=fits)


def require_switch(name: str, value: object) -> None:
    """Refuse what is neither True nor False."""
    require(name, value, "True or False", fits=isinstance(value, bool))
