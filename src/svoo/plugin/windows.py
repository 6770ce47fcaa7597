"""The search of Sliding Tile Attention's windows with a pipeline by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from svoo.errors import ConfigError, ProfileError
from svoo.methods import find_method
from svoo.methods.sta_search import WindowSearch
from svoo.methods.warm_up import count_dense_steps
from svoo.plugin.apply import apply
from svoo.plugin.load import check_takes, open_pipeline
from svoo.plugin.request import Request, known_model
from svoo.plugin.run import LoopTimer, call_arguments, call_pipeline
from svoo.profiles.windows import WindowTable
from svoo.storage import check_writable, locked


def record_windows(
    request: Request,
    inputs: Sequence[Mapping[str, Any]],
    on_progress: Callable[[float], None],
) -> WindowTable:
    """Find the best window of every step, layer and head over the videos of some inputs (prompt
    and perhaps image), and write the table to `request.out`; `on_progress` is told how many inputs
    are done. The first steps, as many as the method keeps dense, get the whole grid.

    An earlier table is replaced; any other file there is refused.
    """
    check_writable(request.out)
    if request.out.exists():
        try:
            WindowTable.load(request.out)
        except ProfileError as error:
            raise ConfigError(
                f"{request.out} is there and no table of windows, which may have taken hours: "
                "choose another --out"
            ) from error
    with locked(request.out):
        return _record(request, inputs, on_progress)


def _record(
    request: Request,
    inputs: Sequence[Mapping[str, Any]],
    on_progress: Callable[[float], None],
) -> WindowTable:
    model = known_model(request.model)
    pipe = open_pipeline(request, model)
    check_takes(request, pipe, image="image" in inputs[0])
    search = WindowSearch()
    with apply(pipe, search.config(), None):
        for number, entry in enumerate(inputs):

            def on_step(done: int, steps: int, before: int = number) -> None:
                on_progress(before + done / steps)

            clock = LoopTimer(on_step)
            arguments = call_arguments(replace(request, prompt=entry["prompt"]), model)
            arguments |= {**entry, "output_type": "latent"}
            call_pipeline(pipe, **arguments, **clock.as_argument(pipe))
    assert search.shape is not None  # a video has run
    config = find_method("sta", None if model is None else model.name)
    table = search.choose(count_dense_steps(config, search.shape[0]))
    table.save(request.out)
    return table
