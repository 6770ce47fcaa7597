"""One video over several GPUs: Ulysses, through diffusers' context parallelism.

Each process (rank) has a shard of the tokens. For attention the ranks exchange them: then each has
all tokens of its share of the heads, and there ours runs. diffusers' private names of this are
used here and nowhere else.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from diffusers import ContextParallelConfig
from diffusers.models._modeling_parallel import ContextParallelInput, ContextParallelOutput
from diffusers.models.attention_dispatch import _templated_context_parallel_attention
from torch import Tensor, distributed, nn

from svoo.errors import ConfigError, ModelError, RankError
from svoo.plugin.adapters import Adapter, Grid, count_heads, find_transformers

Attend = Callable[[Tensor, Tensor, Tensor, Tensor | None, float | None], Tensor]

_HUNYUAN_PLAN = {
    "rope": {
        0: ContextParallelInput(split_dim=0, expected_dims=2, split_output=True),
        1: ContextParallelInput(split_dim=0, expected_dims=2, split_output=True),
    },
    "transformer_blocks.0": {
        "hidden_states": ContextParallelInput(split_dim=1, expected_dims=3),
        "encoder_hidden_states": ContextParallelInput(split_dim=1, expected_dims=3),
    },
    "proj_out": ContextParallelOutput(gather_dim=1, expected_dims=3),
}
"""How HunyuanVideo's tokens are split and gathered; diffusers has such plans for Wan and LTX."""


@dataclass(frozen=True, eq=False)
class Split:
    """How a transformer is spread: this is `rank` of `degree` ranks, which meet in `group`.

    `uneven`: the tokens need not divide by the ranks (diffusers' `ulysses_anything`).
    """

    degree: int
    rank: int
    group: Any
    uneven: bool = False

    def first_head(self, heads: int) -> int:
        """Return the number of the first head of `heads` that is this rank's."""
        return heads // self.degree * self.rank

    def sizes(self, tokens: int) -> list[int]:
        """Return how many of so many tokens each rank has."""
        return [
            tokens // self.degree + (rank < tokens % self.degree) for rank in range(self.degree)
        ]

    def gather(self, values: Tensor) -> Tensor:
        """Return the values `[h, ...]` of all ranks, in their order: `[degree * h, ...]`."""
        values = values.contiguous()
        found = [torch.empty_like(values) for _ in range(self.degree)]
        with others_alive():
            distributed.all_gather(found, values, group=self.group)
        return torch.cat(found)

    def video_first(self, tokens: Tensor, video: int) -> Tensor:
        """Return tokens `[B, N, ...]` with the video before the text; the exchange leaves each
        rank's share of the video before its share of the text."""
        parts = tokens.split(self._shares(video, tokens.shape[1] - video), dim=1)
        return torch.cat((*parts[::2], *parts[1::2]), dim=1)

    def as_exchanged(self, tokens: Tensor, video: int) -> Tensor:
        """Undo `video_first`."""
        shares = self._shares(video, tokens.shape[1] - video)
        parts = tokens.split([*shares[::2], *shares[1::2]], dim=1)
        pairs = zip(parts[: self.degree], parts[self.degree :], strict=True)
        return torch.cat([part for pair in pairs for part in pair], dim=1)

    def _shares(self, video: int, text: int) -> list[int]:
        pairs = zip(self.sizes(video), self.sizes(text), strict=True)
        return [size for pair in pairs for size in pair]


def find_split(attention: nn.Module, heads: int) -> Split | None:
    """Return how the transformer of a self-attention is spread over ranks; None: it is not.

    Refuses what sparse attention cannot do.
    """
    whole: Any = getattr(attention.processor, "_parallel_config", None)
    config = getattr(whole, "context_parallel_config", None)
    if config is None:
        return None
    if type(config).__module__.split(".")[0] == "cache_dit":
        raise ConfigError(
            "cache-dit's own parallelism takes only attention backends of its own: spread the "
            "pipeline with svoo.parallelise or diffusers' enable_parallelism instead"
        )
    if config.ring_degree > 1:
        raise ConfigError(
            "ring attention shows a rank only a part of the keys at a time, and which blocks to "
            "keep depends on all of them: use ContextParallelConfig(ulysses_degree=...)"
        )
    check_degree(config.ulysses_degree, heads)
    return Split(
        config.ulysses_degree,
        config._ulysses_local_rank,
        config._ulysses_mesh.get_group(),
        bool(config.ulysses_anything),
    )


def refuse_xdit(attentions: Iterable[nn.Module]) -> None:
    """Refuse processors that would attend past us, without a word."""
    for attention in attentions:
        processor = type(attention.processor)
        if processor.__module__.split(".")[0] == "xfuser":
            raise ModelError(
                f"xDiT's {processor.__name__} exchanges tokens and attends by itself, so nothing "
                "would be sparse: use diffusers' own pipeline with enable_parallelism instead"
            )


def check_degree(degree: int, heads: int) -> None:
    """Refuse a number of ranks that does not divide the heads."""
    if heads % degree:
        fitting = [str(count) for count in range(1, heads + 1) if heads % count == 0]
        raise ConfigError(
            f"{degree} ranks cannot share {heads} attention heads evenly: use "
            f"{', '.join(fitting[:-1]) or '1'} or {fitting[-1]}"
        )


