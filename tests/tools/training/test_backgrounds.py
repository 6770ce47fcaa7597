import pytest
import torch

from svoo.mini.vocabulary import BACKGROUNDS
from tools.training.backgrounds import PAINTERS


def test_every_place_of_the_grammar_can_be_painted() -> None:
    assert list(PAINTERS) == [
        "a checkered floor",
        "a wooden floor",
        "a brick wall",
        "a grassy field",
        "a starry sky",
        "rippling water",
    ]
    assert set(PAINTERS) == set(BACKGROUNDS)


@pytest.mark.parametrize("name", PAINTERS)
def test_a_place_has_texture_is_muted_and_follows_its_phases(name: str) -> None:
    y = ((torch.arange(72) + 0.5) / 72).view(1, 72, 1)
    x = ((torch.arange(128) + 0.5) / 72).view(1, 1, 128)
    time = torch.tensor([0.0, 0.5]).view(2, 1, 1)
    one = PAINTERS[name](x, y, time, (0.1, 0.2, 0.3), 1 / 72).expand(2, 3, 72, 128)
    two = PAINTERS[name](x, y, time, (0.4, 0.7, 0.8), 1 / 72).expand(2, 3, 72, 128)
    assert 0.005 < one.std(dim=(2, 3)).mean() < 0.2
    assert not torch.allclose(one, two, atol=0.02)
    # Things are saturated or bright; places are neither, so that a thing always stands out.
    assert (one.amax(dim=1) - one.amin(dim=1)).mean() < 0.3
    moves = not torch.allclose(one[0], one[1], atol=1e-3)
    assert moves == (name in ("a grassy field", "a starry sky", "rippling water"))
