from typing import Any

import pytest
import tiny
import torch

from svoo import SVOOConfig
from svoo.plugin import seam
from svoo.plugin.handle import apply

CONFIG = SVOOConfig(mass=0.5, query_clusters=4, key_clusters=8, dense_steps=1, dense_layers=0)


def test_the_backend_cannot_be_chosen_by_name() -> None:
    pipe = tiny.build("wan2.1-t2v")
    apply(pipe, CONFIG)
    with pytest.raises(ValueError, match="svoo"):
        pipe.transformer.set_attention_backend("svoo")


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
    torch.testing.assert_close(seam._attend(query, key, key), expected)
