"""The embedded model going on from a picture, as Wan 2.2 TI2V does it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from svoo.catalogue import find_model
from svoo.mini.pipeline import WEIGHTS, check_request, load, quietly

with quietly():
    from diffusers import WanImageToVideoPipeline

if TYPE_CHECKING:
    from PIL.Image import Image

_MODEL = find_model("mini")


class MiniImageToVideoPipeline(WanImageToVideoPipeline):
    """A `WanImageToVideoPipeline` with the embedded model's defaults: the picture is the first
    code frame, and its tokens are told that they carry no noise."""

    def __call__(
        self,
        image: Image,
        prompt: str | list[str] | None = None,
        *,
        height: int = _MODEL.height,
        width: int = _MODEL.width,
        num_frames: int = _MODEL.frames,
        num_inference_steps: int = _MODEL.steps,
        guidance_scale: float = _MODEL.guidance[0],
        **settings: Any,  # noqa: ANN401 (all that WanImageToVideoPipeline takes)
    ) -> Any:  # noqa: ANN401 (its output type)
        """Generate as `WanImageToVideoPipeline` does, with defaults that this model was trained
        for; the picture is scaled to height and width."""
        check_request(prompt, height, width, num_frames)
        return super().__call__(
            image,
            prompt,
            height=height,
            width=width,
            num_frames=num_frames,
            num_inference_steps=num_inference_steps,
            guidance_scale=guidance_scale,
            **settings,
        )


def load_from_image(
    weights: Path = WEIGHTS, dtype: torch.dtype = torch.float32
) -> MiniImageToVideoPipeline:
    """Load the embedded model to go on from pictures."""
    text_only = load(weights, dtype)
    text_only.transformer.register_forward_pre_hook(_spread_timesteps, with_kwargs=True)
    with quietly():
        pipe = MiniImageToVideoPipeline(**text_only.components, expand_timesteps=True)
    pipe.register_to_config(_name_or_path=_MODEL.hub_id)  # so that it is recognised
    return pipe


def _spread_timesteps(
    _transformer: object, inputs: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Give every token its timestep: diffusers takes those of every second row and column, because
    Wan 2.2 has patches of 2 x 2 codes; ours are single codes."""
    frames, rows, columns = named["hidden_states"].shape[2:]
    timestep = named["timestep"].unflatten(1, (frames, -(-rows // 2), -(-columns // 2)))
    spread = timestep.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3)
    named["timestep"] = spread[:, :, :rows, :columns].flatten(1)
    return inputs, named
