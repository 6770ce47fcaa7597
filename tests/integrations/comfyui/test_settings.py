import pytest

from integrations.comfyui.settings import Settings, method_names, read_blocks
from svoo import SVOOConfig, available_methods
from svoo.errors import ConfigError
from svoo.plugin.request import QUALITIES


def test_blocks_are_numbers_and_ranges() -> None:
    assert read_blocks("") == read_blocks(" , ") == frozenset()
    assert read_blocks("0, 1,47 - 49") == {0, 1, 47, 48, 49}


@pytest.mark.parametrize("text", ["x", "3-1", "-1", "1-2-3", "1.5", "0-99999999"])
def test_other_blocks_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="dense_blocks must be block numbers"):
        read_blocks(text)


def test_every_method_can_be_chosen() -> None:
    assert set(method_names()) == {row.name for row in available_methods()} | {"paper"}
    for name in method_names():
        config = Settings(method=name, dense_steps=2, strict=True).config()
        assert config.dense_steps == 2 and config.strict
    with pytest.raises(ConfigError, match="no method called 'other'"):
        Settings(method="other").config()


def test_a_known_model_chooses_what_its_method_was_published_with() -> None:
    assert Settings(method="radial").config("hunyuanvideo-t2v").as_dict()["decay"] == 0.95
    assert Settings(method="radial").config().as_dict()["decay"] == 0.2


def test_the_qualities_are_svoos_presets() -> None:
    found = [Settings(quality=name).config() for name in QUALITIES]
    assert found == [SVOOConfig.fast(), SVOOConfig.balanced(), SVOOConfig.careful()]
    assert all(config.dense_steps == 0 for config in found)


@pytest.mark.parametrize(
    ("end", "steps", "last"), [(1.0, 4, 3), (0.5, 4, 1), (0.0, 4, -1), (0.3, 10, 2)]
)
def test_the_last_sparse_step(end: float, steps: int, last: int) -> None:
    assert Settings(end=end).last_sparse_step(steps) == last
