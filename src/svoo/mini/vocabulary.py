"""The words that the embedded model was trained on: what a prompt can ask for."""

from __future__ import annotations

COLOURS: dict[str, tuple[float, float, float]] = {
    "red": (0.90, 0.12, 0.10),
    "orange": (1.00, 0.52, 0.05),
    "yellow": (1.00, 0.90, 0.08),
    "green": (0.08, 0.80, 0.20),
    "cyan": (0.05, 0.88, 0.92),
    "blue": (0.10, 0.25, 0.95),
    "purple": (0.62, 0.10, 0.85),
    "white": (1.00, 1.00, 1.00),
}
SHAPES = ("circle", "square", "triangle", "ring", "star")
DIRECTIONS: dict[str, tuple[int, int]] = {
    "left": (-1, 0),
    "right": (1, 0),
    "up": (0, -1),
    "down": (0, 1),
    "up and left": (-1, -1),
    "up and right": (1, -1),
    "down and left": (-1, 1),
    "down and right": (1, 1),
}
OTHER_MOTIONS = ("bounce", "orbit", "grow", "spin")
MOTIONS = (*DIRECTIONS, *OTHER_MOTIONS)
BACKGROUNDS: dict[str, tuple[str, ...]] = {
    "a checkered floor": ("over", "across"),
    "a wooden floor": ("over", "across"),
    "a brick wall": ("in front of", "against"),
    "a grassy field": ("over", "across"),
    "a starry sky": ("in front of", "against"),
    "rippling water": ("over", "across"),
}
STRAIGHT_WORDINGS = ("moves {}", "slides {}", "is moving {}", "glides {}")
OTHER_WORDINGS = {
    "bounce": ("bounces", "is bouncing"),
    "orbit": ("moves in an orbit", "is going around in an orbit"),
    "grow": ("grows", "is growing"),
    "spin": ("spins", "is spinning"),
}


def vocabulary() -> list[str]:
    """Return every word that a caption can have, sorted."""
    sentences = [
        "a an the while",
        *COLOURS,
        *SHAPES,
        *DIRECTIONS,
        *(wording.format("") for wording in STRAIGHT_WORDINGS),
        *(wording for wordings in OTHER_WORDINGS.values() for wording in wordings),
        *BACKGROUNDS,
        *(wording for wordings in BACKGROUNDS.values() for wording in wordings),
    ]
    return sorted({word for sentence in sentences for word in sentence.split()})


def grammar() -> str:
    """Say in a few lines what a prompt can ask for."""
    return "\n".join(
        (
            f"a COLOUR SHAPE MOTION BACKGROUND, e.g. {example_prompt()!r}",
            f"  colours: {', '.join(COLOURS)}",
            f"  shapes: {', '.join(SHAPES)}",
            f"  motions: moves {', '.join(DIRECTIONS)}; bounces, moves in an orbit, grows, spins",
            f"  backgrounds: {', '.join(f'{at[0]} {what}' for what, at in BACKGROUNDS.items())}",
            "  two things: join them with 'while'",
        )
    )


def example_prompt() -> str:
    """Return a prompt that is like the captions."""
    return "a red circle moves left over a checkered floor"
