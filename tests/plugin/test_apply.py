"""`apply` on the real classes of the paper's models: right, reversible, repeatable."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

from svoo import SVOOConfig
from svoo.catalogue import find_model
from svoo.errors import ConfigError, ModelError, ProfileError, StrictError
from svoo.plugin import intercept
from svoo.plugin.apply import apply, recognise
from svoo.profiles.profile import Profile, flow_sigmas

SETTINGS: dict[str, Any] = {"query_clusters": 4, "key_clusters": 8, "dense_layers": 1}
SPARSE = SVOOConfig(mass=0.5, dense_steps=1, **SETTINGS)


def attributes(pipe: Any) -> list[tuple[Any, ...]]:
    """Everything that applying might leave behind on the transformers."""
    found = []
    for transformer in (pipe.transformer, getattr(pipe, "transformer_2", None)):
        if transformer is not None:
            for name, module in transformer.named_modules():
                processor = getattr(module, "processor", None)
                found.append(
                    (
                        name,
                        sorted(module.__dict__),
                        len(module._forward_pre_hooks),
                        id(processor),
                        type(processor),
                        None if processor is None else dict(processor.__dict__),
                    )
                )
    return found


@pytest.mark.parametrize("name", tiny.PIPELINES)
def test_mass_one_is_dense_sparse_is_sparse_and_remove_restores(name: str) -> None:
    pipe = tiny.build(name)
    dense = tiny.generate(pipe)
    before = attributes(pipe)  # after a call, because diffusers leaves its own traces

    everything = SVOOConfig(mass=1.0, dense_steps=0, compensate=False, **SETTINGS)
    with apply(pipe, everything, profile=None) as handle:
        same = tiny.generate(pipe)
        assert handle.stats().density == pytest.approx(1.0)
    torch.testing.assert_close(same, dense, atol=1e-4, rtol=0)

    handle = apply(pipe, SPARSE)
    first, second = tiny.generate(pipe), tiny.generate(pipe)
    assert torch.equal(first, second)
    assert not torch.equal(first, dense)
    density = handle.stats().density
    assert density is not None
    assert density < 0.9
    handle.remove()
    handle.remove()
    assert attributes(pipe) == before
    assert torch.equal(tiny.generate(pipe), dense)


@pytest.mark.parametrize("name", ["wan2.1-i2v", "hunyuanvideo-t2v"])
def test_only_video_self_attention_is_touched(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that reach a layer are all from video self-attention; others stay with diffusers."""
    pipe = tiny.build(name)
    handle = apply(pipe, SPARSE)
    touched = {id(layer) for layer in handle._runtime.stages[0].layers}
    elsewhere = []
    dense = intercept.dense_attention

    def noting(backend: object, **arguments: Any) -> torch.Tensor:
        elsewhere.append((arguments["query"].shape[1], arguments["key"].shape[1]))
        return dense(backend, **arguments)

    monkeypatch.setattr(intercept, "dense_attention", noting)
    tiny.generate(pipe)
    assert elsewhere == []  # cross-attention has processors of its own and never comes here
    data = handle.stats()
    calls = sum(row.sparse_calls + row.dense_calls for row in data.layers)
    forwards = 8 if name.startswith("wan") else 4
    assert calls == forwards * len(touched)


def test_padding_text_receives_no_attention() -> None:
    """A longer padding changes nothing, sparse or not."""
    pipe = tiny.build("hunyuanvideo-t2v")
    with apply(pipe, SPARSE):
        short = tiny.generate(pipe, max_sequence_length=12)
        long = tiny.generate(pipe, max_sequence_length=48)
    torch.testing.assert_close(short, long, atol=1e-4, rtol=0)


def test_applying_twice_replaces() -> None:
    pipe = tiny.build("wan2.1-t2v")
    before = attributes(pipe)
    first = apply(pipe, SPARSE)
    second = apply(pipe, SPARSE)
    tiny.generate(pipe, steps=2)
    assert first.stats().calls == 0
    assert second.stats().calls == 1
    first.remove()  # it was replaced: nothing left to undo
    tiny.generate(pipe, steps=2)
    assert second.stats().calls == 2
    second.remove()
    assert attributes(pipe) == before


def test_a_failure_half_way_rolls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = tiny.build("wan2.2-t2v")
    before = attributes(pipe)
    bind, count = intercept.bind, iter(range(100))

    def failing(*arguments: Any, **options: Any) -> Any:
        if next(count) == 4:  # in the second expert
            raise RuntimeError("no more")
        return bind(*arguments, **options)

    monkeypatch.setattr(intercept, "bind", failing)
    with pytest.raises(RuntimeError, match="no more"):
        apply(pipe, SPARSE)
    assert attributes(pipe) == before


def test_an_exception_inside_the_with_block_restores() -> None:
    pipe = tiny.build("wan2.1-t2v")
    before = attributes(pipe)

    def interrupt(*_: object) -> dict[str, Any]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), apply(pipe, SPARSE):
        tiny.generate(pipe, callback_on_step_end=interrupt)
    assert attributes(pipe) == before


def test_two_pipelines_in_two_threads() -> None:
    names = ("wan2.1-t2v", "hunyuanvideo-t2v")

    def run(name: str) -> torch.Tensor:
        pipe = tiny.build(name)
        apply(pipe, SPARSE)
        return tiny.generate(pipe, steps=6)

    alone = [run(name) for name in names]
    pipes = [tiny.build(name) for name in names]
    for pipe in pipes:
        apply(pipe, SPARSE)
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(lambda pipe: tiny.generate(pipe, steps=6), pipes))
    for one, two in zip(alone, together, strict=True):
        assert torch.equal(one, two)


