"""Bodies of `POST /v1/videos`: JSON or a form, read without holding much in memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from tempfile import SpooledTemporaryFile
from typing import Any

from python_multipart.multipart import parse_options_header
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from svoo.app.ui.pictures import clean_picture, from_reference, too_large
from svoo.app.ui.problems import Problem, bad
from svoo.app.ui.settings import Limits

_REFERENCE = "input_reference"
_IN_MEMORY = 1 << 16  # bytes of a body; a larger one waits on disk
_PIECE = 1 << 18  # bytes of a form that are taken apart at a time
_FIELDS = 40  # of a form


class BodyReader:
    """Reads bodies; one at a time is taken apart, so that many large ones need no more memory."""

    def __init__(self, limits: Limits) -> None:
        """Read within limits."""
        self._limits = limits
        self._turn = asyncio.Semaphore(1)

    async def read(self, request: Request) -> tuple[dict[str, Any], bytes | None]:
        """Return the fields of a body, and its picture as a PNG if it has one."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == "application/json":
            return await self._json(request)
        if kind == "multipart/form-data":
            return await self._form(request)
        raise Problem(
            415,
            "wrong_type",
            f"send application/json or multipart/form-data, not {kind[:60] or 'nothing'}",
        )

    async def _json(self, request: Request) -> tuple[dict[str, Any], bytes | None]:
        with SpooledTemporaryFile(max_size=_IN_MEMORY) as file:
            await _take(request, file)
            async with self._turn:
                try:
                    fields = json.loads(file.read())
                except (ValueError, RecursionError) as error:
                    raise bad(f"the body is no JSON: {error}") from error
                if not isinstance(fields, dict):
                    raise bad("the body must be a JSON object with fields such as prompt")
                reference = fields.pop(_REFERENCE, None)
                if not reference:
                    return fields, None
                if not isinstance(reference, str | dict):
                    raise bad("input_reference must be a data URL or hold one as image_url")
                return fields, await self._clean(from_reference(reference))

    async def _form(self, request: Request) -> tuple[dict[str, Any], bytes | None]:
        # Another charset would choose how the names and values are decoded: some take for ever.
        options = parse_options_header(request.headers["content-type"])[1]
        if options.get(b"charset", b"utf-8").lower() not in (b"utf-8", b"utf8"):
            raise Problem(415, "wrong_type", "a form is read as UTF-8: send it without a charset")
        with SpooledTemporaryFile(max_size=_IN_MEMORY) as file:
            await _take(request, file)
            async with self._turn:
                parser = MultiPartParser(
                    request.headers,
                    _pieces(file),
                    max_files=1,
                    max_fields=_FIELDS,
                    max_part_size=self._limits.body,  # the guard has bounded the whole by it
                )
                try:
                    form = await parser.parse()
                except MultiPartException as error:
                    raise bad(f"the form cannot be read: {error.message}") from error
                try:
                    return await self._read_form(form)
                finally:
                    await form.close()

    async def _read_form(self, form: FormData) -> tuple[dict[str, Any], bytes | None]:
        fields = {name: value for name, value in form.items() if isinstance(value, str)}
        uploads = {name: value for name, value in form.items() if name not in fields}
        upload = uploads.pop(_REFERENCE, None)
        if uploads:
            raise bad(f"no file is called {next(iter(uploads))!r}; it is {_REFERENCE}")
        reference = fields.pop(_REFERENCE, None)
        # OpenAI's client writes a reference that is no file as two names in one.
        reference = fields.pop(f"{_REFERENCE}[image_url]", reference)
        if isinstance(upload, UploadFile):
            if (upload.size or 0) > self._limits.upload:
                raise too_large(self._limits)
            return fields, await self._clean(await upload.read())
        if reference:
            return fields, await self._clean(from_reference(reference))
        return fields, None

    async def _clean(self, data: bytes) -> bytes:
        return await run_in_threadpool(clean_picture, data, self._limits)


async def _take(request: Request, file: SpooledTemporaryFile[bytes]) -> None:
    """Write a body into a file, which is then at its beginning."""
    async for piece in request.stream():
        file.write(piece)
    file.seek(0)


async def _pieces(file: SpooledTemporaryFile[bytes]) -> AsyncGenerator[bytes, None]:
    while piece := file.read(_PIECE):
        yield piece
