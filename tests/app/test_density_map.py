import io

import numpy as np
import torch
from PIL import Image

from svoo.app.density_map import draw_density
from svoo.session.stats import LayerCounter, RunStats


def run(*densities: list[float] | None) -> RunStats:
    """Statistics of layers with these densities by head; None is a layer that was dense."""
    layers = []
    for number, heads in enumerate(densities):
        counter = LayerCounter()
        if heads is not None:
            counter.sparse_calls = 1
            counter.density.add(torch.tensor(heads))
        layers.append(counter.read(0, number))
    return RunStats("svoo", "auto", 1, 4, "", layers, 0)


def pixels(picture: bytes) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    return np.asarray(Image.open(io.BytesIO(picture)).convert("RGB"))


def test_a_panel_per_sparse_run() -> None:
    one = pixels(draw_density({"dense": run(None), "svoo": run([0.1, 0.9])}))
    two = pixels(draw_density({"paper": run([0.1, 0.9]), "svoo": run([0.1, 0.9])}))
    assert two.shape[0] == 2 * one.shape[0] and two.shape[1] == one.shape[1]


def test_a_dense_layer_is_drawn_as_all_computed() -> None:
    dense = pixels(draw_density({"svoo": run([0.5, 0.5], None)}))
    full = pixels(draw_density({"svoo": run([0.5, 0.5], [1.0, 1.0])}))
    below = slice(40, None)  # the title has the mean over sparse calls, which differs
    assert np.array_equal(dense[below], full[below])
    assert not np.array_equal(
        dense[below], pixels(draw_density({"svoo": run([0.5, 0.5], [0.2, 1])}))[below]
    )
