import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from making import Case, cases, examples

from svoo.kernels.triton.ranges import GROUP, PIECE, cut, keep_pieces, spread


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


@settings(max_examples=examples(40))
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
                    2 * place
                    for place, (block, _, size) in enumerate(rows)
                    if size and plan.keep[b, h, row, block]
                ]
                count = int(kept.counts[b, h, row])
                entries = kept.entries[b, h, row].tolist()
                assert entries[:count] == expected
                filling = 1 + (expected[-1] if expected else 0)
                assert entries[count : count + GROUP] == [filling] * GROUP


@given(case=cases(max_tokens=90), ordered=st.booleans())
def test_lanes_read_the_tokens_of_their_piece(case: Case, ordered: bool) -> None:
    plan = case.plan(compensate=False, ordered=ordered)
    pieces = cut(plan.key_sizes, PIECE, case.keys)
    lanes = spread(pieces, plan.key_order)
    order = torch.arange(case.keys).expand(case.batch, case.heads, -1)
    order = order if plan.key_order is None else plan.key_order
    for b in range(case.batch):
        for h in range(case.heads):
            assert lanes.bias[b, h, :PIECE].tolist() == [-torch.inf] * PIECE
            tokens = lanes.tokens[b, h].view(-1, PIECE).tolist()
            biases = lanes.bias[b, h, PIECE:].view(-1, PIECE).tolist()
            starts, sizes = pieces.start[b, h].tolist(), pieces.size[b, h].tolist()
            for own, bias, start, size in zip(tokens, biases, starts, sizes, strict=True):
                assert bias == [0.0] * size + [-torch.inf] * (PIECE - size)
                if size:
                    real = order[b, h, start : start + size].tolist()
                    assert own == real + real[-1:] * (PIECE - size)
