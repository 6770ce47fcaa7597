"""What is asked for: the fields of the API, checked and completed before anything is queued."""

from __future__ import annotations

import secrets
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from svoo.app.ui.problems import Problem, bad

LARGEST_SEED = 2**53 - 1  # what every JSON reader keeps exact


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one server takes at most: the largest request and the longest queue."""

    prompt: int = 4000  # letters
    side: int = 1920  # pixels
    frames: int = 257
    steps: int = 100
    waiting: int = 256  # videos in the queue
    upload: int = 16 << 20  # bytes of a picture
    picture: int = 16_000_000  # its pixels

    @property
    def body(self) -> int:
        """Bytes of a request: a picture in base64, and the rest."""
        return self.upload * 4 // 3 + (1 << 20)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All that a video depends on: the same settings give the same video."""

    prompt: str
    width: int
    height: int
    frames: int
    fps: float
    steps: int
    seed: int
    guidance: float | None = None
    negative_prompt: str | None = None
    method: str | None = None
    quality: str | None = None
    dense: bool = False  # make the dense video too
    picture: bool = False  # starts from a picture

    @property
    def size(self) -> str:
        """Width and height as the API writes them."""
        return f"{self.width}x{self.height}"

    @property
    def seconds(self) -> str:
        """Length of the video, as text: so the API has it."""
        return f"{self.frames / self.fps:.3g}"


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """What the page and the checks need to know about the loaded model."""

    name: str
    width: int | None
    height: int | None
    frames: int | None
    steps: int | None
    guidance: float | None
    fps: float = 16
    side_step: int = 1  # sides are multiples of it
    frame_step: int = 1  # frames are a multiple of it plus 1
    takes_picture: bool = False
    needs_picture: bool = False
    methods: tuple[str, ...] = ()
    qualities: tuple[str, ...] = ()
    hint: str = ""  # what to write into a prompt
    example: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the facts as plain data."""
        return asdict(self)


class Ask(BaseModel):
    """The body of `POST /v1/videos`, as JSON or as a form; what is left out is the model's."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    prompt: str = Field(description="What to show.")
    model: str | None = Field(None, description="The model that this server has loaded.")
    size: str | None = Field(
        None, pattern=r"^[1-9]\d{0,4}x[1-9]\d{0,4}$", description='Width and height: "256x144".'
    )
    seconds: float | None = Field(None, gt=0, le=600, description="Length; or give num_frames.")
    num_frames: int | None = Field(None, ge=1, description="Frames; or give seconds.")
    fps: float | None = Field(None, ge=1, le=240, description="Frames per second.")
    seed: int | None = Field(None, ge=0, le=LARGEST_SEED, description="Noise; None draws one.")
    steps: int | None = Field(
        None,
        ge=1,
        validation_alias=AliasChoices("steps", "num_inference_steps"),
        description="Denoising steps.",
    )
    guidance: float | None = Field(
        None,
        ge=0,
        le=100,
        validation_alias=AliasChoices("guidance", "guidance_scale"),
        description="Guidance scale.",
    )
    negative_prompt: str | None = Field(None, description="What not to show.")
    method: str | None = Field(None, description="svoo, paper, dense, ...; None chooses.")
    quality: str | None = Field(None, description="svoo's knob: fast, balanced or careful.")
    dense: bool = Field(default=False, description="Make the dense video too, to compare.")
    picture_of: str | None = Field(None, description="Start from the picture of an earlier video.")
    input_reference: str | dict[str, str] | None = Field(
        None, description="A picture to start from: a file in a form, or a data URL."
    )


def read_ask(fields: dict[str, Any]) -> Ask:
    """Check the fields of a body; an empty one counts as left out."""
    given = {name: value for name, value in fields.items() if value not in ("", None)}
    for name, value in given.items():
        _check_letters(name, value)
    try:
        return Ask.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"]) or "body"
        if first["type"] == "extra_forbidden":
            known = ", ".join(Ask.model_fields)
            raise bad(f"no field is called {name!r}; there are {known}", name) from error
        if first["type"] == "missing":
            raise bad(f"{name} is needed", name) from error
        got = repr(first["input"])
        shown = got if len(got) <= 60 else got[:60] + "..."
        raise bad(f"{name}: {first['msg']}, got {shown}", name) from error


