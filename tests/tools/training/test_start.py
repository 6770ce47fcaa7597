import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tools.training.build import make_text_encoder, make_transformer
from tools.training.start import (
    begin,
    bfloat16_is_faster,
    look_at_ends,
    optimisers,
    precision,
    true_times,
    widen,
)


def first_attention(transformer: nn.Module, block: int, codes: Tensor, times: list[int]) -> Tensor:
    """Attention weights `[B, H, tokens, tokens]` of a block, caught on its way."""
    caught: list[Tensor] = []
    plain = functional.scaled_dot_product_attention

    def catch(query: Tensor, key: Tensor, value: Tensor, **_: object) -> Tensor:
        scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
        caught.append(scores.softmax(dim=-1))
        return plain(query, key, value)

    functional.scaled_dot_product_attention = catch  # type: ignore[assignment]
    try:
        with torch.no_grad(), true_times(transformer, times):
            transformer(
                codes,
                timestep=torch.full((len(codes),), 999.0),
                encoder_hidden_states=torch.zeros(len(codes), 4, 64),
                return_dict=False,
            )
    finally:
        functional.scaled_dot_product_attention = plain
    return caught[2 * block]  # self-attention and cross-attention take turns


def test_heads_begin_as_windows_and_two_as_ends() -> None:
    torch.manual_seed(0)
    transformer = make_transformer()
    begin(transformer)
    codes = torch.randn(1, 16, 3, 6, 8)
    mass = first_attention(transformer, 0, codes, [0, 6, 12])[0]
    # Mass on the place so many columns to the left (the first columns are a small mistake).
    own, beside, farther = (mass.diagonal(-away, dim1=1, dim2=2).mean(dim=1) for away in (0, 1, 2))
    assert own[0] > 1.5 * beside[0]  # one head looks at its own place
    assert beside[1] > 1.5 * own[1]  # and one at the one beside it
    assert beside[1] > 1.5 * farther[1]
    look_at_ends(transformer)
    for block, frame in ((0, 0), (1, 2)):
        mass = first_attention(transformer, block, codes, [0, 6, 12])[0, 0]
        over_frames = mass.unflatten(-1, (3, 48)).sum(dim=-1).mean(dim=0)
        assert int(over_frames.argmax()) == frame
        assert over_frames[frame] > 0.5


def test_widened_heads_look_farther_and_the_others_as_before() -> None:
    torch.manual_seed(0)
    transformer = make_transformer()
    begin(transformer)
    codes = torch.randn(1, 16, 3, 6, 8)
    before = first_attention(transformer, 0, codes, [0, 6, 12])[0]
    widen(transformer)
    after = first_attention(transformer, 0, codes, [0, 6, 12])[0]
    torch.testing.assert_close(after[0], before[0])
    entropy = [-(mass * mass.log()).sum(dim=-1).mean() for mass in (before[1], after[1])]
    assert entropy[1] > entropy[0] + 0.1


def test_kept_frames_are_seen_at_their_true_times() -> None:
    torch.manual_seed(0)
    transformer = make_transformer()
    codes = torch.randn(1, 16, 13, 2, 3)
    whole = transformer.rope(codes)
    with true_times(transformer, list(range(13))):
        same = transformer.rope(codes)
    with true_times(transformer, [0, 12]):
        ends = transformer.rope(codes[:, :, :2])
    for one, two, part in zip(whole, same, ends, strict=True):
        assert torch.equal(one, two)
        kept = one.unflatten(1, (13, 6))[:, [0, 12]].flatten(1, 2)
        assert torch.equal(part, kept)
    assert torch.equal(transformer.rope(codes)[0], whole[0])


def test_every_parameter_has_one_optimiser() -> None:
    transformer = make_transformer()
    parts = nn.ModuleDict({"text_encoder": make_text_encoder(), "transformer": transformer})
    owned = [
        id(value)
        for optimiser in optimisers(parts, transformer)
        for group in optimiser.param_groups
        for value in group["params"]
    ]
    assert sorted(owned) == sorted(id(value) for value in parts.parameters())


@pytest.mark.parametrize("bfloat16", [False, True])
def test_attention_stays_in_float32(bfloat16: bool) -> None:
    query = torch.randn(1, 1, 8, 4, generator=torch.Generator().manual_seed(0))
    expected = functional.scaled_dot_product_attention(query, query, query)
    plain = functional.scaled_dot_product_attention
    with precision(bfloat16=bfloat16):
        got = functional.scaled_dot_product_attention(query, query, query)
        product = query @ query.transpose(-1, -2)
    assert torch.equal(got, expected)
    assert product.dtype == (torch.bfloat16 if bfloat16 else torch.float32)
    assert functional.scaled_dot_product_attention is plain
    assert bfloat16_is_faster() in (False, True)
