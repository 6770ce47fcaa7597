"""The constants of the machine at hand, from small calls that are timed."""

from __future__ import annotations

import platform

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, linear, scaled_dot_product_attention

from svoo.app.bench import milliseconds
from svoo.app.estimate.data import find_architecture
from svoo.app.estimate.roofline import Rates
from svoo.catalogue import Model
from svoo.core.random import seeded
from svoo.plugin.memory import total_bytes

_TOKENS = {"cuda": 16_384, "cpu": 3_072}
_NORM = 2 * 3  # reads and writes of the call that is timed for bandwidth
_NO_LINK = 32e9  # bytes/s between GPUs of one machine where nothing is known: PCIe 4


def measure_rates(model: Model, device: torch.device, link: float | None = None) -> Rates:
    """Return the rates of a device for a model's sizes: one attention call, one product of its
    feed-forward layer, and a norm with modulation for what memory gives."""
    fast = device.type == "cuda"
    dtype = torch.bfloat16 if fast else torch.float32
    tokens, hidden = _TOKENS["cuda" if fast else "cpu"], model.heads * model.head_dim
    wide = find_architecture(model).feed_forward
    generator = seeded()

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(device, dtype)

    query = draw(1, model.heads, tokens, model.head_dim)
    states, weight, scale = draw(1, tokens, hidden), draw(wide, hidden), draw(1, 1, hidden)
    with torch.inference_mode():
        attention = milliseconds(lambda: scaled_dot_product_attention(query, query, query), device)
        product = milliseconds(lambda: linear(states, weight), device)
        norm = milliseconds(lambda: layer_norm(states, (hidden,)) * (1 + scale) + scale, device)
    name = torch.cuda.get_device_name(device) if fast else platform.processor() or "this processor"
    return rates_of(
        seconds=(attention / 1e3, product / 1e3, norm / 1e3),
        work=(
            4.0 * tokens**2 * hidden,
            2.0 * tokens * hidden * wide,
            float(_NORM * states.nbytes),
        ),
        link=link or _NO_LINK,
        memory=float(total_bytes(device) or 0),
        title=name,
    )


def rates_of(
    seconds: tuple[float, float, float],
    work: tuple[float, float, float],
    *,
    link: float,
    memory: float,
    title: str,
) -> Rates:
    """Return rates from the seconds that so much work took: attention, product, memory."""
    attention, product, moved = (done / took for done, took in zip(work, seconds, strict=True))
    source = "calibrated here: two small calls"
    return Rates(attention, product, moved, link, memory, title, source)