def complete(ask: Ask, facts: ModelFacts, limits: Limits, *, picture: bool) -> Settings:
    """Fill in the model's own settings and refuse what it cannot make or is too large."""
    if ask.model not in (None, facts.name):
        message = f"this server has loaded {facts.name}, not {ask.model}"
        raise Problem(404, "model_not_found", message, "model")
    for name in ("prompt", "negative_prompt"):
        _check_text(name, getattr(ask, name) or "", limits.prompt)
    if not ask.prompt.strip():
        raise bad("prompt is empty: say what to show", "prompt")
    width, height = _sides(ask, facts, limits)
    fps = ask.fps or facts.fps
    return Settings(
        prompt=ask.prompt,
        width=width,
        height=height,
        frames=_frames(ask, facts, limits, fps),
        fps=fps,
        steps=_within("steps", ask.steps or facts.steps, limits.steps),
        seed=secrets.randbelow(1 << 32) if ask.seed is None else ask.seed,
        guidance=facts.guidance if ask.guidance is None else ask.guidance,
        negative_prompt=ask.negative_prompt,
        method=_choice("method", ask.method, facts.methods),
        quality=_choice("quality", ask.quality, facts.qualities),
        dense=ask.dense and ask.method != "dense",
        picture=picture,
    )


def _check_letters(name: str, value: object) -> None:
    """Refuse halves of surrogate pairs, which JSON can spell and no answer could tell again."""
    try:
        f"{name}{value if isinstance(value, str) else ''}".encode()
    except UnicodeEncodeError:
        shown = name.encode(errors="replace").decode()
        raise bad(f"{shown}: has letters that UTF-8 cannot write", shown) from None


def _check_text(name: str, text: str, most: int) -> None:
    if len(text) > most:
        raise bad(f"{name} has {len(text):,} letters; at most {most:,} are taken", name)


def _sides(ask: Ask, facts: ModelFacts, limits: Limits) -> tuple[int, int]:
    sides = (
        [int(side) for side in ask.size.split("x")] if ask.size else (facts.width, facts.height)
    )
    checked = [_within("size", side, limits.side) for side in sides]
    for side in checked:
        if side % facts.side_step:
            least = facts.side_step
            near = max(least, round(side / least) * least)
            message = f"sides must be multiples of {least}, got {side}; the nearest is {near}"
            raise bad(message, "size")
    return checked[0], checked[1]


def _frames(ask: Ask, facts: ModelFacts, limits: Limits, fps: float) -> int:
    if ask.seconds is not None and ask.num_frames is not None:
        raise bad("give seconds or num_frames, one of them", "seconds")
    step = facts.frame_step
    if ask.seconds is not None:  # the nearest that the model makes
        wanted = max(0, round((ask.seconds * fps - 1) / step)) * step + 1
        if wanted > limits.frames:
            message = f"{ask.seconds:g} seconds at {fps:g} frames per second are {wanted} frames"
            raise bad(f"{message}; at most {limits.frames} are taken here", "seconds")
        return wanted
    frames = _within("num_frames", ask.num_frames or facts.frames, limits.frames)
    if (frames - 1) % step:
        near = round((frames - 1) / step) * step + 1
        message = (
            f"frames must be a multiple of {step} plus 1, got {frames}; the nearest is {near}"
        )
        raise bad(message, "num_frames")
    return frames


def _within(name: str, value: int | None, most: int) -> int:
    if value is None:
        raise bad(f"{name} is needed: this model has no usual one", name)
    if value > most:
        raise bad(f"{name}: at most {most} is taken here, got {value}", name)
    return value


def _choice(name: str, value: str | None, known: tuple[str, ...]) -> str | None:
    if value is not None and value not in known:
        raise bad(f"{name} must be one of {', '.join(known)}, got {value[:60]!r}", name)
    return value
