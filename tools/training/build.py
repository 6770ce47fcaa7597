"""The parts of the embedded model: sizes as data, and functions that make each part untrained."""

from __future__ import annotations

from diffusers import AutoencoderKLWan, UniPCMultistepScheduler, WanPipeline, WanTransformer3DModel
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast, UMT5Config, UMT5EncoderModel

from svoo.mini.vocabulary import vocabulary

TEXT_WIDTH = 64
LATENT_CHANNELS = 16
# Two heads of 64 learn faster than four of 32 and cost less (half as many exponentials): seven
# layers of them, 14 heads in all, take as long as six layers of four (2.2 s at 7,488 tokens).
LAYERS, HEADS, HEAD_SIZE = 7, 2, 64

_SPECIAL_TOKENS = ("<pad>", "</s>", "<unk>")


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token a word of the caption grammar, ended by `</s>` as UMT5's
    is; captions have no punctuation, so what a prompt has of it is left out."""
    words = {word: number for number, word in enumerate((*_SPECIAL_TOKENS, *vocabulary()))}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    no_punctuation = normalizers.Replace(Regex(r"[^\w\s]"), " ")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), no_punctuation])
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", words["</s>"])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        padding_side="right",
        model_max_length=512,
    )


def make_text_encoder() -> UMT5EncoderModel:
    """Return a UMT5 encoder of two layers, trained together with the transformer."""
    return UMT5EncoderModel(
        UMT5Config(
            vocab_size=len(_SPECIAL_TOKENS) + len(vocabulary()),
            d_model=TEXT_WIDTH,
            d_kv=16,
            d_ff=128,
            num_layers=2,
            num_heads=4,
            dropout_rate=0.0,
            tie_word_embeddings=False,
        )
    )


def make_vae(
    latents_mean: list[float] | None = None, latents_std: list[float] | None = None
) -> AutoencoderKLWan:
    """Return an 8 x 8 x 4 autoencoder; the full-resolution levels are narrow because they cost the
    time."""
    return AutoencoderKLWan(
        base_dim=8,
        z_dim=LATENT_CHANNELS,
        dim_mult=[1, 2, 4, 8],
        num_res_blocks=1,
        temperal_downsample=[False, True, True],
        latents_mean=latents_mean or [0.0] * LATENT_CHANNELS,
        latents_std=latents_std or [1.0] * LATENT_CHANNELS,
    )


def make_transformer() -> WanTransformer3DModel:
    """Return the denoiser, one token a latent pixel."""
    return WanTransformer3DModel(
        patch_size=(1, 1, 1),
        num_attention_heads=HEADS,
        attention_head_dim=HEAD_SIZE,
        in_channels=LATENT_CHANNELS,
        out_channels=LATENT_CHANNELS,
        text_dim=TEXT_WIDTH,
        freq_dim=64,
        ffn_dim=4 * HEADS * HEAD_SIZE,
        num_layers=LAYERS,
        cross_attn_norm=True,
        qk_norm="rms_norm_across_heads",
        rope_max_seq_len=1024,
    )


def make_scheduler() -> UniPCMultistepScheduler:
    """Return the flow-matching scheduler that Wan uses."""
    return UniPCMultistepScheduler(
        prediction_type="flow_prediction",
        use_flow_sigmas=True,
        flow_shift=3.0,
        num_train_timesteps=1000,
    )


def assemble(
    vae: AutoencoderKLWan, text_encoder: UMT5EncoderModel, transformer: WanTransformer3DModel
) -> WanPipeline:
    """Put trained parts together into the pipeline that users load."""
    return WanPipeline(
        tokenizer=make_tokenizer(),
        text_encoder=text_encoder.eval(),
        vae=vae.eval(),
        transformer=transformer.eval(),
        scheduler=make_scheduler(),
    )
