"""Pictures from strangers: bounded, checked to be pictures, and written anew."""

from __future__ import annotations

import base64
import binascii
import io
import re
import warnings
from typing import Any

from svoo.app.ui.problems import Problem, bad
from svoo.app.ui.settings import Limits

_FIELD = "input_reference"
FORMATS = ("PNG", "JPEG", "WEBP")
_DATA_URL = re.compile(r"data:image/[\w.+-]+;base64,")


def clean_picture(data: bytes, limits: Limits) -> bytes:
    """Return a picture as a PNG of plain colours, upright, without whatever else was in the file;
    refuse what is none or is too large."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    if len(data) > limits.upload:
        raise too_large(limits)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            picture = Image.open(io.BytesIO(data), formats=FORMATS)
            width, height = picture.size
            if width * height > limits.picture:
                raise bad(
                    f"the picture has {width} x {height} pixels; at most {limits.picture:,} are "
                    "taken",
                    _FIELD,
                )
            upright = ImageOps.exif_transpose(picture).convert("RGB")
    except Problem:
        raise
    except Exception as error:
        kinds = ", ".join(FORMATS)
        # Pillow names the object in memory where it knows no more than that.
        why = "" if isinstance(error, UnidentifiedImageError) else f": {error}"
        raise bad(f"this is no picture that can be read ({kinds}){why}", _FIELD) from error
    written = io.BytesIO()
    upright.save(written, "PNG")
    return written.getvalue()


def from_reference(reference: str | dict[str, Any]) -> bytes:
    """Return the bytes of a picture in a JSON body: a data URL, by itself or as `image_url`."""
    if isinstance(reference, dict):
        url = reference.get("image_url")
        if not isinstance(url, str):
            raise bad("input_reference must be a picture: {'image_url': 'data:...'}", _FIELD)
        reference = url
    start = _DATA_URL.match(reference)
    if start is None:
        raise bad(
            "the picture must be a data URL (data:image/png;base64,...): nothing is fetched from "
            "elsewhere",
            _FIELD,
        )
    try:
        return base64.b64decode(reference[start.end() :], validate=True)
    except (binascii.Error, ValueError) as error:
        raise bad(f"the picture's base64 cannot be read: {error}", _FIELD) from error


def too_large(limits: Limits) -> Problem:
    """Return the refusal of an upload that is too large."""
    message = f"the request is too large: a picture may have {limits.upload >> 20} MB"
    return Problem(413, "too_large", message, _FIELD)
