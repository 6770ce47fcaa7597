import re

from comfy_stub import Patcher, WanModel, sample
from making import normal

from integrations.comfyui.report import write_report
from integrations.comfyui.settings import Settings
from integrations.comfyui.sparse import SparseModel
from svoo import SVOOConfig


def test_the_report_has_density_error_dense_calls_and_time() -> None:
    added = SparseModel(Settings(least_tokens=0, dense_blocks=frozenset([1])))
    added.config = SVOOConfig(
        tolerance=None, compensate=False, mass=0.3, dense_steps=0, dense_layers=0,
        query_clusters=6, key_clusters=12,
    )  # fmt: skip
    assert "nothing was sampled" in write_report(added)
    clone = Patcher(WanModel())
    added.install(clone)
    sample(clone, normal(1, 4, 3, 8, 12), normal(1, 7, 16), steps=3)
    text = write_report(added)
    assert text.splitlines()[:3] == [
        "SVOO sparse attention: svoo (balanced), 3 steps, 72 video tokens (3 x 4 x 6)",
        "attention calls: 3 sparse, 3 dense",
        "  3 dense: dense_blocks names the block",
    ]
    density = re.search(r"density of the sparse calls: ([\d.]+) of all query-key pairs", text)
    error = re.search(r"error of the attention output: ([\d.]+) on average, .* in block 0", text)
    assert density and 0 < float(density[1]) < 1
    assert error and 0 < float(error[1]) < 1
    assert re.search(r"time in attention: .*sparse attention [\d.]+ s", text)
    assert "backend: " in text


def test_the_measured_error_of_exact_attention_is_zero() -> None:
    added = SparseModel(Settings(least_tokens=0))
    added.config = SVOOConfig(
        tolerance=None, compensate=False, mass=1, dense_steps=0, dense_layers=0
    )
    clone = Patcher(WanModel())
    added.install(clone)
    sample(clone, normal(1, 4, 3, 8, 12), normal(1, 7, 16))
    assert "error of the attention output: 0.000 on average, 0.000" in write_report(added)