def test_branches_share_labels_unless_told_not_to() -> None:
    states = {}
    for shared in (True, False):
        pipe = tiny.build("wan2.1-t2v")
        config = SVOOConfig(mass=0.5, dense_steps=1, share_branches=shared, **SETTINGS)
        handle = apply(pipe, config)
        tiny.generate(pipe, steps=3)
        session = handle._runtime.session
        assert session is not None
        states[shared] = session.method.state_bytes
    # Orders of 48 tokens on two sides and sizes of the clusters, four heads, two bytes.
    one = (2 * 48 + SETTINGS["query_clusters"] + SETTINGS["key_clusters"]) * 4 * 2
    assert states == {True: 2 * one, False: 4 * one}  # two sparse layers


def test_the_dense_method_only_counts() -> None:
    pipe = tiny.build("wan2.1-t2v")
    dense = tiny.generate(pipe)
    with apply(pipe, method="dense") as handle:
        assert torch.equal(tiny.generate(pipe), dense)
        assert handle.stats().density is None
        assert "24 dense calls: the method is dense" in handle.summary()


def test_a_replaced_transformer_is_told_of_once_and_refused_where_strict() -> None:
    pipe = tiny.build("wan2.1-t2v")
    handle, own = apply(pipe, SPARSE), pipe.transformer
    tiny.generate(pipe, steps=2)
    before = handle.stats()
    assert before.density is not None and before.notes == ()
    pipe.transformer = tiny.wan_transformer()
    tiny.generate(pipe, steps=2)
    with pytest.warns(UserWarning, match="replaced after svoo.apply: the new one is dense; apply"):
        summary = handle.summary()
    assert "the new one is dense" in " ".join(summary.split())
    assert "the new one is dense" in " ".join(handle.summary().split())  # no second warning
    assert handle.stats().layers == before.layers  # what ran dense is not counted as sparse
    pipe.transformer = own
    handle = apply(pipe, replace(SPARSE, strict=True))
    pipe.transformer = tiny.wan_transformer()
    with pytest.raises(StrictError, match="strict: the next video would be dense: .* replaced"):
        handle.summary()


def test_strict_pipelines_stop_where_a_call_would_be_dense() -> None:
    pipe = tiny.build("wan2.1-t2v")
    apply(pipe, replace(SPARSE, strict=True))
    tiny.generate(pipe, steps=2)  # warm-up and first layer are planned
    never = SVOOConfig(tolerance=1e-9, query_clusters=4, key_clusters=8, strict=True)
    apply(pipe, never)
    with pytest.raises(StrictError, match="layer 0 at step 0 would be dense: keeping .* not pay"):
        tiny.generate(pipe, steps=2)


def test_random_weights_end_right_at_the_default_tolerance() -> None:
    """Nobody measured this model: its layers are close to dense, or dense with a reason."""
    pipe = tiny.build("wan2.1-t2v")
    handle = apply(pipe, SVOOConfig())
    tiny.generate(pipe, steps=4)
    layers = handle.stats().layers
    assert layers
    for layer in layers:
        close = layer.error is not None and layer.error < 0.3
        why = " ".join(layer.dense_reasons)
        assert close or "would not pay" in why or "outputs would be" in why


def test_models_are_recognised_by_hub_id_or_by_sizes() -> None:
    pipe = tiny.build("wan2.2-i2v")
    assert recognise(pipe) is None  # three layers are nobody's
    pipe.register_to_config(_name_or_path="Wan-AI/Wan2.2-I2V-A14B-Diffusers")
    assert recognise(pipe) is find_model("wan2.2-i2v-a14b")
    assert recognise(tiny.wan_transformer()) is None


def test_bad_input() -> None:
    pipe = tiny.build("wan2.1-t2v")
    masses = torch.tensor([0.95], dtype=torch.float64)
    wrong = Profile(
        torch.zeros(1, 4, 30, 12, 1), flow_sigmas(4, 3.0), torch.zeros(4).long(), masses
    )
    with pytest.raises(ProfileError, match="has 30 layers x 12 heads, the model has 3 x 4"):
        apply(pipe, SPARSE, profile=wrong)
    with pytest.raises(ConfigError, match="no method called 'magic'; there are dense, svoo"):
        apply(pipe, "magic")
    with pytest.raises(ConfigError, match="method must be a MethodConfig .* got {}"):
        apply(pipe, {})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="needs a model of the catalogue"):
        apply(pipe, "release")
    for nothing in ("nope", Path("nope")):
        with pytest.raises(ProfileError, match="nope"):
            apply(pipe, SPARSE, profile=nothing)
    with pytest.raises(ConfigError, match="profile must be a Profile, the path of one"):
        apply(pipe, SPARSE, profile=5)  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="has no video transformer"):
        apply("a path is no pipeline")
    with pytest.raises(ConfigError, match=r"step must be in 0 \.\. 9, got 10"):
        apply(pipe, SPARSE).set_step(10, 10)
    for bad in (0.5, "1", True):
        with pytest.raises(ConfigError, match="step must be a whole number"):
            apply(pipe, SPARSE).set_step(bad, 10)  # type: ignore[arg-type]
