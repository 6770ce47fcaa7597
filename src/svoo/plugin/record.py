"""Recording a profile: run a pipeline with dense attention and measure what every head needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, fields
from itertools import product
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from svoo.core.density import required_density
from svoo.core.random import mix_seeds, seeded
from svoo.core.validate import check_mass
from svoo.errors import ConfigError, ProfileError
from svoo.methods.base import Call
from svoo.methods.dense import DenseConfig
from svoo.plugin.adapters import count_heads, find_attentions, find_transformers
from svoo.plugin.apply import Handle, apply, is_applied
from svoo.plugin.parallel import find_split
from svoo.plugin.provenance import describe_recording, say_rows
from svoo.plugin.run import LoopTimer, call_pipeline
from svoo.plugin.store import Store
from svoo.profiles.profile import PROFILE_MASS, Profile
from svoo.storage import locked

MASSES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
ROWS = 640  # enough for a standard error of .01 of any entry
EVERY = 3  # what a head needs changes little from step to step, and slowly


@dataclass(frozen=True, kw_only=True)
class RecordConfig:
    """How required density is measured.

    `rows` sampled query rows of each head (None: all; auto: `ROWS`, or all of a smaller video), in
    every `every`-th step, of the cond branch or of both (an input then gives two rows of the
    table); `exact` sorts instead of counting in bins.
    """

    masses: Sequence[float] = MASSES
    rows: int | Literal["auto"] | None = "auto"
    every: int = EVERY
    branch: Literal["cond", "both"] = "cond"
    exact: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be measured."""
        masses = self.masses
        if not isinstance(masses, Sequence) or not all(
            isinstance(mass, float | int) for mass in masses
        ):
            raise ConfigError(f"masses must be a list of numbers, got {masses!r}")
        check_mass(*masses)
        if not any(abs(mass - PROFILE_MASS) < 1e-6 for mass in masses):
            raise ConfigError(
                f"masses must contain {PROFILE_MASS}, which budgets are taken at: {list(masses)}"
            )
        if len(set(masses)) < len(masses):
            raise ConfigError(f"masses has one twice: {list(masses)}")
        if self.rows not in (None, "auto") and (not isinstance(self.rows, int) or self.rows < 2):
            # One row would say nothing about the spread.
            raise ConfigError(f"rows must be auto, None or a whole number from 2, got {self.rows}")
        if not isinstance(self.every, int) or self.every < 1:
            raise ConfigError(f"every must be a whole number from 1, got {self.every}")
        if self.branch not in ("cond", "both"):
            raise ConfigError(f"branch must be cond or both, got {self.branch!r}")

    def measure(
        self, query: Tensor, key: Tensor, scale: float | None, seed: int
    ) -> tuple[Tensor, Tensor]:
        """Return density and standard error of query, key `[B, H, N, D]`, each `[B, H,
        masses]`."""
        found = required_density(
            query,
            key,
            mass=list(self.masses),
            rows=self.count_rows(query.shape[2]),
            scale=scale,
            generator=seeded(seed),
            exact=self.exact,
        )
        return found.value, found.error

    def count_inputs(self, profile: Profile) -> int:
        """Return of how many inputs a profile is: with both branches each gives two rows."""
        return profile.inputs // (1 if self.branch == "cond" else 2)

    def count_rows(self, tokens: int) -> int | None:
        """Return how many of the query rows are sampled; None: all."""
        return min(ROWS, tokens) if self.rows == "auto" else self.rows


def record_profile(
    pipe: Any,  # noqa: ANN401 (any pipeline class)
    inputs: Sequence[str | Mapping[str, Any]],
    *,
    out: str | Path | None = None,
    restart: bool = False,
    on_step: Callable[[int, int], None] | None = None,
    **settings: Any,  # noqa: ANN401 (what the pipeline takes)
) -> Profile:
    """Run the pipeline densely on every input and return what its heads needed.

    `inputs` are prompts, or mappings of call arguments such as prompt and image. `settings` are
    those of `RecordConfig` (rows, every, ...); all others go to every call of the pipeline
    (num_inference_steps, height, ...). With `out`, what is done so far
    is on disk after every input: the same request, begun again after a crash, continues and ends
    with the same file; another request is refused unless `restart`. `on_step(done, total)` is told
    of progress over inputs x steps.
    """
    names = {entry.name for entry in fields(RecordConfig)}
    measuring = RecordConfig(**{name: settings[name] for name in settings if name in names})
    call = {name: value for name, value in settings.items() if name not in names}
    if isinstance(inputs, str | Mapping):
        raise ConfigError(f"inputs must be a list of prompts or mappings, got {inputs!r}")
    if not inputs:
        raise ConfigError("there are no inputs; give at least one prompt")
    if any(is_applied(transformer) for transformer, _ in find_transformers(pipe)):
        raise ConfigError(
            "svoo is applied to this pipeline, and recording needs it dense: call "
            "handle.remove() first"
        )
    if any(
        find_split(find_attentions(transformer, adapter)[0], count_heads(transformer))
        for transformer, adapter in find_transformers(pipe)
    ):
        raise ConfigError("a profile is recorded on one GPU: this pipeline is spread over several")
    wanted: list[dict[str, Any]] = [
        {"prompt": entry} if isinstance(entry, str) else dict(entry) for entry in inputs
    ]
    recorder = Recorder(pipe, wanted, measuring, call)
    with nullcontext() if out is None else locked(Path(out)):
        store = None if out is None else Store(Path(out), recorder.request)
        profile = store.begin(restart=restart) if store else None
        done = measuring.count_inputs(profile) if profile else 0
        for index in range(done, len(wanted)):

            def report(done: int, steps: int, before: int = index) -> None:
                if on_step is not None:
                    on_step(before * steps + done, len(wanted) * steps)

            one = recorder(index, report)
            profile = one if profile is None else Profile.merge([profile, one])
            if store:
                store.keep(profile)
        assert profile is not None
        if store:
            store.finish(profile)
        return profile


