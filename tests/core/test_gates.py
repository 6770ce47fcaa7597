"""What tokens keep by their gates; `tests/methods/test_vmoba.py` has the rule over whole videos,
and what their code keeps."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from making import normal

from svoo.core.gates import keep_threshold, keep_topk


@given(
    tokens=st.integers(1, 6),
    chunks=st.integers(1, 5),
    count=st.integers(1, 6),
    seed=st.integers(0, 99),
)
def test_topk_is_the_own_chunk_and_the_best_others(
    tokens: int, chunks: int, count: int, seed: int
) -> None:
    gate = normal(2, 1, tokens, chunks, seed=seed)
    own = torch.arange(tokens) % chunks
    keep = keep_topk(gate, own, count)
    for b in range(2):
        for token in range(tokens):
            others = [c for c in range(chunks) if c != own[token]]
            others.sort(key=lambda c, row=gate[b, 0, token]: -float(row[c]))  # type: ignore[misc]
            expected = {int(own[token]), *others[: count - 1]}
            assert set(keep[b, 0, token].nonzero().flatten().tolist()) == expected


@given(
    tokens=st.integers(1, 6),
    chunks=st.integers(2, 5),
    threshold=st.sampled_from((0.0, 0.25, 0.7, 1.0)),
    seed=st.integers(0, 99),
)
def test_a_token_adds_others_until_the_threshold(
    tokens: int, chunks: int, threshold: float, seed: int
) -> None:
    gate = normal(1, 2, tokens, chunks, seed=seed, dtype=torch.float64)
    own = torch.arange(tokens) % chunks
    keep = keep_threshold(gate, own, threshold, whole_head=False)
    for h in range(2):
        for token in range(tokens):
            row = gate[0, h, token]
            scaled = ((row - row.min()) / (row.max() - row.min())).tolist()
            here = int(own[token])
            held, kept = scaled[here], {here}
            for chunk in sorted(set(range(chunks)) - {here}, key=lambda c: -scaled[c]):
                kept.add(chunk)
                held += scaled[chunk]
                if held / (sum(scaled) + 1e-6) >= threshold:
                    break
            found = set(keep[0, h, token].nonzero().flatten().tolist())
            # A chunk whose scaled gate is 0 adds nothing: whether it is reached is rounding.
            nothing = {c for c in range(chunks) if scaled[c] == 0} - {here}
            assert found - nothing == kept - nothing


@pytest.mark.parametrize("whole_head", [False, True])
def test_equal_gates_keep_everything(*, whole_head: bool) -> None:
    own = torch.tensor([0, 1, 1])
    keep = keep_threshold(torch.ones(1, 1, 3, 4), own, 0.25, whole_head=whole_head)
    assert bool(keep.all())
