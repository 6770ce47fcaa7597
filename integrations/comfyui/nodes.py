"""The nodes. Names of nodes and options never change: saved workflows hold them."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from svoo.plugin.request import QUALITIES

from .compare import compare_images, compare_latents
from .report import write_report
from .settings import Settings, method_names, read_blocks
from .sparse import SparseModel

CATEGORY = "SVOO"


class SVOOSparseAttention:
    """Makes the self-attention of a video model sparse."""

    CATEGORY = CATEGORY
    FUNCTION = "apply"
    RETURN_TYPES = ("MODEL", "SVOO_REPORT")
    RETURN_NAMES = ("model", "report")
    OUTPUT_TOOLTIPS = (
        "The model, sparse: connect it to the sampler.",
        "What the sampler did with it: connect it to SVOO Report.",
    )
    DESCRIPTION = (
        "Training-free sparse attention for Wan and HunyuanVideo. Only self-attention over video "
        "tokens is touched; what cannot be sparse stays dense, and the report says why."
    )

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        """Return the options, each with what it costs."""
        return {
            "required": {
                "model": ("MODEL", {"tooltip": "A video model: Wan or HunyuanVideo."}),
                "method": (
                    method_names(),
                    {
                        "default": "svoo",
                        "tooltip": "Which sparse attention. svoo is the one to use; the others "
                        "are for comparison and run with their authors' settings.",
                    },
                ),
                "quality": (
                    list(QUALITIES),
                    {
                        "default": "balanced",
                        "tooltip": "svoo only. fast computes least and strays furthest from the "
                        "dense video, careful computes most and stays closest.",
                    },
                ),
                "dense_steps": (
                    "INT",
                    {
                        "default": -1,
                        "min": -1,
                        "max": 1000,
                        "tooltip": "The first steps of this sampler that stay dense: closer to "
                        "the dense video, and each costs its full time. -1: as the method says "
                        "(svoo: none, so few-step models gain too).",
                    },
                ),
                "dense_blocks": (
                    "STRING",
                    {
                        "default": "",
                        "tooltip": "Blocks that stay dense, such as 0, 1, 47-49 (HunyuanVideo: "
                        "single blocks count on after the double ones). Each costs its full time. "
                        "Empty: none.",
                    },
                ),
                "end": (
                    "FLOAT",
                    {
                        "default": 1.0,
                        "min": 0.0,
                        "max": 1.0,
                        "step": 0.01,
                        "tooltip": "Steps after this share of the sampler's steps are dense, at "
                        "their full time. 1: none.",
                    },
                ),
                "least_tokens": (
                    "INT",
                    {
                        "default": 8000,
                        "min": 0,
                        "max": 10_000_000,
                        "tooltip": "Videos with fewer tokens stay dense: planning would cost "
                        "more than it saves. About 1000 pays on a CPU.",
                    },
                ),
                "strict": (
                    "BOOLEAN",
                    {
                        "default": False,
                        "tooltip": "Stop with an error where attention would be dense against "
                        "these options, instead of running dense. Costs nothing.",
                    },
                ),
                "verbose": (
                    "BOOLEAN",
                    {
                        "default": False,
                        "tooltip": "Log every step, and the report at the end. Costs nothing.",
                    },
                ),
            }
        }

    def apply(
        self,
        model: Any,
        method: str,
        quality: str,
        dense_steps: int,
        dense_blocks: str,
        end: float,
        least_tokens: int,
        *,
        strict: bool,
        verbose: bool,
    ) -> tuple[Any, SparseModel]:
        """Return a clone of the model with sparse attention, and what its report is read from."""
        settings = Settings(
            method=method,
            quality=quality,
            dense_steps=dense_steps,
            dense_blocks=read_blocks(dense_blocks),
            end=end,
            least_tokens=least_tokens,
            strict=strict,
            verbose=verbose,
        )
        sparse = SparseModel(settings)
        clone = model.clone()
        sparse.install(clone)
        return clone, sparse


class SVOOReport:
    """Tells what a sampler did with a sparse model; runs after it, because it takes its latent."""

    CATEGORY = CATEGORY
    FUNCTION = "report"
    RETURN_TYPES = ("LATENT", "STRING")
    RETURN_NAMES = ("latent", "text")
    OUTPUT_NODE = True
    DESCRIPTION = "The report of the last sampling run: density, error, dense calls, time."

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        """Return the inputs."""
        return {
            "required": {
                "latent": ("LATENT", {"tooltip": "What the sampler made with the sparse model."}),
                "report": ("SVOO_REPORT", {"tooltip": "The report of SVOO Sparse Attention."}),
            }
        }

    def report(self, latent: dict[str, Any], report: SparseModel) -> dict[str, Any]:
        """Return the latent as it came and the text, which the page also shows."""
        text = write_report(report)
        return {"ui": {"text": [text]}, "result": (latent, text)}


class SVOOCompare:
    """Compares two latents, two videos, or both."""

    CATEGORY = CATEGORY
    FUNCTION = "compare"
    RETURN_TYPES = ("FLOAT", "FLOAT", "STRING")
    RETURN_NAMES = ("psnr", "ssim", "text")
    OUTPUT_NODE = True
    DESCRIPTION = (
        "PSNR (dB) and SSIM of a result against a reference: two latents, or two videos. Videos "
        "are the better measure; the figures are theirs where both are connected."
    )

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        """Return the inputs: pairs, all optional."""
        return {
            "required": {},
            "optional": {
                "reference_latent": ("LATENT", {"tooltip": "The dense one."}),
                "latent": ("LATENT", {"tooltip": "The sparse one."}),
                "reference_images": ("IMAGE", {"tooltip": "The frames of the dense one."}),
                "images": ("IMAGE", {"tooltip": "The frames of the sparse one."}),
            },
        }

    def compare(
        self,
        reference_latent: dict[str, Tensor] | None = None,
        latent: dict[str, Tensor] | None = None,
        reference_images: Tensor | None = None,
        images: Tensor | None = None,
    ) -> dict[str, Any]:
        """Return the figures of the pairs that are connected."""
        lines: list[str] = []
        figures: tuple[float, float] | None = None
        if reference_latent is not None and latent is not None:
            *found, text = compare_latents(reference_latent["samples"], latent["samples"])
            figures = found[0], found[1]
            lines.append(text)
        if reference_images is not None and images is not None:
            *found, text = compare_images(reference_images, images)
            figures = found[0], found[1]
            lines.append(text)
        if figures is None:
            raise ValueError(
                "SVOO Compare needs a pair: reference_latent and latent, or reference_images and "
                "images"
            )
        text = "\n".join(lines)
        return {"ui": {"text": [text]}, "result": (*figures, text)}


NODE_CLASS_MAPPINGS = {
    "SVOOSparseAttention": SVOOSparseAttention,
    "SVOOReport": SVOOReport,
    "SVOOCompare": SVOOCompare,
}
NODE_DISPLAY_NAME_MAPPINGS = {
    "SVOOSparseAttention": "SVOO Sparse Attention",
    "SVOOReport": "SVOO Report",
    "SVOOCompare": "SVOO Compare",
}
