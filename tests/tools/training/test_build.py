import torch

from tools.training.build import (
    assemble,
    make_text_encoder,
    make_tokenizer,
    make_transformer,
    make_vae,
)


def test_the_tokenizer_knows_the_grammar_and_nothing_else() -> None:
    tokenizer = make_tokenizer()
    known = tokenizer("A red Circle moves left over a checkered floor")["input_ids"]
    assert tokenizer.unk_token_id not in known
    assert known[-1] == tokenizer.eos_token_id
    assert tokenizer.unk_token_id in tokenizer("a red dragon")["input_ids"]


def test_the_transformer_has_fourteen_heads_and_is_small() -> None:
    transformer = make_transformer()
    assert len(transformer.blocks) * transformer.config.num_attention_heads == 14
    assert sum(value.numel() for value in transformer.parameters()) < 2.1e6


def test_the_parts_make_a_pipeline_that_generates() -> None:
    torch.manual_seed(0)
    pipe = assemble(make_vae(), make_text_encoder(), make_transformer())
    pipe.set_progress_bar_config(disable=True)
    video = pipe(
        "a red circle moves left over a checkered floor",
        height=32,
        width=48,
        num_frames=5,
        num_inference_steps=2,
        max_sequence_length=32,
        generator=torch.Generator().manual_seed(0),
        output_type="np",
    ).frames
    assert video.shape == (1, 5, 32, 48, 3)
