"""One video's life: asked for, waiting, made or not."""

from __future__ import annotations

import math
import secrets
import time
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Self

from svoo.app.ui.settings import Settings

Status = Literal["queued", "in_progress", "completed", "failed"]
CANCELLED = ("cancelled", "cancelled by the user")
STOPPED = ("interrupted", "the server was stopped before this video was finished; make it again")


def without_nan(told: Any) -> Any:  # noqa: ANN401 (plain data)
    """Return plain data with None for every number that JSON cannot say: nan and infinity."""
    if isinstance(told, dict):
        return {name: without_nan(value) for name, value in told.items()}
    if isinstance(told, list | tuple):
        return [without_nan(value) for value in told]
    return None if isinstance(told, float) and not math.isfinite(told) else told


@dataclass
class Job:
    """A video that was asked for; `figures` and `notes` tell what it took."""

    id: str
    created_at: float
    model: str
    settings: Settings
    status: Status = "queued"
    completed_at: int | None = None
    error: tuple[str, str] | None = None  # a code and a sentence
    figures: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    phase: str = ""
    step: int = 0
    steps: int = 0
    begun: float = 0.0  # when the denoising began, by the monotonic clock

    @classmethod
    def new(cls, model: str, settings: Settings) -> Self:
        """Return a job that waits, with a name that cannot be guessed."""
        name = f"video_{secrets.token_hex(12)}"
        return cls(name, time.time(), model, settings)

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen."""
        return self.status in ("completed", "failed")

    def fail(self, why: tuple[str, str]) -> None:
        """End without a video, for a reason."""
        self.status, self.error, self.completed_at = "failed", why, int(time.time())

    def progress(self, phase: str, step: int, steps: int) -> None:
        """Note how far it has come."""
        if step == 0 or not self.begun:
            self.begun = time.monotonic()
        self.phase, self.step, self.steps = phase, step, steps

    def seconds_left(self) -> float | None:
        """Return the time that the steps still to come will take if they are like those done."""
        if self.status != "in_progress" or not self.step > 0:
            return None
        return (self.steps - self.step) * (time.monotonic() - self.begun) / self.step

    def describe(self, waiting_before: int | None = None) -> dict[str, Any]:
        """Return the job as the API tells it: OpenAI's fields first, then our own."""
        percent = 100 if self.status == "completed" else 0
        if self.status == "in_progress" and self.steps:
            percent = min(99, 100 * self.step // self.steps)
        error = None
        if self.error is not None:
            error = {"code": self.error[0], "message": self.error[1]}
        return {
            "id": self.id,
            "object": "video",
            "model": self.model,
            "status": self.status,
            "progress": percent,
            "created_at": int(self.created_at),
            "completed_at": self.completed_at,
            "expires_at": None,
            "prompt": self.settings.prompt,
            "size": self.settings.size,
            "seconds": self.settings.seconds,
            "error": error,
            "settings": asdict(self.settings),
            "phase": self.phase,
            "step": self.step,
            "steps": self.steps,
            "seconds_left": self.seconds_left(),
            "waiting_before": waiting_before,
            "figures": self.figures,
            "notes": self.notes,
        }

    def as_dict(self) -> dict[str, Any]:
        """Return what is kept on disk."""
        kept = ("id", "created_at", "model", "status", "completed_at", "error", "figures", "notes")
        return {name: getattr(self, name) for name in kept} | {"settings": asdict(self.settings)}

    @classmethod
    def from_dict(cls, kept: dict[str, Any]) -> Self:
        """Return the job that `as_dict` told of; raises what a wrong dictionary raises."""
        error = kept["error"]
        return cls(
            **{
                **kept,
                "settings": Settings(**kept["settings"]),
                "error": None if error is None else (str(error[0]), str(error[1])),
            }
        )
