from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from PIL import Image

from svoo import Profile
from svoo.errors import ConfigError, FileError, ProfileError
from svoo.fleet import profiles as profiles_module
from svoo.fleet.cluster import Cluster
from svoo.fleet.profiles import record_by_name
from svoo.mini.pipeline import load
from svoo.plugin import load as load_module
from svoo.plugin.record import RecordConfig, record_profile
from svoo.plugin.request import Request, call_sizes, known_model

MEASURING = RecordConfig(rows=8, every=1, branch="both")
INPUTS = [{"prompt": text} for text in ("a red circle", "a blue star", "a green square")]
SMALL: dict[str, Any] = {"steps": 2, "frames": 5, "height": 32, "width": 48, "device": "cpu"}


def wanted(out: Path, **settings: Any) -> Request:
    return Request(prompt="", out=out, **SMALL | settings)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The file of one run of the pipeline over all inputs."""
    out = tmp_path_factory.mktemp("expected") / "p.safetensors"
    sizes = call_sizes(wanted(out), known_model("mini"))
    record_profile(load(), INPUTS, out=out, **vars(MEASURING), **sizes)
    return out.read_bytes()


def test_parts_of_many_workers_are_the_bytes_of_one_run(
    cluster: Cluster, expected: bytes, tmp_path: Path
) -> None:
    out = tmp_path / "p.safetensors"
    seen: list[float] = []
    found = record_by_name(wanted(out), INPUTS, MEASURING, cluster, on_progress=seen.append)
    assert found.profile is not None and found.profile.inputs == 2 * len(INPUTS)
    assert out.read_bytes() == expected and seen[-1] == len(INPUTS)
    assert [path.name for path in tmp_path.iterdir()] == [out.name]


class Breaking(profiles_module._RecordWorker):
    """A worker that fails at the inputs of a set."""

    broken: frozenset[int] = frozenset()
    error: BaseException = RuntimeError("broken")

    def __call__(self, index: int, on_step: Any) -> Profile | dict[str, str]:
        if index in self.broken:
            raise self.error
        return super().__call__(index, on_step)


def test_what_is_done_stays_and_the_rest_is_done_later(
    expected: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "p.safetensors"
    monkeypatch.setattr(profiles_module, "_RecordWorker", Breaking)
    monkeypatch.setattr(Breaking, "broken", frozenset({0, 1}))
    found = record_by_name(wanted(out), INPUTS, MEASURING, retries=0)
    assert found.profile is None
    assert [(bad.job, bad.error) for bad in found.failed] == [
        (0, "RuntimeError: broken"),
        (1, "RuntimeError: broken"),
    ]
    assert not out.exists()
    part = tmp_path / "p.safetensors.parts" / "00002.safetensors"
    before = part.stat().st_mtime_ns
    monkeypatch.setattr(Breaking, "broken", frozenset({1}))
    monkeypatch.setattr(Breaking, "error", KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        record_by_name(wanted(out), INPUTS, MEASURING)
    assert sorted(path.name for path in part.parent.iterdir()) == [
        "00000.safetensors",
        "00002.safetensors",
    ]
    assert part.stat().st_mtime_ns == before
    with pytest.raises(ProfileError, match=r"(?s)another request.*asked rows: 8 there, 9 now"):
        record_by_name(wanted(out), INPUTS, RecordConfig(rows=9, every=1, branch="both"))
    monkeypatch.setattr(Breaking, "broken", frozenset({0, 2}))
    record_by_name(wanted(out), INPUTS, MEASURING)
    assert out.read_bytes() == expected
    assert [path.name for path in tmp_path.iterdir()] == [out.name]


def test_parts_of_other_sizes_and_weights_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "p.safetensors"
    with monkeypatch.context() as patch:
        patch.setattr(profiles_module, "_RecordWorker", Breaking)
        patch.setattr(Breaking, "broken", frozenset({1, 2}))
        record_by_name(wanted(out), INPUTS, MEASURING, retries=0)
    with pytest.raises(ProfileError, match=r"(?s)another request.*height: 32 there, 48 now"):
        record_by_name(wanted(out, height=48), INPUTS, MEASURING)
    pipe = load()
    pipe.transformer.requires_grad_(requires_grad=False)
    next(iter(pipe.transformer.parameters())).add_(1)
    with monkeypatch.context() as patch:
        patch.setattr(load_module, "load_pipeline", lambda *_: pipe)
        with pytest.raises(ProfileError, match=r"(?s)another request.*weights: .* there, .* now"):
            record_by_name(wanted(out), INPUTS, MEASURING)
    record_by_name(wanted(out), INPUTS, MEASURING)
    before = out.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(load_module, "load_pipeline", lambda *_: pipe)
        with pytest.raises(ProfileError, match=r"(?s)another request.*weights: .* there, .* now"):
            record_by_name(wanted(out), INPUTS, MEASURING)
    assert out.read_bytes() == before


def test_recording_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_module, "load_pipeline", lambda *_: tiny.build("wan2.1-t2v"))
    out = tmp_path / "p.safetensors"
    request = Request(prompt="", out=out, model="x/y", steps=2, frames=5, height=32, width=32)
    found = record_by_name(request, [{"prompt": "a fox"}], RecordConfig(rows=4, every=1)).profile
    assert found is not None
    assert found.density.shape[1] == 2 and found.provenance["frames"] == "5"
    assert Profile.load(out).provenance == found.provenance
    picture = Image.fromarray(np.zeros((8, 8, 3), dtype=np.uint8))
    with pytest.raises(ConfigError, match="it takes no image"):
        request = Request(prompt="", out=tmp_path / "q.safetensors", model="x/y")
        record_by_name(request, [{"prompt": "a fox", "image": picture}], RecordConfig(rows=4))
    with pytest.raises(FileError, match="it is a folder"):
        record_by_name(
            Request(prompt="", out=tmp_path), [{"prompt": "a fox"}], RecordConfig(rows=4)
        )
