from typing import Any

import pytest
import tiny
import torch
from diffusers.models.attention_dispatch import AttentionBackendName, _AttentionBackendRegistry
from diffusers.models.transformers.transformer_wan import WanAttnProcessor

from svoo import SVOOConfig
from svoo.plugin import intercept
from svoo.plugin.apply import Handle, apply

CONFIG = SVOOConfig(mass=0.5, query_clusters=4, key_clusters=8, dense_steps=1, dense_layers=0)


def test_the_backend_cannot_be_chosen_by_name() -> None:
    pipe = tiny.build("wan2.1-t2v")
    apply(pipe, CONFIG)
    with pytest.raises(ValueError, match="svoo"):
        pipe.transformer.set_attention_backend("svoo")


def test_cuda_graphs_leave_our_operator_out() -> None:
    """A graph would freeze the dense decisions of the warm-up."""
    assert torch.Tag.cudagraph_unsafe in torch.ops.svoo.attend.default.tags


def test_a_chosen_attention_backend_becomes_the_dense_fallback() -> None:
    pipe = tiny.build("wan2.1-t2v")
    handle = apply(pipe, CONFIG)
    layer: Any = handle._runtime.stages[0].layers[0]
    seam_backend = pipe.transformer.blocks[0].attn1.processor._attention_backend
    pipe.transformer.blocks[0].attn1.set_attention_backend("native")
    assert pipe.transformer.blocks[0].attn1.processor._attention_backend is seam_backend
    assert layer.dense_backend == "native"
    handle.remove()
    assert pipe.transformer.blocks[0].attn1.processor._attention_backend == "native"


def test_what_is_no_plain_self_attention_goes_to_diffusers() -> None:
    query, key = torch.randn(1, 6, 2, 8), torch.randn(1, 4, 2, 8)
    expected = torch.nn.functional.scaled_dot_product_attention(
        query.transpose(1, 2), key.transpose(1, 2), key.transpose(1, 2)
    ).transpose(1, 2)
    torch.testing.assert_close(intercept._attend(query, key, key), expected)


def count_calls(handle: Handle) -> list[int]:
    return [row.sparse_calls for row in handle.stats().layers]


def test_processors_that_are_replaced_later_are_taken_over() -> None:
    pipe = tiny.build("wan2.1-t2v")
    plain = tiny.generate(pipe)
    with apply(pipe, CONFIG, profile=None) as handle:
        sparse = tiny.generate(pipe)
        mine = WanAttnProcessor()
        pipe.transformer.set_attn_processor(mine)
        assert torch.equal(tiny.generate(pipe), sparse)
        assert count_calls(handle) == [12, 12, 12]
        assert "note: processors were replaced after svoo was applied" in handle.summary()
    assert pipe.transformer.blocks[0].attn1.processor is mine
    assert torch.equal(tiny.generate(pipe), plain)


@pytest.mark.parametrize("first", [True, False], ids=["svoo first", "svoo second"])
def test_fusing_that_replaces_processors(first: bool) -> None:
    """CogVideoX keeps the processors to put them back: ours, if svoo came first."""
    pipe = tiny.build("cogvideox")
    plain = tiny.generate(pipe)
    if not first:
        pipe.transformer.fuse_qkv_projections()
    handle = apply(pipe, CONFIG, profile=None)
    if first:
        pipe.transformer.fuse_qkv_projections()
    sparse = tiny.generate(pipe)
    assert not torch.allclose(sparse, plain, atol=1e-4)
    assert min(count_calls(handle)) > 0
    handle.remove()
    pipe.transformer.unfuse_qkv_projections()
    calls = count_calls(handle)
    assert torch.equal(tiny.generate(pipe), plain)
    assert count_calls(handle) == calls


def test_unfusing_while_applied_stays_sparse() -> None:
    pipe = tiny.build("cogvideox")
    handle = apply(pipe, CONFIG, profile=None)
    sparse = tiny.generate(pipe)
    pipe.transformer.fuse_qkv_projections()
    pipe.transformer.unfuse_qkv_projections()
    assert torch.equal(tiny.generate(pipe), sparse)
    assert not handle.stats().notes


def test_models_that_call_torch_stay_with_it_where_dense(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not with diffusers' active backend, which they have never heard of."""
    pipe = tiny.build("cogvideox")
    plain = tiny.generate(pipe)
    other = AttentionBackendName._NATIVE_MATH
    monkeypatch.setattr(_AttentionBackendRegistry, "_active_backend", other)
    monkeypatch.delitem(_AttentionBackendRegistry._backends, other)
    with apply(pipe, method="dense") as handle:
        assert torch.equal(tiny.generate(pipe), plain)
        assert sum(row.dense_calls for row in handle.stats().layers) == 12


def test_applied_in_inference_mode_it_runs_outside_too() -> None:
    pipe = tiny.build("wan2.1-t2v")
    with torch.inference_mode():
        apply(pipe, CONFIG, profile=None)
        inside = tiny.generate(pipe)
    assert torch.equal(tiny.generate(pipe), inside)
