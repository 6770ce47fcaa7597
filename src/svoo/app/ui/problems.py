"""What the server refuses: a status, a code for programs and a sentence for people."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field


class Trouble(BaseModel):
    """What is wrong with a request."""

    message: str = Field(description="A sentence for people.")
    type: str = Field(description="invalid_request_error or server_error.")
    param: str | None = Field(description="The field that is meant, if one is.")
    code: str = Field(description="For programs: invalid_value, not_found, queue_full, ...")


class Refusal(BaseModel):
    """The body of every answer that is no success."""

    error: Trouble


class Problem(Exception):
    """A request that is refused, told in the form that OpenAI's clients read."""

    def __init__(self, status: int, code: str, message: str, field: str | None = None) -> None:
        """Refuse with an HTTP status; `field` is the setting that is meant, if one is."""
        super().__init__(message)
        self.status = status
        self.code = code
        self.field = field

    def as_dict(self) -> dict[str, Any]:
        """Return the body of the answer."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        told = Trouble(message=str(self), type=kind, param=self.field, code=self.code)
        return Refusal(error=told).model_dump()


def bad(message: str, field: str | None = None) -> Problem:
    """Return the usual refusal: a value that cannot be."""
    return Problem(400, "invalid_value", message, field)
