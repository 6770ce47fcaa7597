"""The parts of ComfyUI that the node pack meets, written from its contract (0.7.0): patcher,
wrappers, attention with an override, two small models, and a sampler's loop."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention


def patcher_extension() -> ModuleType:
    """Return a stand-in for `comfy.patcher_extension`."""
    module = ModuleType("comfy.patcher_extension")
    callbacks = {"ON_PRE_RUN": "on_pre_run", "ON_CLEANUP": "on_cleanup"}
    module.CallbacksMP = type("CallbacksMP", (), callbacks)  # type: ignore[attr-defined]
    wrappers = {"DIFFUSION_MODEL": "diffusion_model"}
    module.WrappersMP = type("WrappersMP", (), wrappers)  # type: ignore[attr-defined]
    return module


class Executor:
    """Calls wrappers, then the original."""

    def __init__(self, original: Any, model: object, wrappers: Sequence[Any]) -> None:
        self.original, self.class_obj, self.wrappers = original, model, list(wrappers)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return Executor(self.original, self.class_obj, self.wrappers[1:]).execute(*args, **kwargs)

    def execute(self, *args: Any, **kwargs: Any) -> Tensor:
        first = self.wrappers[0] if self.wrappers else None
        output: Tensor = (
            self.original(*args, **kwargs) if first is None else first(self, *args, **kwargs)
        )
        return output


def wrapped(model: Any, options: dict[str, Any]) -> Executor:
    """Return a model's forward within the wrappers that its options name."""
    wrappers = [one for many in options["wrappers"].values() for one in many]
    return Executor(model._forward, model, wrappers)


def may_be_overridden(attention: Any) -> Any:
    @functools.wraps(attention)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        options = kwargs.get("transformer_options")
        if "_inside_attn_wrapper" not in kwargs:
            kwargs["_inside_attn_wrapper"] = True
            if options is not None and "optimized_attention_override" in options:
                return options["optimized_attention_override"](attention, *args, **kwargs)
        return attention(*args, **kwargs)

    return wrapper


@may_be_overridden
def optimized_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    heads: int,
    mask: Tensor | None = None,
    attn_precision: object = None,  # noqa: ARG001
    skip_reshape: bool = False,
    skip_output_reshape: bool = False,
    **_kwargs: Any,
) -> Tensor:
    sides = (q, k, v)
    if not skip_reshape:
        sides = tuple(side.unflatten(2, (heads, -1)).transpose(1, 2) for side in sides)
    if mask is not None and mask.ndim == 3:
        mask = mask.unsqueeze(1)
    output = scaled_dot_product_attention(*sides, attn_mask=mask)
    return output if skip_output_reshape else output.transpose(1, 2).flatten(2)


