"""The node's attention against the contract of ComfyUI's override, wrappers and callbacks."""

import logging
from typing import Any

import pytest
import torch
from comfy_stub import HunyuanVideo, Patcher, WanModel, sample
from making import normal
from torch import Tensor, nn

from integrations.comfyui.report import write_report
from integrations.comfyui.settings import Settings, read_blocks
from integrations.comfyui.sparse import OVERRIDE, SparseModel
from svoo import Session, SVOOConfig
from svoo.errors import StrictError

LATENT = normal(1, 4, 3, 8, 12)  # 3 x 4 x 6 tokens
TEXT = normal(1, 7, 16, seed=1)
EXACT = SVOOConfig(
    mass=1, tolerance=None, compensate=False, dense_steps=0, dense_layers=0, query_clusters=4,
    key_clusters=6, strict=True,
)  # fmt: skip


def make(
    model: nn.Module, *, exact: bool = True, **settings: Any
) -> tuple[Patcher, Patcher, SparseModel]:
    """Return a dense patcher, its sparse clone, and what the node added to that."""
    dense = Patcher(model)
    added = SparseModel(Settings(**{"least_tokens": 0, "strict": True, **settings}))
    if exact:
        added.config = EXACT  # sparse attention that keeps everything: dense by another way
    clone = dense.clone()
    added.install(clone)
    return dense, clone, added


