"""The embedded model: a small Wan trained on drawn scenes. `load()` gives its pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from svoo.mini.pipeline import MiniPipeline


def load() -> MiniPipeline:
    """Load the embedded model (diffusers is imported only now)."""
    from svoo.mini import pipeline

    return pipeline.load()