class WanBlock(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.self_attn = nn.ModuleDict({"qkv": nn.Linear(dim, 3 * dim), "o": nn.Linear(dim, dim)})
        self.self_attn.o = self.self_attn["o"]
        self.cross = nn.Linear(dim, dim)

    def forward(self, x: Tensor, context: Tensor, options: dict[str, Any]) -> Tensor:
        q, k, v = self.self_attn["qkv"](x).chunk(3, dim=-1)
        seen = optimized_attention(q, k, v, heads=self.heads, transformer_options=options)
        x = x + self.self_attn["o"](seen)
        keys = self.cross(context)
        seen = optimized_attention(x, keys, keys, self.heads, transformer_options=options)
        output: Tensor = x + 0.1 * seen
        return output


class WanModel(nn.Module):
    """Channels become the width; positions are added, so that tokens differ."""

    def __init__(self, dim: int = 16, heads: int = 2, blocks: int = 2) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.dim, self.num_heads, self.patch_size = dim, heads, (1, 2, 2)
        self.embed = nn.Conv3d(4, dim, self.patch_size, self.patch_size)
        self.blocks = nn.ModuleList(WanBlock(dim, heads) for _ in range(blocks))
        self.head = nn.Linear(dim, 4 * 4)

    def forward(self, x: Tensor, timestep: Tensor, context: Tensor, **kwargs: Any) -> Tensor:
        options, frames = kwargs.pop("transformer_options"), kwargs.pop("time_dim_concat", None)
        return wrapped(self, options).execute(x, timestep, context, None, frames, options)

    def _forward(
        self,
        x: Tensor,
        timestep: Tensor,  # noqa: ARG002
        context: Tensor,
        clip_fea: Tensor | None = None,  # noqa: ARG002
        time_dim_concat: Tensor | None = None,
        transformer_options: dict[str, Any] = {},  # noqa: B006
        **_kwargs: Any,
    ) -> Tensor:
        frames = x.shape[2]
        if time_dim_concat is not None:
            x = torch.cat([x, time_dim_concat], dim=2)
        grid = self.embed(x)
        tokens = grid.flatten(2).transpose(1, 2)
        transformer_options["total_blocks"] = len(self.blocks)
        transformer_options["block_type"] = "double"
        for index, block in enumerate(self.blocks):
            transformer_options["block_index"] = index
            tokens = block(tokens, context, transformer_options)
        patches = self.head(tokens).transpose(1, 2).unflatten(2, grid.shape[2:])
        patches = patches.unflatten(1, (4, 2, 2)).permute(0, 1, 4, 5, 2, 6, 3)
        output: Tensor = patches.flatten(5, 6).flatten(3, 4)[:, :, :frames]
        return output


class HunyuanVideo(nn.Module):
    """A double block and a single one over the video and then the text, `[B, H, N, D]`."""

    def __init__(self, dim: int = 16, heads: int = 2) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.hidden_size, self.num_heads, self.patch_size = dim, heads, [1, 2, 2]
        self.embed = nn.Conv3d(4, dim, (1, 2, 2), (1, 2, 2))
        self.refine = nn.Linear(dim, dim)
        self.double_blocks = nn.ModuleList([nn.Module()])
        self.double_blocks[0].img_attn = nn.Module()
        self.double_blocks[0].img_attn.proj = nn.Linear(dim, dim)
        self.single_blocks = nn.ModuleList([nn.Module()])
        self.single_blocks[0].linear2 = nn.Linear(3 * dim, dim)
        self.single_blocks[0].mlp_hidden_dim = 2 * dim  # type: ignore[assignment]
        self.qkv = nn.ModuleList(nn.Linear(dim, 3 * dim) for _ in range(2))

    def _attend(self, x: Tensor, layer: int, mask: Tensor | None, options: Any) -> Tensor:
        q, k, v = self.qkv[layer](x).unflatten(2, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        seen: Tensor = optimized_attention(
            q, k, v, self.num_heads, mask=mask, skip_reshape=True, transformer_options=options
        )
        return seen

    def forward(self, x: Tensor, timestep: Tensor, context: Tensor, **kwargs: Any) -> Tensor:
        options, mask = kwargs.pop("transformer_options"), kwargs.pop("attention_mask", None)
        return wrapped(self, options).execute(x, timestep, context, None, mask, options)

    def _forward(
        self,
        x: Tensor,
        timestep: Tensor,  # noqa: ARG002
        context: Tensor,
        guidance: Tensor | None = None,  # noqa: ARG002
        attention_mask: Tensor | None = None,
        transformer_options: dict[str, Any] = {},  # noqa: B006
        **_kwargs: Any,
    ) -> Tensor:
        options = transformer_options
        # The text is refined before any block: an attention call that is none of ours.
        heads = self.refine(context).unflatten(2, (self.num_heads, -1)).transpose(1, 2)
        refined = optimized_attention(
            heads, heads, heads, self.num_heads, skip_reshape=True, transformer_options=options
        )
        video = self.embed(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([video, refined], dim=1)
        mask = None
        if attention_mask is not None:
            lowest = torch.finfo(tokens.dtype).max
            mask = torch.zeros(len(attention_mask), 1, tokens.shape[1])
            mask[:, 0, video.shape[1] :] = (attention_mask - 1).to(tokens.dtype) * lowest
        for layer, kind in enumerate(("double", "single")):
            options["block_type"], options["block_index"] = kind, 0
            tokens = tokens + self._attend(tokens, layer, mask, options)
        return tokens[:, : video.shape[1]]


class Patcher:
    """ComfyUI's `ModelPatcher`, as far as the node uses it."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.model_options: dict[str, Any] = {"transformer_options": {}}
        self.wrappers: dict[str, dict[str, list[Any]]] = {}
        self.callbacks: dict[str, dict[str, list[Any]]] = {}

    def clone(self) -> Patcher:
        new = Patcher(self.model)
        new.model_options = copy.deepcopy(self.model_options)
        for name in ("wrappers", "callbacks"):
            table = {
                kind: {key: list(many) for key, many in keyed.items()}
                for kind, keyed in getattr(self, name).items()
            }
            setattr(new, name, table)
        return new

    def add_wrapper_with_key(self, kind: str, key: str, wrapper: Any) -> None:
        self.wrappers.setdefault(kind, {}).setdefault(key, []).append(wrapper)

    def remove_wrappers_with_key(self, kind: str, key: str) -> None:
        self.wrappers.get(kind, {}).pop(key, None)

    def add_callback_with_key(self, kind: str, key: str, callback: Any) -> None:
        self.callbacks.setdefault(kind, {}).setdefault(key, []).append(callback)

    def remove_callbacks_with_key(self, kind: str, key: str) -> None:
        self.callbacks.get(kind, {}).pop(key, None)

    def call(self, kind: str) -> None:
        for many in self.callbacks.get(kind, {}).values():
            for callback in many:
                callback(self)


def sample(
    patcher: Patcher,
    latent: Tensor,
    context: Tensor,
    *,
    steps: int = 2,
    branches: Sequence[int] = (1, 0),
    before_step: Callable[[int], None] = lambda _step: None,
    **arguments: Any,
) -> list[Tensor]:
    """Run a sampler's loop, all branches in one batch; return what the model gave at each step."""
    sigmas = torch.linspace(1, 0, steps + 1)
    outputs = []
    try:
        patcher.call("on_pre_run")
        for step in range(steps):
            before_step(step)
            options = copy.copy(patcher.model_options["transformer_options"])
            options["wrappers"] = patcher.wrappers.get("diffusion_model", {})
            options["sample_sigmas"] = sigmas
            options["sigmas"] = sigmas[step].repeat(len(latent))
            options["cond_or_uncond"] = list(branches)
            batch = torch.cat([latent] * len(branches))
            text = torch.cat([context] * len(branches))
            text = text + torch.arange(len(text)).view(-1, 1, 1).to(text) * 0.1
            with torch.no_grad():
                outputs.append(
                    patcher.model(
                        batch, sigmas[step], text, transformer_options=options, **arguments
                    )
                )
    finally:
        patcher.call("on_cleanup")
    return outputs
