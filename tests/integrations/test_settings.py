import pytest

from svoo import SVOOConfig, available_methods
from svoo.errors import ConfigError, ModelError
from svoo.integrations.settings import choose_config


def test_qualities_are_svoos_presets() -> None:
    found = [choose_config(quality=name) for name in ("fast", "balanced", "careful")]
    assert found == [SVOOConfig.fast(), SVOOConfig.balanced(), SVOOConfig.careful()]
    assert choose_config() == SVOOConfig.balanced()


def test_every_method_takes_dense_steps_and_strict() -> None:
    for name in (*(row.name for row in available_methods()), "paper"):
        config = choose_config(name, dense_steps=0.25, strict=True)
        assert (config.dense_steps, config.strict) == (0.25, True)
    assert choose_config("paper") == SVOOConfig.paper()
    assert choose_config("svg2").dense_steps != 0


def test_a_model_chooses_what_its_method_was_published_with() -> None:
    for row in available_methods():
        found = choose_config(row.name, model="hunyuanvideo-t2v")
        assert found == row.config.for_model("hunyuanvideo-t2v")
    assert choose_config("svg1", model="hunyuanvideo-t2v").as_dict()["family"] == "hunyuan"


def test_other_words_are_refused() -> None:
    with pytest.raises(ConfigError, match="quality must be one of fast, balanced, careful"):
        choose_config(quality="best")
    with pytest.raises(ConfigError, match="no method called 'other'"):
        choose_config("other")
    with pytest.raises(ModelError, match="no model called 'wan3'"):
        choose_config(model="wan3")
