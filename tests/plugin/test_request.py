import math
from pathlib import Path
from typing import Any

import pytest

from svoo import SVOOConfig
from svoo.catalogue import find_model
from svoo.errors import ConfigError
from svoo.methods.dense import DenseConfig
from svoo.plugin.request import (
    QUALITIES,
    Request,
    call_sizes,
    choose_method,
    count_tokens,
    known_model,
    video_shape,
)

BASE: dict[str, Any] = {"prompt": "x", "out": Path("x.mp4")}


def test_methods_and_mass() -> None:
    wan = find_model("wan2.1-t2v-14b")
    assert choose_method(Request(**BASE), wan) is None
    assert choose_method(Request(**BASE, method="svoo"), wan) == SVOOConfig.for_model(wan.name)
    assert choose_method(Request(**BASE, method="paper"), wan) == SVOOConfig.paper(wan.name)
    assert choose_method(Request(**BASE, method="release"), wan) == SVOOConfig.release(wan.name)
    assert choose_method(Request(**BASE, method="dense"), wan) == DenseConfig.for_model(wan.name)
    assert choose_method(Request(**BASE, mass=0.7), None) == SVOOConfig(mass=0.7)
    qualities = [choose_method(Request(**BASE, quality=name), wan) for name in QUALITIES]
    assert qualities == [SVOOConfig.fast(), SVOOConfig.balanced(), SVOOConfig.careful()]
    tolerances = [getattr(config, "tolerance", None) or 0.0 for config in qualities]
    assert tolerances == sorted(tolerances, reverse=True) and tolerances[-1] > 0
    with pytest.raises(ConfigError, match="needs a model of the catalogue"):
        choose_method(Request(**BASE, method="release"), None)
    with pytest.raises(ConfigError, match="mass must be"):
        choose_method(Request(**BASE, mass=7), wan)
    with pytest.raises(ConfigError, match="--mass is svoo's; --method dense has its own"):
        choose_method(Request(**BASE, mass=0.5, method="dense"), wan)


def test_the_catalogue_gives_the_call_defaults() -> None:
    sizes = call_sizes(Request(**BASE, steps=7), find_model("wan2.2-t2v-a14b"))
    assert (sizes["num_inference_steps"], sizes["num_frames"]) == (7, 81)
    assert (sizes["guidance_scale"], sizes["guidance_scale_2"]) == (5.0, 3.0)
    assert "negative_prompt" not in sizes
    assert call_sizes(Request(**BASE, negative_prompt="fog"), None) == {"negative_prompt": "fog"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"guidance": math.nan}, "--guidance must be a finite number, got nan"),
        ({"guidance": math.inf}, "--guidance must be a finite number, got inf"),
        ({"seed": 2**64}, "--seed must be a whole number of 64 bits, got 18446744073709551616"),
        ({"seed": -1}, "--seed must be a whole number of 64 bits, got -1"),
        ({"steps": 0}, "--steps must be a whole number from 1, got 0"),
        ({"width": -16}, "--width must be a whole number from 1, got -16"),
        ({"fps": math.nan}, "--fps must be a number from 1 to 240, got nan"),
        ({"fps": 0}, "--fps must be a number from 1 to 240, got 0"),
        ({"fps": 60, "out": Path("v.gif")}, "--fps must be at most 50 for a GIF, got 60"),
        ({"dtype": "int4"}, "--dtype must be one of float32, bfloat16, float16, got 'int4'"),
        ({"method": "magic"}, "--method must be one of .*svoo.*paper, release, got 'magic'"),
        ({"quality": "best"}, "--quality must be one of fast, balanced, careful, got 'best'"),
        ({"quality": "fast", "method": "paper"}, "--quality is svoo's"),
        (
            {"profile": Path("p")},
            "--profile is for --method paper, release, sta, or --mass: default mode does not use",
        ),
        ({"profile": Path("p"), "method": "svg2"}, "or --mass: svg2 does not use one"),
        ({"profile": Path("p"), "quality": "fast"}, "default mode does not use one"),
        ({"prompt": "a\udcff"}, r"--prompt is no UTF-8 text: 'a.udcff'"),
    ],
)
def test_what_no_pipeline_could_do_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Request(**(BASE | changes))


def test_tokens_of_a_video() -> None:
    mini, wan = find_model("mini"), find_model("wan2.1-t2v-1.3b")
    assert count_tokens(Request(**BASE), mini) == 7488
    assert count_tokens(Request(**BASE), wan) == 75_600
    assert count_tokens(Request(**BASE, frames=5, height=64, width=64), None) is None
    assert video_shape(Request(**BASE, frames=5), None) is None
    assert video_shape(Request(**BASE, frames=5), mini) == (5, 144, 256)


def test_a_path_is_no_model_of_the_catalogue() -> None:
    assert known_model("mini") == find_model("mini")
    assert known_model("some/where") is None
