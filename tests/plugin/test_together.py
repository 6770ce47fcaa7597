"""Together with what people combine: every cell of docs/compatibility.md is a case here."""

import copy
import itertools
import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import accelerate  # type: ignore[import-untyped]
import diffusers
import peft
import pytest
import tiny
import torch
from diffusers.models.attention_dispatch import _AttentionBackendRegistry
from torch._dynamo.utils import counters

from svoo import SVOOConfig, mini
from svoo.methods.svoo.method import SVOOMethod
from svoo.plugin.apply import Handle, apply

SETTINGS: dict[str, Any] = {"query_clusters": 4, "key_clusters": 8, "dense_layers": 0}
EVERYTHING = SVOOConfig(mass=1.0, dense_steps=0, **SETTINGS)
SPARSE = SVOOConfig(mass=0.5, dense_steps=1, **SETTINGS)
FAR = SVOOConfig(tolerance=0.003, worst_error=1.0, densest=1.0, **SETTINGS)
CPU = torch.device("cpu")
ODD_GRID = {"num_frames": 49, "height": 16 * 17, "width": 16 * 11, "output_type": "latent"}


def model_offload(pipe: Any) -> None:
    pipe.enable_model_cpu_offload(device="cpu")


def sequential_offload(pipe: Any) -> None:
    # diffusers asks accelerate for cpu:0, which fails with us or without; cpu works.
    offload = accelerate.cpu_offload

    def to_plain_cpu(module: Any, _device: Any, **options: Any) -> Any:
        return offload(module, CPU, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accelerate, "cpu_offload", to_plain_cpu)
        pipe.enable_sequential_cpu_offload(device="cpu")


def group_offload(pipe: Any) -> None:
    pipe.transformer.enable_group_offload(
        onload_device=CPU, offload_device=CPU, offload_type="block_level", num_blocks_per_group=1
    )


def group_offload_of_leaves(pipe: Any) -> None:
    pipe.enable_group_offload(onload_device=CPU, offload_device=CPU, offload_type="leaf_level")


def lora(pipe: Any) -> None:
    torch.manual_seed(0)
    trained = tiny.build("wan2.1-t2v")
    config = peft.LoraConfig(r=2, target_modules=["to_q", "to_v"], init_lora_weights=False)
    trained.transformer.add_adapter(config)
    layers = peft.get_peft_model_state_dict(trained.transformer)
    with tempfile.TemporaryDirectory() as folder:
        diffusers.WanPipeline.save_lora_weights(folder, transformer_lora_layers=layers)
        pipe.load_lora_weights(folder)


def lora_unloaded(pipe: Any) -> None:
    lora(pipe)
    pipe.unload_lora_weights()


def torchao_int8(pipe: Any) -> None:
    quantization = pytest.importorskip("torchao.quantization", reason="`make test` has torchao")
    quantization.quantize_(pipe.transformer, quantization.Int8WeightOnlyConfig())


def first_block_cache(pipe: Any) -> None:
    pipe.transformer.enable_cache(diffusers.FirstBlockCacheConfig(threshold=0.6))


def pyramid_broadcast(pipe: Any) -> None:
    pipe.transformer.enable_cache(
        diffusers.PyramidAttentionBroadcastConfig(
            spatial_attention_block_skip_range=2,
            spatial_attention_timestep_skip_range=(100, 900),
            current_timestep_callback=lambda: pipe.current_timestep,
        )
    )


def faster_cache(pipe: Any) -> None:
    pipe.transformer.enable_cache(
        diffusers.FasterCacheConfig(
            spatial_attention_block_skip_range=2,
            spatial_attention_timestep_skip_range=(-1, 900),
            unconditional_batch_skip_range=2,
            unconditional_batch_timestep_skip_range=(-1, 800),
            attention_weight_callback=lambda _module: 0.5,
            tensor_format="BCFHW",
            is_guidance_distilled=True,
            current_timestep_callback=lambda: pipe.current_timestep,
        )
    )


def cache_dit(pipe: Any) -> None:
    library = pytest.importorskip("cache_dit", reason="`make test` has cache-dit")
    settings = library.DBCacheConfig(
        Fn_compute_blocks=1, Bn_compute_blocks=0, max_warmup_steps=2, residual_diff_threshold=0.5
    )
    library.enable_cache(pipe, cache_config=settings)


