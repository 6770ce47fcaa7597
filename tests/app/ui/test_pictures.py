import base64
import io
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from svoo.app.ui.pictures import clean_picture, from_reference
from svoo.app.ui.problems import Problem
from svoo.app.ui.settings import Limits


def picture(kind: str = "PNG", size: tuple[int, int] = (6, 4), **more: object) -> bytes:
    file = io.BytesIO()
    pixels = np.arange(size[0] * size[1] * 3, dtype=np.uint8).reshape(size[1], size[0], 3)
    Image.fromarray(pixels).save(file, kind, **more)
    return file.getvalue()


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_a_picture_is_written_anew_as_png(kind: str) -> None:
    cleaned = Image.open(io.BytesIO(clean_picture(picture(kind), Limits())))
    assert (cleaned.format, cleaned.mode, cleaned.size) == ("PNG", "RGB", (6, 4))


def test_what_else_a_file_holds_is_dropped_and_it_stands_upright() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # lies on its side
    exif[0x010E] = "a secret"
    dirty = picture("JPEG", exif=exif.tobytes()) + b"<script>"
    cleaned = clean_picture(dirty, Limits())
    assert Image.open(io.BytesIO(cleaned)).size == (4, 6)
    assert b"secret" in dirty and b"secret" not in cleaned and b"script" not in cleaned


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no picture that can be read"),
        (b"#!/bin/sh\nrm -rf /", "no picture that can be read"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "no picture that can be read"),
        (picture()[:-30], "no picture that can be read"),
        (picture("GIF"), "no picture that can be read"),
        (picture(size=(41, 40)), "has 41 x 40 pixels; at most 1,600"),
        (bytes(10_001), "too large"),
    ],
)
def test_others_are_refused(data: bytes, message: str) -> None:
    limits = replace(Limits(), upload=10_000, picture=1600)
    with pytest.raises(Problem, match=message):
        clean_picture(data, limits)


def test_a_refusal_tells_nothing_of_the_servers_memory() -> None:
    with pytest.raises(Problem) as refused:
        clean_picture(b"no picture", Limits())
    assert "BytesIO" not in str(refused.value)


def test_a_bomb_is_refused_by_its_header() -> None:
    """A small file that unpacks to very much."""
    file = io.BytesIO()
    Image.new("1", (30_000, 30_000)).save(file, "PNG")
    assert len(file.getvalue()) < 1 << 20
    with pytest.raises(Problem, match="no picture|pixels"):
        clean_picture(file.getvalue(), Limits())


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_with_a_sentence(data: bytes) -> None:
    with pytest.raises(Problem):
        clean_picture(b"\x89PNG\r\n\x1a\n" + data, Limits())


def test_references_are_data_urls_and_nothing_is_fetched() -> None:
    url = "data:image/png;base64," + base64.b64encode(picture()).decode()
    assert from_reference(url) == from_reference({"image_url": url}) == picture()
    others = ("http://127.0.0.1/x.png", "file:///etc/passwd", "/etc/passwd", {"file_id": "x"})
    for other in (*others, {"image_url": 5}, {"image_url": None}):
        with pytest.raises(Problem, match="data URL|must be a picture"):
            from_reference(other)
    with pytest.raises(Problem, match="base64"):
        from_reference("data:image/png;base64,%%%")