class Recorder:
    """A pipeline and the inputs that are recorded with it, one by one."""

    def __init__(
        self,
        pipe: Any,  # noqa: ANN401 (any pipeline class)
        inputs: Sequence[Mapping[str, Any]],
        measuring: RecordConfig,
        call: Mapping[str, Any],
    ) -> None:
        """Describe the recording of all inputs; `call` is given to each."""
        self.request = describe_recording(pipe, inputs, vars(measuring), call)
        self._pipe, self._inputs, self._measuring, self._call = pipe, inputs, measuring, call

    def __call__(self, index: int, on_step: Callable[[int, int], None]) -> Profile:
        """Record one input: the same profile whichever were recorded before it."""
        table = _Table(self._measuring, index)
        generator = seeded(mix_seeds(self._measuring.seed, index))
        arguments = {"generator": generator, "output_type": "latent"}
        arguments |= {**self._call, **self._inputs[index]}
        with apply(self._pipe, DenseConfig(), None) as handle:
            handle.observe(table.add)

            def after_step(done: int, steps: int) -> None:
                if done == 1:  # a run that cannot be recorded is not run to its end
                    _noise_levels(handle)
                    table.entries([0])
                on_step(done, steps)

            clock = LoopTimer(after_step).as_argument(self._pipe)
            call_pipeline(self._pipe, **arguments, **clock)
            return table.as_profile(handle, self.request)


@dataclass
class _Table:
    """What was measured in one run, by step, layer and branch."""

    measuring: RecordConfig
    index: int
    found: dict[tuple[int, int, str], tuple[Tensor, Tensor]] = field(default_factory=dict)
    stage: dict[int, int] = field(default_factory=dict)
    tokens: int = 0

    def add(self, call: Call, query: Tensor, key: Tensor) -> None:
        """Measure the video part of a call `[B, H, N, D]` if it is to be measured."""
        if call.step % self.measuring.every:
            return
        layout = call.need_layout("recording")
        for branch, part in samples_by_branch(call, len(query)):
            if branch == "cond" or self.measuring.branch == "both":
                seed = mix_seeds(self.measuring.seed, self.index, call.step, call.layer)
                video = layout.video_part(query[part]), layout.video_part(key[part])
                value, error = self.measuring.measure(*video, call.scale, seed)
                of_mean = error.square().sum(dim=0).sqrt() / len(error)
                entry = call.step, call.layer, branch
                self.found[entry] = value.mean(dim=0).cpu(), of_mean.cpu()
        self.stage[call.step] = call.stage
        self.tokens = layout.video

    @property
    def layers(self) -> int:
        """Number of layers that were seen."""
        return 1 + max((layer for _, layer, _ in self.found), default=-1)

    @property
    def branches(self) -> tuple[str, ...]:
        """The branches to be measured."""
        return ("cond",) if self.measuring.branch == "cond" else ("cond", "uncond")

    def entries(self, steps: Sequence[int]) -> list[tuple[int, int, str]]:
        """Return step, layer and branch of all that these steps must have, in the order of a
        profile; refuse where one was not measured."""
        ordered = product(self.branches, steps, range(self.layers))
        entries = [(step, layer, branch) for branch, step, layer in ordered]
        missing = [entry for entry in entries if entry not in self.found]
        if missing or not entries:
            what = "step {}, layer {}, {}".format(*missing[0]) if missing else "no layer"
            raise ProfileError(
                f"nothing was measured for {what}: attention was not called there. Caches that "
                "skip steps must be off, and branch=both needs a run with guidance"
            )
        return entries

    def as_profile(self, handle: Handle, request: Mapping[str, str]) -> Profile:
        """Return the run as a profile: one input, or two if both branches were measured."""
        sigmas = _noise_levels(handle)
        steps = list(range(0, len(sigmas), self.measuring.every))
        entries = self.entries(steps)

        def stack(which: int) -> Tensor:
            flat = torch.stack([self.found[entry][which] for entry in entries])
            return flat.unflatten(0, (len(self.branches), len(steps), self.layers)).float()

        facts = {**request, "tokens": str(self.tokens), "steps": str(len(sigmas))}
        facts["rows"] = say_rows(self.measuring.count_rows(self.tokens))
        return Profile(
            stack(0),
            sigmas[steps],
            torch.tensor([self.stage[step] for step in steps]),
            torch.tensor(list(self.measuring.masses), dtype=torch.float64),
            facts,
            stack(1),
        )


def _noise_levels(handle: Handle) -> Tensor:
    sigmas = handle.sigmas()
    if sigmas is None:
        raise ProfileError(
            "the scheduler has no noise levels (sigmas), so a profile would fit no other run"
        )
    return sigmas


def samples_by_branch(call: Call, batch: int) -> list[tuple[str, list[int]]]:
    """Return which samples of a batch belong to which branch of guidance."""
    names = [call.branch] * batch if isinstance(call.branch, str) else list(call.branch)
    known = {"forward 0": "cond", "forward 1": "uncond"}  # where the pipeline gives no names
    samples: dict[str, list[int]] = {}
    for sample, name in enumerate(names):
        samples.setdefault(known.get(name, name), []).append(sample)
    return [(name, own) for name, own in samples.items() if name in ("cond", "uncond")]
