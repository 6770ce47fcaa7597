"""What `benchmarks/variants.py` puts in the place of parts of default mode."""

import torch
from making import normal
from variants import (
    K_MEANS,
    Growing,
    Late,
    as_rows,
    co_first,
    co_keys,
    co_queries,
    made_by,
    variants,
)

from svoo import SVOOConfig
from svoo.core.random import seeded
from svoo.methods.base import Call
from svoo.methods.svoo import far
from svoo.methods.svoo.labels import LabelState, cluster

TOKENS = [normal(1, 2, 60, 8, seed=seed) for seed in range(3)]


def test_tolerances_grow_over_the_steps() -> None:
    growing, late = Growing(tolerance=1.0), Late(tolerance=1.0)
    assert [growing.tolerance_at(step, 8) for step in range(8)] == [0.5] * 2 + [1.0] * 2 + [
        1.5
    ] * 4
    default = [SVOOConfig(tolerance=1.0).tolerance_at(step, 8) for step in range(8)]
    assert [late.tolerance_at(step, 8) for step in range(8)] == default[:4] + [1.5] * 4


def test_mixtures_take_each_side_from_its_own_clustering() -> None:
    counts = 4, 6
    config = SVOOConfig(clustering="co", query_clusters=4, key_clusters=6)
    co = cluster(TOKENS[0], TOKENS[1], config, seeded(0))

    def made(maker: object, step: int = 0) -> list[torch.Tensor]:
        call = Call(step, 0, generator=seeded(0))
        with made_by(maker):  # type: ignore[arg-type]
            sides = far._new_sides(TOKENS, config, call, LabelState(step=step), counts)
        return [side.sizes for side in sides]

    # The package's own counts are those of the tokens: what is compared is who made which side.
    assert len(variants(2340)) == 11
    assert [side.shape for side in made(None)] == [co.query.sizes.shape, co.key.sizes.shape]
    for maker in (co_queries, co_keys, co_first):
        assert all(int(side.sum()) == 2 * 60 for side in made(maker))
    assert K_MEANS.clustering == "kmeans"


def test_gains_are_told_prompt_by_prompt() -> None:
    rows = [
        {"variant": name, "prompt": prompt, "density": 0.1, "error": 0.05, "psnr": psnr}
        for name, values in (("default", (30.0, 40.0)), ("other", (31.5, 38.0)))
        for prompt, psnr in zip("ab", values, strict=True)
    ]
    assert as_rows(rows)[1:] == [
        ("default", "0.100", "5.0%", "35.0 dB (30.0)", ""),
        ("other", "0.100", "5.0%", "34.8 dB (31.5)", "+1.5, -2.0"),
    ]
