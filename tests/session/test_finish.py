import torch
from making import normal

from svoo import BlockPlan, FarTerms, MeanTerms, SVOOConfig, VideoLayout
from svoo.methods.base import Corrected
from svoo.methods.svg2 import SVG2Config
from svoo.session.finish import correct_video, finish_plan, video_part

LAYOUT = VideoLayout(2, 2, 3, text=4, text_first=True, valid_text=torch.tensor([4, 2]))
TOKENS = [normal(2, 3, LAYOUT.tokens, 8, seed=seed) for seed in range(3)]


def video_plan() -> BlockPlan:
    sizes = torch.tensor([5, 7]).expand(2, 3, 2)
    keep = torch.eye(2, dtype=torch.bool).expand(2, 3, 2, 2)
    return BlockPlan(None, None, sizes, sizes, keep)


def test_the_video_is_what_lies_between_text_and_the_end() -> None:
    assert torch.equal(video_part(TOKENS[0], LAYOUT), TOKENS[0][:, :, 4:])
    assert video_part(TOKENS[0], None) is TOKENS[0]


def test_a_plan_gets_text_and_the_terms_that_its_config_asks_for() -> None:
    for compensate, kind in ((False, type(None)), ("mean", MeanTerms), ("far", FarTerms)):
        config = SVG2Config(compensate=compensate)  # type: ignore[arg-type]
        plan = finish_plan(video_plan(), TOKENS, config, LAYOUT)
        assert isinstance(plan.terms, kind)
        assert plan.keep.shape[2] > 2 and int(plan.query_sizes[0, 0].sum()) == LAYOUT.tokens


def test_terms_that_a_method_made_stay() -> None:
    own = MeanTerms(torch.zeros(2, 3, 2, dtype=torch.bool))
    sizes, keep = video_plan().query_sizes, video_plan().keep
    plan = BlockPlan(None, None, sizes, sizes, keep, terms=own)
    assert finish_plan(plan, TOKENS, SVOOConfig(), None).terms is own


def test_a_correction_changes_video_rows_alone() -> None:
    output, lse = TOKENS[0].clone(), normal(2, 3, LAYOUT.tokens, seed=5)
    decision = Corrected(video_plan(), lambda video, rows: video + rows.unsqueeze(-1))
    found = correct_video(output, lse, decision, LAYOUT)
    assert torch.equal(found[:, :, :4], TOKENS[0][:, :, :4])
    torch.testing.assert_close(found[:, :, 4:], (TOKENS[0] + lse.unsqueeze(-1))[:, :, 4:])
    everything = correct_video(TOKENS[0].clone(), lse, decision, None)
    torch.testing.assert_close(everything, TOKENS[0] + lse.unsqueeze(-1))
