"""Two constants of a machine, one rate for attention and one for all other products, and what a
forward asks of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from svoo.app.estimate.data import Card, find_architecture
from svoo.catalogue import Model

# Shares of an H200's peak, fitted by `fit_rates` (see tests) to the dense and the SVOO latency of
# two of the paper's models, Wan2.1-T2V-14B and HunyuanVideo-T2V. The other five were not in the
# fit, but the pair was chosen with all seven in sight (docs/scale.md has what other pairs gave).
ATTENTION_SHARE, LINEAR_SHARE = 0.3633, 0.2702
FITTED_ON = ("wan2.1-t2v-14b", "hunyuanvideo-t2v")
# Times that the hidden states of a layer are read or written by norms, modulation, rotary
# embedding, gates, activation and residuals as diffusers writes them, in units of their own bytes:
# counted in its Wan block, with float32 copies counted twice.
PASSES = 110
REORDER = 11  # q, k, v and the output read and written in the order of blocks; centroids read


@dataclass(frozen=True)
class Sparse:
    """What a method's sparse calls cost on a machine: FLOP/s of kept pairs and terms, of
    clustering and of selection, and the seconds that each call, iteration of clustering and
    selection takes however small it is."""

    attention: float
    clustering: float
    selection: float
    call_seconds: float = 0.0
    clustering_seconds: float = 0.0
    selection_seconds: float = 0.0


@dataclass(frozen=True)
class Rates:
    """How fast a machine is: FLOP/s of attention and of other products, bytes/s of its memory and
    of the link between GPUs, bytes of memory; and where the numbers are from.

    `passes` and `reorder`: how often a layer, and a sparse call besides, reads or writes its
    hidden states; 0 where the rates of products were timed with that. `layer_seconds`: what a
    layer takes however few tokens it has. `sparse`: None is as fast as dense attention.
    """

    attention: float
    linear: float
    bandwidth: float
    link: float
    memory: float
    title: str
    source: str
    passes: float = PASSES
    reorder: float = REORDER
    layer_seconds: float = 0.0
    sparse: Sparse | None = None

    @property
    def of_sparse_calls(self) -> Sparse:
        """What sparse calls cost: their products at the rate of attention unless it is known."""
        return self.sparse or Sparse(self.attention, self.attention, self.attention)


def card_rates(card: Card) -> Rates:
    """Return a card's rates: the shares of peak that the paper's latencies show on an H200."""
    source = "fitted to the paper's latencies"
    if card.name != "h200":
        source = "modelled: the same shares of peak as on an H200"
    return Rates(
        ATTENTION_SHARE * card.peak,
        LINEAR_SHARE * card.peak,
        card.bandwidth,
        card.link,
        card.memory,
        card.title,
        source,
    )


@dataclass(frozen=True)
class Forward:
    """What one forward of a transformer asks for.

    `attention`: FLOP of dense self-attention in one layer; `linear`: FLOP of all other products;
    `hidden`: bytes of the hidden states, of which `layers` layers make `PASSES` each.
    """

    layers: int
    tokens: int
    attention: float
    linear: float
    hidden: float


def count_forward(model: Model, video_tokens: int, itemsize: int = 2) -> Forward:
    """Return what a forward over so many video tokens asks for."""
    sizes = find_architecture(model)
    hidden, text = model.heads * model.head_dim, sizes.text_tokens
    tokens = video_tokens + text * sizes.joint_text
    # Multiplications per token and layer: projections of self-attention and feed-forward.
    each = 4 * hidden**2 + 2 * hidden * sizes.feed_forward
    linear = 2 * each * tokens
    if not sizes.joint_text:  # cross-attention: its projections, and attention to the text
        linear += 2 * 2 * hidden**2 * (tokens + text) + 4 * tokens * text * hidden
    return Forward(
        model.layers,
        tokens,
        attention=4.0 * tokens**2 * hidden,
        linear=float(linear * model.layers),
        hidden=float(tokens * hidden * itemsize),
    )


def fit_rates(
    predict: Callable[[float, float], Sequence[tuple[float, float]]],
    start: tuple[float, float],
) -> tuple[float, float]:
    """Return the two rates that make predictions fit best: the least sum of squared logarithms
    of predicted / measured, by steps that shrink around the best pair so far."""

    def loss(rates: tuple[float, float]) -> float:
        return sum(math.log(found / seen) ** 2 for found, seen in predict(*rates))

    best, step = start, 0.2
    while step > 1e-5:
        moves = [
            (best[0] * math.exp(step * x), best[1] * math.exp(step * y))
            for x in (-1, 0, 1)
            for y in (-1, 0, 1)
        ]
        better = min(moves, key=loss)
        if loss(better) < loss(best):
            best = better
        else:
            step /= 2
    return best
