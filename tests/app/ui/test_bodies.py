import asyncio
import base64
import io
import json
from typing import Any

import numpy as np
import pytest
from PIL import Image
from starlette.requests import Request

from svoo.app.ui.bodies import BodyReader
from svoo.app.ui.problems import Problem
from svoo.app.ui.settings import Limits


def read(body: bytes, kind: str, **limits: int) -> tuple[dict[str, Any], bytes | None]:
    pieces = [body[at : at + 7] for at in range(0, len(body), 7)] or [b""]

    async def receive() -> dict[str, Any]:
        piece = pieces.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(pieces)}

    scope = {"type": "http", "method": "POST", "headers": [(b"content-type", kind.encode())]}
    return asyncio.run(BodyReader(Limits(**limits)).read(Request(scope, receive)))


def form(**parts: str | bytes) -> tuple[bytes, str]:
    lines = []
    for name, value in parts.items():
        file = "; filename=../../etc/x.png" if isinstance(value, bytes) else ""
        data = value if isinstance(value, bytes) else value.encode()
        head = f'--edge\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'
        lines.append(head.encode() + data + b"\r\n")
    return b"".join(lines) + b"--edge--\r\n", "multipart/form-data; boundary=edge"


def picture() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (3, 2), "red").save(file, "PNG")
    return file.getvalue()


def test_json_and_forms_give_the_same_fields() -> None:
    told = {"prompt": "ein Fuchs läuft", "size": "64x32"}
    assert read(json.dumps(told).encode(), "application/json; charset=utf-8") == (told, None)
    assert read(*form(**told)) == (told, None)


def test_a_file_becomes_a_clean_picture_whatever_it_is_called() -> None:
    fields, found = read(*form(prompt="a fox", input_reference=picture()))
    assert fields == {"prompt": "a fox"} and found is not None
    assert Image.open(io.BytesIO(found)).size == (3, 2)


@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        (b"{", "application/json", "no JSON"),
        (b"\xff", "application/json", "no JSON"),
        (b"[" * 100_000, "application/json", "no JSON"),
        (b"[]", "application/json", "must be a JSON object"),
        (b'{"input_reference": 5}', "application/json", "must be a data URL"),
        (b'{"input_reference": "https://x.example/a.png"}', "application/json", "must be a data"),
        (b"prompt=a", "application/x-www-form-urlencoded", "send application/json or multipart"),
        (b"{}", "text/plain", "send application/json or multipart"),
        (b"{}", "", "not nothing"),
        (*form(prompt="a", picture=b"x"), "no file is called 'picture'"),
        (b"--edge", "multipart/form-data", "the form cannot be read: Missing boundary"),
        (b"x", "multipart/form-data; boundary=edge", "the form cannot be read: Invalid"),
        (*form(**{f"field{at}": "x" for at in range(41)}), "the form cannot be read: Too many"),
        (*form(prompt="a", input_reference=b"no picture"), "no picture that can be read"),
    ],
)
def test_other_bodies_are_refused(body: bytes, kind: str, message: str) -> None:
    with pytest.raises(Problem, match=message):
        read(body, kind)


def test_a_large_picture_may_come_as_a_field_of_a_form() -> None:
    """So OpenAI's client sends a data URL; most pictures are larger than any other field."""
    pixels = np.random.default_rng(0).integers(0, 256, (200, 200, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    url = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    assert len(url) > 100_000
    fields, found = read(*form(prompt="a fox", **{"input_reference[image_url]": url}))
    assert fields == {"prompt": "a fox"} and found is not None
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(found))), pixels)


@pytest.mark.parametrize("charset", ["punycode", "unicode_escape", "utf-16", "nonsense"])
def test_a_form_is_read_as_utf_8_alone(charset: str) -> None:
    body, kind = form(prompt="a fox")
    assert read(body, f"{kind}; charset=UTF-8")[0] == {"prompt": "a fox"}
    with pytest.raises(Problem, match="read as UTF-8"):
        read(body, f"{kind}; charset={charset}")


def test_a_picture_that_is_too_large_is_refused() -> None:
    with pytest.raises(Problem, match="too large"):
        read(*form(prompt="a", input_reference=picture()), upload=10)
