"""The attention overrides of other nodes, before and after ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

Override = Callable[..., Tensor]
"""ComfyUI's `optimized_attention_override(func, q, k, v, heads, ...)`."""


class Chain:
    """Where calls go that our node does not take: to a later node's override, which may lead back
    here; then to an earlier node's; then to the model's own attention."""

    def __init__(self) -> None:
        """Start alone."""
        self.before: Override | None = None  # was there when our node was applied
        self.after: Override | None = None  # was put in our place later
        self.passing = False  # a later node has the call: what comes back to us is not taken

    def pass_on(self, func: Override, *args: Any, **kwargs: Any) -> Tensor:
        """Attend as if our node were not there."""
        if self.after is not None and not self.passing:
            self.passing = True
            try:
                return self.after(func, *args, **kwargs)
            finally:
                self.passing = False
        if self.before is not None:
            return self.before(func, *args, **kwargs)
        return func(*args, **kwargs)
