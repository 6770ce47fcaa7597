"""DraftAttention (arXiv 2505.14708; shawnricecake/draft-attention f3c81d5): attention between
pictures of low resolution decides what is computed in full.

Queries and keys are pooled over 8 x 16 tokens of one frame, ragged at the edges; the softmax
between the pooled ones is the draft. Of all its S x S entries of a head the int(sparsity S^2) - 1
smallest are left out: one threshold for the whole map. A row that would lose everything keeps its
best block (theirs leaves it empty). Dense where the noise level is above `dense_sigma`, which
theirs writes as a timestep (925 of 1000).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from svoo.catalogue import find_model
from svoo.core.plan import BlockPlan
from svoo.core.selection import keep_top
from svoo.core.tiles import PerGrid, tile_grid
from svoo.core.validate import default_scale
from svoo.methods.base import Call, Dense, MethodConfig, Run, require_number, require_sizes
from svoo.methods.warm_up import SparseMethod


@dataclass(frozen=True, kw_only=True)
class DraftAttentionConfig(MethodConfig):
    """`sparsity` is the share of all blocks of a head that is left out; `pool` is a block's height
    and width in tokens; steps with a noise level above `dense_sigma` (1: none) stay dense."""

    name: ClassVar[str] = "draft"

    sparsity: float = 0.75
    pool: tuple[int, int] = (8, 16)
    dense_sigma: float = 0.925
    dense_layers: int = 1

    def __post_init__(self) -> None:
        """Refuse values outside their range, by name."""
        super().__post_init__()
        require_number("sparsity", self.sparsity, 0, 1)
        require_sizes("pool", self.pool, 2)
        require_number("dense_sigma", self.dense_sigma, 0, 1)

    @classmethod
    def for_model(cls, model: str) -> Self:
        """Return the authors' settings for a model."""
        if find_model(model).name.startswith("hunyuan"):
            return cls(sparsity=0.9, dense_sigma=0.945, dense_layers=0)
        return cls()

    def always_sparse(self) -> Self:
        """Return these settings without any warm-up."""
        return replace(super().always_sparse(), dense_sigma=1.0)

    def start(self, run: Run) -> DraftMethod:
        """Return the method for a new video."""
        return DraftMethod(self, run)


class DraftMethod(SparseMethod[DraftAttentionConfig]):
    """A draft for each call, one threshold for each head."""

    def __init__(self, config: DraftAttentionConfig, run: Run) -> None:
        """Read the noise levels; start with no blocks cut."""
        super().__init__(config, run)
        self._sigmas: list[float] = [] if run.sigmas is None else run.sigmas.tolist()
        if run.sigmas is None and config.dense_sigma < 1:
            run.note("draft: the noise levels are not known, so no step is dense for its noise")
        self._blocks = PerGrid(lambda grid, device: tile_grid(grid, (1, *config.pool), device))

    def choose(self, query: Tensor, key: Tensor, value: Tensor, call: Call) -> BlockPlan | Dense:  # noqa: ARG002
        """Return the blocks of query, key `[B, H, N, D]` and which see which."""
        dense = self._too_noisy(call)
        if dense is not None:
            return dense
        blocks = self._blocks.at(call.need_layout("draft"), query.device)
        with call.watch("selection"):
            scores = blocks.means(query) @ blocks.means(key).mT * default_scale(query, call.scale)
            keep = keep_above(scores.softmax(dim=-1), self.config.sparsity)
        call.count("selection", (blocks.count / blocks.tokens) ** 2)
        return blocks.plan(keep)

    def _too_noisy(self, call: Call) -> Dense | None:
        """Return dense where the noise level of a call's step is too high."""
        if not self._sigmas:
            return None
        sigma = self._sigmas[min(call.step, len(self._sigmas) - 1)]
        if sigma <= self.config.dense_sigma + 1e-6:  # float32 has not every number
            return None
        return Dense(f"warm-up: noise levels above {self.config.dense_sigma:g}", planned=True)

    @property
    def state_bytes(self) -> int:
        """Bytes of the blocks, which every layer shares."""
        return self._blocks.nbytes


def keep_above(draft: Tensor, sparsity: float) -> Tensor:
    """Return which entries of a draft `[B, H, C, C]` are no smaller than its int(sparsity C^2)-th
    smallest, and each row's best if there is none, bool `[B, H, C, C]`."""
    every = draft.flatten(2)
    rank = int(sparsity * every.shape[-1])
    if rank == 0:
        return torch.ones_like(draft, dtype=torch.bool)
    if torch.are_deterministic_algorithms_enabled():  # then CUDA refuses what is faster
        threshold = every.sort(dim=-1).values[..., rank - 1]
    else:
        threshold = every.kthvalue(rank, dim=-1).values
    keep = draft >= threshold[..., None, None]
    return keep | (~keep.any(dim=-1, keepdim=True) & keep_top(draft, 1))
