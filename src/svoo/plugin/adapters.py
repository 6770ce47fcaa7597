"""What is special about each transformer class: the only per-model knowledge of the plug-in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from svoo.errors import ModelError

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
    attentions: list[nn.Module] = []
    for blocks, attribute in adapter.sites:
        attentions += [getattr(block, attribute) for block in getattr(transformer, blocks, ())]
    if not attentions:
        raise ModelError(
            f"{type(transformer).__name__} has no layers at "
            f"{', '.join('.'.join(site) for site in adapter.sites)}: the adapter does not fit it"
        )
    return attentions


def count_heads(transformer: nn.Module) -> int:
    """Return the number of attention heads of a transformer."""
    config: Any = transformer.config
    return int(config.num_attention_heads)


def weigh_heads(attentions: Sequence[Sequence[nn.Module]]) -> Tensor | None:
    """Return how much each head's output counts, `[stages, layers, heads]` on the CPU: the norm
    of its slice of the output projection over the square root of the head size.

    None where a projection cannot be read: offloaded to nowhere, or of an unknown form.
    """
    stages = []
    for stage in attentions:
        found = [_weigh_layer(attention) for attention in stage]
        known = [weights for weights in found if weights is not None]
        if len(known) < len(found) or len({len(weights) for weights in known}) != 1:
            return None
        stages.append(torch.stack(known))
    return torch.stack(stages) if len({stage.shape for stage in stages}) == 1 else None


def _weigh_layer(attention: nn.Module) -> Tensor | None:
    projection = getattr(attention, "to_out", None)
    heads = getattr(attention, "heads", None)
    if isinstance(projection, nn.Module) and not hasattr(projection, "weight"):
        projection = projection[0] if isinstance(projection, nn.ModuleList) else None
    weight = getattr(projection, "weight", None)
    if not isinstance(weight, Tensor) or weight.is_meta or not isinstance(heads, int):
        return None
    return weigh_projection(weight, heads)


def weigh_projection(weight: Tensor, heads: int) -> Tensor | None:
    """Return how much each head's output counts, `[heads]` on the CPU, from the weight `[out,
    heads * D]` of an output projection; None if it does not fall into so many heads."""
    if weight.ndim != 2 or weight.shape[1] % heads:
        return None
    with torch.no_grad():
        slices = weight.detach().float().unflatten(1, (heads, -1))
        norms: Tensor = slices.square().sum(dim=(0, 2)).sqrt() / slices.shape[2] ** 0.5
    return norms.cpu()
