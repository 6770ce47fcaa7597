import torch
from hypothesis import given
from hypothesis import strategies as st
from making import chance

from svoo.core.token_budget import spend_tokens


@given(blocks=st.integers(1, 9), limit=st.integers(0, 40), seed=st.integers(0, 1000))
def test_blocks_are_taken_while_tokens_are_left(blocks: int, limit: int, seed: int) -> None:
    generator = chance(seed)
    scores = torch.randint(4, (2, 1, 3, blocks), generator=generator).float()  # with ties
    sizes = torch.randint(6, (2, 1, blocks), generator=generator)
    found = spend_tokens(scores, sizes, limit)
    for b in range(2):
        for i in range(3):
            taken, spent = set(), 0
            for j in sorted(range(blocks), key=lambda j: (-float(scores[b, 0, i, j]), j)):
                if spent < limit and sizes[b, 0, j] > 0:
                    taken.add(j)
                    spent += int(sizes[b, 0, j])
            assert set(found[b, 0, i].nonzero().flatten().tolist()) == taken
    limits = torch.full((2, 1, 3), limit)
    assert torch.equal(spend_tokens(scores, sizes, limits), found)
