"""The embedded model for ComfyUI: its weights in Wan's own names, a prompt's embeddings, and the
same sampling loop in plain torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

import svoo
from svoo.plugin.apply import Handle

_RENAMED = (
    ("condition_embedder.time_embedder.linear_1", "time_embedding.0"),
    ("condition_embedder.time_embedder.linear_2", "time_embedding.2"),
    ("condition_embedder.text_embedder.linear_1", "text_embedding.0"),
    ("condition_embedder.text_embedder.linear_2", "text_embedding.2"),
    ("condition_embedder.time_proj", "time_projection.1"),
    (".scale_shift_table", ".modulation"),
    ("proj_out", "head.head"),
    (".attn1.", ".self_attn."),
    (".attn2.", ".cross_attn."),
    (".to_q.", ".q."),
    (".to_k.", ".k."),
    (".to_v.", ".v."),
    (".to_out.0.", ".o."),
    (".norm2.", ".norm3."),
    ("ffn.net.0.proj", "ffn.0"),
    ("ffn.net.2", "ffn.2"),
)


def rename(name: str) -> str:
    """Return Wan's own name of a weight of diffusers' transformer."""
    if name == "scale_shift_table":
        return "head.modulation"
    for theirs, own in _RENAMED:
        name = name.replace(theirs, own)
    return name


def wan_config(config: Any) -> dict[str, Any]:
    """Return the settings of ComfyUI's Wan for a transformer's config."""
    return {
        "image_model": "wan2.1",
        "model_type": "t2v",
        "dim": config.num_attention_heads * config.attention_head_dim,
        "num_heads": config.num_attention_heads,
        "num_layers": config.num_layers,
        "ffn_dim": config.ffn_dim,
        "patch_size": list(config.patch_size),
        "freq_dim": config.freq_dim,
        "text_dim": config.text_dim,
        "in_dim": config.in_channels,
        "out_dim": config.out_channels,
        "qk_norm": True,
        "cross_attn_norm": True,
        "eps": config.eps,
        "window_size": [-1, -1],
    }


def encode(pipe: Any, prompt: str) -> tuple[Tensor, Tensor]:
    """Return the embeddings of a prompt and of none, `[1, tokens, size]`."""
    positive, negative = pipe.encode_prompt(
        prompt,
        negative_prompt="",
        do_classifier_free_guidance=True,
        max_sequence_length=32,
        device="cpu",
        dtype=torch.float32,
    )
    return positive, negative


def write(pipe: Any, prompt: str, folder: Path) -> None:
    """Write what the test-only loader node reads."""
    weights = {
        rename(name): weight.float().contiguous()
        for name, weight in pipe.transformer.state_dict().items()
    }
    save_file(weights, folder / "model.safetensors")
    positive, negative = encode(pipe, prompt)
    text = {"positive": positive.contiguous(), "negative": negative.contiguous()}
    save_file(text, folder / "prompt.safetensors")
    (folder / "config.json").write_text(json.dumps(wan_config(pipe.transformer.config)))


def simple_sigmas(steps: int, shift: float) -> list[float]:
    """Return the noise levels of ComfyUI's scheduler "simple": a thousand shifted levels, every
    so many of them, and 0."""
    levels = [
        shift * t / (1 + (shift - 1) * t) for t in (level / 1000 for level in range(1, 1001))
    ]
    return [levels[-(1 + int(step * 1000 / steps))] for step in range(steps)] + [0.0]


@torch.inference_mode()
def sample_euler(
    pipe: Any,
    noise: Tensor,
    text: Tensor,
    sigmas: list[float],
    handle: Handle | None = None,
) -> Tensor:
    """Return the latent of Euler's method without guidance, as ComfyUI's sampler "euler" steps."""
    latent = noise * sigmas[0]
    for step in range(len(sigmas) - 1):
        if handle is not None:
            handle.set_step(step, len(sigmas) - 1)
        time = torch.tensor([sigmas[step] * 1000])
        (flow,) = pipe.transformer(latent, time, text, return_dict=False)
        latent = latent + flow * (sigmas[step + 1] - sigmas[step])
    return latent


def sparse_euler(
    pipe: Any,
    noise: Tensor,
    text: Tensor,
    sigmas: list[float],
    config: svoo.MethodConfig,
) -> Tensor:
    """Return the latent of the same loop with `svoo.apply`; the pipeline is left as it was."""
    handle = svoo.apply(pipe.transformer, config)
    try:
        return sample_euler(pipe, noise, text, sigmas, handle)
    finally:
        handle.remove()


@torch.inference_mode()
def decode(pipe: Any, latent: Tensor) -> Tensor:
    """Return the frames `[T, H, W, 3]` in [0, 1] of a latent `[1, C, T, H, W]`."""
    shape = (1, -1, 1, 1, 1)
    mean = torch.tensor(pipe.vae.config.latents_mean).view(shape)
    spread = torch.tensor(pipe.vae.config.latents_std).view(shape)
    video = pipe.vae.decode(latent * spread + mean).sample
    frames: Tensor = (video[0].permute(1, 2, 3, 0) / 2 + 0.5).clamp(0, 1)
    return frames
