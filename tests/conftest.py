import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

# Some virtual machines advertise AMX and do not have it: bfloat16 products would crash.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings

from svoo.kernels.cpp.build import COMPILERS

# Triton reads this when it is imported: without a GPU its kernels run in its interpreter.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

# Two workers share two cores: more threads would fight over them.
torch.set_num_threads(1)

settings.register_profile(
    "shrink",  # pytest --hypothesis-profile shrink: the smallest failing example, after minutes
    deadline=None,  # the machine is shared; nothing here is a timing test
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "svoo",
    settings.get_profile("shrink"),
    phases=[phase for phase in Phase if phase not in (Phase.shrink, Phase.explain)],
)
settings.load_profile("svoo")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--comfyui", help="a checkout of ComfyUI, its environment in or beside it")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("comfyui") and not item.config.getoption("--comfyui"):
        pytest.skip("needs a checkout of ComfyUI: make test-comfyui COMFYUI_PATH=...")
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    if item.get_closest_marker("compiler") and not any(map(shutil.which, COMPILERS)):
        pytest.skip("needs a C++ compiler")


@pytest.fixture(
    scope="session", params=["interpreter", pytest.param("cuda", marks=pytest.mark.gpu)]
)
def kernel_device(request: pytest.FixtureRequest) -> torch.device:
    """Where Triton kernels run: in the interpreter, or on a GPU (`make test-gpu`)."""
    if request.param == "cuda":
        return torch.device("cuda")
    if torch.cuda.is_available():
        pytest.skip("Triton's interpreter is for machines without a CUDA device")
    from triton.runtime import interpreter

    # It cuts off what bfloat16 has no bits for, up to 2^-7 of a number, where a GPU rounds to the
    # nearest, up to 2^-8.
    interpreter._convert_float = partial(round_to_bfloat16, interpreter._convert_float)
    return torch.device("cpu")


def round_to_bfloat16(
    convert: Callable[..., Any], numbers: Any, source: Any, target: Any, mode: Any
) -> Any:
    """Do as Triton's `_convert_float`, but round float32 to bfloat16 as a GPU does."""
    if (str(source), str(target)) != ("fp32", "bf16"):
        return convert(numbers, source, target, mode)
    rounded = torch.from_numpy(numbers.copy()).bfloat16()
    return rounded.view(torch.uint16).numpy()


@pytest.fixture(scope="module")
def fresh_memory_is_nan() -> Iterator[None]:
    """New memory is filled with NaN, so that reading what was never written shows."""
    torch.use_deterministic_algorithms(mode=True)
    assert bool(torch.empty(3).isnan().all())
    yield
    torch.use_deterministic_algorithms(mode=False)


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def official_profiles() -> Path:
    folder = Path(__file__).parents[2] / "shared" / "profiles"
    if not folder.is_dir():
        pytest.skip(f"the authors' profiles are not here: {folder} does not exist")
    return folder


@pytest.fixture(scope="session")
def goldens() -> Path:
    """The folder of what the other methods' own code decided, see its README."""
    folder = Path(__file__).parents[2] / "shared" / "goldens"
    if not folder.is_dir():
        pytest.skip(f"the goldens are not here: {folder} does not exist")
    return folder
