"""Models that move, or lie on several devices: tensors without numbers that say they are on a GPU.

torch refuses operations on tensors of two devices and reads of their numbers, so what passes here
mixes nothing and waits for nothing."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import accelerate  # type: ignore[import-untyped]
import pytest
import tiny
import torch
from making import normal
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn import ModuleList

import svoo
from svoo import Session, SVOOConfig, VideoLayout
from svoo.kernels.triton.launch import Launch
from svoo.methods.svoo.method import SVOOMethod
from svoo.session import session as session_module
from svoo.session import stats

CONFIGS = {
    "paper": SVOOConfig.paper(),
    "means": SVOOConfig.mean_terms(),
    "far": SVOOConfig(),
    "equal": SVOOConfig(clustering="balanced", compensate="far", tolerance=0.002),
}
NAMES = pytest.mark.parametrize("name", CONFIGS)


class Always:
    """Contains everything."""

    def __contains__(self, _thing: object) -> bool:
        return True

    def add(self, _thing: object) -> None:
        """Keep nothing."""


def index(tensor: Tensor, places: Any) -> Tensor:
    """Do as `tensor[places]`, which asks for the device's driver even where there are no
    numbers."""
    places = places if isinstance(places, tuple) else (places,)
    real = sum(place is not None and place is not Ellipsis for place in places)
    axis = 0
    for place in places:
        if place is None:
            tensor = tensor.unsqueeze(axis)
        elif place is Ellipsis:
            axis += tensor.ndim - real - axis
            continue
        elif isinstance(place, slice):
            start, stop, step = place.indices(tensor.shape[axis])
            tensor = torch.ops.aten.slice.Tensor(tensor, axis, start, stop, step)
        elif isinstance(place, int):
            tensor = tensor.select(axis, place)
            continue
        else:
            chosen = torch.as_tensor(place).to(tensor.device)
            tensor = tensor.index_select(axis, chosen)
        axis += 1
    return tensor


def copy(tensor: Tensor) -> Tensor:
    """Do as `tensor.contiguous()`, which asks for the driver too."""
    whole = torch.contiguous_format
    return tensor if tensor.is_contiguous() else tensor.clone(memory_format=whole)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Two GPUs that are not there; the kernels that were started on them."""
    names: list[str] = []

    def run(launch: Launch) -> None:
        devices = {part.device for part in launch.arguments.values() if isinstance(part, Tensor)}
        assert len(devices) == 1, devices
        names.append(f"{launch.kernel.__name__} {devices.pop()}")

    monkeypatch.setattr(Launch, "run", run)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (9, 0))
    card = SimpleNamespace(multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: card)
    monkeypatch.setattr(session_module, "why_dense_pays", lambda *_sides: None)
    monkeypatch.setattr(stats.Stopwatch, "phase", lambda *_about: nullcontext())
    monkeypatch.setattr(FakeTensor, "__getitem__", index)
    monkeypatch.setattr(FakeTensor, "contiguous", copy)
    monkeypatch.setattr(FakeTensor, "__invert__", lambda own: torch.bitwise_not(own))
    with FakeTensorMode():
        yield names


def start(name: str, layers: int = 2) -> Session:
    session = Session(CONFIGS[name].always_sparse(), steps=3, layers=layers, heads=3)
    assert isinstance(session.method, SVOOMethod)
    session.method._looked_at = Always()  # type: ignore[assignment]  # looking would wait, once
    session.method._trusted = Always()  # type: ignore[assignment]
    return session


def tokens(device: str, dtype: torch.dtype = torch.bfloat16) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = (
        torch.empty(1, 210, 3, 64, dtype=dtype, device=device).transpose(1, 2) for _ in range(3)
    )
    return query, key, value


@NAMES
@pytest.mark.parametrize(("dtype", "text"), [(torch.bfloat16, 0), (torch.float16, 10)])
def test_a_gpu_that_is_not_the_first(
    launched: list[str], name: str, dtype: torch.dtype, text: int
) -> None:
    session = start(name)
    layout = VideoLayout(2, 10, 10, text=text) if text else None
    for step in range(2):
        sides = tokens("cuda:1", dtype)
        output = session.attend(*sides, step=step, layer=0, layout=layout)
        assert (output.device, output.dtype) == (torch.device("cuda:1"), dtype)
    assert launched.count("attend cuda:1") == 2 and all("cuda:1" in line for line in launched)


@NAMES
def test_layers_on_two_gpus(launched: list[str], name: str) -> None:
    """As `device_map="balanced"` spreads them."""
    session = start(name)
    for step in range(2):
        for layer in range(2):
            output = session.attend(*tokens(f"cuda:{layer}"), step=step, layer=layer)
            assert output.device == torch.device("cuda", layer)
    assert launched.count("attend cuda:0") == launched.count("attend cuda:1") == 2


@NAMES
def test_a_model_that_moves_between_steps(launched: list[str], name: str) -> None:
    """Labels of another device are not used; statistics follow the model."""
    session = start(name)
    for step, device in enumerate(("cuda:0", "cuda:1")):
        output = session.attend(*tokens(device), step=step, layer=0)
        assert output.device == torch.device(device)
    assert launched.count("attend cuda:0") == launched.count("attend cuda:1") == 1


