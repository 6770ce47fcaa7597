"""Functions on several processes that meet through gloo, as GPUs would through NCCL."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import tiny
import torch
from diffusers import ContextParallelConfig
from diffusers.hooks import context_parallel
from torch import Tensor, distributed

import svoo
from svoo.plugin.parallel import parallelise
from svoo.session.stats import RunStats

SECONDS = 400  # after which a hanging test is given up


def run_ranks(count: int, run: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Return what `run(*arguments)` returns on each of `count` ranks: the exception where it
    raises, None where the process is killed. One clean process imports; the ranks are its
    forks."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with TemporaryDirectory() as folder:
        pipes = [context.Pipe(duplex=False) for _ in range(count)]
        ranks = [
            context.Process(
                target=_on_rank, args=(rank, count, folder, pipes[rank][1], run, arguments)
            )
            for rank in range(count)
        ]
        for rank in ranks:
            rank.start()
        for _, ours in pipes:
            ours.close()
        try:
            return [_receive(pipe) for pipe, _ in pipes]
        finally:
            for rank in ranks:
                rank.kill()
                rank.join()


def _receive(pipe: Connection) -> Any:
    if not pipe.poll(SECONDS):
        return TimeoutError(f"no answer after {SECONDS} s")
    try:
        return pickle.loads(pipe.recv_bytes())
    except EOFError:
        return None


def _on_rank(
    rank: int,
    count: int,
    folder: str,
    pipe: Connection,
    run: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    meeting = f"file://{Path(folder) / 'meeting'}"
    distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=count)
    try:
        found = run(*arguments)
    except Exception as error:  # noqa: BLE001 (the test looks at it)
        traceback.print_exc()
        found = error
    pipe.send_bytes(pickle.dumps(found))  # `send` would share memory, which ends with the rank


@dataclass(frozen=True)
class Clip:
    """A clip to make: of which pipeline, by which method, and how it is spread over ranks.

    `spread` is "before" (by svoo, before it is applied), "after" (by diffusers' own call, after)
    or "removed" (the same, then svoo is removed).
    """

    pipeline: str = "wan2.1-t2v"
    method: str = "svoo"
    settings: dict[str, Any] = field(default_factory=dict)
    spread: str = "before"
    uneven: bool = False
    compiled: bool = False
    call: dict[str, Any] = field(default_factory=dict)

    def config(self) -> svoo.MethodConfig:
        if self.method == "far":
            return replace(
                svoo.SVOOConfig(tolerance=0.1, densest=1.0, worst_error=1e6),
                query_clusters=4,
                key_clusters=8,
            )
        (row,) = (row for row in svoo.available_methods() if row.name == self.method)
        small: dict[str, Any] = {"query_clusters": 4, "key_clusters": 8, "mass": 0.5}
        small |= {"dense_steps": 1, "dense_layers": 0, "strict": True}
        return row.config(**(self.settings or small))

    def make(self, *, spread: bool = True) -> tuple[Tensor, RunStats]:
        """Return the frames and the statistics."""
        pipe = tiny.build(self.pipeline)
        if spread and self.spread == "before":
            parallelise(pipe, uneven=self.uneven)
        handle = svoo.apply(pipe, self.config())
        if spread and self.spread != "before":
            spread_by_diffusers(pipe, ulysses_anything=self.uneven)
        if self.spread == "removed":
            handle.remove()
        if self.compiled:
            pipe.transformer.compile(backend="aot_eager")
        frames = tiny.generate(pipe, **self.call)
        stats = handle.stats()
        handle.remove()
        return frames, stats


def spread_by_diffusers(pipe: Any, **settings: Any) -> None:
    for transformer in (pipe.transformer, getattr(pipe, "transformer_2", None)):
        if transformer is not None:
            degrees = {"ulysses_degree": distributed.get_world_size()} | settings
            with cpu_is_a_device():
                transformer.enable_parallelism(config=ContextParallelConfig(**degrees))


@contextmanager
def cpu_is_a_device() -> Iterator[None]:
    """diffusers' `enable_parallelism` divides by the number of accelerators."""
    before = torch.accelerator.device_count
    torch.accelerator.device_count = lambda: 1
    yield
    torch.accelerator.device_count = before


def gather_any(tensor: Tensor, dim: int, group: Any) -> Tensor:
    """Gather shards of different sizes, as NCCL can and gloo cannot."""
    found: list[Tensor | None] = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(found, tensor, group=group)
    return torch.cat([part for part in found if part is not None], dim=dim)


def make_uneven_clip(clip: Clip) -> tuple[Tensor, RunStats]:
    """Make a clip whose shards of the video differ in size, with a stand-in for NCCL's gather."""
    context_parallel._all_gather_anything = gather_any
    distributed.get_backend = lambda *_, **__: distributed.Backend("nccl")
    return clip.make()


def make_clips(clips: dict[str, Clip]) -> dict[str, Any]:
    """Return frames and statistics of every clip, or the exception."""
    found: dict[str, Any] = {}
    for name, clip in clips.items():
        try:
            found[name] = clip.make()
        except Exception as error:  # noqa: BLE001 (the test looks at it)
            found[name] = error
    return found


def refuse_each() -> dict[str, Any]:
    """Return what is raised for each thing that cannot be done, before any attention is called."""
    found: dict[str, Any] = {}
    for name, attempt in _REFUSED.items():
        try:
            attempt()
        except Exception as error:  # noqa: BLE001 (the test looks at it)
            found[name] = error
    return found


def _ring() -> None:
    pipe = tiny.build("wan2.1-t2v")
    svoo.apply(pipe, Clip().config())
    spread_by_diffusers(pipe, ulysses_degree=1, ring_degree=2)
    tiny.generate(pipe)


def _ring_first() -> None:
    pipe = tiny.build("wan2.1-t2v")
    spread_by_diffusers(pipe, ulysses_degree=1, ring_degree=2)
    svoo.apply(pipe, Clip().config())


def _heads() -> None:
    pipe = tiny.build("wan2.1-t2v")
    pipe.transformer = tiny.wan_transformer(heads=3)
    parallelise(pipe)


def _recording() -> None:
    pipe = tiny.build("wan2.1-t2v")
    parallelise(pipe)
    svoo.record_profile(pipe, ["a cat"], num_inference_steps=2)


_REFUSED: dict[str, Callable[[], object]] = {
    "ring": _ring,
    "ring first": _ring_first,
    "heads": _heads,
    "recording": _recording,
    "tokens": lambda: Clip(call={"height": 48, "width": 48}).make(),
    "gloo": lambda: Clip(uneven=True, call={"height": 48, "width": 48}).make(),
    "text": lambda: Clip("hunyuanvideo-t2v", call={"max_sequence_length": 15}).make(),
    "own attention": lambda: Clip("mochi").make(),
    "no plan": lambda: Clip("wan-vace").make(),
}


def die_in_the_middle(rank_that_dies: int) -> None:
    """Make a clip; one rank is killed after the second step."""
    pipe = tiny.build("wan2.1-t2v")
    parallelise(pipe)
    svoo.apply(pipe, Clip().config())

    def after_step(_pipe: Any, step: int, _time: object, state: dict[str, Any]) -> dict[str, Any]:
        if step == 1 and distributed.get_rank() == rank_that_dies:
            os.kill(os.getpid(), signal.SIGKILL)
        return state

    tiny.generate(pipe, callback_on_step_end=after_step)
