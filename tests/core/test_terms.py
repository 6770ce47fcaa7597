import torch
from hypothesis import given
from hypothesis import strategies as st
from making import Case, cases

from svoo import FarTerms, MeanTerms
from svoo.core.terms import compensated, pad_terms, tensors_of


def test_a_term_enters_where_its_block_has_tokens_and_its_bias_is_a_number() -> None:
    middle = torch.tensor([[[[True, True, True, False]]]])
    bias = torch.tensor([[[[0.0, -torch.inf, 1.0, 2.0]]]])
    terms = FarTerms(middle, bias, torch.zeros(1, 1, 1, 4, 2))
    assert terms.enters(torch.tensor([[[3, 3, 0, 3]]])).flatten().tolist() == [True] + 3 * [False]


def test_only_mean_terms_mark_blocks() -> None:
    case = Case(1, 1, 5, 5, 2, 2, 2, seed=0)
    assert compensated(None) is compensated(case.far_plan().terms) is None
    terms = case.plan(compensate=True).terms
    assert isinstance(terms, MeanTerms)
    assert compensated(terms) is terms.compensate


@given(
    case=cases(),
    groups=st.integers(0, 2),
    front=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    behind=st.tuples(st.integers(0, 2), st.integers(0, 2)),
)
def test_padding_adds_blocks_without_terms(
    case: Case, groups: int, front: tuple[int, int], behind: tuple[int, int]
) -> None:
    terms = case.far_plan(groups=groups).terms
    query_side, key_side = zip(front, behind, strict=True)
    padded = pad_terms(terms, query_side, key_side)
    assert isinstance(terms, FarTerms) and isinstance(padded, FarTerms)
    rows = slice(front[0], front[0] + case.query_blocks)
    columns = slice(front[1], front[1] + case.key_blocks)
    for name, wide in tensors_of(padded).items():
        inside = (rows,) if "groups" in name else (rows, columns)
        narrow = tensors_of(terms)[name]
        assert torch.equal(wide[:, :, *inside].nan_to_num(7), narrow.nan_to_num(7))
    sizes = torch.ones(case.batch, case.heads, padded.middle.shape[3])
    found = padded.enters(sizes)
    assert int(found.sum()) == int(found[:, :, rows, columns].sum())
    if padded.groups is not None:
        added = [row for row in range(found.shape[2]) if not rows.start <= row < rows.stop]
        assert bool((padded.groups.bias[:, :, added] == -torch.inf).all())
