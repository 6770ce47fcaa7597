import pytest

from svoo.catalogue import find_model, models
from svoo.errors import ModelError


def test_the_seven_models_of_the_paper_and_mini() -> None:
    names = [model.name for model in models()]
    assert names[0] == "mini"
    assert len(names) == len(set(names)) == 8


def test_a_model_is_found_by_short_name_and_hub_id() -> None:
    model = find_model("wan2.2-i2v-a14b")
    assert find_model("Wan-AI/Wan2.2-I2V-A14B-Diffusers") is model
    assert (model.layers, model.heads, model.stages, model.boundary) == (40, 40, 2, 0.9)
    assert model.pipeline == "WanImageToVideoPipeline"


def test_an_unknown_model_is_refused_with_the_names() -> None:
    with pytest.raises(ModelError, match=r"'sora'.*mini, wan2\.1-t2v-1\.3b"):
        find_model("sora")
