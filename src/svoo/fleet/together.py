"""Many videos, one after the other, each shared by the processes that torchrun started."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from svoo.errors import ConfigError, RankError, SVOOError
from svoo.fleet.jobs import OnProgress, Outcome
from svoo.plugin.parallel import check_degree, others_alive
from svoo.plugin.ranks import Ranks
from svoo.plugin.request import Request, known_model
from svoo.plugin.run import Generator, Materials, check_request, read_materials
from svoo.storage import locked


def make_together(
    settings: Request,
    requests: Sequence[Request],
    ranks: Ranks,
    *,
    on_progress: OnProgress | None = None,
) -> Iterator[Outcome[Request, dict[str, Any]]]:
    """Yield the record of each video, or what it is refused for.

    The first process decides which `requests` are made, and writes them; those of the others are
    not looked at, and neither are the files that a request names: they get what the first one
    read. `settings` is what all requests have in common. What is refused is refused by all alike,
    and the next one follows; any other error ends the run, for the other processes are then in the
    middle of a video that this one cannot join again.
    """
    device = ranks.choose_device(settings.device)
    model = known_model(settings.model)
    if model is not None:
        check_degree(ranks.count, model.heads)
    materials = Materials(None, None)
    if ranks.first:
        for request in requests:
            check_request(request)
        materials = read_materials(settings)
    lock = locked(settings.out) if ranks.first and requests else nullcontext()
    with lock, ranks.joined(device), others_alive():
        requests, materials = ranks.share((requests, materials))
        if not requests:
            return
        generator = Generator(replace(requests[0], device=device), materials, ranks)
        refused = 0
        for index, request in enumerate(requests):
            outcome = _make(generator, index, request, on_progress)
            refused += outcome.refused
            if refused == len(requests):
                raise ConfigError(outcome.error)
            yield outcome


def _make(
    generator: Generator, index: int, request: Request, on_progress: OnProgress | None
) -> Outcome[Request, dict[str, Any]]:
    """Return what became of one video; let through what one process alone may have met."""

    def on_step(done: int, steps: int) -> None:
        if on_progress is not None:
            on_progress(index + done / max(1, steps))

    try:
        return Outcome(index, request, generator(request, on_step))
    except RankError:
        raise
    except SVOOError as error:
        return Outcome(index, request, error=str(error), refused=True)
    except Exception as error:
        error.add_note(f"while this video was made: {request.prompt!r}")
        raise
