"""How long the rest of the studies takes: by what this machine has made, else by one step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from svoo.plugin.machine import name_machine
from svoo.studies.base import Job, Study
from svoo.studies.lab import Lab

Jobs = Sequence[tuple[Study, Job]]


@dataclass(frozen=True)
class Forecast:
    """Seconds for a unit of cost: by study and turn where some of it was made here already, else
    the usual."""

    rates: Mapping[tuple[str, int], float]
    usual: float

    def seconds(self, study: Study, job: Job) -> float:
        """Return about how long a job takes."""
        return job.cost * self.rates.get((study.name, job.turn), self.usual)

    def total(self, todo: Jobs) -> float:
        """Return about how long all of them take."""
        return sum(self.seconds(study, job) for study, job in todo)


@dataclass(frozen=True)
class Left:
    """What is left of a study in one turn: how many results, and about how many seconds."""

    study: str
    count: int
    seconds: float


def make_forecast(planned: Jobs, lab: Lab) -> Forecast:
    """Return the forecast for this machine. Where it has made nothing yet, one dense step of the
    smaller size is timed."""
    sessions = lab.results.sessions()
    here = {
        number
        for number, facts in enumerate(sessions)
        if "machine" in facts and name_machine(facts["machine"]) == lab.machine
    }
    took = {
        (record.kind, record.key): record.seconds
        for record in lab.results.records
        if record.session in here
    }
    spent: dict[tuple[str, int], tuple[float, float]] = {}
    for study, job in planned:
        if job.cost and (study.name, job.key) in took:
            seconds, cost = spent.get((study.name, job.turn), (0.0, 0.0))
            more = took[study.name, job.key]
            spent[study.name, job.turn] = seconds + more, cost + job.cost
    if not spent:
        size = lab.scale.small
        return Forecast({}, lab.time_dense(size) / lab.scale.cost(size))
    rates = {owner: seconds / cost for owner, (seconds, cost) in spent.items()}
    seconds, cost = (sum(parts) for parts in zip(*spent.values(), strict=True))
    return Forecast(rates, seconds / cost)


def what_is_left(todo: Jobs, forecast: Forecast) -> list[Left]:
    """Return what is left by study and turn, in the order in which it is made."""
    found: dict[tuple[str, int], Left] = {}
    for study, job in todo:
        before = found.get((study.name, job.turn), Left(study.name, 0, 0.0))
        more = before.seconds + forecast.seconds(study, job)
        found[study.name, job.turn] = Left(study.name, before.count + 1, more)
    return list(found.values())
