from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, get_ident

import pytest
import torch

from svoo.kernels.cpp.threads import _find_openmp_pause, find_threads


def _count_threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def test_every_worker_takes_part_on_one_torch_thread() -> None:
    before = torch.get_num_threads()
    all_here = Barrier(3, timeout=60)
    seen: dict[str, tuple[int, int, bool]] = {}

    def job(tool: str) -> None:
        all_here.wait()
        seen[tool] = get_ident(), torch.get_num_threads(), torch.is_grad_enabled()

    find_threads(3).run(job, ["hammer", "saw", "plane"])
    assert torch.get_num_threads() == before
    assert {threads for _, threads, _ in seen.values()} == {1}
    assert len({worker for worker, _, _ in seen.values()}) == 3
    assert seen["hammer"][0] == get_ident()
    assert not any(grad for _, _, grad in seen.values())


@pytest.mark.parametrize("inference", [False, True])
def test_workers_are_in_the_mode_of_the_caller(inference: bool) -> None:
    modes: list[bool] = []
    with torch.inference_mode(inference):
        find_threads(2).run(lambda _: modes.append(torch.is_inference_mode_enabled()), [1, 2])
    assert modes == [inference, inference]


def test_threads_are_kept() -> None:
    assert find_threads(2) is find_threads(2)
    assert find_threads(2) is not find_threads(1)


def test_torch_computes_in_parallel_again_after_its_threads_were_sent_to_sleep() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        find_threads(2).run(lambda _: None, [1, 2])
        asleep, large = _count_threads(), torch.ones(2_000_000)
        large.exp()
        if _find_openmp_pause() is not None:
            assert _count_threads() == asleep + 1  # OpenMP's second thread is there again
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(lambda: float(large.sum())).result() == 2_000_000
    finally:
        torch.set_num_threads(before)


def test_a_crew_of_one_leaves_the_threads_as_they_were() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        find_threads(1).run(lambda _: None, [1])
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
