from pathlib import Path

import pytest

from svoo.errors import ConfigError
from svoo.plugin.request import Request
from svoo.studies.scale import Scale, VideoSize, choose_scale


def request(**settings: int | str) -> Request:
    return Request(prompt="", out=Path("out"), **settings)  # type: ignore[arg-type]


def test_the_embedded_model_has_two_sizes() -> None:
    scale = choose_scale(request(), quick=False)
    assert (scale.large, scale.small) == (VideoSize(49, 144, 256), VideoSize(49, 80, 144))
    assert (scale.steps, scale.prompts) == (20, 12)
    assert scale.cost(scale.large) > 3 * scale.cost(scale.small) > 0


def test_quick_is_small_and_what_is_asked_for_counts() -> None:
    quick = choose_scale(request(), quick=True)
    assert quick.prompts == 2 and quick.large == quick.small
    asked = choose_scale(request(frames=9, height=32, width=48, steps=3), quick=True)
    assert asked.large == asked.small == VideoSize(9, 32, 48) and asked.steps == 3


def test_other_models_decide_for_themselves() -> None:
    scale = choose_scale(request(model="wan2.1-t2v-1.3b"), quick=False)
    assert scale.large is None and scale.cost(None) == 1.0
    assert isinstance(scale, Scale)
    with pytest.raises(ConfigError, match="--quick is for the embedded model"):
        choose_scale(request(model="wan2.1-t2v-1.3b"), quick=True)
    with pytest.raises(ConfigError, match="together"):
        choose_scale(request(height=32), quick=False)
