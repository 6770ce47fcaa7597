"""Random-weight pipelines of the real classes, small enough for a test and built offline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from diffusers import (
    AutoencoderKLCogVideoX,
    AutoencoderKLHunyuanVideo,
    AutoencoderKLHunyuanVideo15,
    AutoencoderKLLTXVideo,
    AutoencoderKLMochi,
    AutoencoderKLWan,
    ClassifierFreeGuidance,
    CogVideoXDDIMScheduler,
    CogVideoXPipeline,
    CogVideoXTransformer3DModel,
    FlowMatchEulerDiscreteScheduler,
    HunyuanVideo15Pipeline,
    HunyuanVideo15Transformer3DModel,
    HunyuanVideoImageToVideoPipeline,
    HunyuanVideoPipeline,
    HunyuanVideoTransformer3DModel,
    LTXPipeline,
    LTXVideoTransformer3DModel,
    MochiPipeline,
    MochiTransformer3DModel,
    SkyReelsV2Pipeline,
    SkyReelsV2Transformer3DModel,
    UniPCMultistepScheduler,
    WanImageToVideoPipeline,
    WanPipeline,
    WanTransformer3DModel,
    WanVACEPipeline,
    WanVACETransformer3DModel,
)
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    CLIPImageProcessor,
    CLIPTextConfig,
    CLIPTextModel,
    CLIPVisionConfig,
    CLIPVisionModel,
    LlamaConfig,
    LlamaModel,
    LlavaConfig,
    LlavaForConditionalGeneration,
    PreTrainedTokenizerFast,
    T5Config,
    T5EncoderModel,
    UMT5Config,
    UMT5EncoderModel,
)

PROMPT = "a red fox jumps over the lazy dog"
HEADS, HEAD_SIZE = 4, 24


def _tokenizer(*extra: str, start: bool = False, end: bool = True) -> PreTrainedTokenizerFast:
    words = ["<pad>", "<unk>", "</s>", "<s>", *extra, *PROMPT.split()]
    vocabulary = {word: place for place, word in enumerate(dict.fromkeys(words))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    template = " ".join([*(["<s>"] if start else []), "$A", *(["</s>"] if end else [])])
    specials = [(word, vocabulary[word]) for word in ("<s>", "</s>")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=template, special_tokens=specials
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        unk_token="<unk>",
        eos_token="</s>",
        bos_token="<s>",
        padding_side="right",
        extra_special_tokens=list(extra),
    )


def _umt5(words: int) -> UMT5EncoderModel:
    return UMT5EncoderModel(
        UMT5Config(
            vocab_size=words, d_model=32, d_kv=8, d_ff=64, num_layers=1, num_heads=4,
            dropout_rate=0.0, tie_word_embeddings=False,
        )
    ).eval()  # fmt: skip


def _wan_vae() -> AutoencoderKLWan:
    return AutoencoderKLWan(
        base_dim=4, z_dim=16, dim_mult=[1, 1, 1, 1], num_res_blocks=1,
        temperal_downsample=[False, True, True],
    ).eval()  # fmt: skip


def wan_transformer(
    in_channels: int = 16, image_width: int | None = None, heads: int = HEADS
) -> WanTransformer3DModel:
    return WanTransformer3DModel(
        patch_size=(1, 2, 2), num_attention_heads=heads, attention_head_dim=HEAD_SIZE,
        in_channels=in_channels, out_channels=16, text_dim=32, freq_dim=64, ffn_dim=64,
        num_layers=3, cross_attn_norm=True, rope_max_seq_len=64, image_dim=image_width,
        added_kv_proj_dim=None if image_width is None else HEADS * HEAD_SIZE,
    ).eval()  # fmt: skip


def _wan_scheduler() -> UniPCMultistepScheduler:
    return UniPCMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0
    )


def _wan_text() -> dict[str, Any]:
    tokenizer = _tokenizer()
    return {"tokenizer": tokenizer, "text_encoder": _umt5(len(tokenizer))}


def _wan_t2v() -> WanPipeline:
    return WanPipeline(
        **_wan_text(), vae=_wan_vae(), transformer=wan_transformer(), scheduler=_wan_scheduler()
    )


def _wan22_t2v() -> WanPipeline:
    return WanPipeline(
        **_wan_text(), vae=_wan_vae(), transformer=wan_transformer(),
        transformer_2=wan_transformer(), scheduler=_wan_scheduler(), boundary_ratio=0.875,
    )  # fmt: skip


def _wan_i2v() -> WanImageToVideoPipeline:
    encoder = CLIPVisionModel(
        CLIPVisionConfig(
            hidden_size=16, projection_dim=16, num_hidden_layers=3, num_attention_heads=2,
            image_size=32, intermediate_size=32, patch_size=8,
        )
    ).eval()  # fmt: skip
    return WanImageToVideoPipeline(
        **_wan_text(), vae=_wan_vae(), transformer=wan_transformer(36, 16),
        scheduler=_wan_scheduler(), image_encoder=encoder,
        image_processor=CLIPImageProcessor(crop_size=32, size=32),
    )  # fmt: skip


def _wan22_i2v() -> WanImageToVideoPipeline:
    return WanImageToVideoPipeline(
        **_wan_text(), vae=_wan_vae(), transformer=wan_transformer(36),
        transformer_2=wan_transformer(36), scheduler=_wan_scheduler(), boundary_ratio=0.9,
    )  # fmt: skip


def _hunyuan_vae() -> AutoencoderKLHunyuanVideo:
    return AutoencoderKLHunyuanVideo(
        in_channels=3, out_channels=3, latent_channels=4,
        down_block_types=("HunyuanVideoDownBlock3D",) * 4,
        up_block_types=("HunyuanVideoUpBlock3D",) * 4,
        block_out_channels=(8, 8, 8, 8), layers_per_block=1, norm_num_groups=4,
        spatial_compression_ratio=8, temporal_compression_ratio=4,
    ).eval()  # fmt: skip


def _hunyuan_transformer(image_condition: str | None = None) -> HunyuanVideoTransformer3DModel:
    return HunyuanVideoTransformer3DModel(
        in_channels=4, out_channels=4, num_attention_heads=HEADS, attention_head_dim=HEAD_SIZE,
        num_layers=2, num_single_layers=2, num_refiner_layers=1, patch_size=2, patch_size_t=1,
        guidance_embeds=True, text_embed_dim=16, pooled_projection_dim=8, rope_axes_dim=(8, 8, 8),
        image_condition_type=image_condition,
    ).eval()  # fmt: skip


def _llama_config(words: int, padding: int) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=words, hidden_size=16, intermediate_size=32, num_hidden_layers=3,
        num_attention_heads=2, pad_token_id=padding,
    )  # fmt: skip


def _clip_text(tokenizer: PreTrainedTokenizerFast) -> CLIPTextModel:
    return CLIPTextModel(
        CLIPTextConfig(
            vocab_size=len(tokenizer), hidden_size=8, intermediate_size=16, num_attention_heads=2,
            num_hidden_layers=2, projection_dim=8, eos_token_id=tokenizer.eos_token_id,
            bos_token_id=tokenizer.bos_token_id, pad_token_id=tokenizer.pad_token_id,
        )
    ).eval()  # fmt: skip


def _hunyuan_t2v() -> HunyuanVideoPipeline:
    first, second = _tokenizer(start=True, end=False), _tokenizer(start=True)
    return HunyuanVideoPipeline(
        text_encoder=LlamaModel(_llama_config(len(first), first.pad_token_id)).eval(),
        tokenizer=first,
        transformer=_hunyuan_transformer(),
        vae=_hunyuan_vae(),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=7.0),
        text_encoder_2=_clip_text(second),
        tokenizer_2=second,
    )


def _hunyuan_i2v() -> HunyuanVideoImageToVideoPipeline:
    first = _tokenizer("<|end_header_id|>", "<image>", start=True, end=False)
    second = _tokenizer(start=True)
    vision = CLIPVisionConfig(
        hidden_size=8, intermediate_size=16, projection_dim=8, num_attention_heads=2,
        num_hidden_layers=3, image_size=56, patch_size=8,
    )  # fmt: skip
    llava = LlavaConfig(
        vision_config=vision,
        text_config=_llama_config(len(first), first.pad_token_id),
        image_token_index=first.convert_tokens_to_ids("<image>"),
        pad_token_id=first.pad_token_id,
    )
    return HunyuanVideoImageToVideoPipeline(
        text_encoder=LlavaForConditionalGeneration(llava).eval(),
        tokenizer=first,
        transformer=_hunyuan_transformer("token_replace"),
        vae=_hunyuan_vae(),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=7.0),
        text_encoder_2=_clip_text(second),
        tokenizer_2=second,
        image_processor=CLIPImageProcessor(crop_size=56, size=56),
    )


def _t5(words: int, width: int = 32) -> T5EncoderModel:
    return T5EncoderModel(
        T5Config(
            vocab_size=words, d_model=width, d_kv=8, d_ff=64, num_layers=1, num_heads=4,
            dropout_rate=0.0, tie_word_embeddings=False,
        )
    ).eval()  # fmt: skip


def _t5_text() -> dict[str, Any]:
    tokenizer = _tokenizer()
    return {"tokenizer": tokenizer, "text_encoder": _t5(len(tokenizer))}


def _wan_5b() -> WanPipeline:
    return WanPipeline(
        **_wan_text(), vae=_wan_vae(), transformer=wan_transformer(), scheduler=_wan_scheduler(),
        expand_timesteps=True,
    )  # fmt: skip


def _wan_5b_image() -> WanImageToVideoPipeline:
    return WanImageToVideoPipeline(
        **_wan_text(), vae=_wan_vae(), transformer=wan_transformer(), scheduler=_wan_scheduler(),
        expand_timesteps=True,
    )  # fmt: skip


def _wan_vace() -> WanVACEPipeline:
    transformer = WanVACETransformer3DModel(
        patch_size=(1, 2, 2), num_attention_heads=HEADS, attention_head_dim=HEAD_SIZE,
        in_channels=16, out_channels=16, text_dim=32, freq_dim=64, ffn_dim=64, num_layers=3,
        cross_attn_norm=True, rope_max_seq_len=64, vace_layers=[0, 2], vace_in_channels=96,
    ).eval()  # fmt: skip
    return WanVACEPipeline(
        **_wan_text(), vae=_wan_vae(), transformer=transformer, scheduler=_wan_scheduler()
    )


def _skyreels() -> SkyReelsV2Pipeline:
    transformer = SkyReelsV2Transformer3DModel(
        patch_size=(1, 2, 2), num_attention_heads=HEADS, attention_head_dim=HEAD_SIZE,
        in_channels=16, out_channels=16, text_dim=32, freq_dim=64, ffn_dim=64, num_layers=3,
        rope_max_seq_len=64,
    ).eval()  # fmt: skip
    return SkyReelsV2Pipeline(
        **_wan_text(), vae=_wan_vae(), transformer=transformer, scheduler=_wan_scheduler()
    )


def _hunyuan15() -> HunyuanVideo15Pipeline:
    """Without text encoders: it is called with embeddings."""
    transformer = HunyuanVideo15Transformer3DModel(
        in_channels=9, out_channels=4, num_attention_heads=HEADS, attention_head_dim=HEAD_SIZE,
        num_layers=3, num_refiner_layers=1, text_embed_dim=16, text_embed_2_dim=32,
        image_embed_dim=8, rope_axes_dim=(8, 8, 8), target_size=64, task_type="t2v",
    ).eval()  # fmt: skip
    vae = AutoencoderKLHunyuanVideo15(
        latent_channels=4, block_out_channels=(8, 8, 8, 8, 8), layers_per_block=1,
        spatial_compression_ratio=16, temporal_compression_ratio=4,
    ).eval()  # fmt: skip
    return HunyuanVideo15Pipeline(
        text_encoder=None, tokenizer=None, text_encoder_2=None, tokenizer_2=None,
        transformer=transformer, vae=vae, scheduler=FlowMatchEulerDiscreteScheduler(shift=7.0),
        guider=ClassifierFreeGuidance(guidance_scale=4.0),
    )  # fmt: skip


def _hunyuan15_text() -> dict[str, torch.Tensor]:
    """Embeddings with padding, of both text encoders and both branches."""
    chance = torch.Generator().manual_seed(0)
    arguments = {}
    for branch, valid in (("", 5), ("negative_", 3)):
        for suffix, width in (("", 16), ("_2", 32)):
            name = f"{branch}prompt_embeds"
            arguments[name + suffix] = torch.randn(1, 8, width, generator=chance)
            arguments[f"{name}_mask{suffix}"] = (torch.arange(8) < valid).long()[None]
    return arguments


def _ltx() -> LTXPipeline:
    transformer = LTXVideoTransformer3DModel(
        in_channels=8, out_channels=8, num_attention_heads=HEADS, attention_head_dim=HEAD_SIZE,
        cross_attention_dim=HEADS * HEAD_SIZE, num_layers=3, caption_channels=32,
    ).eval()  # fmt: skip
    vae = AutoencoderKLLTXVideo(
        latent_channels=8, block_out_channels=(8, 8, 8, 8),
        decoder_block_out_channels=(8, 8, 8, 8),
        layers_per_block=(1, 1, 1, 1, 1), decoder_layers_per_block=(1, 1, 1, 1, 1),
    ).eval()  # fmt: skip
    return LTXPipeline(
        **_t5_text(), vae=vae, transformer=transformer, scheduler=FlowMatchEulerDiscreteScheduler()
    )


def _cogvideox() -> CogVideoXPipeline:
    transformer = CogVideoXTransformer3DModel(
        num_attention_heads=HEADS, attention_head_dim=16, in_channels=4, out_channels=4,
        time_embed_dim=16, text_embed_dim=32, num_layers=3, sample_width=8, sample_height=8,
        sample_frames=9, max_text_seq_length=16, use_rotary_positional_embeddings=True,
    ).eval()  # fmt: skip
    vae = AutoencoderKLCogVideoX(
        block_out_channels=(8, 8, 8, 8), latent_channels=4, layers_per_block=1, norm_num_groups=2,
        sample_height=64, sample_width=64,
    ).eval()  # fmt: skip
    return CogVideoXPipeline(
        **_t5_text(), vae=vae, transformer=transformer, scheduler=CogVideoXDDIMScheduler()
    )


def _mochi() -> MochiPipeline:
    transformer = MochiTransformer3DModel(
        num_attention_heads=HEADS, attention_head_dim=HEAD_SIZE, num_layers=3, in_channels=12,
        pooled_projection_dim=16, text_embed_dim=32, time_embed_dim=16, max_sequence_length=16,
    ).eval()  # fmt: skip
    vae = AutoencoderKLMochi(
        encoder_block_out_channels=(32, 32, 32, 32), decoder_block_out_channels=(32, 32, 32, 32),
        layers_per_block=(1, 1, 1, 1, 1),
    ).eval()  # fmt: skip
    return MochiPipeline(
        **_t5_text(), vae=vae, transformer=transformer, scheduler=FlowMatchEulerDiscreteScheduler()
    )


PIPELINES: dict[str, Callable[[], Any]] = {
    "wan2.1-t2v": _wan_t2v,
    "wan2.1-i2v": _wan_i2v,
    "wan2.2-t2v": _wan22_t2v,
    "wan2.2-i2v": _wan22_i2v,
    "hunyuanvideo-t2v": _hunyuan_t2v,
    "hunyuanvideo-i2v": _hunyuan_i2v,
}
WIDER: dict[str, Callable[[], Any]] = {
    "wan2.2-ti2v-5b": _wan_5b,
    "wan2.2-ti2v-5b-image": _wan_5b_image,
    "wan-vace": _wan_vace,
    "skyreels-v2": _skyreels,
    "hunyuanvideo-1.5": _hunyuan15,
    "ltx-video": _ltx,
    "cogvideox": _cogvideox,
    "mochi": _mochi,
}


def build(name: str) -> Any:
    """Build one of the pipelines; the same name gives the same weights."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        pipe = (PIPELINES | WIDER)[name]()
        for transformer in (pipe.transformer, getattr(pipe, "transformer_2", None)):
            for parameter in transformer.parameters() if transformer is not None else ():
                if parameter.ndim > 1:  # sharper attention than random weights give
                    parameter.data.mul_(1.5)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def generate(pipe: Any, *, steps: int = 4, seed: int = 0, **settings: Any) -> torch.Tensor:
    """Return frames `[frames, 3, height, width]` of a 64 x 64 clip of 9 frames."""
    return generate_all(pipe, steps=steps, seed=seed, **settings)[0]


