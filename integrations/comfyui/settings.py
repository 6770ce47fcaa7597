"""The options of the node, checked; what they mean to svoo."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

from svoo import MethodConfig, available_methods
from svoo.errors import ConfigError
from svoo.integrations.settings import choose_config


def method_names() -> list[str]:
    """Return what the option `method` offers: svoo first."""
    names = [row.name for row in available_methods()]
    return ["svoo", *(name for name in names if name != "svoo"), "paper"]


@dataclass(frozen=True)
class Settings:
    """The options of the node, as `nodes.py` explains them."""

    method: str = "svoo"
    quality: str = "balanced"
    dense_steps: int = -1
    dense_blocks: frozenset[int] = frozenset()
    end: float = 1.0
    least_tokens: int = 8000
    strict: bool = False
    verbose: bool = False

    def config(self, model: str | None = None) -> MethodConfig:
        """Return the settings of the method, for a model of svoo's catalogue if it is known."""
        steps = None if self.dense_steps < 0 else self.dense_steps
        config = choose_config(self.method, self.quality, steps, strict=self.strict, model=model)
        return replace(config, measure_error=True)

    def last_sparse_step(self, steps: int) -> int:
        """Return the last step that may be sparse, of so many."""
        return math.ceil(self.end * steps - 1e-6) - 1

    def describe(self) -> str:
        """Return the method in words."""
        return f"svoo ({self.quality})" if self.method == "svoo" else self.method


def read_blocks(text: str) -> frozenset[int]:
    """Return the blocks of a list such as "0, 1, 47-49"."""
    blocks: set[int] = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = re.fullmatch(r"(\d+)(?:\s*-\s*(\d+))?", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last or last >= 1000:
            raise ConfigError(
                f"dense_blocks must be block numbers below 1000 and ranges such as 0, 1, 47-49, "
                f"got {part!r}"
            )
        blocks.update(range(first, last + 1))
    return frozenset(blocks)
