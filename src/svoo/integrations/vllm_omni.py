"""vLLM-Omni's third-party sparse attention: the entry point `vllm_omni.sparse_attn`, name `svoo`.

Written from its contract (its pull request 4493) and not run there. A call is told neither its
layer nor its guidance branch, so nothing is remembered from one call to the next: labels are made
anew at every call, for every sample apart, and there is no profile.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from svoo.core.layout import VideoLayout, to_heads_first, to_tokens_first
from svoo.errors import ConfigError, ShapeError, StrictError
from svoo.integrations.settings import choose_config
from svoo.session.session import Session

SETTINGS = ("method", "quality", "dense_steps", "strict", "model")
LEAST_TOKENS = 8_000
logger = logging.getLogger(__name__)
_said: set[str] = set()  # so that a reason is logged once, not at every layer and step


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    params: Mapping[str, Any],
    is_causal: bool = False,  # noqa: FBT001, FBT002 (the contract's)
    softmax_scale: float | None = None,
) -> Tensor:
    """Attend from query `[B, N, H, D]` to key, value `[B, N, H, D]`, self-attention over a video.

    `params` are the user's settings (`method`, `quality`, `dense_steps`, `least_tokens`, `strict`,
    and `model`, a name of `svoo.models()` whose published settings the method takes) and what
    vLLM-Omni says of the forward (`denoise_step_idx`, `total_denoise_steps`, `latent_shape`,
    `patch_size`).
    """
    _refuse(query, key, params, is_causal=is_causal)
    config = choose_config(**{name: params[name] for name in SETTINGS if name in params})
    config = replace(config, dense_layers=0)  # which layer this is, is not told
    wide = to_heads_first(query), to_heads_first(key), to_heads_first(value)
    layout = find_layout(params, query.shape[1])
    least = int(params.get("least_tokens", LEAST_TOKENS))
    if isinstance(layout, str) or query.shape[1] < least:
        why = layout if isinstance(layout, str) else f"{query.shape[1]} tokens, below {least}"
        if config.strict:
            raise StrictError(f"strict: attention would be dense: {why}")
        _say(f"svoo: dense attention: {why}")
        return to_tokens_first(scaled_dot_product_attention(*wide, scale=softmax_scale))
    step = _number(params.get("denoise_step_idx", 0))
    steps = _number(params.get("total_denoise_steps", step + 1))
    session = Session(config, steps=max(steps, step + 1), layers=1, heads=query.shape[2])
    output = session.attend(*wide, step=step, layer=0, layout=layout, scale=softmax_scale)
    return to_tokens_first(output)


def _refuse(query: Tensor, key: Tensor, params: Mapping[str, Any], *, is_causal: bool) -> None:
    """Refuse what would change the result and is not followed."""
    for name in ("attn_mask", "full_attn_spans"):
        if params.get(name) is not None:
            raise ConfigError(
                f"svoo follows no {name}: its plans are blocks of clusters. Choose a dense "
                "backend for this role; sequence-parallel padding makes a mask too, so use a "
                "sequence length that the world size divides"
            )
    if is_causal:
        raise ConfigError("svoo's attention is not causal: choose a dense backend for this role")
    if query.shape[1] != key.shape[1]:
        raise ShapeError(
            f"svoo is for self-attention, got {query.shape[1]} queries and {key.shape[1]} keys: "
            "choose a dense backend for cross-attention"
        )


def find_layout(params: Mapping[str, Any], tokens: int) -> VideoLayout | str | None:
    """Return the grid of a video of so many tokens; None: nothing is told of it; a text: why it
    cannot be, and other tokens must be there too."""
    if params.get("latent_shape") is None or params.get("patch_size") is None:
        return None
    latent, patch = (_triple(params[name]) for name in ("latent_shape", "patch_size"))
    frames, height, width = (side // size for side, size in zip(latent, patch, strict=True))
    if frames * height * width != tokens:
        return (
            f"the video's grid {frames} x {height} x {width} is not all of the {tokens} tokens, "
            "and where the others lie is not told"
        )
    return VideoLayout(frames, height, width)


def _triple(value: Any) -> list[int]:  # noqa: ANN401 (a tensor, or lists)
    """Return three whole numbers: those of the first sample, where there is a row for each."""
    rows = value.tolist() if isinstance(value, Tensor) else list(value)
    first = rows[0] if isinstance(rows[0], list | tuple) else rows
    return [int(number) for number in first]


def _number(value: Any) -> int:  # noqa: ANN401 (a tensor with a number per sample, or a number)
    """Return a step; of several samples the earliest, which is treated most carefully."""
    return int(value.min()) if isinstance(value, Tensor) else int(value)


def _say(text: str) -> None:
    if text not in _said:
        _said.add(text)
        logger.warning("%s", text)
