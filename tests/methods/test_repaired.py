from typing import Any

import pytest
import tiny
import torch
from making import normal
from method_checks import check_text_padding_and_odd_sizes
from torch.nn.functional import scaled_dot_product_attention

import svoo
from svoo import Corrected, Dense, MethodConfig, Session, SVOOConfig, VideoLayout
from svoo.core.quality import output_error
from svoo.errors import ConfigError
from svoo.methods.pisa import PISAConfig
from svoo.methods.repaired import RepairedConfig
from svoo.methods.sparsepr import SparsePRConfig
from svoo.methods.svg2 import SVG2Config
from svoo.methods.svg_ear import SVGEARConfig

SPARSE = SVG2Config(query_clusters=20, key_clusters=20, scale_clusters=False, mass=0.3)


def run(config: MethodConfig, layout: VideoLayout) -> tuple[torch.Tensor, float]:
    """Return the error of a session's output, and its density."""
    query, key, value = (normal(1, 2, layout.tokens, 8, seed=s) for s in range(3))
    value = value + 2 * query @ normal(8, 8, seed=5)  # something to learn from
    session = Session(config.always_sparse(), steps=2, layers=1, heads=2)
    output = session.attend(query, key, value, step=0, layer=0, layout=layout)
    density = session.stats().density
    assert density is not None
    return output_error(output, scaled_dot_product_attention(query, key, value)), density


@pytest.mark.parametrize("text", [0, 6])
def test_any_method_can_be_repaired(text: int) -> None:
    layout = VideoLayout(4, 8, 9, text=text)
    plain, density = run(SPARSE, layout)
    repaired, more = run(RepairedConfig(of=SPARSE, probes=20), layout)
    assert bool((repaired < plain).all())
    assert more == pytest.approx(density + 20 / layout.video)
    without_text, _ = run(RepairedConfig(of=SPARSE, probes=500), VideoLayout(4, 8, 9))
    assert bool(without_text.isfinite().all())  # no more probes than blocks


def test_terms_and_text_together_are_refused() -> None:
    config = RepairedConfig(
        of=SVOOConfig(query_clusters=4, key_clusters=8, mass=0.5, compensate="mean")
    )
    assert config.compensate == "mean"
    run(config, VideoLayout(2, 3, 9))
    with pytest.raises(ConfigError, match="use compensate=False"):
        run(config, VideoLayout(2, 3, 9, text=4))


@pytest.mark.parametrize(
    "config",
    [RepairedConfig(of=SVGEARConfig()), SparsePRConfig(compensate="mean", dense_steps=2)],
)
def test_they_are_refused_before_the_dense_steps(config: MethodConfig) -> None:
    tokens = [normal(1, 1, 58, 8, seed=seed) for seed in range(3)]
    session = Session(config, steps=10, layers=1, heads=1)
    with pytest.raises(ConfigError, match="use compensate=False"):
        session.attend(*tokens, step=0, layer=0, layout=VideoLayout(2, 3, 9, text=4))


def test_it_takes_over_what_every_method_has() -> None:
    config = RepairedConfig(of=SVG2Config(dense_steps=3, seed=7, strict=True))
    assert (config.dense_steps, config.seed, config.strict) == (3, 7, True)
    assert config.always_sparse().of.dense_steps == 0 == config.always_sparse().dense_steps
    assert config.as_dict()["of"]["method"] == "svg2"
    method = config.start(svoo.Run(steps=10))
    tokens = normal(1, 1, 20, 4)
    assert isinstance(method.plan(tokens, tokens, tokens, svoo.Call(0, 5)), Dense)
    assert isinstance(method.plan(tokens, tokens, tokens, svoo.Call(3, 5)), Corrected)
    assert method.state_bytes > 0


def test_text_padding_and_odd_sizes() -> None:
    check_text_padding_and_odd_sizes(RepairedConfig(of=SVG2Config(mass=0.4)))


@pytest.mark.parametrize("name", ["wan2.1-t2v", "hunyuanvideo-t2v"])
def test_on_a_pipeline(name: str) -> None:
    pipe = tiny.build(name)
    config = RepairedConfig(of=SVG2Config(dense_steps=0, dense_layers=0, strict=True))
    with svoo.apply(pipe, config, profile=None) as handle:
        assert bool(tiny.generate(pipe, steps=2).isfinite().all())
        assert handle.stats().method == "repaired" and handle.stats().sparse_calls > 0


@pytest.mark.parametrize(
    "bad",
    [
        {"of": "svg2"},
        *({"of": of} for of in (RepairedConfig(of=SPARSE), SparsePRConfig(), PISAConfig())),
        {"probes": 0},
        {"rank": 0},
    ],
)
def test_bad_settings(bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(bad))):
        RepairedConfig(**({"of": SPARSE} | bad))


def test_what_works_on_its_output_without_saying_so_is_refused() -> None:
    class Silent(SparsePRConfig):
        corrects_output = False

    with pytest.raises(ConfigError, match="cannot be repaired"):
        run(RepairedConfig(of=Silent()), VideoLayout(2, 3, 4))


def test_pisa_without_its_first_order_term_can_be_repaired() -> None:
    run(RepairedConfig(of=PISAConfig(first_order=False, block=8)), VideoLayout(4, 8, 9))


def test_the_method_inside_still_judges_its_first_output() -> None:
    far = SVOOConfig(query_clusters=4, key_clusters=8, tolerance=1e6, worst_error=1e-6)
    session = Session(RepairedConfig(of=far), steps=4, layers=1, heads=2)
    query, key, value = (normal(1, 2, 288, 8, seed=seed) for seed in range(3))
    output = session.attend(query, key, value, step=0, layer=0, layout=VideoLayout(4, 8, 9))
    torch.testing.assert_close(output, scaled_dot_product_attention(query, key, value))
    assert any("worst_error" in reason for reason in session.stats().layers[0].dense_reasons)