@NAMES
def test_autocast_changes_nothing(name: str) -> None:
    """Sums stay in float32 under autocast; on the CPU, whose autocast is the same."""
    sides = [normal(1, 3, 210, 32, seed=seed) for seed in range(3)]

    def output() -> Tensor:
        return start(name).attend(sides[0], sides[1], sides[2], step=0, layer=0)

    plain = output()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(output(), plain)


def test_the_stand_in_refuses_two_devices(launched: list[str]) -> None:  # noqa: ARG001
    with pytest.raises(Exception, match="device"):
        torch.empty(3, device="cuda:0") + torch.empty(3, device="cuda:1")
    with pytest.raises(Exception, match=r"not linked|item|Data"):
        float(torch.empty((), device="cuda:0"))


SETTINGS: dict[str, Any] = {"query_clusters": 4, "key_clusters": 8, "dense_layers": 0}
SPARSE = SVOOConfig(mass=0.5, dense_steps=1, **SETTINGS)
PIPELINES = pytest.mark.parametrize("pipeline", ["wan2.1-t2v", "hunyuanvideo-t2v"])


def generate(pipe: Any, change: Callable[[Any], None], *, early: bool) -> Tensor:
    """Apply svoo before the pipeline is changed, or after it; return the video."""
    handle = svoo.apply(pipe, SPARSE) if early else None
    change(pipe)
    handle = handle or svoo.apply(pipe, SPARSE)
    with handle:
        video = tiny.generate(pipe)
        stats = handle.stats()
    assert stats.sparse_calls > 0 and stats.density is not None and stats.density < 1
    assert bool(video.isfinite().all())
    return video


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@PIPELINES
def test_applied_before_the_model_is_rounded(pipeline: str, dtype: torch.dtype) -> None:
    """Nothing is taken from the model when svoo is applied: as if it had been applied after."""

    def rounded(pipe: Any) -> None:
        pipe.to(dtype)

    early, late = (generate(tiny.build(pipeline), rounded, early=order) for order in (True, False))
    assert torch.equal(early, late)


@PIPELINES
def test_applied_while_the_model_has_no_numbers(pipeline: str) -> None:
    """On the device "meta" first, as `device_map` and `low_cpu_mem_usage` leave models, then on a
    real one."""
    pipe, plain = tiny.build(pipeline), tiny.build(pipeline)
    numbers = pipe.transformer.state_dict()
    for part in pipe.transformer.children():
        if isinstance(part, ModuleList):
            part.to("meta")
    kinds = [part.device.type for part in pipe.transformer.parameters()]
    assert kinds.count("meta") > len(kinds) / 2

    def filled(pipe: Any) -> None:
        pipe.transformer.load_state_dict(numbers, assign=True)

    video = generate(pipe, filled, early=True)
    assert torch.equal(video, generate(plain, lambda _pipe: None, early=True))


@pytest.mark.filterwarnings("ignore:The following device_map keys")  # a parameter, no module
@pytest.mark.parametrize("early", [True, False])
@PIPELINES
def test_a_device_map(tmp_path: Path, pipeline: str, early: bool) -> None:
    """Every second part of the model is kept on disk and has no numbers between its calls; what
    accelerate puts around each forward does not hide attention."""
    expected = generate(tiny.build(pipeline), lambda _pipe: None, early=True)

    def spread(pipe: Any) -> None:
        model = pipe.transformer
        parts = {
            f"{name}.{place}": "cpu" if place % 2 else "disk"
            for name, blocks in model.named_children()
            if isinstance(blocks, ModuleList)
            for place in range(len(blocks))
        }
        others = {name for name, _ in model.named_children()} - {
            name.split(".")[0] for name in parts
        }
        own = {name for name, _ in model.named_parameters(recurse=False)}
        device_map = parts | dict.fromkeys(others | own, "cpu")
        accelerate.dispatch_model(
            model, device_map, main_device="cpu", offload_dir=tmp_path, force_hooks=True
        )
        kinds = {part.device.type for part in model.parameters()}
        assert kinds == {"cpu", "meta"}  # some are on disk

    assert torch.equal(generate(tiny.build(pipeline), spread, early=early), expected)


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")  # the model's own
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_pipeline_under_autocast(dtype: torch.dtype) -> None:
    """Attention gets narrow tokens and gives them back; its own sums stay wide."""
    seen: set[torch.dtype] = set()

    def noted(session: Session, query: Tensor, *given: Any, **named: Any) -> Tensor:
        seen.add(query.dtype)
        output = attend(session, query, *given, **named)
        assert output.dtype == query.dtype
        return output

    attend = Session.attend
    with pytest.MonkeyPatch.context() as patch, torch.autocast("cpu", dtype=dtype):
        patch.setattr(Session, "attend", noted)
        video = generate(tiny.build("wan2.1-t2v"), lambda _pipe: None, early=True)
    assert dtype in seen and bool(video.isfinite().all())
