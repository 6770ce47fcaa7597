from typing import Any

import pytest
import tiny
import torch
from torch import nn

from svoo.errors import ModelError
from svoo.plugin import adapters
from svoo.plugin.adapters import (
    Adapter,
    count_heads,
    find_adapter,
    find_attentions,
    find_transformers,
    register_adapter,
    weigh_heads,
)


def test_grids_come_from_the_latents_and_the_patch_size() -> None:
    wan = tiny.wan_transformer()
    adapter = find_adapter(wan)
    assert adapter is not None
    assert adapter.grid(wan, {"hidden_states": torch.zeros(1, 16, 3, 8, 10)}) == (3, 4, 5)
    hunyuan = tiny.build("hunyuanvideo-t2v").transformer
    adapter = find_adapter(hunyuan)
    assert adapter is not None
    assert adapter.grid(hunyuan, {"hidden_states": torch.zeros(1, 4, 3, 8, 6)}) == (3, 4, 3)
    assert len(find_attentions(hunyuan, adapter)) == 4  # two double blocks, then two single ones


def test_coordinates_instead_of_sizes_leave_the_grid_unknown() -> None:
    ltx = tiny.build("ltx-video").transformer
    adapter = find_adapter(ltx)
    assert adapter is not None
    sizes = {"num_frames": 3, "height": 8, "width": 8}
    assert adapter.grid(ltx, sizes) == (3, 8, 8)
    assert adapter.grid(ltx, {"video_coords": torch.zeros(1, 3, 192)}) is None
    assert adapter.grid(ltx, sizes | {"video_coords": torch.zeros(1, 3, 192)}) is None


def test_both_experts_are_found_in_order() -> None:
    pipe = tiny.build("wan2.2-t2v")
    found = find_transformers(pipe)
    assert [transformer for transformer, _ in found] == [pipe.transformer, pipe.transformer_2]


def test_what_is_no_video_pipeline_is_refused() -> None:
    with pytest.raises(
        ModelError, match="Linear is no video transformer that svoo knows; it knows Wan"
    ):
        find_transformers(nn.Linear(2, 2))
    with pytest.raises(ModelError, match="object has no video transformer"):
        find_transformers(object())


def test_a_class_can_be_taught_and_derived_classes_are_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(adapters, "_ADAPTERS", dict(adapters._ADAPTERS))

    class Mine(nn.Module):
        pass

    class Derived(Mine):
        pass

    assert find_adapter(Derived()) is None
    adapter = Adapter((("layers", "attention"),), lambda *_: (1, 1, 1))
    register_adapter("Mine", adapter)
    assert find_adapter(Derived()) is adapter
    with pytest.raises(ModelError, match=r"Derived has no layers at layers\.attention"):
        find_attentions(Derived(), adapter)


@pytest.mark.parametrize("name", [*tiny.PIPELINES, *tiny.WIDER])
def test_every_model_tells_how_much_its_heads_count(name: str) -> None:
    stages = find_transformers(tiny.build(name))
    found = weigh_heads(stages)
    assert found is not None
    layers = max(len(find_attentions(*stage)) for stage in stages)
    assert found.shape == (len(stages), layers, count_heads(stages[0][0]))
    assert bool((found > 0).all()) and len(found.unique()) > 1


def test_single_blocks_of_hunyuan_project_heads_first() -> None:
    transformer, adapter = find_transformers(tiny.build("hunyuanvideo-t2v"))[0]
    block: Any = transformer.single_transformer_blocks[0]  # type: ignore[index]
    size = block.attn.inner_dim // block.attn.heads
    with torch.no_grad():
        block.proj_out.weight[:, :size] *= 3
        block.proj_out.weight[:, block.attn.inner_dim :] *= 100  # the feed-forward part
    found = weigh_heads([(transformer, adapter)])
    assert found is not None
    layer = found[0, len(transformer.transformer_blocks)]  # type: ignore[arg-type]
    expected = block.proj_out.weight[:, :size].detach().norm() / size**0.5
    torch.testing.assert_close(layer[0], expected)
    assert float(layer[0] / layer[1:].mean()) == pytest.approx(3, rel=0.3)


def test_a_module_that_tells_nothing_leaves_all_heads_alike() -> None:
    transformer, adapter = find_transformers(tiny.build("wan2.1-t2v"))[0]
    transformer.blocks[1].attn1.to_out = nn.ModuleList([nn.Identity()])  # type: ignore[index, union-attr]
    assert weigh_heads([(transformer, adapter)]) is None