def fused_projections(pipe: Any) -> None:
    pipe.transformer.fuse_qkv_projections()


def chosen_backend(pipe: Any) -> None:
    for block in pipe.transformer.blocks:
        block.attn1.set_attention_backend("_native_math")


def chosen_backend_of_the_model(pipe: Any) -> None:
    pipe.transformer.set_attention_backend("_native_math")


def compiled_by_blocks(pipe: Any) -> None:
    pipe.transformer.compile_repeated_blocks(fullgraph=True, backend="aot_eager")


def compiled_whole(pipe: Any) -> None:
    pipe.transformer.compile(fullgraph=True, backend="aot_eager")


def compiled_and_wrapped(pipe: Any) -> None:
    pipe.transformer = torch.compile(pipe.transformer, fullgraph=True, backend="aot_eager")


def nothing(_pipe: Any) -> None:
    """For what is combined by the call alone."""


CASES: dict[str, tuple[Callable[[Any], None], dict[str, Any]]] = {
    "model offload": (model_offload, {}),
    "sequential offload": (sequential_offload, {}),
    "group offload": (group_offload, {}),
    "group offload of leaves": (group_offload_of_leaves, {}),
    "LoRA": (lora, {}),
    "LoRA unloaded": (lora_unloaded, {}),
    "torchao int8": (torchao_int8, {}),
    "FirstBlockCache": (first_block_cache, {}),
    "PyramidAttentionBroadcast": (pyramid_broadcast, {}),
    "FasterCache": (faster_cache, {}),
    "cache-dit": (cache_dit, {}),
    "fused projections": (fused_projections, {}),
    "set_attention_backend": (chosen_backend, {}),
    "set_attention_backend of the model": (chosen_backend_of_the_model, {}),
    "torch.compile by blocks": (compiled_by_blocks, {}),
    "torch.compile in place": (compiled_whole, {}),
    "torch.compile wrapped": (compiled_and_wrapped, {}),
    "batch of prompts": (nothing, {"prompt": ["a red fox", "a dog"], "negative_prompt": None}),
    "videos per prompt": (nothing, {"num_videos_per_prompt": 2}),
    "no guidance": (nothing, {"guidance_scale": 1.0}),
    "odd grid": (nothing, ODD_GRID),
}  # fmt: skip


# These leave out some of 3 layers x 4 steps x 2 branches.
SKIPPING = ("FirstBlockCache", "PyramidAttentionBroadcast", "FasterCache")


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


