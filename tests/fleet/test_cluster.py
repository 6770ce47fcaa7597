import inspect
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from svoo.errors import ConfigError
from svoo.fleet.cluster import Cluster, WorkersDieError, _share, open_cluster
from svoo.fleet.jobs import OnStep, Outcome, Worker, run_jobs

pytest.importorskip("ray", reason="ray is not installed: pip install 'svoo[fleet]'")


def by_index(outcomes: Iterator[Outcome[int, int]]) -> list[Outcome[int, int]]:
    return sorted(outcomes, key=lambda outcome: outcome.index)


@pytest.mark.parametrize(
    ("nodes", "asked", "expected"),
    [
        ([{"CPU": 6}, {"CPU": 6}], None, (3, {"num_cpus": 3})),  # 4 each would fit twice
        ([{"CPU": 10}, {"CPU": 10}], None, (5, {"num_cpus": 3})),
        ([{"CPU": 6}, {"CPU": 2}], None, (2, {"num_cpus": 3})),
        ([{"CPU": 1}, {"CPU": 1}], 3, (3, {"num_cpus": 0.33})),
        ([{"CPU": 4, "GPU": 8}], None, (8, {"num_gpus": 1, "num_cpus": 0})),
        ([{"CPU": 64, "GPU": 8}, {"CPU": 2}], None, (8, {"num_gpus": 1, "num_cpus": 1})),
    ],
)
def test_every_worker_fits_on_a_machine(
    nodes: list[dict[str, float]], asked: int | None, expected: tuple[int, dict[str, float]]
) -> None:
    listed = [{"Alive": True, "Resources": node} for node in nodes]
    found = _share(SimpleNamespace(nodes=lambda: listed), asked, use_gpus=True)
    assert found.workers == expected[0]
    assert found.resources == pytest.approx(expected[1], abs=0.01)
    each = found.resources["num_cpus"]
    room = sum(node["CPU"] // each for node in nodes) if each else found.workers
    assert room >= found.workers


def test_the_same_outcomes_as_in_this_process(cluster: Cluster) -> None:
    def make_worker() -> Worker[int, int]:  # inside: Ray sends it by value
        def worker(job: int, on_step: OnStep) -> int:
            on_step(1, 1)
            if job == 1:
                raise ConfigError("no one")
            if job == 2:
                raise RuntimeError("two\nand more")
            return job * 10

        return worker

    jobs = [0, 1, 2, 3, 4]
    seen: list[float] = []
    found = by_index(run_jobs(jobs, make_worker, cluster=cluster, on_progress=seen.append))
    assert found == list(run_jobs(jobs, make_worker))
    assert seen[-1] == len(jobs)


def test_ray_prints_nothing_of_a_dead_worker_to_the_output(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    import ray

    assert cluster.workers == 2
    news = {"lines": ["A worker died"], "pid": "raylet", "is_err": False, "ip": "", "job": None}
    ray._private.worker.print_to_stdstream(news, ignore_prefix=False)
    assert capsys.readouterr().out == ""  # what the thread calls that listens for such news
    source = inspect.getsource(ray._private.worker.listen_error_messages)
    assert "print_to_stdstream(" in source


def test_a_worker_that_is_killed_is_replaced_and_its_job_done(
    cluster: Cluster, tmp_path: Path
) -> None:
    def make_worker() -> Worker[int, int]:
        (tmp_path / f"loaded-{os.getpid()}").touch()

        def worker(job: int, _on_step: OnStep) -> int:
            first = job == 1 and not (tmp_path / "killed").exists()
            if first:
                (tmp_path / "killed").touch()
            if first or job == 9:  # one dies once, nine always
                os.kill(os.getpid(), signal.SIGKILL)
            return job * 10

        return worker

    found = by_index(run_jobs([0, 1, 2, 9], make_worker, cluster=cluster, retries=1))
    assert [outcome.result for outcome in found] == [0, 10, 20, None]
    assert found[1].attempts == found[3].attempts == 2
    assert "its worker died" in str(found[3].error)
    assert len(list(tmp_path.glob("loaded-*"))) <= 2 + 3  # one per worker, two and those killed


def test_workers_that_cannot_begin(cluster: Cluster) -> None:
    def refuse() -> Worker[int, int]:
        raise ConfigError("no such model")

    with pytest.raises(ConfigError, match="no such model"):
        list(run_jobs([1], refuse, cluster=cluster))

    def crash() -> Worker[int, int]:
        raise RuntimeError("no room")

    with pytest.raises(WorkersDieError, match="cannot start: RuntimeError: no room"):
        list(run_jobs(list(range(9)), crash, cluster=cluster, retries=0))


def refusal(address: str | None, workers: int | None = None) -> str:
    with pytest.raises(ConfigError) as caught, open_cluster(address, workers=workers):
        pass
    return str(caught.value)


def test_addresses_that_do_not_answer() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, and nobody listens
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert f"--ray {address} does not answer" in refusal(address)
    for wrong in ("here", "host:", ":6379", "host:name", "host:99999", "ray://host"):
        assert f"got {wrong!r}" in refusal(wrong)


def test_no_cluster_is_this_process() -> None:
    with open_cluster(None) as found:
        assert found is None
    assert "--workers needs --ray" in refusal(None, 2)
    assert "--workers must be a whole number from 1, got 0" in refusal("local", 0)


@pytest.mark.parametrize(
    ("nodes", "workers", "expected"),
    [
        ([{"GPU": 8, "CPU": 64}, {"GPU": 8, "CPU": 64}], None, (16, {"num_gpus": 1})),
        ([{"GPU": 8, "CPU": 64}], 3, (3, {"num_gpus": 1})),
        ([{"CPU": 16}], None, (4, {"num_cpus": 4})),
        ([{"CPU": 3}], None, (1, {"num_cpus": 3})),
        ([{"CPU": 2}, {"CPU": 2}], 1, (1, {"num_cpus": 2})),  # no more than one machine has
    ],
)
def test_a_cluster_is_divided(
    nodes: list[dict[str, float]], workers: int | None, expected: tuple[int, dict[str, float]]
) -> None:
    found = _share(fake_ray(nodes), workers, use_gpus=True)
    assert found.workers == expected[0] and expected[1].items() <= found.resources.items()


def test_more_workers_than_there_is_room_for() -> None:
    with pytest.raises(ConfigError, match="--workers 9: the cluster has 8 GPUs"):
        _share(fake_ray([{"GPU": 8, "CPU": 64}]), 9, use_gpus=True)
    many = _share(fake_ray([{"CPU": 2}]), 5, use_gpus=True)
    assert many.workers == 5 and 5 * many.resources["num_cpus"] <= 2
    assert _share(fake_ray([{"GPU": 8, "CPU": 8}]), None, use_gpus=False).workers == 2


def fake_ray(nodes: list[dict[str, float]]) -> Any:
    return SimpleNamespace(nodes=lambda: [{"Alive": True, "Resources": node} for node in nodes])
