import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from making import Case, cases

from svoo.kernels.triton.ranges import PIECE, cut, keep_pieces


@given(case=cases(max_tokens=90), length=st.sampled_from((1, 16, 32)))
def test_pieces_cover_every_token_of_their_block_once(case: Case, length: int) -> None:
    plan = case.plan(compensate=False)
    pieces = cut(plan.key_sizes, length, case.keys)
    for b in range(case.batch):
        for h in range(case.heads):
            found = []
            for block, start, size in zip(*(part[b, h].tolist() for part in pieces), strict=True):
                assert 0 <= size <= length
                found += [(block, start + place) for place in range(size)]
            owners = torch.repeat_interleave(
                torch.arange(case.key_blocks), plan.key_sizes[b, h]
            ).tolist()
            assert found == list(zip(owners, range(case.keys), strict=True))


@settings(max_examples=40)
@given(case=cases(max_tokens=90))
def test_kept_pieces_are_those_of_kept_blocks(kernel_device: torch.device, case: Case) -> None:
    plan = case.plan(compensate=False)
    pieces = cut(plan.key_sizes.to(kernel_device), PIECE, case.keys)
    kept = keep_pieces(pieces, plan.keep.to(kernel_device))
    for b in range(case.batch):
        for h in range(case.heads):
            rows = list(zip(*(part[b, h].tolist() for part in pieces), strict=True))
            for row in range(case.query_blocks):
                expected = [
                    PIECE * start + size - 1
                    for block, start, size in rows
                    if size and plan.keep[b, h, row, block]
                ]
                count = int(kept.counts[b, h, row])
                assert kept.entries[b, h, row, :count].tolist() == expected
