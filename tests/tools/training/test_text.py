import random

import torch
from diffusers import WanPipeline

from svoo.mini.vocabulary import MOTIONS, vocabulary
from tools.training.build import (
    assemble,
    make_text_encoder,
    make_tokenizer,
    make_transformer,
    make_vae,
)
from tools.training.scenes import ask_for, draw_scene
from tools.training.text import embed, opposite, without_motion


def test_captions_are_embedded_as_the_pipeline_does_it() -> None:
    torch.manual_seed(0)
    pipe: WanPipeline = assemble(make_vae(), make_text_encoder(), make_transformer())
    captions = ["a red circle moves left over a checkered floor", "a blue star spins", ""]
    with torch.no_grad():
        ours = embed(pipe.text_encoder, make_tokenizer(), captions, 32)
        theirs = pipe._get_t5_prompt_embeds(captions, max_sequence_length=32)
    torch.testing.assert_close(ours, theirs)


def test_a_caption_without_motion_says_the_rest() -> None:
    assert (
        without_motion("a red circle is moving up and left while the blue star spins over water")
        == "a red circle while the blue star over water"
    )
    words = set()
    for seed in range(200):
        words |= set(without_motion(draw_scene(random.Random(seed)).caption).split())
    gone = set(vocabulary()) - words
    assert {"moves", "up", "left", "bounces", "orbit", "grows", "spins"} <= gone
    for motion in MOTIONS:
        scene = ask_for("red", "square", motion, "a brick wall", random.Random(0))
        assert "a brick wall" in without_motion(scene.caption)


def test_opposites() -> None:
    assert opposite("a red star moves up and left") == "a red star moves down and right"
