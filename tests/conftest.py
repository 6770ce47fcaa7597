import os
from pathlib import Path

# Some virtual machines advertise AMX and do not have it: bfloat16 products would crash.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import pytest
import torch
from hypothesis import HealthCheck, settings

# Two workers share two cores: more threads would fight over them.
torch.set_num_threads(1)

settings.register_profile(
    "svoo",
    deadline=None,  # the machine is shared; nothing here is a timing test
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("svoo")


@pytest.fixture(scope="session")
def official_profiles() -> Path:
    folder = Path(__file__).parents[2] / "shared" / "profiles"
    if not folder.is_dir():
        pytest.skip(f"the authors' profiles are not here: {folder} does not exist")
    return folder
