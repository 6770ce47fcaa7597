"""Recording a profile: run a pipeline with dense attention and measure what every head needs."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import torch
from PIL import Image
from torch import Tensor

from svoo.checks import check_mass, mix_seeds, seeded
from svoo.config import SVOOConfig
from svoo.density import gaussian_density, required_density
from svoo.errors import ConfigError, ProfileError
from svoo.methods.base import Call
from svoo.plugin.adapters import find_transformers
from svoo.plugin.generate import StepClock
from svoo.plugin.handle import Handle, apply, recognise
from svoo.profile import Profile

MASSES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
ROWS = 256
_SIZES = {  # the pipelines' words and the profile's
    "width": "width",
    "height": "height",
    "num_frames": "frames",
    "num_inference_steps": "steps",
    "guidance_scale": "guidance",
}


@dataclass(frozen=True, kw_only=True)
class Measuring:
    """How required density is measured.

    `rows` sampled query rows of each head (None: all), in every `every`-th step, of the cond
    branch or of both (an input then gives two rows of the table); `exact` sorts instead of
    counting in bins. `method="closed-form"` predicts from second moments and samples nothing.
    """

    masses: Sequence[float] = MASSES
    rows: int | None = ROWS
    every: int = 1
    branch: Literal["cond", "both"] = "cond"
    method: Literal["measured", "closed-form"] = "measured"
    exact: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be measured."""
        check_mass(*self.masses)
        if not self.masses:
            raise ConfigError("masses is empty; give at least one, such as 0.95")
        if self.rows is not None and self.rows < 1:
            raise ConfigError(f"rows must be at least 1, got {self.rows}")
        if self.every < 1:
            raise ConfigError(f"every must be at least 1, got {self.every}")
        if self.branch not in ("cond", "both"):
            raise ConfigError(f"branch must be cond or both, got {self.branch!r}")
        if self.method not in ("measured", "closed-form"):
            raise ConfigError(f"method must be measured or closed-form, got {self.method!r}")

    def measure(
        self, query: Tensor, key: Tensor, scale: float | None, seed: int
    ) -> tuple[Tensor, Tensor]:
        """Return density and standard error of query, key `[B, H, N, D]`, each `[B, H,
        masses]`."""
        masses = list(self.masses)
        if self.method == "closed-form":
            value = gaussian_density(query, key, masses, scale=scale)
            return value, torch.zeros_like(value)
        found = required_density(
            query,
            key,
            mass=masses,
            rows=self.rows,
            scale=scale,
            generator=seeded(seed),
            exact=self.exact,
        )
        return found.value, found.error


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
    those of `Measuring` (rows, every, ...); all others go to every call of the pipeline
    (num_inference_steps, height, ...). With `out`, what is done so far
    is on disk after every input: the same request, begun again after a crash, continues and ends
    with the same file; another request is refused unless `restart`. `on_step(done, total)` is told
    of progress over inputs x steps.
    """
    names = {entry.name for entry in fields(Measuring)}
    measuring = Measuring(**{name: settings[name] for name in settings if name in names})
    call = {name: value for name, value in settings.items() if name not in names}
    if not inputs:
        raise ConfigError("there are no inputs; give at least one prompt")
    wanted: list[dict[str, Any]] = [
        {"prompt": entry} if isinstance(entry, str) else dict(entry) for entry in inputs
    ]
    request = _describe(pipe, wanted, measuring, call)
    store = None if out is None else _Store(Path(out), request)
    profile = store.begin(restart=restart) if store else None
    per_input = 1 if measuring.branch == "cond" else 2
    for index in range(profile.inputs // per_input if profile else 0, len(wanted)):

        def report(done: int, steps: int, before: int = index) -> None:
            if on_step is not None:
                on_step(before * steps + done, len(wanted) * steps)

        one = _record(pipe, call | wanted[index], index, measuring, request, report)
        profile = one if profile is None else Profile.merge([profile, one])
        if store:
            store.keep(profile)
    assert profile is not None
    if store:
        store.finish(profile)
    return profile


def _record(
    pipe: Any,  # noqa: ANN401
    arguments: dict[str, Any],
    index: int,
    measuring: Measuring,
    request: Mapping[str, str],
    on_step: Callable[[int, int], None],
) -> Profile:
    """Record one input."""
    table = _Table(measuring, index)
    generator = seeded(mix_seeds(measuring.seed, index))
    defaults = {"generator": generator, "output_type": "latent"}
    with apply(pipe, SVOOConfig(), None, "dense") as handle:
        handle.observe(table.add)
        pipe(**(defaults | arguments), **StepClock(on_step).as_argument(pipe))
        return table.as_profile(handle, request)


@dataclass
class _Table:
    """What was measured in one run, by step, layer and branch."""

    measuring: Measuring
    index: int
    found: dict[tuple[int, int, str], tuple[Tensor, Tensor]] = field(default_factory=dict)
    stage: dict[int, int] = field(default_factory=dict)
    tokens: int = 0

    def add(self, call: Call, query: Tensor, key: Tensor) -> None:
        """Measure the video part of a call `[B, H, N, D]` if it is to be measured."""
        if call.step % self.measuring.every:
            return
        for branch, part in _branches(call, len(query)):
            if branch == "cond" or self.measuring.branch == "both":
                seed = mix_seeds(self.measuring.seed, self.index, call.step, call.layer)
                video = call.layout.video_part(query[part]), call.layout.video_part(key[part])
                value, error = self.measuring.measure(*video, call.scale, seed)
                of_mean = error.square().sum(dim=0).sqrt() / len(error)
                place = call.step, call.layer, branch
                self.found[place] = value.mean(dim=0).cpu(), of_mean.cpu()
        self.stage[call.step] = call.stage
        self.tokens = call.layout.video

    def as_profile(self, handle: Handle, request: Mapping[str, str]) -> Profile:
        """Return the run as a profile: one input, or two if both branches were measured."""
        sigmas = handle.sigmas()
        if sigmas is None:
            raise ProfileError(
                "the scheduler has no noise levels (sigmas), so a profile would fit no other run"
            )
        steps = list(range(0, len(sigmas), self.measuring.every))
        layers = range(1 + max((layer for _, layer, _ in self.found), default=-1))
        branches = ("cond",) if self.measuring.branch == "cond" else ("cond", "uncond")
        places = [(s, layer, branch) for branch in branches for s in steps for layer in layers]
        missing = [place for place in places if place not in self.found]
        if missing or not places:
            what = "step {}, layer {}, {}".format(*missing[0]) if missing else "no layer"
            raise ProfileError(
                f"nothing was measured for {what}: attention was not called there. Caches that "
                "skip steps must be off, and branch=both needs a run with guidance"
            )

        def stack(which: int) -> Tensor:
            flat = torch.stack([self.found[place][which] for place in places])
            return flat.unflatten(0, (len(branches), len(steps), len(layers))).float()

        return Profile(
            stack(0),
            sigmas[steps],
            torch.tensor([self.stage[step] for step in steps]),
            torch.tensor(list(self.measuring.masses), dtype=torch.float64),
            {**request, "tokens": str(self.tokens)},
            stack(1) if self.measuring.method == "measured" else None,
        )


def _branches(call: Call, batch: int) -> list[tuple[str, slice]]:
    """Return which samples of a batch belong to which branch, by diffusers' name for the call."""
    name = call.branch.removeprefix("pred_")  # as diffusers' guiders say it
    if name == "cond_uncond":  # one forward for both; diffusers puts the unconditional half first
        if batch == 1:  # and this model attends sample by sample
            return [("cond" if call.sample else "uncond", slice(None))]
        return [("uncond", slice(0, batch // 2)), ("cond", slice(batch // 2, batch))]
    if name in ("cond", "forward 0"):
        return [("cond", slice(None))]
    if name in ("uncond", "forward 1"):
        return [("uncond", slice(None))]
    return []


class _Store:
    """The file of a recording, and beside it what is done so far."""

    def __init__(self, path: Path, request: Mapping[str, str]) -> None:
        self.path = path
        self.unfinished = path.with_name(path.name + ".unfinished")
        self.request = request

    def begin(self, *, restart: bool) -> Profile | None:
        """Return what earlier runs of the same request have done; refuse those of another.

        A restart that was itself interrupted goes on too: what is unfinished counts first.
        """
        if self.unfinished.exists():
            earlier = Profile.load(self.unfinished)
            differences = self._compare(earlier)
            if not differences:
                return earlier
            if not restart:
                raise self._refusal(self.unfinished, differences)
            self.unfinished.unlink()
        if restart or not self.path.exists():
            return None
        earlier = Profile.load(self.path)
        differences = self._compare(earlier)
        if differences:
            raise self._refusal(self.path, differences)
        return earlier

    def _compare(self, earlier: Profile) -> list[str]:
        return [
            f"  {name}: {earlier.provenance.get(name, 'unknown')} there, {fact} now"
            for name, fact in self.request.items()
            if earlier.provenance.get(name) != fact
        ]

    @staticmethod
    def _refusal(path: Path, differences: list[str]) -> ProfileError:
        return ProfileError(
            "\n".join((f"{path} was begun by another request:", *differences))
            + "\nchoose another output, or restart (--restart) to replace it"
        )

    def keep(self, profile: Profile) -> None:
        """Save what is done so far."""
        profile.save(self.unfinished)

    def finish(self, profile: Profile) -> None:
        """Put the whole profile in its place."""
        profile.save(self.path)
        self.unfinished.unlink(missing_ok=True)


def _describe(
    pipe: Any,  # noqa: ANN401
    inputs: list[dict[str, Any]],
    measuring: Measuring,
    call: Mapping[str, Any],
) -> dict[str, str]:
    """Return all that decides what a recording measures, as the provenance of its profile."""
    model = recognise(pipe)
    signature = inspect.signature(type(pipe).__call__).parameters
    facts = {"model": model.name if model else _name(pipe), "weights": _hash_weights(pipe)}
    facts["scheduler"] = f"{type(pipe.scheduler).__name__} {_hash(dict(pipe.scheduler.config))}"
    for name, fact in _SIZES.items():
        default = signature[name].default if name in signature else None
        facts[fact] = str(call.get(name, default))
    shared = {name: value for name, value in call.items() if name not in _SIZES}
    facts |= {
        "method": measuring.method,
        "masses": " ".join(f"{mass:g}" for mass in measuring.masses),
        "every": str(measuring.every),
        "branch": measuring.branch,
        "seed": str(measuring.seed),
        "inputs": " ".join(_hash(shared | entry) for entry in inputs),
    }
    if measuring.method == "measured":
        facts["rows"] = "all" if measuring.rows is None else str(measuring.rows)
        facts["counted"] = "by sorting" if measuring.exact else "in bins"
    for package in ("svoo", "torch", "diffusers"):
        facts[package] = metadata.version(package)
    return facts


def _name(pipe: Any) -> str:  # noqa: ANN401
    place = str(dict(getattr(pipe, "config", {})).get("_name_or_path") or "")
    return Path(place).name or type(pipe).__name__  # never the path of somebody's machine


def _hash(arguments: Mapping[str, Any]) -> str:
    digest = hashlib.sha256()
    for name in sorted(arguments):
        value = arguments[name]
        if isinstance(value, Image.Image):
            data = value.convert("RGB").tobytes()
        elif isinstance(value, Tensor):
            data = value.detach().float().cpu().numpy().tobytes()
        else:
            data = repr(value).encode()
        digest.update(name.encode() + b"\0" + data + b"\0")
    return digest.hexdigest()[:12]


def _hash_weights(pipe: Any) -> str:  # noqa: ANN401
    """Return a fingerprint of some numbers of every parameter: enough to tell a retrained
    model."""
    digest = hashlib.sha256()
    for transformer, _ in find_transformers(pipe):
        for value in transformer.parameters():
            if value.is_meta:  # offloaded one by one: there is nothing to read
                return "unknown"
            some = value.detach().flatten()[:: max(1, value.numel() // 64)]
            digest.update(some.float().cpu().numpy().tobytes())
    return digest.hexdigest()[:12]
