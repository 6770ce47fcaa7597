"""Every method on inputs that nobody planned for: it runs, and what it returns is sound."""

from dataclasses import replace

import pytest
import torch
from making import normal
from methods_common import SMALL
from torch.nn.functional import scaled_dot_product_attention

import svoo
from svoo.core.quality import output_error
from svoo.methods import find_method

SIDES = ("query", "key", "value")
NAMES = [row.name for row in svoo.available_methods() if row.name != "dense"]
LAYOUTS = {
    "one token": svoo.VideoLayout(1, 1, 1),
    "two tokens in a row": svoo.VideoLayout(2, 1, 1),
    "one frame": svoo.VideoLayout(1, 5, 7),
    "fewer than a block": svoo.VideoLayout(2, 3, 3),
    "one token and text": svoo.VideoLayout(1, 1, 1, text=3),
    "all text is padding": svoo.VideoLayout(2, 3, 5, text=4, valid_text=torch.tensor([0, 0])),
}


def run(
    name: str, layout: svoo.VideoLayout, *tokens: torch.Tensor, **changes: object
) -> torch.Tensor:
    """Return the output of the second of two steps, real tokens only."""
    config = replace(find_method(name).always_sparse(), **changes)  # type: ignore[arg-type]
    session = svoo.Session(config, steps=2, layers=1, heads=tokens[0].shape[1])
    query, key, value = tokens
    session.attend(query, key, value, step=0, layer=0, layout=layout)
    output = session.attend(query, key, value, step=1, layer=0, layout=layout)
    assert output.dtype == query.dtype and output.shape == query.shape
    real = layout.real_tokens()
    return output if real is None else output[real[:, None].expand(output.shape[:3])]


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
@pytest.mark.parametrize("name", NAMES)
def test_tiny_videos(name: str, layout: svoo.VideoLayout) -> None:
    sides = [normal(2, 2, layout.tokens, 8, seed=seed) for seed in range(3)]
    alike = [torch.full_like(side, 0.3) for side in sides]
    huge = [60 * side for side in sides]
    for query, key, value in (sides, alike, huge):
        found = run(name, layout, query, key, value)
        assert bool(found.isfinite().all())
        assert float(found.abs().max()) <= float(value.abs().max()) * 1.5
    if layout.tokens == 1:
        torch.testing.assert_close(run(name, layout, *sides), sides[2], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_other_precisions(name: str, dtype: torch.dtype) -> None:
    layout = svoo.VideoLayout(3, 5, 7)
    sides = [normal(2, 2, layout.tokens, 16, seed=seed) for seed in range(3)]
    query, key, value = (side.to(dtype) for side in sides)
    assert bool(run(name, layout, query, key, value).isfinite().all())


@pytest.mark.parametrize("name", NAMES)
def test_a_broken_token_stays_in_its_head(name: str) -> None:
    layout = svoo.VideoLayout(3, 4, 5)
    for side in range(3):
        tokens = [normal(1, 2, layout.tokens, 32, seed=seed) for seed in range(3)]
        tokens[side][0, 1, 7, 3] = torch.nan
        assert bool(run(name, layout, *tokens)[0, 0].isfinite().all())


@pytest.mark.parametrize("side", ["query", "key", "value"])
@pytest.mark.parametrize("backend", ["cpp", "blocked", "reference"])
def test_a_broken_token_is_not_hidden_by_terms(side: str, backend: str) -> None:
    """In dense attention a broken query breaks its row, a broken key all rows of its head."""
    layout = svoo.VideoLayout(3, 8, 10)
    sides = {name: normal(1, 2, layout.tokens, 32, seed=n) for n, name in enumerate(SIDES)}
    sides[side][0, 1, 7, 3] = torch.nan
    found = run("svoo", layout, *sides.values(), backend=backend, worst_error=1.0)
    assert bool(found[0, 0].isfinite().all())
    broken = found[0, 1].isnan().any(dim=-1)
    assert bool(broken[7]) if side == "query" else bool(broken.all())


@pytest.mark.parametrize("name", NAMES)
def test_any_method_may_leave_terms_for_what_it_drops(name: str) -> None:
    layout = svoo.VideoLayout(3, 4, 5)
    query, key, value = (normal(1, 2, layout.tokens, 8, seed=seed) for seed in range(3))
    dense = scaled_dot_product_attention(query, key, value)

    def error(compensate: object) -> float:
        changes = SMALL[name] | {"compensate": compensate}
        found = run(name, layout, query, key, value, **changes)
        return float(output_error(found, dense).mean())

    dropped = error(False)
    assert 0 < error("mean") < dropped and 0 < error("far") < dropped


@pytest.mark.parametrize("name", ["svg2", "svg-ear", "adacluster", "sparsepr"])
def test_more_clusters_than_tokens(name: str) -> None:
    layout = svoo.VideoLayout(2, 3, 5)
    tokens = [normal(1, 2, layout.tokens, 8, seed=seed) for seed in range(3)]
    assert bool(run(name, layout, *tokens, scale_clusters=False).isfinite().all())
