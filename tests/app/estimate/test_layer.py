"""The layer that is timed does the work of the real one."""

import pytest
import torch
from diffusers.models.transformers.transformer_wan import WanTransformerBlock
from torch.utils.flop_counter import FlopCounterMode

from svoo.app.estimate.data import find_architecture
from svoo.app.estimate.layer import Layer
from svoo.app.estimate.roofline import count_forward
from svoo.catalogue import find_model

CPU = torch.device("cpu")


def test_as_many_products_as_diffusers_block_and_as_are_counted() -> None:
    model = find_model("mini")
    sizes, tokens = find_architecture(model), 96
    width = model.heads * model.head_dim
    layer = Layer(model, sizes, CPU, torch.float32)
    with FlopCounterMode(display=False) as ours:
        states = layer(layer.draw(tokens))
    assert states.shape == (1, tokens, width) and states.dtype == torch.float32
    block = WanTransformerBlock(width, sizes.feed_forward, model.heads, cross_attn_norm=True)
    angles = torch.ones(1, tokens, 1, model.head_dim)
    text, times = torch.zeros(1, sizes.text_tokens, width), torch.zeros(1, 6, width)
    with FlopCounterMode(display=False) as theirs, torch.inference_mode():
        block(torch.zeros(1, tokens, width), text, times, (angles, angles))
    expected = count_forward(model, tokens).linear / model.layers
    to_text = 4 * tokens * sizes.text_tokens * width  # torch does not count attention on the CPU
    assert ours.get_total_flops() == theirs.get_total_flops() == expected - to_text


@pytest.mark.parametrize("name", ["wan2.1-t2v-1.3b", "hunyuanvideo-t2v"])
def test_large_models_have_theirs(name: str) -> None:
    model = find_model(name)
    with torch.device("meta"):
        layer = Layer(model, find_architecture(model), torch.device("meta"), torch.bfloat16)
        states = layer.draw(8)
        with FlopCounterMode(display=False) as counted:
            assert layer(states).dtype == torch.bfloat16
    text = 0 if find_architecture(model).joint_text is False else 256
    expected = count_forward(model, 8 - text).linear / model.layers
    assert counted.get_total_flops() == pytest.approx(expected)
