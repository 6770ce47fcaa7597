"""Run the node pack in a real ComfyUI and compare what comes out (`make test-comfyui`).

`python -m tools.comfyui.check path/to/ComfyUI [--python ...] [--out out/comfyui]` starts ComfyUI
on the CPU as a process of its own, sends workflows by HTTP, and fails where a latent is further
from the dense one, or from what `svoo.apply` gives for the same model, than it may be.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

import svoo
from svoo.metrics.compare import psnr
from svoo.mini import load
from tools.comfyui import prepare
from tools.comfyui.examples import find_problems
from tools.comfyui.server import PACKS, Server, find_python, serve

PROMPT = "a red circle moves left over a checkered floor"
OPTIONS: dict[str, Any] = {
    "method": "svoo",
    "quality": "balanced",
    "dense_steps": -1,
    "dense_blocks": "",
    "end": 1.0,
    "least_tokens": 1000,
    "strict": True,
    "verbose": True,
}
FEW_STEPS = 4
LOUDER = (1 - 1e-6, 1 + 3e-7, 1 + 1e-6)  # float32 rounds by up to 6e-8
Link = list[Any]


@dataclass
class Result:
    """One workflow: the latents `[1, 16, T, H, W]`, and what the report and compare nodes said."""

    dense: Tensor
    sparse: Tensor
    report: str
    compared: str


@dataclass
class Check:
    """The server, the sizes, and the figures so far."""

    server: Server
    weights: Path
    out: Path
    size: tuple[int, int, int]
    steps: int
    runs: int = 0  # in the names of files: ComfyUI does not run again what has not changed
    figures: dict[str, Any] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def workflow(
        self,
        loader: dict[str, Any],
        sampler: dict[str, Any],
        options: dict[str, Any],
        *,
        rude: bool = False,
    ) -> dict[str, Any]:
        """Return a workflow in ComfyUI's API format: dense beside sparse, report, comparison."""
        width, height, frames = self.size
        tiny = loader["class_type"] == "SVOOTestLoadTinyHunyuan"
        texts: dict[str, Link] = {"positive": ["1", 1], "negative": ["1", 1 if tiny else 2]}
        common = {
            "seed": 3,
            "scheduler": "simple",
            "denoise": 1.0,
            "latent_image": ["2", 0],
            **texts,
            **sampler,
        }
        sparse: Link = ["4", 0] if rude else ["3", 0]
        nodes: dict[str, Any] = {
            "1": loader,
            "2": _node(
                "EmptyHunyuanLatentVideo", width=width, height=height, length=frames, batch_size=1
            ),
            "3": _node("SVOOSparseAttention", model=["1", 0], **{**OPTIONS, **options}),
            "5": _node("KSampler", model=["1", 0], **common),
            "6": _node("KSampler", model=sparse, **common),
            "7": _node("SVOOReport", latent=["6", 0], report=["3", 1]),
            "8": _node("SVOOCompare", reference_latent=["5", 0], latent=["7", 0]),
            "9": _node("SaveLatent", samples=["5", 0], filename_prefix=f"dense_{self.runs}"),
            "10": _node("SaveLatent", samples=["7", 0], filename_prefix=f"sparse_{self.runs}"),
        }
        if rude:
            nodes["4"] = _node("SVOOTestRudeOverride", model=["3", 0])
        return nodes

    def run(self, loader: dict[str, Any], sampler: dict[str, Any], **options: Any) -> Result:
        """Run a workflow and read its latents."""
        rude = bool(options.pop("rude", False))
        self.runs += 1
        found = self.server.run(self.workflow(loader, sampler, options, rude=rude))
        return Result(
            self._read(found["9"]),
            self._read(found["10"]),
            found["7"]["text"][0],
            found["8"]["text"][0],
        )

    def _read(self, saved: dict[str, Any]) -> Tensor:
        row = saved["latents"][0]
        path = self.server.folder / "output" / row["subfolder"] / row["filename"]
        return load_file(path)["latent_tensor"]

    def expect(self, name: str, *, passed: bool, figures: dict[str, Any]) -> None:
        """Note the figures of a check, and whether it passed."""
        self.figures[name] = {"passed": passed, **figures}
        shown = ", ".join(f"{key} {value}" for key, value in figures.items() if key != "report")
        print(f"{'ok  ' if passed else 'FAIL'} {name}: {shown}", flush=True)
        if not passed:
            self.failures.append(name)

    @property
    def mini(self) -> dict[str, Any]:
        """The loader of the embedded model."""
        return _node("SVOOTestLoadMini", folder=str(self.weights), fp8_mlp=False)


