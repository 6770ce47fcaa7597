import math
from pathlib import Path

import pytest
import tiny
import torch
from making import normal
from methods_common import tiles_of

import svoo
from svoo import Session, VideoLayout
from svoo.core.tiles import window_mask
from svoo.errors import ConfigError
from svoo.methods.sta import STAConfig
from svoo.methods.sta_search import WindowSearch

LAYOUT = VideoLayout(4, 4, 6, text=3)
CANDIDATES = ((1, 3, 1), (3, 1, 1), (1, 1, 3))


def test_finds_the_window_with_the_least_error() -> None:
    search = WindowSearch((1, 2, 2), CANDIDATES)
    with pytest.raises(ConfigError, match="every step and layer must have been seen"):
        search.choose(0)
    losses = torch.zeros(2, 3, 2, 2, 2, dtype=torch.float64)
    tiles = tiles_of((4, 4, 6), (1, 2, 2))
    labels = torch.empty(LAYOUT.video, dtype=torch.int64)
    for place, tile in enumerate(tiles):
        labels[tile] = place
    for video in range(2):
        session = Session(search.config(), steps=2, layers=2, heads=2)
        for step in range(2):
            for layer in range(2):
                seed = 100 * video + 10 * step + layer
                tokens = [
                    3 * normal(1, 2, LAYOUT.tokens, 4, seed=seed + 1000 * s) for s in range(3)
                ]
                output = session.attend(*tokens, step=step, layer=layer, layout=LAYOUT)
                assert output.shape == tokens[0].shape
                q, k, v = (LAYOUT.video_part(side)[0].double() for side in tokens)
                logits = q @ k.mT / math.sqrt(4)
                full = logits.softmax(dim=-1) @ v
                for place, window in enumerate(CANDIDATES):
                    keep = window_mask((4, 2, 3), window, torch.device("cpu"))
                    seen = keep[labels][:, labels]
                    part = logits.masked_fill(~seen, -torch.inf).softmax(dim=-1) @ v
                    error = (part - full).square().mean(dim=(1, 2))
                    losses[video, place, step, layer] = error
        assert session.stats().dense_calls == 4
    table = search.choose(dense_steps=1)
    expected = torch.tensor(CANDIDATES)[losses.mean(dim=0).argmin(dim=0)]
    assert torch.equal(table.windows[1].long(), expected[1])
    assert bool((table.windows[0] == torch.tensor([4, 2, 3])).all())
    sparse = Session(
        STAConfig(tile=(1, 2, 2), windows=table, dense_steps=0), steps=2, layers=2, heads=2
    )
    for step in range(2):
        sparse.attend(*[normal(1, 2, LAYOUT.tokens, 4)] * 3, step=step, layer=0, layout=LAYOUT)
    assert (sparse.stats().dense_calls, sparse.stats().sparse_calls) == (1, 1)


def test_videos_of_another_kind_are_refused() -> None:
    search = WindowSearch()
    Session(search.config(), steps=2, layers=2, heads=2)
    with pytest.raises(ConfigError, match=r"were \(2, 2, 2\), now \(3, 2, 2\)"):
        Session(search.config(), steps=3, layers=2, heads=2)


@pytest.mark.parametrize("name", ["wan2.2-t2v", "hunyuanvideo-t2v"])
def test_searches_in_a_pipeline(name: str, tmp_path: Path) -> None:
    pipe = tiny.build(name)
    dense = tiny.generate(pipe, steps=2)
    search = WindowSearch((1, 2, 2), CANDIDATES)
    with svoo.apply(pipe, search.config(), profile=None) as handle:
        assert torch.equal(tiny.generate(pipe, steps=2), dense)
        assert handle.stats().sparse_calls == 0
    search.choose(dense_steps=1).save(tmp_path / "windows.safetensors")
    config = STAConfig(tile=(1, 2, 2), windows=tmp_path / "windows.safetensors", dense_steps=0)
    with svoo.apply(pipe, config, profile=None) as handle:
        assert not torch.equal(tiny.generate(pipe, steps=2), dense)
        stats = handle.stats()
    assert stats.dense_calls == stats.sparse_calls > 0
