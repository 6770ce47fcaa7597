import json
import math
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from diffusers import WanPipeline

from svoo.mini.vocabulary import SHAPES
from tools.training import train_dit as train_dit_module
from tools.training.build import (
    assemble,
    make_text_encoder,
    make_tokenizer,
    make_transformer,
    make_vae,
)
from tools.training.scenes import ask_for
from tools.training.train_dit import (
    THING_WEIGHT,
    Batch,
    Clip,
    Codes,
    Guide,
    LatentCache,
    embed,
    train_dit,
    weigh,
)

TINY = Codes("tiny", 3, 2, 5, 16, 32, 2)


def test_captions_are_embedded_as_the_pipeline_does_it() -> None:
    torch.manual_seed(0)
    pipe: WanPipeline = assemble(make_vae(), make_text_encoder(), make_transformer())
    captions = ["a red circle moves left over a checkered floor", "a blue star spins", ""]
    with torch.no_grad():
        ours = embed(pipe.text_encoder, make_tokenizer(), captions, 32)
        theirs = pipe._get_t5_prompt_embeds(captions, max_sequence_length=32)
    torch.testing.assert_close(ours, theirs)


def test_codes_are_cached_by_autoencoder(tmp_path: Path) -> None:
    torch.manual_seed(0)
    vae = make_vae([0.5] * 16, [2.0] * 16)
    codes, clips = LatentCache(tmp_path, vae).get(TINY, 0)
    assert codes.shape == (3, 16, 2, 2, 4)
    assert len(clips) == 3
    again, _ = LatentCache(tmp_path, vae).get(TINY, 0)
    assert torch.equal(codes, again)
    others, _ = LatentCache(tmp_path, vae).get(TINY, 1)
    assert not torch.equal(codes, others)
    LatentCache(tmp_path, make_vae()).get(TINY, 0)
    assert len(list(tmp_path.iterdir())) == 2


def test_errors_close_by_a_thing_weigh_more() -> None:
    scene = ask_for("red", "circle", "right", "a wooden floor", random.Random(0))
    weights = weigh(Clip(scene, 0), 13, 18, 32)
    assert weights.shape == (13, 18, 32)
    assert float(weights.mean()) == pytest.approx(1)
    low, high = weights.unique().tolist()
    assert high == pytest.approx((1 + THING_WEIGHT) * low)
    near = (weights > 1).sum(dim=1).float()  # [frames, columns]
    places = (near @ torch.arange(32.0) / near.sum(dim=1)).tolist()
    assert places == sorted(places)
    later = weigh(Clip(scene, 40), 3, 18, 32)
    torch.testing.assert_close(later[2] / later.min(), weights[12] / low)


def test_a_guide_that_knows_the_path_and_the_shape_has_no_error() -> None:
    """A block whose state is the thing's place in every frame, through a guess that copies it."""
    scene = ask_for("red", "square", "right", "a wooden floor", random.Random(0))
    two = replace(scene, things=scene.things * 2)
    clips = [Clip(scene, 0), Clip(two, 0)]
    places = torch.stack([Guide._places(clip, 13) for clip in clips])
    assert bool((places[0].diff(dim=0)[:, 0] > 0).all())  # it moves right
    block = torch.nn.Identity()
    guide = Guide(block, 2)
    torch.nn.init.eye_(guide.guess.weight)
    for parameter in guide.guess.bias, guide.name.weight, guide.name.bias:
        torch.nn.init.zeros_(parameter)
    state = places.repeat_interleave(6, dim=1)  # six tokens a frame
    block(state)
    path, shape = guide.errors(clips, 13)
    assert path.item() == 0
    assert shape.item() == pytest.approx(math.log(len(SHAPES)))  # it cannot tell them apart
    with torch.no_grad():
        guide.name.bias[SHAPES.index("square")] = 100
    state[0] += 1
    state[1] += 100  # two things: does not count
    block(state)
    path, shape = guide.errors(clips, 13)
    assert path.item() == pytest.approx(1)
    assert shape.item() == pytest.approx(0)


def test_training_learns_writes_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = Batch(TINY, 2, 2, 2.0)
    monkeypatch.setattr(train_dit_module, "STAGES", ((0.0, (batch,)),))
    monkeypatch.setattr(train_dit_module, "TEXT_LENGTHS", (32,))
    torch.manual_seed(0)
    make_vae().half().save_pretrained(tmp_path / "weights" / "vae")
    where = (tmp_path / "out", tmp_path / "weights", tmp_path / "cache")
    train_dit(*where, 3, resume=False)
    train_dit(*where, 26, resume=True)
    rows = [json.loads(line) for line in (tmp_path / "out" / "dit.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 25]
    assert rows[1]["tiny2"] < rows[0]["tiny2"]
    assert (tmp_path / "out" / "resume.safetensors").stat().st_size < 30 << 20
    assert len(list((tmp_path / "out" / "samples").iterdir())) == 2
