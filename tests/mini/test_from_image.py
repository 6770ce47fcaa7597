import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import svoo
from svoo.catalogue import find_model
from svoo.errors import ShapeError
from svoo.methods.svg2 import SVG2Config
from svoo.mini.from_image import MiniImageToVideoPipeline, load_from_image
from svoo.plugin.apply import recognise
from svoo.plugin.load import load_pipeline
from svoo.plugin.request import Request

PROMPT = "a red circle moves left over a checkered floor"
HEIGHT, WIDTH, FRAMES = 48, 80, 9


@pytest.fixture(scope="module")
def pipe() -> MiniImageToVideoPipeline:
    loaded = load_from_image()
    loaded.set_progress_bar_config(disable=True)
    return loaded


@pytest.fixture(scope="module")
def picture() -> Image.Image:
    colours = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    colours[:, :, 0] = np.linspace(40, 220, WIDTH)
    colours[:, :, 2] = np.linspace(220, 40, HEIGHT)[:, None]
    return Image.fromarray(colours)


def generate(pipe: MiniImageToVideoPipeline, picture: Image.Image, **settings: Any) -> Any:
    sizes = {"height": HEIGHT, "width": WIDTH, "num_frames": FRAMES, "num_inference_steps": 2}
    chance = torch.Generator().manual_seed(0)
    call = {"generator": chance, "output_type": "np", **sizes, **settings}
    return pipe(picture, PROMPT, **call).frames[0]


def test_the_picture_is_the_first_frame(
    pipe: MiniImageToVideoPipeline, picture: Image.Image
) -> None:
    video = generate(pipe, picture)
    assert video.shape == (FRAMES, HEIGHT, WIDTH, 3)
    pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1)[None, :, None] / 127.5 - 1
    with torch.no_grad():  # what the autoencoder leaves of it: decoding looks at no later frame
        decoded = pipe.vae.decode(pipe.vae.encode(pixels).latent_dist.mode()).sample
    expected = (decoded[0, :, 0].permute(1, 2, 0).clamp(-1, 1).numpy() + 1) / 2
    assert np.abs(video[0] - expected).max() < 1e-3
    assert np.abs(video[-1] - expected).max() > 0.1


def test_only_tokens_of_the_picture_are_told_that_they_are_clean(
    pipe: MiniImageToVideoPipeline, picture: Image.Image
) -> None:
    seen = []

    def look(_module: object, _inputs: object, named: dict[str, Any]) -> None:
        seen.append(named["timestep"].clone())

    hook = pipe.transformer.register_forward_pre_hook(look, with_kwargs=True)
    generate(pipe, picture, height=48, width=80)
    hook.remove()
    rows, columns = HEIGHT // 8, WIDTH // 8
    levels = seen[0].view(-1, (FRAMES - 1) // 4 + 1, rows * columns)
    assert (levels[:, 0] == 0).all()
    assert (levels[:, 1:] == levels[0, 1, 0]).all()
    assert levels[0, 1, 0] > 900


def test_sparse_attention_knows_the_model(
    pipe: MiniImageToVideoPipeline, picture: Image.Image
) -> None:
    assert recognise(pipe) is find_model("mini")
    dense = generate(pipe, picture)
    with svoo.apply(pipe, SVG2Config(mass=1.0, dense_steps=0), None) as handle:
        same = generate(pipe, picture)
        assert handle.stats().density is not None
    assert np.abs(dense - same).max() < 1e-3


def test_bad_sizes_are_refused(pipe: MiniImageToVideoPipeline, picture: Image.Image) -> None:
    with pytest.raises(ShapeError, match="height must be a multiple of 16, got 50"):
        generate(pipe, picture, height=50)


def test_a_request_with_a_picture_gets_it_where_the_weights_were_trained_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = find_model("mini")
    request = Request(prompt=PROMPT, out=tmp_path / "v.mp4", image=tmp_path / "a.png")
    kinds = set()
    for trained in (False, True):
        monkeypatch.setitem(model.__dict__, "takes_image", trained)
        kinds.add((trained, type(load_pipeline(request, model)).__name__))
    assert kinds == {(False, "MiniPipeline"), (True, "MiniImageToVideoPipeline")}


def test_loading_prints_nothing() -> None:
    code = "from svoo.mini.from_image import load_from_image; load_from_image()"
    # Without the packages of `make test`: torchao prints whenever diffusers is imported.
    without_company = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=without_company,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout + done.stderr == ""
