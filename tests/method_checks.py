"""What every method must do, whatever its rule: called by the tests of each."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from making import normal
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from svoo import BlockPlan, Call, Corrected, Dense, MethodConfig, Run, Session, VideoLayout


def plan_of(
    config: MethodConfig, tokens: Sequence[Tensor], call: Call | None = None
) -> BlockPlan | Corrected:
    """Return what a fresh method decides for query, key, value `[B, H, N, D]`, warm-up left
    out."""
    run = Run(steps=4, heads=tokens[0].shape[1])
    query, key, value = tokens
    method = config.always_sparse().start(run)
    decision = method.plan(query, key, value, call or Call(0, 0))
    assert not isinstance(decision, Dense)
    return decision


def check_text_padding_and_odd_sizes(config: MethodConfig) -> None:
    """Run a batch of two through a session, twice, on grids that no block size divides: text rows
    are exact, padding is never seen, nothing is NaN; bfloat16 runs."""
    config = config.always_sparse()
    for grid, first in (((3, 5, 7), False), ((2, 9, 11), True), ((1, 1, 1), False)):
        layout = VideoLayout(*grid, text=6, text_first=first, valid_text=torch.tensor([6, 2]))
        real = layout.real_tokens()
        assert real is not None
        outputs = []
        for seed in (0, 1):  # of the padding alone
            session = Session(config, steps=3, layers=1, heads=3)
            query, key, value = (normal(2, 3, layout.tokens, 16, seed=s) for s in range(3))
            padding = slice(layout.text_start + 2, layout.text_start + 6)
            for side in (query, key, value):
                side[1, :, padding] = 7 * normal(3, 4, 16, seed=10 + seed)
            for step in range(2):
                output = session.attend(query, key, value, step=step, layer=0, layout=layout)
                assert bool(output.isfinite().all())
                outputs.append(output.movedim(1, 2)[real])
                dense = scaled_dot_product_attention(
                    query, key, value, attn_mask=real[:, None, None]
                )
                text = slice(layout.text_start, layout.text_start + 2)
                torch.testing.assert_close(output[:, :, text], dense[:, :, text])
            density = session.stats().density
            assert density is not None and 0 < density <= 1
        torch.testing.assert_close(outputs[0], outputs[2])
        torch.testing.assert_close(outputs[1], outputs[3])
        narrow = [normal(2, 3, layout.tokens, 16, seed=s).bfloat16() for s in range(3)]
        session = Session(config, steps=3, layers=1, heads=3)
        output = session.attend(*narrow, step=0, layer=0, layout=layout)
        assert output.dtype == torch.bfloat16 and bool(output.isfinite().all())


def check_videos_are_apart(config: MethodConfig, layout: VideoLayout) -> None:
    """A second video of the same config gives what it gives alone."""
    config = config.always_sparse()

    def video(session: Session, seed: int) -> Tensor:
        query, key, value = (normal(1, 2, layout.tokens, 8, seed=seed + s) for s in range(3))
        steps = [
            session.attend(query * (1 + step), key, value, step=step, layer=0, layout=layout)
            for step in range(2)
        ]
        return torch.stack(steps)

    sessions = [Session(config, steps=2, layers=1, heads=2) for _ in range(3)]
    video(sessions[0], 0)
    assert torch.equal(video(sessions[1], 50), video(sessions[2], 50))
