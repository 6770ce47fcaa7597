"""What the transformer is taught, stage by stage, and what must have come of it by when."""

from __future__ import annotations

from dataclasses import dataclass, field

CODE_FRAMES = 13  # of 49 frames
# Rows and columns of codes: 80 x 144, 96 x 160 and 144 x 256 pixels. Most benchmarks use HALF.
HALF, SMALL, FULL = (10, 18), (12, 20), (18, 32)


@dataclass(frozen=True)
class Kind:
    """Batches of `clips` clips with `frames` of their 13 code frames; 1 means pictures."""

    grid: tuple[int, int]
    frames: int
    clips: int
    weight: float  # how often it is chosen

    @property
    def name(self) -> str:
        """A short name for logs, such as `4x12x20`."""
        return "x".join(map(str, (self.frames, *self.grid)))


@dataclass(frozen=True)
class Gate:
    """A number that must lie in a range at a step of a stage; else training stops and says so."""

    step: int
    number: str
    least: float = float("-inf")
    most: float = float("inf")


@dataclass(frozen=True)
class Stage:
    """Steps that are alike; the rate falls to nothing over the last part `fall` of them."""

    name: str
    steps: int
    kinds: tuple[Kind, ...]
    rate: float
    averaging: float
    guides: dict[str, float]
    high: tuple[float, float]  # this share of the noise levels lies above that level
    measure_every: int
    measured: Kind  # frames and grid that held-out prompts are asked for at; clips: how many
    image_share: float = 0.0  # of the clip batches, with a clean first code frame
    fall: float = 0.0
    look_at_ends: bool = False  # begin with it
    widen: bool = False  # begin with it
    favour: float = 0.0  # this share of the clips shows what is hard (`codes.is_hard`)
    gates: tuple[Gate, ...] = field(default=())


NEWER = dict.fromkeys(("turn", "word", "column", "colour"), 0.0)
LOOKS = {"shape": 0.2, "cover": 1.0, "place": 0.1, "time": 0.0, "motion": 0.0, **NEWER}
MOTION = {"shape": 0.1, "cover": 1.0, "place": 0.4, "time": 0.5, "motion": 0.3, **NEWER}
LATER = {"shape": 0.1, "cover": 1.0, "place": 0.4, "time": 0.3, "motion": 0.2, **NEWER}
# Guides for what was missing at last: which words belong to which thing, and turning.
BOUND = {"shape": 0.6, "cover": 1.0, "place": 0.4, "time": 0.2, "motion": 0.3}
BOUND |= {"turn": 0.3, "word": 0.5, "column": 0.3, "colour": 0.2}
TURNING = BOUND | {"turn": 1.0}

