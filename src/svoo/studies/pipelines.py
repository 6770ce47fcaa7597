"""The pipelines of a study, each opened once, when it is first needed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from svoo.catalogue import Model
from svoo.plugin.load import check_takes, open_pipeline
from svoo.plugin.provenance import hash_components, hash_settings
from svoo.plugin.request import Request, call_sizes, known_model
from svoo.profiles.find import find_profile


class Pipelines:
    """The model of a request: from text or from an image, in its own dtype or another."""

    def __init__(self, request: Request) -> None:
        """Open nothing yet."""
        self.request = request
        self.model: Model | None = known_model(request.model)
        self._opened: dict[tuple[str, str | None], Any] = {}

    @property
    def name(self) -> str:
        """What the user calls the model, without the path of anybody's machine."""
        return self.model.name if self.model else Path(self.request.model).name

    def open(self, task: Literal["text", "image"], dtype: str | None) -> Any:  # noqa: ANN401 (any pipeline class)
        """Return the pipeline for a task; refuse an image where the model takes none."""
        wanted = task, dtype or self.request.dtype
        if wanted not in self._opened:
            request = replace(self.request, dtype=wanted[1])
            both = self.model is not None and self.model.takes_image  # from text and from an image
            if task == "image" and both:
                pipe = open_pipeline(replace(request, image=Path("any")), self.model)
            else:
                pipe = self._opened.get(("text", wanted[1])) or open_pipeline(request, self.model)
            if task == "image":
                check_takes(request, pipe, image=True)
            self._opened[wanted] = pipe
        return self._opened[wanted]

    def needs_image(self) -> bool:
        """Return whether the model makes no video without an image."""
        return "ImageToVideo" in type(self.open("text", None)).__name__

    def dtype(self) -> str:
        """Return the precision of the model, by name."""
        pipe = self.open("text", None)
        return str(pipe.transformer.dtype).removeprefix("torch.")

    def call_sizes(self) -> dict[str, Any]:
        """Return the model's own call arguments, and what the request asks for."""
        return call_sizes(self.request, self.model)

    def weights(self) -> str:
        """Return a fingerprint of the weights of all parts: figures of others are not mixed with
        theirs."""
        return hash_components(self.open("text", None))

    def profile(self) -> str | None:
        """Return a fingerprint of the stored profile that methods find, or None."""
        if self.model is None:
            return None
        stored = find_profile(self.model, self.model.layers, self.model.heads)
        if stored is None:
            return None
        return hash_settings([stored.density, stored.sigma, stored.masses])