def generate_all(pipe: Any, *, steps: int = 4, seed: int = 0, **settings: Any) -> torch.Tensor:
    """Return the frames of every video of a call, `[videos, frames, 3, height, width]`."""
    arguments = call_arguments(pipe, steps)
    arguments["generator"] = torch.Generator().manual_seed(seed)
    frames: torch.Tensor = pipe(**(arguments | settings)).frames
    return frames


def call_arguments(pipe: Any, steps: int = 4) -> dict[str, Any]:
    """Return what a pipeline must be called with for a 64 x 64 clip of 9 frames."""
    kind = type(pipe).__name__
    arguments: dict[str, Any] = {
        "prompt": PROMPT,
        "num_inference_steps": steps,
        "height": 64,
        "width": 64,
        "num_frames": 9,
        "output_type": "pt",
    }
    if "ImageToVideo" in kind:
        pixels = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
        arguments["image"] = Image.fromarray(pixels)
    if kind.startswith("Wan"):
        arguments |= {"negative_prompt": "the lazy dog", "guidance_scale": 5.0}
    elif kind in ("SkyReelsV2Pipeline", "LTXPipeline", "CogVideoXPipeline", "MochiPipeline"):
        arguments |= {"negative_prompt": "the lazy dog", "max_sequence_length": 16}
        if kind == "LTXPipeline":  # 32 x 32 pixels a token
            arguments |= {"height": 256, "width": 256, "num_frames": 17}
    elif kind == "HunyuanVideo15Pipeline":
        arguments |= {"height": 128, "width": 128, **_hunyuan15_text()}
        del arguments["prompt"]
    elif kind == "HunyuanVideoPipeline":
        template = {"template": "{}", "crop_start": 0}
        arguments |= {"prompt_template": template, "max_sequence_length": 16}
    else:
        template_with_image = {
            "template": "{}", "crop_start": 0,
            "image_emb_len": 49, "image_emb_start": 5, "image_emb_end": 54,
        }  # fmt: skip
        arguments |= {"prompt_template": template_with_image, "max_sequence_length": 64}
    return arguments
