"""The server: the page, and the video API that OpenAI's clients speak."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from importlib import metadata
from importlib.resources import files
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, JSONResponse, Response

from svoo.app.ui.bodies import BodyReader
from svoo.app.ui.guard import COOKIE, Guard, cookie_value
from svoo.app.ui.problems import Problem, Refusal
from svoo.app.ui.queue import JobQueue, Maker
from svoo.app.ui.settings import Ask, Limits, complete, read_ask
from svoo.app.ui.store import PICTURE, VARIANTS, Store
from svoo.errors import SVOOError

_LOG = logging.getLogger(__name__)
_STATIC = {
    "/": ("ui.html", "text/html"),
    "/ui.css": ("ui.css", "text/css"),
    "/ui.js": ("ui.js", "text/javascript"),
    "/favicon.svg": ("favicon.svg", "image/svg+xml"),
}
_FRESH = {"cache-control": "no-store"}
# What /openapi.json tells besides: FastAPI's own refusal, 422, is never sent.
_REFUSED: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": Refusal, "description": "Refused: the request cannot be met"},
    "5XX": {"model": Refusal, "description": "The server is closing, full or broken"},
}
_SENT: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The file",
        "content": {kind: {} for kind in dict.fromkeys(kind for _, kind in VARIANTS.values())},
    }
}


def make_app(
    maker: Maker,
    store: Store,
    *,
    limits: Limits | None = None,
    token: str | None = None,
    local: bool = True,
    patience: float = 10,
) -> FastAPI:
    """Return the application; `patience` is how many seconds its end waits for a step to end.

    `token` is required of every request if there is one; `local` refuses other names than those
    of this machine.
    """
    limits = limits or Limits()
    queue = JobQueue(store, maker, limits.waiting)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        queue.start()
        yield
        await run_in_threadpool(queue.stop, patience)

    app = FastAPI(
        title="svoo ui",
        version=metadata.version("svoo"),
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        responses=_REFUSED,
    )
    app.add_middleware(Guard, token=token, local=local, largest=limits.body)
    _answer_problems(app)
    _add_page(app, token)
    _add_model(app, maker, limits)
    _add_making(app, maker, store, queue, limits)
    _add_videos(app, store, queue)
    return app


def _answer_problems(app: FastAPI) -> None:
    """Tell every refusal in one form."""

    def tell(problem: Problem) -> Response:
        headers = _FRESH | ({"retry-after": "5"} if problem.status == 429 else {})
        return JSONResponse(problem.as_dict(), problem.status, headers)

    @app.exception_handler(Problem)
    async def refused(_request: Request, error: Problem) -> Response:
        return tell(error)

    @app.exception_handler(SVOOError)
    async def cannot(_request: Request, error: SVOOError) -> Response:
        return tell(Problem(400, "invalid_value", str(error).replace("--", "")))

    @app.exception_handler(HTTPException)
    async def unknown(_request: Request, error: HTTPException) -> Response:
        return tell(Problem(error.status_code, "invalid_request", str(error.detail)))

    @app.exception_handler(RequestValidationError)
    async def invalid(_request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        name = str(first["loc"][-1])
        return tell(Problem(400, "invalid_value", f"{name}: {first['msg']}", name))

    @app.exception_handler(Exception)
    async def broken(_request: Request, _error: Exception) -> Response:
        return tell(Problem(500, "internal_error", "the server failed; its log says how"))


def _add_page(app: FastAPI, token: str | None) -> None:
    for path, (name, kind) in _STATIC.items():
        content = (files("svoo.app") / "templates" / name).read_bytes()

        def show(content: bytes = content, kind: str = kind) -> Response:
            return Response(content, media_type=kind, headers={"cache-control": "no-cache"})

        app.add_api_route(path, show, include_in_schema=False)

    @app.get("/health")
    def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.post("/session", include_in_schema=False)
    def session() -> Response:
        """Give the page a cookie; the guard has seen the token."""
        answer = Response(status_code=204)
        if token is not None:
            answer.set_cookie(COOKIE, cookie_value(token), httponly=True, samesite="strict")
        return answer


def _add_model(app: FastAPI, maker: Maker, limits: Limits) -> None:
    @app.get("/v1/models")
    def models() -> dict[str, Any]:
        """Tell of the one model that is loaded, its usual settings and the limits."""
        facts = maker.facts
        row = {"id": facts.name, "object": "model", "created": 0, "owned_by": "svoo"}
        mine = {"facts": facts.as_dict(), "limits": asdict(limits)}
        return {"object": "list", "data": [row | mine]}


def _add_making(app: FastAPI, maker: Maker, store: Store, queue: JobQueue, limits: Limits) -> None:
    reader = BodyReader(limits)
    schema = {"schema": Ask.model_json_schema()}
    body = {"content": {"application/json": schema, "multipart/form-data": schema}}

    def add(fields: dict[str, Any], picture: bytes | None) -> dict[str, Any]:
        ask = read_ask(fields)
        if picture is None and ask.picture_of is not None:
            earlier = store.folder_of(queue.get(ask.picture_of)) / PICTURE
            if not earlier.is_file():
                raise Problem(404, "not_found", "that video was not made from a picture")
            picture = earlier.read_bytes()
        settings = complete(ask, maker.facts, limits, picture=picture is not None)
        maker.check(settings)
        return queue.add(settings, picture)

    @app.post("/v1/videos", openapi_extra={"requestBody": body | {"required": True}})
    async def make(request: Request) -> dict[str, Any]:
        """Queue a video."""
        fields, picture = await reader.read(request)
        return await run_in_threadpool(add, fields, picture)


def _add_videos(app: FastAPI, store: Store, queue: JobQueue) -> None:
    @app.get("/v1/videos")
    def listed(
        after: str | None = None,
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
        order: Literal["asc", "desc"] = "desc",
    ) -> Response:
        """List videos, the newest first."""
        rows, more = queue.describe_all(after, limit, newest_first=order == "desc")
        ends = {"first_id": rows[0]["id"], "last_id": rows[-1]["id"]} if rows else {}
        page = {"object": "list", "data": rows, "has_more": more, **ends}
        return JSONResponse(page, headers=_FRESH)

    @app.get("/v1/videos/{name}")
    def described(name: str) -> Response:
        """Tell how a video stands."""
        return JSONResponse(queue.describe(name), headers=_FRESH)

    @app.post("/v1/videos/{name}/cancel")
    def cancelled(name: str) -> dict[str, Any]:
        """Stop a video that is not finished; it stays in the list."""
        return queue.cancel(name)

    @app.delete("/v1/videos/{name}")
    def deleted(name: str) -> dict[str, Any]:
        """Stop a video if it is not finished, and remove it."""
        queue.remove(name)
        return {"id": name, "object": "video.deleted", "deleted": True}

    @app.get("/v1/videos/{name}/content", response_class=FileResponse, responses=_SENT)
    def content(name: str, variant: str = "video") -> Response:
        """Send a finished video, or what belongs to it."""
        job = queue.get(name)
        if variant not in VARIANTS:
            message = f"variant must be one of {', '.join(VARIANTS)}, got {variant[:60]!r}"
            raise Problem(400, "invalid_value", message, "variant")
        if variant != "picture" and job.status != "completed":
            raise Problem(409, "not_ready", f"this video is not there: it is {job.status}")
        path = store.find(job, variant)
        if path is None:
            raise Problem(404, "not_found", f"this video has no {variant}")
        kind = VARIANTS[variant][1]
        return FileResponse(path, media_type=kind, headers={"cache-control": "private"})
