import torch

from svoo.catalogue import find_model
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


def test_the_transformer_is_the_catalogues_mini() -> None:
    transformer, mini = make_transformer(), find_model("mini")
    assert len(transformer.blocks) == mini.layers
    assert transformer.config.num_attention_heads == mini.heads
    assert transformer.config.attention_head_dim == mini.head_dim
    assert float(transformer.blocks[3].attn1.norm_q.weight.detach().mean()) == 1.5


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
