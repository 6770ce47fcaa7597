import pytest
import torch
from making import Case, normal

from svoo import BlockPlan, Session, VideoLayout
from svoo.methods.base import Call
from svoo.methods.svg2 import SVG2Config
from svoo.session.heads import call_of_heads, split_heads

LAYOUT = VideoLayout(2, 2, 3, text=4, text_first=True, valid_text=torch.tensor([4, 2]))
TOKENS = [normal(2, 3, LAYOUT.tokens, 8, seed=seed) for seed in range(3)]


def test_a_group_of_heads_says_which_it_is_and_counts_its_share() -> None:
    counted: list[tuple[str, float]] = []
    call = Call(0, 0, head_offset=4, count=lambda phase, share: counted.append((phase, share)))
    first, last = (call_of_heads(call, heads, 3) for heads in (slice(0, 2), slice(2, 3)))
    assert (first.head_offset, first.more_heads) == (4, True)
    assert (last.head_offset, last.more_heads) == (6, False)
    first.count("clustering", 0.3)
    last.count("clustering", 0.3)
    assert [phase for phase, _ in counted] == ["clustering"] * 2
    assert [share for _, share in counted] == pytest.approx([0.2, 0.1])


def test_far_terms_of_other_methods_go_in_groups_of_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    config = SVG2Config(compensate="far", dense_steps=0, dense_layers=0)

    def run() -> tuple[torch.Tensor, list[float]]:
        session = Session(config, steps=1, layers=1, heads=3)
        output = session.attend(*TOKENS, step=0, layer=0, layout=LAYOUT)
        by_head = session.stats().layers[0].density_by_head
        assert by_head is not None and session.stats().sparse_calls == 1
        return output, by_head

    whole, densities = run()
    monkeypatch.setattr("svoo.session.heads.heads_per_group", lambda *_: 2)
    parts, of_parts = run()
    torch.testing.assert_close(parts, whole)
    assert of_parts == pytest.approx(densities)
    groups = split_heads(
        Case(2, 3, 12, 12, 8, 2, 2, seed=0).plan(compensate=False), TOKENS, config
    )
    assert [group for group, _ in groups] == [slice(0, 2), slice(2, 3)]
    assert all(isinstance(p, BlockPlan) and p.keep.shape[1] == g.stop - g.start for g, p in groups)
    assert (
        len(
            split_heads(
                Case(2, 3, 12, 12, 8, 2, 2, seed=0).plan(compensate=False), TOKENS, SVG2Config()
            )
        )
        == 1
    )  # drops, and takes no room
