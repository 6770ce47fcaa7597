"""`svoo ui`: a page in the browser, and the video API, over one model."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from svoo.app.cli.shared import ModelOptions, Output, runs_on_cpu, with_model_options
from svoo.errors import ConfigError
from svoo.storage import locked


@with_model_options
def run(
    *,
    out: Annotated[Path, typer.Option(help="Where videos and their records are kept.")] = Path(
        "out/ui"
    ),
    host: Annotated[
        str, typer.Option(help="Address to listen at. Any but this machine's own needs a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0: any that is free.")] = 7860,
    token: Annotated[
        str | None,
        typer.Option(
            help="What every request must carry. With --host one is made if you give none."
        ),
    ] = None,
    queue: Annotated[int, typer.Option(min=1, max=10000, help="How many videos may wait.")] = 256,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    model: ModelOptions,
) -> None:
    """Serve a page to make videos with, and the video API that OpenAI's clients speak.

    The model is loaded once; videos are made one at a time. Ctrl-C or SIGTERM ends the running
    video at its next step; what is finished stays in the history.

    Examples:

    [bold]svoo ui --open[/]

    [bold]svoo ui --model wan2.1-t2v-1.3b --device cuda --port 8000[/]

    [bold]svoo ui --host 0.0.0.0[/]  (prints a link with a token)
    """
    missing = [name for name in ("fastapi", "uvicorn", "python_multipart") if not find_spec(name)]
    if missing:
        raise ConfigError(f"{', '.join(missing)} not installed: pip install 'svoo[ui]'")
    from svoo.app.ui.serve import address, bind, choose_token, is_local, serve
    from svoo.app.ui.server import make_app
    from svoo.app.ui.settings import Limits
    from svoo.app.ui.store import Store
    from svoo.plugin.request import Request

    output = Output()
    token = choose_token(host, token)
    request = Request(prompt="", out=out, **vars(model))
    with bind(host, port) as listener, locked(out):
        store = Store(out)
        with output.progress() as bar:
            task = bar.add_task("loading", total=None)
            if runs_on_cpu(model.device):
                output.prepare_kernels(bar, task)
            from svoo.app.ui.studio import Studio

            studio = Studio.open(request)
        limits = Limits(waiting=queue)
        app = make_app(studio, store, limits=limits, token=token, local=is_local(host))
        link = address(listener, token)
        output.say(f"svoo ui, model {studio.facts.name}: {link}", "Ctrl-C ends it")
        serve(app, listener, open_page=link if open_page else None)
