"""The picture of docs/method.md: three tiers, all of them there, and a file that stays small."""

from pathlib import Path

import torch

from tools.method_picture import FAR, MIDDLE, NEAR, main, make_example


def test_every_tier_is_in_the_picture() -> None:
    example = make_example()
    tiers = example.tiers()
    assert set(tiers.unique().tolist()) == {NEAR, MIDDLE, FAR}
    assert torch.equal(tiers == NEAR, example.plan.keep[0, 0])
    assert torch.equal(tiers, make_example().tiers())


def test_the_file_is_small(tmp_path: Path) -> None:
    main(tmp_path / "method.png")
    assert 1_000 < (tmp_path / "method.png").stat().st_size < 150_000
