"""What the server refuses: a status, a code for programs and a sentence for people."""

from __future__ import annotations

from typing import Any


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
        error = {"message": str(self), "type": kind, "param": self.field, "code": self.code}
        return {"error": error}


def bad(message: str, field: str | None = None) -> Problem:
    """Return the usual refusal: a value that cannot be."""
    return Problem(400, "invalid_value", message, field)
