import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from making import chance, normal

from svoo.core.heads import ALL_HEADS, Heads


@given(st.integers(1, 3), st.integers(1, 5), st.integers(1, 9), st.integers(1, 7), st.data())
def test_a_head_draws_the_same_places_wherever_it_is(
    batch: int, heads: int, tokens: int, count: int, data: st.DataObject
) -> None:
    first = data.draw(st.integers(0, heads - 1))
    here = data.draw(st.integers(1, heads - first))
    everyone = normal(batch, heads, tokens, 2)
    generators = chance(3), chance(3)
    places = ALL_HEADS.draw_indices(everyone, count, generators[0])
    part = everyone[:, first : first + here]
    found = Heads(first, heads).draw_indices(part, count, generators[1])
    assert torch.equal(found, places[:, first : first + here])
    # The next draw is alike too.
    again = [torch.rand(3, generator=generator) for generator in generators]
    assert torch.equal(*again)


def test_what_looks_across_heads_sees_those_of_other_devices() -> None:
    everyone = normal(6, 4, 5)
    spread = Heads(2, 6, lambda _here: everyone.flatten(1).amax(dim=1))
    assert float(spread.largest(everyone[2:4])) == pytest.approx(float(everyone.max()))
    assert float(ALL_HEADS.largest(everyone[2:4])) == float(everyone[2:4].max())
    assert torch.equal(spread.own(everyone, 2), everyone[2:4])
    assert ALL_HEADS.own(everyone, 2) is everyone
