"""A picture of what sparse runs computed: the density of every layer and head."""

from __future__ import annotations

import io
from collections.abc import Mapping

import numpy as np

from svoo.session.stats import RunStats


def draw_density(runs: Mapping[str, RunStats]) -> bytes:
    """Draw the density of every layer and head of the sparse ones among named runs, as a PNG."""
    from matplotlib.figure import Figure

    sparse = {name: stats for name, stats in runs.items() if stats.density is not None}
    # Above one another and in large type, for a phone's narrow screen.
    figure = Figure(figsize=(5, 3 * len(sparse)), layout="constrained")
    panels = figure.subplots(len(sparse), squeeze=False)[:, 0]
    for axes, (name, stats) in zip(panels, sparse.items(), strict=True):
        rows = [row.density_by_head for row in stats.layers]
        heads = max(len(row) for row in rows if row)
        table = np.array([row or [1.0] * heads for row in rows])  # a dense layer computes all
        shown = axes.imshow(table, aspect="auto", vmin=0, vmax=1, cmap="viridis")
        axes.set(title=f"{name}: density {stats.density:.3f}", xlabel="head", ylabel="layer")
        axes.xaxis.get_major_locator().set_params(integer=True)
        figure.colorbar(shown, ax=axes)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=110)
    return picture.getvalue()
