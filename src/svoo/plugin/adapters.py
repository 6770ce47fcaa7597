"""What is special about each transformer class: the only per-model knowledge of the plug-in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from svoo.errors import ModelError
from svoo.plugin.projections import Projection, weigh_projection

Grid = tuple[int, int, int]
Arguments = Mapping[str, Any]


@dataclass(frozen=True)
class Adapter:
    """Where video self-attention sits in a transformer and how its tokens are laid out.

    `sites` are (list of blocks, attribute of the self-attention) in the order of layers. `grid`
    takes the transformer and the arguments of its forward and returns frames, height and width in
    tokens, or None if they do not tell; what the sequence has beyond them is text, behind the
    video or before it.
    `prefix_mask`: the attention mask `[B, 1, 1, N]` is True for the video and the real text, False
    for padding at the end; `square_mask`: it comes as `[B, 1, N, N]`, True where both tokens are.
    `calls_torch`: its processors call torch's attention themselves, not diffusers' dispatcher.
    """

    sites: tuple[tuple[str, str], ...]
    grid: Callable[[nn.Module, Arguments], Grid | None]
    text_first: bool = False
    prefix_mask: bool = False
    square_mask: bool = False
    calls_torch: bool = False


def _wan_grid(transformer: nn.Module, arguments: Arguments) -> Grid:
    frames, height, width = arguments["hidden_states"].shape[-3:]
    config: Any = transformer.config
    by_frames, by_height, by_width = config.patch_size
    return frames // by_frames, height // by_height, width // by_width


def _hunyuan_grid(transformer: nn.Module, arguments: Arguments) -> Grid:
    frames, height, width = arguments["hidden_states"].shape[-3:]
    config: Any = transformer.config
    return frames // config.patch_size_t, height // config.patch_size, width // config.patch_size


def _packed_grid(_transformer: nn.Module, arguments: Arguments) -> Grid | None:
    if arguments.get("video_coords") is not None or arguments.get("num_frames") is None:
        return None  # where coordinates are given, tokens of other images may precede the video
    return arguments["num_frames"], arguments["height"], arguments["width"]


def _cogvideo_grid(transformer: nn.Module, arguments: Arguments) -> Grid:
    _, frames, _, height, width = arguments["hidden_states"].shape
    config: Any = transformer.config
    by_frames = config.patch_size_t or 1
    side = config.patch_size
    return (frames + by_frames - 1) // by_frames, height // side, width // side


def _mochi_grid(transformer: nn.Module, arguments: Arguments) -> Grid:
    frames, height, width = arguments["hidden_states"].shape[-3:]
    config: Any = transformer.config
    return frames, height // config.patch_size, width // config.patch_size


_ADAPTERS: dict[str, Adapter] = {
    "WanTransformer3DModel": Adapter((("blocks", "attn1"),), _wan_grid),
    # The control blocks run first.
    "WanVACETransformer3DModel": Adapter(
        (("vace_blocks", "attn1"), ("blocks", "attn1")), _wan_grid
    ),
    "SkyReelsV2Transformer3DModel": Adapter((("blocks", "attn1"),), _wan_grid),
    "HunyuanVideoTransformer3DModel": Adapter(
        (("transformer_blocks", "attn"), ("single_transformer_blocks", "attn")),
        _hunyuan_grid,
        prefix_mask=True,
    ),
    "HunyuanVideo15Transformer3DModel": Adapter(
        (("transformer_blocks", "attn"),), _hunyuan_grid, prefix_mask=True, square_mask=True
    ),
    "LTXVideoTransformer3DModel": Adapter((("transformer_blocks", "attn1"),), _packed_grid),
    "CogVideoXTransformer3DModel": Adapter(
        (("transformer_blocks", "attn1"),), _cogvideo_grid, text_first=True, calls_torch=True
    ),
    "MochiTransformer3DModel": Adapter(
        (("transformer_blocks", "attn1"),), _mochi_grid, calls_torch=True
    ),
}


def register_adapter(transformer_class: str, adapter: Adapter) -> None:
    """Teach the plug-in a transformer class by its name; an earlier adapter of that name is
    replaced."""
    _ADAPTERS[transformer_class] = adapter


def find_adapter(transformer: nn.Module) -> Adapter | None:
    """Return the adapter of a transformer's class or of the nearest class that it derives from."""
    for base in type(transformer).__mro__:
        if base.__name__ in _ADAPTERS:
            return _ADAPTERS[base.__name__]
    return None


def find_transformers(target: object) -> list[tuple[nn.Module, Adapter]]:
    """Return the video transformers of a pipeline, or a bare one, in the order of their stages."""
    if isinstance(target, nn.Module):
        candidates: list[object] = [target]
    else:
        candidates = [getattr(target, name, None) for name in ("transformer", "transformer_2")]
    found = []
    for candidate in candidates:
        if isinstance(candidate, nn.Module):
            transformer = getattr(candidate, "_orig_mod", candidate)  # what torch.compile wraps
            adapter = find_adapter(transformer)
            if adapter is None:
                raise ModelError(
                    f"{type(transformer).__name__} is no video transformer that svoo knows; it "
                    "knows "
                    f"{', '.join(_ADAPTERS)}; svoo.register_adapter teaches it another"
                )
            found.append((transformer, adapter))
    if not found:
        raise ModelError(
            f"{type(target).__name__} has no video transformer: expected a diffusers pipeline "
            "with "
            "`transformer`, or a transformer"
        )
    return found


def find_attentions(transformer: nn.Module, adapter: Adapter) -> list[nn.Module]:
    """Return the self-attention modules of a transformer, one per layer."""
    attentions = [attention for _, attention in _sites(transformer, adapter)]
    if not attentions:
        raise ModelError(
            f"{type(transformer).__name__} has no layers at "
            f"{', '.join('.'.join(site) for site in adapter.sites)}: the adapter does not fit it"
        )
    return attentions


def _sites(transformer: nn.Module, adapter: Adapter) -> list[tuple[nn.Module, nn.Module]]:
    """Return every block with its self-attention."""
    return [
        (block, getattr(block, attribute))
        for blocks, attribute in adapter.sites
        for block in getattr(transformer, blocks, ())
    ]


def count_heads(transformer: nn.Module) -> int:
    """Return the number of attention heads of a transformer."""
    config: Any = transformer.config
    return int(config.num_attention_heads)


def weigh_heads(stages: Sequence[tuple[nn.Module, Adapter]]) -> Tensor | None:
    """Return how much each head's output counts in transformers of the same size, `[stages,
    layers, heads]` on the CPU; None where a layer does not tell."""
    try:
        found = [
            torch.stack([weigh_projection(*_find_projection(*site)) for site in _sites(*stage)])
            for stage in stages
        ]
        return torch.stack(found)
    except Exception:  # noqa: BLE001 (modules of any kind are asked, quantised or offloaded ones)
        return None


def _find_projection(block: nn.Module, attention: nn.Module) -> tuple[Projection, Tensor]:
    """Return the output projection of a layer, and a tensor of the dtype and on the device of the
    tokens that it takes."""
    size: Any = attention
    module: Any = getattr(attention, "to_out", None)
    if module is None:  # HunyuanVideo's single blocks project heads and feed-forward together
        module, width = block.proj_out, size.inner_dim
    else:
        module = module[0] if isinstance(module, nn.ModuleList) else module
        width = module.in_features
    dtype = next((p.dtype for p in block.parameters() if p.is_floating_point()), torch.float32)
    device = torch.device("cpu") if module.weight.is_meta else module.weight.device
    like = torch.empty(0, dtype=dtype, device=device)
    return Projection(module, size.heads, width, module.in_features), like