def check_sequence(
    split: Split, adapter: Adapter, grid: Grid | None, arguments: Mapping[str, Any]
) -> None:
    """Refuse a forward whose tokens do not divide by the ranks, before any of it runs."""
    if adapter.calls_torch:
        raise ModelError(
            "this transformer calls torch's attention itself, which knows nothing of other ranks: "
            "it cannot be spread over several GPUs"
        )
    if grid is None:
        return
    frames, height, width = grid
    counts = {f"{frames} x {height} x {width} video": frames * height * width}
    advice = "ContextParallelConfig(ulysses_degree=..., ulysses_anything=True), or another size"
    if split.uneven:
        if distributed.get_backend(split.group) != "gloo":
            return
        advice = "another size: gloo, unlike NCCL, cannot gather shards of different sizes"
    elif adapter.prefix_mask:
        counts["text"] = arguments["encoder_hidden_states"].shape[1]
    for name, count in counts.items():
        if count % split.degree:
            raise ConfigError(
                f"the {count} tokens ({name}) do not divide by {split.degree} ranks: use {advice}"
            )


def attend_on_ranks(
    attend: Attend,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scale: float | None,
    parallel_config: object,
) -> Tensor:
    """Exchange shards of tokens `[B, n, H, D]` for shares of heads `[B, N, h, D]`, call `attend`,
    and exchange its output back."""

    def forward(_context: object, *arguments: Any, **_rest: object) -> Tensor:  # noqa: ANN401
        query, key, value, mask, _dropout, _causal, scale = arguments[:7]
        return attend(query, key, value, mask, scale)

    def run() -> Tensor:
        output: Tensor = _templated_context_parallel_attention(
            query,
            key,
            value,
            mask,
            scale=scale,
            forward_op=forward,
            backward_op=None,
            _parallel_config=parallel_config,
        )
        return output

    if torch.compiler.is_compiling():
        return run()
    with others_alive():
        return run()


@contextmanager
def others_alive() -> Iterator[None]:
    """Turn what torch raises where another rank is gone into one clear error."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, RankError) or not _is_lost(error):
            raise
        raise RankError(
            "another process of this run has ended, or the connection to it was lost: its own "
            f"output says why; this one cannot go on without it ({str(error).splitlines()[0]})"
        ) from error


def _is_lost(error: RuntimeError) -> bool:
    """Say whether an error is that of a connection between ranks."""
    if isinstance(error, distributed.DistError):
        return True
    text = str(error).lower()
    return any(sign in text for sign in ("gloo", "nccl", "connection closed", "connection reset"))


def parallel_plan(transformer: nn.Module) -> Mapping[str, Any] | None:
    """Return how a transformer's tokens are split over ranks: diffusers' plan, else ours."""
    own: Mapping[str, Any] | None = getattr(transformer, "_cp_plan", None)
    if own is None and any(
        base.__name__ == "HunyuanVideoTransformer3DModel" for base in type(transformer).__mro__
    ):
        return _HUNYUAN_PLAN
    return own


def parallelise(pipe: object, *, uneven: bool = False) -> None:
    """Spread the transformers of a pipeline over all processes of `torch.distributed`, by Ulysses.

    The same as diffusers' `enable_parallelism`, for all experts at once, with a plan where
    diffusers has none (HunyuanVideo), and on the CPU too. `uneven`: the tokens need not divide by
    the ranks.
    """
    if not distributed.is_initialized():
        raise ConfigError(
            "torch.distributed is not initialised: start with torchrun, and call "
            "torch.distributed.init_process_group() first"
        )
    degree = distributed.get_world_size()
    found = find_transformers(pipe)
    for transformer, _ in found:
        check_degree(degree, count_heads(transformer))
        if parallel_plan(transformer) is None:
            raise ModelError(
                f"{type(transformer).__name__} cannot be spread over several GPUs: diffusers has "
                "no plan for its tokens; it has one for Wan, and svoo one for HunyuanVideo"
            )
    if degree == 1:
        return
    for transformer, _ in found:
        config = ContextParallelConfig(ulysses_degree=degree, ulysses_anything=uneven)
        any_transformer: Any = transformer
        with _cpu_counts_as_device():
            any_transformer.enable_parallelism(config=config, cp_plan=parallel_plan(transformer))


def offer_plan(transformer: nn.Module) -> Callable[[], None]:
    """Let `enable_parallelism` find a plan where diffusers has none; return the undo function."""
    plan = parallel_plan(transformer)
    if plan is None or getattr(transformer, "_cp_plan", None) is not None:
        return lambda: None
    transformer.__dict__["_cp_plan"] = plan
    return lambda: transformer.__dict__.pop("_cp_plan", None)


def count_local_first_frames(
    blocks: Iterable[nn.Module], find_spread: Callable[[], tuple[Split | None, int]]
) -> Callable[[], None]:
    """Make blocks that treat the first `num_tokens` tokens in their own way (HunyuanVideo with an
    image) count those of this rank's shard; return the undo function.

    `find_spread()` says how the present forward is spread and how many video tokens it has.
    """
    undo = ExitStack()
    for block in blocks:
        names = list(inspect.signature(type(block).forward).parameters)[1:]
        if "num_tokens" not in names:
            continue

        def localise(
            _block: nn.Module, arguments: tuple[Any, ...], index: int = names.index("num_tokens")
        ) -> tuple[Any, ...]:
            split, video = find_spread()
            if split is None:
                return arguments
            sizes = split.sizes(video)
            behind = arguments[index] - sum(sizes[: split.rank])
            here = min(max(behind, 0), sizes[split.rank])
            return *arguments[:index], here, *arguments[index + 1 :]

        undo.callback(block.register_forward_pre_hook(localise).remove)
    return undo.close


@contextmanager
def _cpu_counts_as_device() -> Iterator[None]:
    """On a machine without an accelerator, say that there is one device: diffusers divides by the
    count."""
    before = torch.accelerator.device_count
    if before() == 0:
        torch.accelerator.device_count = lambda: 1
    try:
        yield
    finally:
        torch.accelerator.device_count = before
