"""What a video takes, dense and sparse: seconds by part, speed-up, memory; all modelled."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from svoo.app.estimate.data import find_architecture
from svoo.app.estimate.roofline import (
    Forward,
    Rates,
    count_forward,
)
from svoo.app.estimate.work import Work, count_work
from svoo.catalogue import Model, check_sizes
from svoo.errors import ConfigError
from svoo.methods.base import MethodConfig
from svoo.methods.dense import DenseConfig

_LIVE = 6  # hidden states that are there at once: the stream, q, k, v, the output, a float32 copy
_AROUND = 2  # small layers' worth of embedding, head and sampler, however few tokens there are
PARTS = ("dense_calls", "kept_pairs", "terms", "clustering", "selection", "rest", "exchange")
_PIXEL = 3 * 4  # bytes of a decoded pixel in float32


@dataclass(frozen=True)
class Video:
    """A video of a model of the catalogue, in numbers that its pipeline takes."""

    model: Model
    frames: int
    height: int
    width: int
    steps: int

    def __post_init__(self) -> None:
        """Refuse a size that the model cannot make."""
        check_sizes(self.frames, self.height, self.width)

    @property
    def grid(self) -> tuple[int, int, int]:
        """Tokens along frames, rows and columns."""
        parts = self.model.token
        sizes = zip((self.frames, self.height, self.width), parts, strict=True)
        frames, rows, columns = (math.ceil(size / part) for size, part in sizes)
        return frames, rows, columns

    @property
    def tokens(self) -> int:
        """Number of video tokens."""
        return math.prod(self.grid)


@dataclass(frozen=True)
class Otherwise:
    """What a sparse loop would take if it kept another share, and why it might."""

    keeps: str
    density: float
    sparse_seconds: float
    speed_up: float


@dataclass(frozen=True)
class Estimate:
    """Seconds of the denoising loop, dense and sparse, and bytes of each GPU.

    `parts` are those of the sparse loop: `dense_calls` is attention in the warm-up, `rest` all
    that is no self-attention, `exchange` what Ulysses sends. `bound` is the speed-up if the sparse
    calls cost nothing, `bound_without_warm_up` if all attention did. `density_guessed`: it was
    not measured on this model, and `otherwise` has what other densities would give.
    """

    model: str
    machine: str
    rates: str
    method: str
    tokens: int
    steps: int
    gpus: int
    density: float
    density_from: str
    density_guessed: bool
    dense_seconds: float
    sparse_seconds: float
    speed_up: float
    bound: float
    bound_without_warm_up: float
    peak_bytes: float
    memory_bytes: float
    exchanged_bytes: float
    parts: dict[str, float]
    dense_parts: dict[str, float]
    otherwise: list[Otherwise]

    def as_dict(self) -> dict[str, Any]:
        """Return all of it as plain data, marked as what it is."""
        return {"modelled": True, **asdict(self)}


def estimate(
    video: Video,
    rates: Rates,
    config: MethodConfig,
    *,
    gpus: int = 1,
    density: float | None = None,
    itemsize: int = 2,
    name: str | None = None,
) -> Estimate:
    """Return what a video takes on so many GPUs of these rates (Ulysses: each has a share of the
    sequence, and in attention of the heads)."""
    model = video.model
    check_gpus(model, gpus)
    forward = count_forward(model, video.tokens, itemsize)
    runs = video.steps * find_architecture(model).forwards
    work = count_work(config, model, video.grid, video.steps, density)
    calls = forward.layers * runs
    attention = forward.attention * calls / rates.attention / gpus
    rest = _rest(forward, rates, gpus) * runs
    exchanged = _exchanged(forward, gpus) * runs
    exchange = exchanged / rates.link if gpus > 1 else 0.0
    dense_share = work.dense_calls(video.steps, model.layers)
    if isinstance(config, DenseConfig):
        dense_share = 1.0
    dense_seconds = attention + rest + exchange
    around = {"dense_calls": dense_share * attention, "rest": rest, "exchange": exchange}
    sparse_calls = (1 - dense_share) * calls
    parts = {**_sparse_parts(forward, rates, work, gpus, sparse_calls), **around}
    sparse_seconds = sum(parts.values())
    otherwise = []
    for keeps, other in work.otherwise:
        changed = count_work(config, model, video.grid, video.steps, other)
        other_parts = _sparse_parts(forward, rates, changed, gpus, sparse_calls)
        seconds = sum(other_parts.values()) + sum(around.values())
        otherwise.append(Otherwise(keeps, other, seconds, dense_seconds / seconds))
    return Estimate(
        model.name,
        rates.title,
        rates.source,
        name or config.name,
        video.tokens,
        video.steps,
        gpus,
        work.density,
        work.source,
        work.guessed,
        dense_seconds,
        sparse_seconds,
        speed_up=dense_seconds / sparse_seconds,
        bound=dense_seconds / sum(around.values()),
        bound_without_warm_up=dense_seconds / (rest + exchange),
        peak_bytes=_peak(video, forward, work, gpus, itemsize),
        memory_bytes=rates.memory,
        exchanged_bytes=exchanged,
        parts={name: parts[name] for name in PARTS},
        dense_parts={"attention": attention, "rest": rest, "exchange": exchange},
        otherwise=otherwise,
    )


def _sparse_parts(
    forward: Forward, rates: Rates, work: Work, gpus: int, calls: float
) -> dict[str, float]:
    """Return the seconds of so many sparse calls, by part."""
    cost = rates.of_sparse_calls
    dense = forward.attention / gpus  # FLOP of one call
    reorder = rates.reorder * forward.hidden / rates.bandwidth / gpus
    clustering = work.iterations * cost.clustering_seconds
    return {
        "kept_pairs": calls * (cost.call_seconds + dense * work.density / cost.attention),
        "terms": calls * dense * work.terms / cost.attention,
        "clustering": calls * (clustering + dense * work.clustering / cost.clustering),
        "selection": calls
        * (cost.selection_seconds + dense * work.selection / cost.selection + reorder),
    }


def check_gpus(model: Model, gpus: int) -> None:
    """Refuse a number of GPUs that heads cannot be divided between."""
    if gpus < 1:
        raise ConfigError(f"--gpus must be a whole number from 1, got {gpus}")
    if model.heads % gpus:
        fitting = [str(count) for count in range(1, model.heads + 1) if not model.heads % count]
        raise ConfigError(
            f"--gpus {gpus} does not divide the {model.heads} heads of {model.name}: Ulysses "
            f"takes {', '.join(fitting)}"
        )


def _rest(forward: Forward, rates: Rates, gpus: int) -> float:
    """Return the seconds of a forward's linear layers and of what only moves memory."""
    moved = rates.passes * forward.hidden * forward.layers
    shared = forward.linear / rates.linear + moved / rates.bandwidth
    return shared / gpus + rates.layer_seconds * (forward.layers + _AROUND)


def _exchanged(forward: Forward, gpus: int) -> float:
    """Return the bytes that each GPU sends in a forward: of its share of q, k, v and the output
    all but what stays with it."""
    return 4 * forward.hidden * forward.layers / gpus * (gpus - 1) / gpus


def _peak(video: Video, forward: Forward, work: Work, gpus: int, itemsize: int) -> float:
    """Return the bytes of a GPU: all weights, one layer's activations, the labels of sparse
    attention and the decoded frames. What the autoencoder needs while it decodes is left out."""
    model = video.model
    sizes = find_architecture(model)
    weights = itemsize * (sizes.parameters + sizes.beside)
    wide = forward.hidden * sizes.feed_forward / (model.heads * model.head_dim)
    activations = (_LIVE * forward.hidden + wide) / gpus
    pixels = video.frames * video.height * video.width * _PIXEL
    labels = 0.0
    if work.clustering:
        sparse_layers = max(0, model.layers - work.dense_layers) * model.stages
        labels = 2 * 2 * video.tokens * model.heads * sparse_layers / gpus  # int16, q and k
    return weights + activations + labels + pixels
