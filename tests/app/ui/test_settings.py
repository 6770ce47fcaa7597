from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ui_fakes import FACTS

from svoo.app.ui.problems import Problem
from svoo.app.ui.settings import LARGEST_SEED, Ask, Limits, Settings, complete, read_ask


def settings(facts: Any = FACTS, **fields: Any) -> Settings:
    return complete(read_ask({"prompt": "a fox"} | fields), facts, Limits(), picture=False)


def test_what_is_left_out_is_the_models() -> None:
    found = settings()
    assert (found.size, found.frames, found.fps, found.steps) == ("64x32", 9, 16, 4)
    assert (found.guidance, found.method, found.dense) == (3.0, None, False)
    assert settings(seed=0).seed == 0 and settings().seed != settings().seed


def test_text_of_a_form_and_numbers_of_json_are_the_same() -> None:
    numbers = {"size": "96x48", "num_frames": 5, "seed": 7, "steps": 2, "guidance": 1.5}
    form = {name: str(value) for name, value in numbers.items()}
    assert settings(**numbers) == settings(**form, method="")
    others = {"size": "96x48", "num_frames": 5, "seed": 7}
    assert settings(**others, num_inference_steps=2, guidance_scale=1.5) == settings(**numbers)


@pytest.mark.parametrize(
    ("fields", "field", "message"),
    [
        ({"prompt": "a" * 4001}, "prompt", "has 4,001 letters; at most 4,000"),
        ({"prompt": "  "}, "prompt", "empty"),
        ({"prompt": ""}, "prompt", "is needed"),
        ({"negative_prompt": "a" * 4001}, "negative_prompt", "at most 4,000"),
        ({"size": "64"}, "size", "should match pattern"),
        ({"size": "64x../../x"}, "size", "should match pattern"),
        ({"size": "1936x64"}, "size", "at most 1920 is taken here, got 1936"),
        ({"size": "64x50"}, "size", "multiples of 16, got 50; the nearest is 48"),
        ({"size": "5x16"}, "size", "got 5; the nearest is 16"),
        ({"num_frames": 10}, "num_frames", "multiple of 4 plus 1, got 10; the nearest is 9"),
        ({"num_frames": 261}, "num_frames", "at most 257"),
        ({"num_frames": 9, "seconds": 1}, "seconds", "one of them"),
        ({"seconds": 100}, "seconds", "100 seconds at 16 frames per second are 1601 frames; at"),
        ({"prompt": "a \ud800"}, "prompt", "letters that UTF-8 cannot write"),
        ({"negative_prompt": "\udfff"}, "negative_prompt", "letters that UTF-8 cannot write"),
        ({"model": "\ud800"}, "model", "letters that UTF-8 cannot write"),
        ({"\ud800": "x"}, "?", "letters that UTF-8 cannot write"),
        ({"seconds": "soon"}, "seconds", "valid number"),
        ({"steps": 101}, "steps", "at most 100"),
        ({"steps": 0}, "steps", "greater than or equal to 1"),
        ({"fps": 0.5}, "fps", "greater than or equal to 1"),
        ({"seed": -1}, "seed", "greater than or equal to 0"),
        ({"seed": LARGEST_SEED + 1}, "seed", "less than or equal to"),
        ({"guidance": "nan"}, "guidance", "less than or equal to 100, got 'nan'"),
        ({"method": "magic"}, "method", "must be one of svoo, dense, got 'magic'"),
        ({"quality": "best"}, "quality", "must be one of fast, careful"),
        ({"model": "sora-2"}, "model", "has loaded fake, not sora-2"),
        ({"out": "/etc/passwd"}, "out", "no field is called 'out'; there are prompt, model"),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    fields: dict[str, Any], field: str, message: str
) -> None:
    with pytest.raises(Problem, match=message) as refused:
        settings(**fields)
    assert refused.value.field == field and 400 <= refused.value.status < 500


def test_a_model_without_usual_sizes_asks_for_them() -> None:
    unknown = replace(FACTS, width=None, frame_step=1, side_step=1)
    with pytest.raises(Problem, match="size is needed: this model has no usual one"):
        settings(unknown)
    assert settings(unknown, size="50x51", num_frames=10).size == "50x51"


@given(seconds=st.floats(0.01, 16), fps=st.floats(1, 16))
def test_seconds_become_the_nearest_frames_that_the_model_makes(
    seconds: float, fps: float
) -> None:
    frames = settings(seconds=seconds, fps=fps).frames
    possible = range(1, 300, 4)
    best = min(abs(count - seconds * fps) for count in possible)
    assert frames in possible and abs(frames - seconds * fps) == pytest.approx(best)


def test_a_dense_video_has_no_dense_one_beside_it() -> None:
    assert settings(dense="true").dense and settings(dense=True, method="svoo").dense
    assert not settings(dense=True, method="dense").dense


def test_every_field_is_explained() -> None:
    assert all(field.description for field in Ask.model_fields.values())