@pytest.fixture(autouse=True)
def the_active_backend_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put back what `set_attention_backend` on a model changes for everybody."""
    active = _AttentionBackendRegistry._active_backend
    monkeypatch.setattr(_AttentionBackendRegistry, "_active_backend", active)


def applied(name: str, config: SVOOConfig, *, first: bool) -> tuple[Any, Handle]:
    """A pipeline with svoo applied before (`first`) or after the other thing."""
    pipe = tiny.build("wan2.1-t2v")
    combine = CASES[name][0]
    if not first:
        combine(pipe)
    handle = apply(pipe, config, profile=None)
    if first:
        combine(pipe)
    return pipe, handle


# Where two right float32 runs differ by more: latents of 2,431 tokens, not pixels; and a video
# whose dense run is itself 5e-5 from float64, ours 5e-5 on the other side (a Zen 5).
ROUNDING = {"odd grid": 1e-3, "batch of prompts": 3e-4}


@pytest.mark.parametrize("first", [True, False], ids=["svoo first", "svoo second"])
@pytest.mark.parametrize("name", CASES)
def test_everything_kept_it_is_the_combination_without_us(name: str, first: bool) -> None:
    combine, call = CASES[name]
    plain = tiny.build("wan2.1-t2v")
    combine(plain)
    expected = tiny.generate_all(plain, **call)
    torch._dynamo.reset()
    pipe, handle = applied(name, EVERYTHING, first=first)
    tolerance = ROUNDING.get(name, 1e-4)
    found = tiny.generate_all(pipe, **call)
    assert len(found) == (2 if name in ("batch of prompts", "videos per prompt") else 1)
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=0)
    assert sum(row.sparse_calls for row in handle.stats().layers) > 0


@pytest.mark.parametrize("first", [True, False], ids=["svoo first", "svoo second"])
@pytest.mark.parametrize("name", CASES)
def test_sparse_it_is_sparse_and_the_same_twice(name: str, first: bool) -> None:
    pipe, handle = applied(name, SPARSE, first=first)
    once = tiny.generate_all(pipe, **CASES[name][1])
    stats = handle.stats()
    assert stats.steps == 4 and 0 < (stats.density or 0) < 0.8
    assert all(row.sparse_calls > 0 for row in stats.layers)
    if name in SKIPPING:
        assert sum(row.sparse_calls + row.dense_calls for row in stats.layers) < 24
    torch.testing.assert_close(tiny.generate_all(pipe, **CASES[name][1]), once, atol=0, rtol=0)
    assert handle.stats().calls == 2


@pytest.mark.parametrize("first", [True, False], ids=["svoo first", "svoo second"])
@pytest.mark.parametrize(
    "name", ["model offload", "sequential offload", "group offload", "torchao int8"]
)
def test_default_mode_reads_weights_wherever_and_whatever_they_are(name: str, first: bool) -> None:
    pipe, handle = applied(name, FAR, first=first)
    video = tiny.generate(pipe)
    stats = handle.stats()
    assert not any("do not tell" in note for note in stats.notes)
    assert sum(row.sparse_calls for row in stats.layers) > 0
    plain = tiny.build("wan2.1-t2v")
    apply(plain, FAR, profile=None)
    if name != "torchao int8":
        torch.testing.assert_close(video, tiny.generate(plain), atol=0.05, rtol=0)


@pytest.mark.filterwarnings("ignore:In CPU autocast", "ignore:Mismatch dtype between input and")
@pytest.mark.parametrize("name", ["wan2.1-t2v", "hunyuanvideo-t2v", "cogvideox"])
def test_under_autocast_tokens_are_cast_as_torch_casts_them(name: str) -> None:
    """Norms leave float32 queries and keys beside bfloat16 values."""
    plain, pipe = tiny.build(name), tiny.build(name)
    handle = apply(pipe, EVERYTHING, profile=None)
    with torch.autocast("cpu", torch.bfloat16):
        expected, found = tiny.generate(plain), tiny.generate(pipe)
    assert sum(row.sparse_calls for row in handle.stats().layers) > 0
    assert float((found.float() - expected.float()).abs().mean()) < 0.02


# A forward that is compiled whole notes its place in a small graph of its own.
GRAPHS = {"torch.compile by blocks": 1, "torch.compile in place": 2, "torch.compile wrapped": 2}


@pytest.mark.parametrize("first", [True, False], ids=["svoo first", "svoo second"])
@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_do_not_grow_with_layers_steps_or_calls(name: str, first: bool) -> None:
    pipe, _ = applied(name, SPARSE, first=first)
    seen: list[int] = []

    def count(_pipe: Any, _step: int, _time: Any, state: dict[str, Any]) -> dict[str, Any]:
        seen.append(counters["stats"]["unique_graphs"])
        return state

    for _ in range(2):
        tiny.generate(pipe, steps=5, callback_on_step_end=count)
    assert len(seen) == 10
    # Three layers, one graph, none after the second step, none in the second call.
    assert seen[-1] == seen[1] == GRAPHS[name]


@pytest.mark.parametrize("name", ["torch.compile by blocks", "torch.compile in place"])
def test_graphs_do_not_grow_with_sizes(name: str) -> None:
    sizes = [(64, 64), (96, 64), (64, 96), (96, 96), (128, 64), (128, 96)]

    def generate(pipe: Any) -> Iterator[torch.Tensor]:
        for height, width in sizes:
            size = {"height": height, "width": width}
            yield tiny.generate(pipe, steps=2, output_type="latent", **size)

    plain = tiny.build("wan2.1-t2v")
    CASES[name][0](plain)
    for _ in generate(plain):
        pass
    without = counters["stats"]["unique_graphs"]
    torch._dynamo.reset()
    counters.clear()
    eager = tiny.build("wan2.1-t2v")
    apply(eager, SPARSE, profile=None)
    pipe, handle = applied(name, SPARSE, first=False)
    for found, expected in zip(generate(pipe), generate(eager), strict=True):
        assert torch.equal(found, expected)
    assert counters["stats"]["unique_graphs"] <= without * GRAPHS[name]
    assert handle.stats().calls == len(sizes)
    assert 0 < (handle.stats().density or 0) < 0.8


@pytest.mark.filterwarnings("ignore:In CPU autocast")  # Mochi's rope asks for one
@pytest.mark.parametrize("name", ["cogvideox", "mochi"])
def test_compiled_models_that_call_torch(name: str) -> None:
    eager, pipe = tiny.build(name), tiny.build(name)
    compiled_whole(pipe)
    apply(eager, SPARSE, profile=None)
    handle = apply(pipe, SPARSE, profile=None)
    assert torch.equal(tiny.generate(pipe, steps=3), tiny.generate(eager, steps=3))
    assert all(row.sparse_calls > 0 for row in handle.stats().layers)
    assert counters["stats"]["unique_graphs"] == 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("first", [True, False], ids=["svoo first", "svoo second"])
def test_half_precision(dtype: torch.dtype, first: bool) -> None:
    plain = tiny.build("wan2.1-t2v")
    single = tiny.generate(plain)
    plain.transformer.to(dtype)
    expected = tiny.generate(plain)
    pipe = tiny.build("wan2.1-t2v")
    if not first:
        pipe.transformer.to(dtype)
    handle = apply(pipe, EVERYTHING, profile=None)
    if first:
        pipe.transformer.to(dtype)
    difference = (tiny.generate(pipe) - expected).abs().mean()
    assert float(difference) < 2 * float((single - expected).abs().mean())  # two roundings
    assert sum(row.sparse_calls for row in handle.stats().layers) > 0
    handle = apply(pipe, SPARSE, profile=None)
    once = tiny.generate(pipe)
    assert bool(torch.isfinite(once).all())
    assert torch.equal(tiny.generate(pipe), once)
    assert all(row.sparse_calls > 0 for row in handle.stats().layers)
    assert 0 < (handle.stats().density or 0) < 0.8


def test_prompts_of_different_lengths() -> None:
    """HunyuanVideo pads its text: each sample has padding of its own."""
    pipe = tiny.build("hunyuanvideo-t2v")
    prompts: dict[str, Any] = {"prompt": [tiny.PROMPT, "a dog"]}
    plain = tiny.generate_all(pipe, **prompts)
    assert len(plain) == 2
    with apply(pipe, EVERYTHING, profile=None):
        torch.testing.assert_close(tiny.generate_all(pipe, **prompts), plain, atol=1e-4, rtol=0)
    with apply(pipe, SPARSE, profile=None) as handle:
        sparse = tiny.generate_all(pipe, **prompts)
        assert torch.equal(tiny.generate_all(pipe, **prompts), sparse)
        assert 0 < (handle.stats().density or 0) < 0.9
    assert not torch.equal(sparse, plain)


@pytest.mark.parametrize("first", [True, False], ids=["svoo first", "svoo second"])
def test_the_chosen_backend_runs_the_dense_calls(
    first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe, handle = applied("set_attention_backend", SPARSE, first=first)
    chosen = pipe.transformer.blocks[0].attn1.processor
    name = handle._runtime.stages[0].layers[0].dense_backend
    assert chosen._attention_backend is not name
    run, calls = _AttentionBackendRegistry._backends[name], []

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return run(*args, **kwargs)

    monkeypatch.setitem(_AttentionBackendRegistry._backends, name, counted)
    tiny.generate(pipe)
    assert len(calls) == sum(row.dense_calls for row in handle.stats().layers) == 6


@pytest.mark.parametrize("config", [EVERYTHING, SPARSE], ids=["mass 1", "mass 0.5"])
def test_saving_while_applied(config: SVOOConfig, tmp_path: Path) -> None:
    pipe = tiny.build("wan2.1-t2v")
    plain = tiny.generate(pipe)
    apply(pipe, config, profile=None)
    sparse = tiny.generate(pipe)
    pipe.save_pretrained(tmp_path)
    again = diffusers.WanPipeline.from_pretrained(tmp_path)
    again.set_progress_bar_config(disable=True)
    torch.testing.assert_close(tiny.generate(again), plain, atol=1e-4, rtol=0)
    assert torch.equal(tiny.generate(pipe), sparse)


@pytest.mark.parametrize("config", [EVERYTHING, SPARSE], ids=["mass 1", "mass 0.5"])
@pytest.mark.parametrize("whole", [True, False], ids=["pipeline", "transformer"])
def test_a_deep_copy_is_a_plain_pipeline(whole: bool, config: SVOOConfig) -> None:
    pipe = tiny.build("wan2.1-t2v")
    plain = tiny.generate(pipe)
    handle = apply(pipe, config, profile=None)
    sparse = tiny.generate(pipe)
    if whole:
        other = copy.deepcopy(pipe)
    else:
        other = tiny.build("wan2.1-t2v")
        other.transformer = copy.deepcopy(pipe.transformer)
    calls = handle.stats().calls
    assert torch.equal(tiny.generate(other), plain)
    assert handle.stats().calls == calls
    with apply(other, config, profile=None):
        assert torch.equal(tiny.generate(other), sparse)
        assert torch.equal(tiny.generate(pipe), sparse)
    assert torch.equal(tiny.generate(other), plain)
    handle.remove()
    assert torch.equal(tiny.generate(pipe), plain)


def tensors_of(value: Any, seen: set[int]) -> Iterator[torch.Tensor]:
    """Every tensor that an object holds, modules and their weights and mere views left out."""
    if id(value) in seen or isinstance(value, torch.nn.Module | diffusers.DiffusionPipeline):
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        storage = value.untyped_storage().data_ptr()
        if storage not in seen:
            seen.add(storage)
            yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from tensors_of(inner, seen)
    elif isinstance(value, list | tuple | set):
        for inner in value:
            yield from tensors_of(inner, seen)
    elif hasattr(value, "__dict__"):
        yield from tensors_of(vars(value), seen)


def test_no_more_is_held_than_the_state_that_is_stated() -> None:
    """On a GPU with offload this is what stays in its memory between layers."""
    config = replace(SPARSE, backend="blocked")  # the one that keeps memory on the CPU
    pipe, handle = applied("model offload", config, first=True)
    tiny.generate(pipe)
    runtime = handle._runtime
    seen: set[int] = set()
    assert runtime.session is not None and isinstance(runtime.session.method, SVOOMethod)
    states = runtime.session.method._states
    remembered = sum(tensor.nbytes for tensor in tensors_of(states, seen))
    summed = sum(tensor.nbytes for tensor in tensors_of(runtime.statistics, seen))
    kept = sum(tensor.nbytes for tensor in tensors_of(runtime.workspace, seen))
    assert min(remembered, summed, kept) > 0
    assert remembered + summed + kept == handle.stats().state_bytes


def peak_bytes(call: Callable[[], object], folder: Path) -> int:
    """The most that a call has allocated at any moment, as torch's profiler saw it."""
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        call()
    trace = folder / "trace.json"
    profile.export_chrome_trace(str(trace))
    events = json.loads(trace.read_text())["traceEvents"]
    changes = sorted(
        (event["ts"], event["args"]["Bytes"]) for event in events if event["name"] == "[memory]"
    )
    return max(itertools.accumulate(int(change) for _, change in changes))


@pytest.mark.parametrize("offload", [model_offload, sequential_offload, group_offload])
def test_peak_memory_with_offload_grows_by_no_more_than_the_state(
    offload: Callable[[Any], None], tmp_path: Path
) -> None:
    """On the CPU, with the embedded model at half size: its feed-forward layers make the peak,
    as those of the large models do."""
    pipe = mini.load()
    pipe.set_progress_bar_config(disable=True)
    offload(pipe)

    def generate() -> None:
        pipe(
            "a red circle moves left over a checkered floor",
            height=80,
            width=144,
            num_frames=49,
            num_inference_steps=3,
            max_sequence_length=32,
            output_type="latent",
        )

    generate()
    peak_bytes(generate, tmp_path)  # the first that is profiled seems to need more
    dense = peak_bytes(generate, tmp_path)
    with apply(pipe, SVOOConfig(dense_steps=1), profile=None) as handle:
        sparse = peak_bytes(generate, tmp_path)
        stats = handle.stats()
    assert (stats.density or 1) < 1
    assert dense > 10e6
    noise = 1000  # bytes, between two runs of the same
    assert sparse - dense <= stats.state_bytes + noise < 0.2 * dense