def _node(kind: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": kind, "inputs": inputs}


def alike(first: Tensor, second: Tensor) -> float:
    """Return the PSNR of two latents in dB; the peak is the range of the first."""
    span = float(first.max() - first.min())
    return round(psnr((first / span).numpy(), (second / span).numpy()), 2)


def check_against_apply(check: Check, pipe: Any) -> None:
    """Without guidance, Euler: the node must give what `svoo.apply` gives, dense what dense.

    Over many steps a rounding decides some choice at its margin, and what follows differs. So the
    node may then be as far from `svoo.apply` as that is from itself with slightly louder noise.
    """
    text = prepare.encode(pipe, PROMPT)[0]
    config = svoo.SVOOConfig.balanced()
    for steps in (FEW_STEPS, check.steps):
        here = check.run(check.mini, {"sampler_name": "euler", "steps": steps, "cfg": 1.0})
        noise = torch.randn(here.dense.shape, generator=torch.manual_seed(3))
        sigmas = prepare.simple_sigmas(steps, 3.0)
        dense = prepare.sample_euler(pipe, noise, text, sigmas)
        sparse = prepare.sparse_euler(pipe, noise, text, sigmas, config)
        louder = [
            alike(sparse, prepare.sparse_euler(pipe, noise * factor, text, sigmas, config))
            for factor in LOUDER
        ]
        same_dense, same = alike(dense, here.dense), alike(sparse, here.sparse)
        figures = {
            "dense against diffusers' dense (dB)": same_dense,
            "sparse against svoo.apply (dB)": same,
            "svoo.apply against itself, noise slightly louder (dB)": louder,
            "sparse against dense (dB)": alike(here.dense, here.sparse),
            "report": here.report,
        }
        least = 60 if steps == FEW_STEPS else min(60, min(louder) - 3)
        passed = same_dense >= 60 and same >= least
        check.expect(f"the same as svoo.apply, {steps} steps", passed=passed, figures=figures)


def check_guided(check: Check, pipe: Any) -> None:
    """With guidance, both branches in a batch; then with another override put over ours."""
    sampler = {"sampler_name": "uni_pc", "steps": check.steps, "cfg": 4.0}
    here = check.run(check.mini, sampler)
    videos = [prepare.decode(pipe, latent).numpy() for latent in (here.dense, here.sparse)]
    save_strip(videos, check.out / "strip.jpg")
    pixels = round(psnr(videos[0], videos[1]), 2)
    figures = {
        "videos (dB)": pixels,
        "latents (dB)": alike(here.dense, here.sparse),
        "compare node": here.compared,
        "report": here.report,
    }
    check.expect("both branches in one batch", passed=pixels >= 25, figures=figures)
    again = check.run(check.mini, sampler, rude=True)
    same = bool(torch.equal(again.sparse, here.sparse))
    check.expect("another override after ours", passed=same, figures={"same latent": same})


def check_few_steps(check: Check) -> None:
    """Four steps without a dense one; the same again after a run that was cancelled."""
    sampler = {"sampler_name": "euler", "steps": 4, "cfg": 1.0}
    check.size = (176, 96, 33)  # 9 x 12 x 22 tokens: large enough for SSIM
    here = check.run(check.mini, sampler)
    ratio = alike(here.dense, here.sparse)
    figures: dict[str, Any] = {"compare node": here.compared, "report": here.report}
    none_dense = ", 0 dense" in here.report and f"PSNR {ratio:.2f} dB, SSIM" in here.compared
    check.expect("four steps", passed=none_dense, figures=figures)
    said = cancel(check, {**sampler, "steps": 400})
    again = check.run(check.mini, sampler)
    same = bool(torch.equal(again.sparse, here.sparse))
    figures = {"said": said, "same latent after it": same}
    check.expect("cancelled", passed=same and "interrupted" in said, figures=figures)


def cancel(check: Check, sampler: dict[str, Any]) -> str:
    """Start a long sparse run, cancel it after two steps, and return how it ended."""
    workflow = check.workflow(check.mini, sampler, {})
    for dense in ("5", "8", "9"):
        del workflow[dense]
    number = check.server.send(workflow)
    while f"step 3 of {sampler['steps']}" not in check.server.log():
        time.sleep(0.2)
    check.server.ask("/interrupt", {})
    try:
        check.server.wait(number)
    except RuntimeError as error:
        return "interrupted" if "execution_interrupted" in str(error) else str(error)
    return "it ran to its end"


def check_fp8(check: Check) -> None:
    """fp8 weights in the feed-forward layers and in the output projections."""
    loader = _node("SVOOTestLoadMini", folder=str(check.weights), fp8_mlp=True)
    here = check.run(loader, {"sampler_name": "euler", "steps": 8, "cfg": 4.0})
    ratio = alike(here.dense, here.sparse)
    figures = {"latents (dB)": ratio, "report": here.report}
    check.expect("fp8 weights elsewhere", passed=ratio >= 20, figures=figures)


def check_hunyuan(check: Check) -> None:
    """A tiny HunyuanVideo with random weights: double and single blocks, text and its padding."""
    loader = _node("SVOOTestLoadTinyHunyuan", seed=0)
    check.size = (320, 160, 25)  # 7 x 10 x 20 tokens
    here = check.run(loader, {"sampler_name": "euler", "steps": 4, "cfg": 1.0}, strict=False)
    ratio = alike(here.dense, here.sparse)
    figures = {"latents (dB)": ratio, "report": here.report}
    check.expect("tiny HunyuanVideo", passed=ratio >= 30, figures=figures)


def check_refusals(check: Check) -> None:
    """Strict stops with a sentence; without it the run is dense and the report says why."""
    sampler = {"sampler_name": "euler", "steps": 2, "cfg": 1.0}
    try:
        check.run(check.mini, sampler, least_tokens=100_000)
    except RuntimeError as error:
        said = "fewer than least_tokens" in str(error)
    else:
        said = False
    check.expect("strict refuses", passed=said, figures={"said why": said})
    here = check.run(check.mini, sampler, least_tokens=100_000, strict=False)
    same = bool(torch.equal(here.dense, here.sparse))
    figures = {"same as dense": same, "report": here.report}
    check.expect("too few tokens", passed=same and "fewer" in here.report, figures=figures)


def check_examples(check: Check) -> None:
    """The example workflows name nodes, options and links that are there."""
    nodes = check.server.ask("/object_info")
    paths = sorted((PACKS["svoo"] / "example_workflows").glob("*.json"))
    problems = [
        problem for path in paths for problem in find_problems(json.loads(path.read_text()), nodes)
    ]
    figures = {"workflows": len(paths), "problems": problems or "none"}
    check.expect("example workflows", passed=bool(paths) and not problems, figures=figures)


def save_strip(videos: list[Any], path: Path) -> None:
    """Save the first, the middle and the last frame of some videos, one row each."""
    rows = [
        np.concatenate([video[number] for number in (0, len(video) // 2, -1)], axis=1)
        for video in videos
    ]
    pixels = (np.concatenate(rows, axis=0) * 255).round().astype(np.uint8)
    picture = Image.fromarray(pixels)
    picture.resize((picture.width * 2, picture.height * 2), Image.Resampling.BICUBIC).save(
        path, quality=88
    )


def main() -> None:
    """Run all checks; exit with 1 if one fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path, help="a checkout of ComfyUI")
    parser.add_argument("--python", help="the interpreter of its environment")
    parser.add_argument("--out", type=Path, default=Path("out/comfyui"))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--size", type=int, nargs=3, default=(144, 80, 49), help="w h frames")
    asked = parser.parse_args()
    if not (asked.checkout / "main.py").exists():
        parser.error(f"{asked.checkout} is no checkout of ComfyUI: it has no main.py")
    asked.out.mkdir(parents=True, exist_ok=True)
    pipe = load()
    with TemporaryDirectory() as name:
        weights = Path(name) / "weights"
        weights.mkdir()
        prepare.write(pipe, PROMPT, weights)
        python = asked.python or find_python(asked.checkout)
        with serve(asked.checkout.resolve(), python, Path(name) / "base") as server:
            check = Check(server, weights, asked.out, tuple(asked.size), asked.steps)
            check.figures["comfyui"] = server.ask("/system_stats")["system"]["comfyui_version"]
            steps: list[Callable[[], None]] = [
                lambda: check_against_apply(check, pipe),
                lambda: check_guided(check, pipe),
                lambda: check_few_steps(check),
                lambda: check_fp8(check),
                lambda: check_hunyuan(check),
                lambda: check_refusals(check),
                lambda: check_examples(check),
            ]
            try:
                for step in steps:
                    check.size = tuple(asked.size)
                    step()
            finally:
                (asked.out / "log.txt").write_text(server.log())
    (asked.out / "figures.json").write_text(json.dumps(check.figures, indent=1))
    if check.failures:
        raise SystemExit(f"failed: {', '.join(check.failures)}; see {asked.out}")


if __name__ == "__main__":
    main()
