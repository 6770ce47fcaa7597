import pytest

from svoo.catalogue import check_sizes, find_model, models
from svoo.errors import ModelError, ShapeError


def test_the_seven_models_of_the_paper_and_mini() -> None:
    names = [model.name for model in models()]
    assert names[0] == "mini"
    assert len(names) == len(set(names)) == 8


def test_a_model_is_found_by_short_name_and_hub_id() -> None:
    model = find_model("wan2.2-i2v-a14b")
    assert find_model("Wan-AI/Wan2.2-I2V-A14B-Diffusers") is model
    assert (model.layers, model.heads, model.stages, model.boundary) == (40, 40, 2, 0.9)
    assert model.pipeline == "WanImageToVideoPipeline"


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ((0, 16, 16), "num_frames must be a multiple of 4 plus 1, got 0; the nearest is 1"),
        ((7, 16, 16), "num_frames .* got 7; the nearest is 9"),
        ((5, 8, 16), "height must be a multiple of 16, got 8; the nearest is 16"),
        ((5, 16, 60), "width must be a multiple of 16, got 60; the nearest is 64"),
    ],
)
def test_sizes_that_no_model_makes(size: tuple[int, int, int], message: str) -> None:
    check_sizes(5, 16, 48)
    with pytest.raises(ShapeError, match=message):
        check_sizes(*size)


def test_an_unknown_model_is_refused_with_the_names() -> None:
    with pytest.raises(ModelError, match=r"'sora'.*mini, wan2\.1-t2v-1\.3b"):
        find_model("sora")