def assert_same(first: list[Tensor], second: list[Tensor]) -> None:
    for one, other in zip(first, second, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def counts(added: SparseModel) -> tuple[int, int]:
    assert added.stats is not None
    return added.stats.sparse_calls, added.stats.dense_calls


def test_wan_calls_are_taken_and_cross_attention_is_not() -> None:
    dense, clone, added = make(WanModel())
    assert_same(sample(clone, LATENT, TEXT), sample(dense, LATENT, TEXT))
    assert counts(added) == (4, 0)  # 2 steps, 2 blocks; both branches in one call
    assert OVERRIDE not in dense.model_options["transformer_options"]


@pytest.mark.parametrize("real", [None, (5, 7), (0, 7), (7, 7)])
def test_hunyuan_calls_with_text_and_its_padding(real: tuple[int, int] | None) -> None:
    dense, clone, added = make(HunyuanVideo())
    mask = None if real is None else (torch.arange(7) < torch.tensor(real).unsqueeze(1)).long()
    arguments: dict[str, Any] = {"attention_mask": mask}
    assert_same(sample(clone, LATENT, TEXT, **arguments), sample(dense, LATENT, TEXT, **arguments))
    assert counts(added) == (4, 0)
    assert added.stats is not None and [row.layer for row in added.stats.layers] == [0, 1]


@pytest.mark.parametrize("size", [(1, 4, 1, 8, 12), (2, 4, 3, 8, 12), (1, 4, 2, 7, 5)])
def test_other_shapes(size: tuple[int, ...]) -> None:
    latent = normal(*size)
    latent = torch.nn.functional.pad(latent, (0, size[4] % 2, 0, size[3] % 2))
    dense, clone, added = make(WanModel())
    context = normal(size[0], 9, 16)
    assert_same(sample(clone, latent, context), sample(dense, latent, context))
    assert counts(added) == (4, 0)


def test_a_video_of_one_token() -> None:
    dense, clone, added = make(WanModel(), exact=False, strict=False)
    latent = normal(1, 4, 1, 2, 2)
    assert_same(sample(clone, latent, TEXT), sample(dense, latent, TEXT))
    assert sum(counts(added)) == 4


def test_bfloat16_stays_bfloat16() -> None:
    _, clone, added = make(WanModel().bfloat16())
    outputs = sample(clone, LATENT.bfloat16(), TEXT.bfloat16())
    assert outputs[0].dtype == torch.bfloat16 and counts(added) == (4, 0)


def test_frames_that_the_model_appends_make_the_grid_longer() -> None:
    dense, clone, added = make(WanModel())
    more: dict[str, Any] = {"time_dim_concat": normal(2, 4, 2, 8, 12, seed=5)}
    assert_same(sample(clone, LATENT, TEXT, **more), sample(dense, LATENT, TEXT, **more))
    assert counts(added) == (4, 0)


def test_the_session_is_told_the_branch_of_every_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = []
    attend = Session.attend

    def spy(self: Any, *tokens: Tensor, **facts: Any) -> Tensor:
        told.append((facts["branch"], facts["step"], facts["layer"]))
        return attend(self, *tokens, **facts)

    monkeypatch.setattr(Session, "attend", spy)
    _, clone, added = make(WanModel())
    added.config = SVOOConfig.balanced()
    sample(clone, torch.cat([LATENT, LATENT + 1]), torch.cat([TEXT, TEXT]), steps=1)
    pair = ("uncond", "uncond", "cond", "cond")
    assert told == [(pair, 0, 0), (pair, 0, 1)]


def test_two_branches_in_a_batch_share_labels() -> None:
    _, clone, added = make(WanModel())
    shapes: list[object] = []
    original = added.end_run

    def look(model: object = None) -> None:
        method: Any = added.session.method if added.session else None
        shapes.extend(len(state.sides[0].order) for state in method._states.values())
        original(model)

    clone.callbacks["on_cleanup"]["svoo"] = [look]
    sample(clone, LATENT, TEXT)
    assert shapes == [1, 1]  # two samples, one video


def test_an_unknown_model_stays_dense_with_a_reason(caplog: pytest.LogCaptureFixture) -> None:
    dense, clone, added = make(unknown_model(), strict=False)
    with caplog.at_level(logging.INFO):
        assert_same(sample(clone, LATENT, TEXT), sample(dense, LATENT, TEXT))
    assert "LTXVModel is no video model that this node knows" in caplog.text
    assert len(caplog.records) == 1  # said once, for two forwards
    assert "2 forwards of the model were dense: LTXVModel is no video" in write_report(added)


class LTXVModel(nn.Module):
    """Runs as the stub of Wan does, and is none by its name."""

    forward, _forward = WanModel.forward, WanModel._forward


def unknown_model() -> nn.Module:
    model: Any = WanModel()
    model.__class__ = LTXVModel
    return model  # type: ignore[no-any-return]


def test_a_subclass_is_known_by_its_base() -> None:
    dense, clone, added = make(type("VaceWanModel", (WanModel,), {})())
    assert_same(sample(clone, LATENT, TEXT), sample(dense, LATENT, TEXT))
    assert counts(added) == (4, 0)


def test_strict_refuses_before_anything_runs() -> None:
    _, clone, _ = make(unknown_model())
    with pytest.raises(StrictError, match="strict: the model would run dense: LTXVModel"):
        sample(clone, LATENT, TEXT)
    _, clone, _ = make(WanModel(), least_tokens=73)
    with pytest.raises(StrictError, match="72 video tokens are fewer than least_tokens, 73"):
        sample(clone, LATENT, TEXT)


def test_a_prompt_as_long_as_the_video_stays_dense() -> None:
    dense, clone, added = make(WanModel(), strict=False)
    text = normal(1, 72, 16)
    assert_same(sample(clone, LATENT, text), sample(dense, LATENT, text))
    assert added.stats is None and "look alike" in write_report(added)


def test_dense_blocks_end_and_dense_steps() -> None:
    _, clone, added = make(WanModel(), dense_blocks=read_blocks("1"), end=0.5)
    sample(clone, LATENT, TEXT, steps=4)
    assert counts(added) == (2, 6)
    report = write_report(added)
    assert "4 dense: dense_blocks names the block" in report
    assert "2 dense: end: steps after 2 of 4 are dense" in report
    _, clone, added = make(WanModel(), exact=False, method="svg2", dense_steps=3)
    sample(clone, LATENT, TEXT, steps=4)
    assert counts(added)[1] >= 6 and "the first 3 of 4 steps are dense" in write_report(added)


@pytest.mark.parametrize("steps", [1, 4])
def test_few_steps_have_no_dense_step(steps: int) -> None:
    _, clone, added = make(WanModel(), exact=False)
    added.config = SVOOConfig.balanced()
    sample(clone, LATENT, TEXT, steps=steps)
    assert added.stats is not None
    reasons = [reason for row in added.stats.layers for reason in row.dense_reasons]
    assert not any("warm-up" in reason for reason in reasons)


class Recorder:
    """Another node's override, which counts its calls."""

    def __init__(self, previous: Any = None) -> None:
        self.calls = 0
        self.previous = previous

    def install(self, patcher: Patcher) -> None:
        def override(func: Any, *args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            if self.previous is not None:
                return self.previous(func, *args, **kwargs)
            return func(*args, **kwargs)

        patcher.model_options["transformer_options"][OVERRIDE] = override


def test_an_override_before_ours_gets_what_we_decline() -> None:
    dense = Patcher(WanModel())
    earlier = Recorder()
    first = dense.clone()
    earlier.install(first)
    added = SparseModel(Settings(least_tokens=0, dense_blocks=frozenset([0])))
    added.config = EXACT
    clone = first.clone()
    added.install(clone)
    assert_same(sample(clone, LATENT, TEXT), sample(dense, LATENT, TEXT))
    assert counts(added) == (2, 2)
    assert earlier.calls == 2 + 4  # two dense self-attentions, four cross-attentions
    sample(first, LATENT, TEXT)
    assert earlier.calls == 6 + 8  # the model before ours is as it was


@pytest.mark.parametrize("chains", [False, True])
def test_an_override_after_ours_does_not_replace_it(chains: bool) -> None:
    dense, clone, added = make(WanModel(), dense_blocks=frozenset([0]))
    later = Recorder()
    last = clone.clone()
    if chains:
        later.previous = last.model_options["transformer_options"][OVERRIDE]
    later.install(last)
    assert_same(sample(last, LATENT, TEXT), sample(dense, LATENT, TEXT))
    assert counts(added) == (2, 2)
    assert later.calls == 2 + 4


def test_it_is_installed_again_at_every_step() -> None:
    dense, clone, added = make(WanModel())
    later = Recorder()
    outputs = sample(clone, LATENT, TEXT, steps=4, before_step=lambda _step: later.install(clone))
    assert_same(outputs, sample(dense, LATENT, TEXT, steps=4))
    assert counts(added) == (8, 0)
    assert later.calls == 8  # cross-attention


def test_a_second_node_takes_the_place_of_the_first() -> None:
    dense, clone, first = make(WanModel())
    second = SparseModel(Settings(least_tokens=0))
    second.config = EXACT
    again = clone.clone()
    second.install(again)
    assert_same(sample(again, LATENT, TEXT), sample(dense, LATENT, TEXT))
    assert counts(second) == (4, 0) and first.stats is None
    assert second.chain.before is None


def test_cleanup_frees_all_but_the_figures_and_the_next_run_starts_anew() -> None:
    _, clone, added = make(WanModel())
    sample(clone, LATENT, TEXT)
    assert added.session is None and added.forward is None and counts(added) == (4, 0)
    assert added._like.untyped_storage().nbytes() == 0  # no tokens stay
    sample(clone, LATENT, TEXT, steps=3)
    assert counts(added) == (6, 0)

    def cancel(step: int) -> None:
        if step == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sample(clone, LATENT, TEXT, before_step=cancel)
    assert added.session is None and counts(added) == (2, 0)


def test_new_noise_levels_are_a_new_video() -> None:
    _, clone, added = make(WanModel())
    clone.callbacks.clear()  # a sampler that calls nobody
    sample(clone, LATENT, TEXT)
    first = added.session
    sample(clone, LATENT, TEXT, steps=3)
    assert added.session is not None and added.session is not first
    assert added.session.stats().sparse_calls == 6


def test_equal_noise_levels_in_another_tensor_are_the_same_video() -> None:
    """Other nodes may copy the options at every forward."""
    _, clone, added = make(WanModel())

    def copy_options(executor: Any, *args: Any, **kwargs: Any) -> Any:
        options = args[5]
        options["sample_sigmas"] = options["sample_sigmas"].clone()
        return executor(*args, **kwargs)

    ours = clone.wrappers["diffusion_model"].pop("svoo")
    clone.wrappers["diffusion_model"] = {"other": [copy_options], "svoo": ours}
    sample(clone, LATENT, TEXT)
    assert counts(added) == (4, 0)


def test_context_windows_have_labels_of_their_own() -> None:
    _, clone, added = make(WanModel())
    seen: list[int] = []
    windows = [type("Window", (), {"index_list": [place]})() for place in range(2)]

    def look(step: int) -> None:
        clone.model_options["transformer_options"]["context_window"] = windows[step % 2]
        if added.session is not None:
            seen.append(len(added.session.method._states))  # type: ignore[attr-defined]

    sample(clone, LATENT, TEXT, steps=4, before_step=look)
    assert seen == [2, 4, 4]  # two layers, two windows


class QuantisedLinear(nn.Module):
    """As GGUF and fp8 layers are: the weight is kept in bytes and known to the layer alone."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.scale = layer.weight.abs().max().item() / 127
        self.weight = nn.Parameter(
            (layer.weight.detach() / self.scale).round().to(torch.int8), requires_grad=False
        )
        self.bias = layer.bias

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight.to(x) * self.scale, self.bias)


def test_quantised_layers_are_not_touched() -> None:
    model = WanModel()
    blocks: Any = model.blocks
    for block in blocks:
        block.self_attn["o"] = block.self_attn.o = QuantisedLinear(block.self_attn.o)
    dense, clone, added = make(model)
    assert_same(sample(clone, LATENT, TEXT), sample(dense, LATENT, TEXT))
    added.config = SVOOConfig.careful()  # reads how much the heads count
    sample(clone, LATENT, TEXT)
    assert sum(counts(added)) == 4
