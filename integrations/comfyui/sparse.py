"""Sparse attention in a model of ComfyUI: takes its self-attention calls to a `svoo.Session`."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from svoo import Dense, Session
from svoo.errors import StrictError
from svoo.session.stats import RunStats

from .chain import Chain, Override
from .forward import Forward, look_at, name_arguments
from .models import count_layers, name_model, weigh_heads
from .settings import Settings

KEY = "svoo"
OVERRIDE = "optimized_attention_override"

logger = logging.getLogger(__name__)


class SparseModel:
    """What the node adds to a clone of a model; it lives as long as the clone.

    A sampling run begins with ComfyUI's `ON_PRE_RUN` and ends with `ON_CLEANUP`, also when it is
    cancelled: labels and workspaces are then freed, and only the figures of the run stay.
    """

    def __init__(self, settings: Settings) -> None:
        """Check the settings; nothing is installed yet."""
        self.settings = settings
        self.config = settings.config()  # of a model that svoo's catalogue does not have
        self.chain = Chain()
        self.session: Session | None = None
        self.forward: Forward | None = None
        self.stats: RunStats | None = None
        self.refusals: Counter[str] = Counter()  # forwards that were dense as a whole
        self.grid: tuple[int, int, int] | None = None
        self._sigmas: Tensor | None = None
        self._memories: dict[tuple[tuple[int, ...], int], int] = {}
        self._like = torch.empty(0)  # of the dtype and on the device of the present call
        self._said: set[tuple[object, ...]] = set()

        def override(func: Override, *args: Any, **kwargs: Any) -> Tensor:
            return self.attend(func, *args, **kwargs)

        override.svoo = self  # type: ignore[attr-defined]
        # A plain function: a clone of the model copies deeply, and functions stay what they are.
        self.override: Override = override

    def install(self, model: Any) -> None:
        """Install into a cloned model; an SVOO node that was there before gives way."""
        from comfy.patcher_extension import CallbacksMP, WrappersMP

        options = model.model_options.setdefault("transformer_options", {})
        there = options.get(OVERRIDE)
        older = getattr(there, "svoo", None)
        self.chain.before = there if older is None else older.chain.before
        options[OVERRIDE] = self.override
        for kind, callback in (
            (CallbacksMP.ON_PRE_RUN, self.begin_run),
            (CallbacksMP.ON_CLEANUP, self.end_run),
        ):
            model.remove_callbacks_with_key(kind, KEY)
            model.add_callback_with_key(kind, KEY, callback)
        model.remove_wrappers_with_key(WrappersMP.DIFFUSION_MODEL, KEY)
        model.add_wrapper_with_key(WrappersMP.DIFFUSION_MODEL, KEY, self.run_forward)

    def begin_run(self, _model: object = None) -> None:
        """Forget the last run: a new video begins."""
        self.session = self.stats = self.grid = None
        self.refusals.clear()
        self._said.clear()

    def end_run(self, _model: object = None) -> None:
        """Keep the figures of the run and free all else."""
        if self.session is not None:
            self.stats = self.session.stats()
        self.session = self.forward = self._sigmas = None
        self._memories.clear()
        if self.settings.verbose:
            from .report import write_report

            logger.info("%s", write_report(self))

    def run_forward(self, executor: Any, *args: Any, **kwargs: Any) -> Any:
        """Run one forward of the model, its attention taken over: put in place at each forward,
        because a node that was applied later may have put its own there."""
        arguments = name_arguments(executor.original, args, kwargs)
        options = arguments.get("transformer_options")
        if options is None:
            self._refuse(Dense("the model is not told its transformer_options"))
            return executor(*args, **kwargs)
        seen = look_at(executor.class_obj, arguments)
        if not isinstance(seen, Dense) and seen.video < self.settings.least_tokens:
            seen = Dense(
                f"{seen.video} video tokens are fewer than least_tokens, "
                f"{self.settings.least_tokens}"
            )
        if isinstance(seen, Dense):
            self._refuse(seen)
            return executor(*args, **kwargs)
        self._follow(seen)
        there = options.get(OVERRIDE)
        self.chain.after = None if there is self.override else there
        options[OVERRIDE] = self.override
        for name in ("block_type", "block_index"):  # left there by an earlier forward
            options.pop(name, None)
        try:
            return executor(*args, **kwargs)
        finally:
            self.forward = self.chain.after = None
            options[OVERRIDE] = there
            if there is None:
                del options[OVERRIDE]

    def _refuse(self, why: Dense) -> None:
        """Note a forward that stays dense as a whole."""
        if self.settings.strict:
            raise StrictError(f"strict: the model would run dense: {why.reason}")
        self.refusals[why.reason] += 1
        self._say(why.reason)

    def _say(self, reason: str, *shape: object) -> None:
        """Log why something is dense: once per shape and reason of a run."""
        if (reason, *shape) not in self._said:
            self._said.add((reason, *shape))
            logger.info("SVOO: dense attention: %s", reason)

    def _follow(self, forward: Forward) -> None:
        """Make this the present forward; where the sampler's noise levels are new, so is the
        video."""
        self.forward = forward
        before = self._sigmas
        same = before is not None and (
            before is forward.sigmas or torch.equal(before, forward.sigmas)
        )
        if self.session is None or not same:
            self._sigmas = forward.sigmas
            self._memories.clear()
            self.grid = forward.grid
            self.session = self._start(forward)
        if self.settings.verbose:
            self._log_step(forward)

    def _log_step(self, forward: Forward) -> None:
        if ("step", forward.step) not in self._said:
            self._said.add(("step", forward.step))
            logger.info("SVOO: step %d of %d", forward.step + 1, forward.steps)

    def _start(self, forward: Forward) -> Session:
        """Return the session of a new video."""
        known, model = forward.known, forward.model
        projections = known.projections(model)
        name = name_model(model, known)
        config = self.config if name is None else self.settings.config(name)
        weights: list[Tensor] = []

        def head_weights() -> Tensor:  # read at the first sparse call: weights are loaded
            if not weights:
                weights.append(weigh_heads(model, known, self._like))
            return weights[0]

        return Session(
            config,
            steps=forward.steps,
            layers=count_layers(model, known),
            heads=projections[0].heads,
            sigmas=forward.sigmas[:-1].float().cpu(),
            calibrate=getattr(config, "tolerance", None) is None,
            head_weights=head_weights,
        )

    def attend(
        self,
        func: Override,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        heads: int,
        mask: Tensor | None = None,
        attn_precision: Any = None,
        skip_reshape: bool = False,  # noqa: FBT001, FBT002 (ComfyUI passes it by place too)
        skip_output_reshape: bool = False,  # noqa: FBT001, FBT002
        **kwargs: Any,
    ) -> Tensor:
        """Attend as ComfyUI's attention functions do: `[B, N, heads * D]`, or `[B, heads, N, D]`
        with `skip_reshape`. What is no self-attention of the video goes to the model's own."""

        def own() -> Tensor:
            return self.chain.pass_on(
                func,
                q,
                k,
                v,
                heads,
                mask=mask,
                attn_precision=attn_precision,
                skip_reshape=skip_reshape,
                skip_output_reshape=skip_output_reshape,
                **kwargs,
            )

        forward, session = self.forward, self.session
        length = q.shape[2] if skip_reshape else q.shape[1]
        keys = k.shape[2] if skip_reshape else k.shape[1]
        if forward is None or session is None or self.chain.passing or keys != length:
            return own()
        layer = forward.find_layer(kwargs.get("transformer_options") or {})
        if layer is None or length < forward.video:
            return own()
        wide = [side if skip_reshape else _split(side, heads) for side in (q, k, v)]

        def dense() -> Tensor:
            output = own()
            return output if skip_output_reshape else _split(output, heads)

        output = self._run(wide, mask, *layer, dense)
        return output if skip_output_reshape else output.transpose(1, 2).flatten(2)

    def _run(
        self,
        tokens: list[Tensor],
        mask: Tensor | None,
        layer: int,
        again: int,
        dense: Callable[[], Tensor],
    ) -> Tensor:
        """Attend with tokens `[B, heads, N, D]` through the session, or densely with a reason."""
        forward, session = self.forward, self.session
        assert forward is not None and session is not None
        query, key, value = tokens
        self._like = query.new_empty(0)  # the tokens themselves must not stay
        batch, _, length, _ = query.shape
        layout = forward.find_layout(length, batch, mask)
        reasons = session.statistics.layer(0, layer).reasons
        before = dict(reasons)
        why = layout if isinstance(layout, Dense) else self._why_dense(layer)
        if why is not None:
            known = None if isinstance(layout, Dense) else layout
            call = session.describe_call(forward.step, layer, known, query.device)
            output = session.attend_densely((query, key, value), call, why, dense)
            self._say(why.reason, length)
            return output
        assert not isinstance(layout, Dense)
        output = session.attend(
            query,
            key,
            value,
            step=forward.step,
            layer=layer,
            branch=forward.branches(batch),
            sample=self._memories.setdefault((forward.window, again), len(self._memories)),
            layout=layout,
            dense=dense,
        )
        for reason in reasons:
            if reasons[reason] != before.get(reason, 0):
                self._say(reason, length)
                return output
        return output

    def _why_dense(self, layer: int) -> Dense | None:
        """Return why the node's own options make a call dense, or None."""
        assert self.forward is not None
        if layer in self.settings.dense_blocks:
            return Dense("dense_blocks names the block", planned=True)
        last = self.settings.last_sparse_step(self.forward.steps)
        if self.forward.step > last:
            reason = f"end: steps after {last + 1} of {self.forward.steps} are dense"
            return Dense(reason, planned=True)
        return None


def _split(side: Tensor, heads: int) -> Tensor:
    """Return `[B, heads, N, D]` from `[B, N, heads * D]`, a view."""
    parts: Tensor = side.unflatten(2, (heads, -1))
    return parts.transpose(1, 2)
