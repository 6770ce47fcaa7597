from pathlib import Path

import pytest
import torch
from torch import nn

from tools.training import measure as measure_module
from tools.training.build import make_text_encoder, make_tokenizer, make_transformer, make_vae
from tools.training.codes import Statistics
from tools.training.curriculum import Kind
from tools.training.guides import Guides
from tools.training.measure import Probe, clean_first, decode, even_frames, measure, sample

STATISTICS = Statistics(torch.zeros(1, 16, 1, 1, 1), torch.ones(1, 16, 1, 1, 1))


@pytest.fixture(scope="module")
def parts() -> nn.ModuleDict:
    torch.manual_seed(0)
    transformer = make_transformer()
    return nn.ModuleDict(
        {
            "text_encoder": make_text_encoder(),
            "transformer": transformer,
            "guides": Guides(transformer),
        }
    )


def test_frames_are_even() -> None:
    assert [even_frames(count) for count in (1, 2, 4)] == [[0], [0, 12], [0, 4, 8, 12]]
    assert even_frames(13) == list(range(13))


def test_a_given_first_frame_stays(parts: nn.ModuleDict, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure_module, "STEPS", 2)
    first = torch.ones(1, 16, 1, 2, 4)
    words = ["a red circle moves left over a checkered floor"]
    found = [
        sample(
            parts,
            make_tokenizer(),
            words,
            [0, 12],
            (2, 4),
            torch.Generator().manual_seed(0),
            given,
        )
        for given in (None, first)
    ]
    assert found[0].shape == (1, 16, 2, 2, 4)
    assert torch.equal(found[1][:, :, :1], first)
    assert not torch.equal(found[0][:, :, 1:], found[1][:, :, 1:])
    timesteps = clean_first(torch.tensor([500.0, 700.0]), 2, (2, 4))
    assert timesteps.tolist() == [[0.0] * 8 + [500.0] * 8, [0.0] * 8 + [700.0] * 8]


def test_prompts_are_measured_and_shown(
    parts: nn.ModuleDict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure_module, "STEPS", 1)
    torch.manual_seed(0)
    vae = make_vae().eval()
    for kind, questions in (
        (Kind((4, 6), 1, 6, 1.0), {"colour", "background", "shape"}),
        (Kind((4, 6), 4, 1, 1.0), {"colour", "background", "shape", "motion"}),
    ):
        strip = tmp_path / f"{kind.name}.png"
        found = measure(parts, make_tokenizer(), vae, STATISTICS, kind, strip)
        assert set(found) == questions
        assert strip.exists()
    for about in ("two", "from image"):
        asked = measure(parts, make_tokenizer(), vae, STATISTICS, kind, about=about)
        assert set(asked) == questions


def test_left_out_frames_are_not_taken_for_neighbours() -> None:
    torch.manual_seed(0)
    vae = make_vae().eval()
    codes = torch.randn(2, 16, 4, 2, 3)
    with torch.no_grad():
        clips = decode(vae, STATISTICS, codes)
        alone = decode(vae, STATISTICS, codes[1:, :, 2:3])
        whole = decode(vae, STATISTICS, torch.randn(1, 16, 13, 2, 3))
    assert clips.shape == (2, 4, 3, 16, 24)
    torch.testing.assert_close(clips[1, 2], alone[0, 0])
    assert whole.shape == (1, 49, 3, 16, 24)


def test_the_probe_compares_right_and_wrong_words(
    parts: nn.ModuleDict, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure_module, "PROBES", 2)
    monkeypatch.setattr(measure_module, "SMALL", (2, 4))
    torch.manual_seed(0)
    found = Probe(make_vae().eval(), STATISTICS).look(parts, make_tokenizer())
    assert found["place at .99"] > 0
    assert abs(found["wrong word adds"]) < 0.2
