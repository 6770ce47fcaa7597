import pytest
import tiny
import torch
from torch import nn

from svoo.errors import ModelError
from svoo.plugin import adapters
from svoo.plugin.adapters import (
    Adapter,
    find_adapter,
    find_attentions,
    find_transformers,
    register_adapter,
    weigh_projection,
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


def test_a_projection_weighs_each_head_by_the_norm_of_its_slice() -> None:
    weight = torch.cat([torch.full((6, 4), 3.0), torch.full((6, 4), 0.5)], dim=1)
    found = weigh_projection(weight, 2)
    assert found is not None
    slices = [weight[:, :4].norm() / 2, weight[:, 4:].norm() / 2]
    torch.testing.assert_close(found, torch.stack(slices))
    assert weigh_projection(weight, 3) is None
    assert weigh_projection(weight[0], 2) is None
