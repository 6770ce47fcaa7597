"""Test-only nodes, loaded by ComfyUI: the embedded model, a tiny HunyuanVideo, a rude override."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor


class LatentFormat:
    """Made on demand: ComfyUI's plain format, because the test decodes latents itself."""

    def __new__(cls) -> Any:
        """Return ComfyUI's format without any scaling, for 16 channels of a video."""
        from comfy.latent_formats import LatentFormat as Plain

        found = Plain()
        found.latent_channels, found.latent_dimensions, found.scale_factor = 16, 3, 1.0
        return found


def _patcher(config: Any, state: dict[str, Tensor]) -> Any:
    from comfy.model_patcher import ModelPatcher

    config.set_inference_dtype(torch.float32, None)
    config.latent_format = LatentFormat()
    model = config.get_model(state, device="cpu")
    model.diffusion_model.to(torch.float32)
    if state:
        missing, unexpected = model.diffusion_model.load_state_dict(state, strict=False)
        assert not missing and not unexpected, (missing, unexpected)
    cpu = torch.device("cpu")
    return ModelPatcher(model, load_device=cpu, offload_device=cpu)


class LoadMini:
    """The embedded model in Wan's own names, and the embeddings of a prompt."""

    CATEGORY = "SVOO tests"
    FUNCTION = "load"
    RETURN_TYPES = ("MODEL", "CONDITIONING", "CONDITIONING")

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        """Return the inputs: the folder that `tools.comfyui.prepare` filled."""
        return {"required": {"folder": ("STRING", {}), "fp8_mlp": ("BOOLEAN", {"default": False})}}

    def load(self, folder: str, *, fp8_mlp: bool) -> tuple[Any, Any, Any]:
        """Return the model, the positive and the negative conditioning."""
        from comfy.supported_models import WAN21_T2V

        settings = json.loads((Path(folder) / "config.json").read_text())
        config = WAN21_T2V({**settings, "patch_size": tuple(settings["patch_size"])})
        config.sampling_settings = {"shift": 3.0}
        patcher = _patcher(config, load_file(Path(folder) / "model.safetensors"))
        if fp8_mlp:
            for block in patcher.model.diffusion_model.blocks:
                for layer in (block.ffn[0], block.ffn[2], block.self_attn.o):
                    layer.weight.data = layer.weight.data.to(torch.float8_e4m3fn)
                    layer.comfy_cast_weights = True
        text = load_file(Path(folder) / "prompt.safetensors")
        return patcher, [[text["positive"], {}]], [[text["negative"], {}]]


class LoadTinyHunyuan:
    """A HunyuanVideo with a few random layers, and random embeddings with padding."""

    CATEGORY = "SVOO tests"
    FUNCTION = "load"
    RETURN_TYPES = ("MODEL", "CONDITIONING")

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        """Return the inputs: the seed of the weights."""
        return {"required": {"seed": ("INT", {"default": 0})}}

    def load(self, seed: int) -> tuple[Any, Any]:
        """Return the model and its conditioning."""
        from comfy.supported_models import HunyuanVideo

        config = HunyuanVideo(
            {
                "image_model": "hunyuan_video",
                "in_channels": 16,
                "out_channels": 16,
                "patch_size": [1, 2, 2],
                "vec_in_dim": 32,
                "context_in_dim": 48,
                "hidden_size": 64,
                "mlp_ratio": 4.0,
                "num_heads": 2,
                "depth": 2,
                "depth_single_blocks": 2,
                "axes_dim": [8, 12, 12],
                "theta": 256,
                "qkv_bias": True,
                "guidance_embed": True,
                "byt5": False,
                "vision_in_dim": None,
                "meanflow": False,
                "use_cond_type_embedding": False,
                "meanflow_sum": False,
            }
        )
        patcher = _patcher(config, {})
        chance = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for weight in patcher.model.diffusion_model.parameters():
                noise = torch.randn(weight.shape, generator=chance)
                fan_in = weight.shape[1] if weight.ndim > 1 else 400
                weight.copy_(noise / fan_in**0.5 + (weight.ndim == 1) * 0.5)
        text = torch.randn(1, 20, 48, generator=chance)
        mask = (torch.arange(20) < 13).long().unsqueeze(0)
        pooled = torch.randn(1, 32, generator=chance)
        facts = {"pooled_output": pooled, "attention_mask": mask, "guidance": 6.0}
        return patcher, [[text, facts]]


class RudeOverride:
    """Puts another attention override into a model, and asks nobody who was there."""

    CATEGORY = "SVOO tests"
    FUNCTION = "apply"
    RETURN_TYPES = ("MODEL",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        """Return the inputs."""
        return {"required": {"model": ("MODEL", {})}}

    def apply(self, model: Any) -> tuple[Any]:
        """Return a clone with an override that calls the model's own attention."""

        def override(func: Any, *args: Any, **kwargs: Any) -> Any:
            return func(*args, **kwargs)

        clone = model.clone()
        clone.model_options["transformer_options"]["optimized_attention_override"] = override
        return (clone,)


NODE_CLASS_MAPPINGS = {
    "SVOOTestLoadMini": LoadMini,
    "SVOOTestLoadTinyHunyuan": LoadTinyHunyuan,
    "SVOOTestRudeOverride": RudeOverride,
}