# Words, shapes and paths are learnt on the small grid, at 40 % of the price; full pictures go
# along from the second stage on: on a grid that it has not seen the model draws no thing at all.
STAGES = (
    Stage(
        "pictures",
        3_000,
        (Kind(SMALL, 1, 12, 1.0),),
        rate=3e-3,
        averaging=0.995,
        guides=LOOKS,
        high=(0.2, 0.7),
        measure_every=1_000,
        measured=Kind(SMALL, 1, 48, 1.0),
        fall=0.3,
        gates=(Gate(2_000, "shape", least=0.5),),
    ),
    Stage(
        "both grids",
        500,
        (Kind(SMALL, 1, 12, 1.0), Kind(FULL, 1, 6, 1.5)),
        rate=3e-3,
        averaging=0.995,
        guides=LOOKS,
        high=(0.2, 0.7),
        measure_every=350,
        measured=Kind(FULL, 1, 24, 1.0),
        gates=(Gate(350, "shape", least=0.4),),
    ),
    Stage(
        "few frames",
        2_300,  # all held-out ways were right after 2,000
        (
            Kind(SMALL, 1, 12, 0.5),
            Kind(FULL, 1, 6, 0.6),
            Kind(SMALL, 2, 10, 2.0),
            Kind(SMALL, 4, 5, 1.0),
        ),
        rate=2.5e-3,
        averaging=0.995,
        guides=MOTION,
        high=(0.3, 0.9),
        measure_every=1_000,
        measured=Kind(SMALL, 4, 24, 1.0),
        image_share=0.1,
        look_at_ends=True,
        gates=(Gate(300, "high place 2", most=0.55),),
    ),
    Stage(
        "more frames",
        3_000,
        (
            Kind(SMALL, 1, 12, 0.6),
            Kind(FULL, 1, 6, 1.2),
            Kind(SMALL, 4, 5, 0.6),
            Kind(SMALL, 7, 3, 0.5),
            Kind(SMALL, 13, 2, 0.4),
            Kind(FULL, 2, 4, 0.6),
            Kind(FULL, 4, 2, 0.8),
        ),
        rate=2.5e-3,
        averaging=0.998,
        guides=LATER,
        high=(0.3, 0.9),
        measure_every=1_000,
        measured=Kind(SMALL, 13, 16, 1.0),
        image_share=0.2,
        gates=(Gate(2_000, "motion", least=0.5),),
    ),
    Stage(
        "full pictures",  # from here on with patterns that fit the codes
        1_400,
        (
            Kind(FULL, 1, 8, 1.0),
            Kind(HALF, 1, 12, 0.15),
            Kind(HALF, 7, 3, 0.15),
            Kind(FULL, 2, 4, 0.2),
            Kind(FULL, 4, 2, 0.2),
        ),
        rate=2.5e-3,
        averaging=0.995,
        guides=LATER,
        high=(0.25, 0.85),
        measure_every=700,
        measured=Kind(FULL, 1, 36, 1.0),
        image_share=0.2,
        gates=(Gate(700, "background", least=0.5),),
    ),
    Stage(
        "whole clips",
        1_600,
        (
            Kind(FULL, 1, 8, 1.0),
            Kind(FULL, 4, 2, 0.6),
            Kind(HALF, 13, 2, 0.3),
            Kind(FULL, 13, 1, 1.0),
        ),
        rate=2e-3,
        averaging=0.998,
        guides=LATER,
        high=(0.3, 0.9),
        measure_every=800,
        measured=Kind(HALF, 13, 16, 1.0),
        image_share=0.2,
        fall=0.6,
        gates=(Gate(800, "motion", least=0.5),),
    ),
    Stage(
        "two things",  # from here on in half of the scenes; more bouncing and spinning
        2_000,
        (
            Kind(FULL, 1, 8, 2.0),
            Kind(FULL, 2, 4, 0.3),
            Kind(FULL, 4, 2, 0.5),
            Kind(HALF, 7, 3, 0.2),
        ),
        rate=2.5e-3,
        averaging=0.99,
        guides=BOUND,
        high=(0.3, 0.85),
        measure_every=500,
        measured=Kind(FULL, 1, 36, 1.0),
        image_share=0.2,
        widen=True,
        gates=(Gate(2_000, "shape of two", least=0.4),),
    ),
    Stage(
        "all of it",
        600,
        (
            Kind(FULL, 1, 8, 1.0),
            Kind(FULL, 4, 2, 0.6),
            Kind(HALF, 13, 2, 0.4),
            Kind(FULL, 13, 1, 0.8),
        ),
        rate=2e-3,
        averaging=0.995,
        guides=BOUND,
        high=(0.3, 0.9),
        measure_every=600,
        measured=Kind(HALF, 13, 12, 1.0),
        image_share=0.2,
        fall=0.7,
    ),
    Stage(
        "turning",
        620,
        (
            Kind(FULL, 1, 8, 0.8),
            Kind(FULL, 4, 2, 0.8),
            Kind(HALF, 13, 2, 0.6),
            Kind(FULL, 13, 1, 0.8),
        ),
        rate=2e-3,
        averaging=0.99,
        guides=TURNING,
        high=(0.3, 0.9),
        measure_every=620,
        measured=Kind(HALF, 13, 12, 1.0),
        image_share=0.15,
        fall=0.6,
        favour=0.6,
    ),
    Stage(
        "by a corner",  # from here on spinning things turn by one corner, and pictures show none
        1_100,
        (
            Kind(FULL, 1, 8, 0.5),
            Kind(FULL, 4, 2, 0.7),
            Kind(HALF, 13, 2, 1.0),  # turning is learnt at a quarter of the price
            Kind(FULL, 7, 1, 0.3),
            Kind(FULL, 13, 1, 0.4),
        ),
        rate=2e-3,
        averaging=0.995,
        guides=TURNING,
        high=(0.3, 0.9),
        measure_every=1_100,
        measured=Kind(HALF, 13, 12, 1.0),
        image_share=0.15,
        fall=0.6,
        favour=0.5,
    ),
)
