"""A transformer layer as the models have it, without its self-attention: to be timed."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import (
    gelu,
    layer_norm,
    linear,
    rms_norm,
    scaled_dot_product_attention,
)

from svoo.app.estimate.data import Architecture
from svoo.catalogue import Model
from svoo.core.random import seeded


class Layer:
    """The projections, norms, modulation, rotary embedding, attention to the text and feed-forward
    layer of a Wan block with random weights, in the order in which diffusers runs them.

    HunyuanVideo's has the same products but for the attention to the text, which it lacks.
    """

    def __init__(
        self, model: Model, sizes: Architecture, device: torch.device, dtype: torch.dtype
    ) -> None:
        """Draw the weights."""
        self._device, self._dtype = device, dtype
        self._heads, self._hidden = model.heads, model.heads * model.head_dim
        self._generator = seeded()
        hidden = self._hidden
        self._square = [self._draw(hidden, hidden) for _ in range(8)]
        self._wide = self._draw(sizes.feed_forward, hidden)
        self._narrow = self._draw(hidden, sizes.feed_forward)
        self._bias = self._draw(hidden)
        self._wide_bias = self._draw(sizes.feed_forward)
        self._shift = torch.ones(1, 1, hidden, device=device)  # modulation is in float32
        self._text = None if sizes.joint_text else self._draw(1, sizes.text_tokens, hidden)

    def draw(self, tokens: int) -> Tensor:
        """Return hidden states `[1, tokens, hidden]`."""
        return self._draw(1, tokens, self._hidden)

    def __call__(self, states: Tensor) -> Tensor:
        """Return the hidden states `[1, N, hidden]` after the layer."""
        hidden = self._modulated(states)
        query, key, value = (linear(hidden, self._square[side], self._bias) for side in range(3))
        query, key = self._rotated(self._normed(query)), self._rotated(self._normed(key))
        # Here the attention would be; its inputs are read, so that they are made.
        hidden = (query + key + value.unflatten(2, (self._heads, -1))).flatten(2)
        hidden = linear(hidden, self._square[3], self._bias)
        states = (states.float() + hidden * self._shift).type_as(states)
        if self._text is not None:
            states = states + self._attended(states, self._text)
        hidden = linear(self._modulated(states), self._wide, self._wide_bias)
        hidden = linear(gelu(hidden, approximate="tanh"), self._narrow, self._bias)
        return (states.float() + hidden.float() * self._shift).type_as(states)

    def _attended(self, states: Tensor, text: Tensor) -> Tensor:
        """Return what the tokens take from the text."""
        normed = layer_norm(states.float(), (self._hidden,)).type_as(states)
        query = self._normed(linear(normed, self._square[4], self._bias))
        key = self._normed(linear(text, self._square[5], self._bias))
        value = linear(text, self._square[6], self._bias)
        query, key, value = (
            side.unflatten(2, (self._heads, -1)).transpose(1, 2) for side in (query, key, value)
        )
        found = scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        return linear(found, self._square[7], self._bias)

    def _modulated(self, states: Tensor) -> Tensor:
        normed = layer_norm(states.float(), (self._hidden,))
        return (normed * (1 + self._shift) + self._shift).type_as(states)

    def _normed(self, side: Tensor) -> Tensor:
        return rms_norm(side, (self._hidden,), self._bias)

    def _rotated(self, side: Tensor) -> Tensor:
        """Return tokens `[1, N, heads, size]`, every pair of numbers turned."""
        side = side.unflatten(2, (self._heads, -1))
        cosine = sine = self._shift[..., : side.shape[3] // 2].unsqueeze(2)
        first, second = side.unflatten(-1, (-1, 2)).unbind(-1)
        turned = torch.empty_like(side)
        turned[..., 0::2] = first * cosine - second * sine
        turned[..., 1::2] = first * sine + second * cosine
        return turned

    def _draw(self, *shape: int) -> Tensor:
        drawn = torch.randn(*shape, generator=self._generator) / math.sqrt(shape[-1])
        return drawn.to(self._device, self._dtype)
