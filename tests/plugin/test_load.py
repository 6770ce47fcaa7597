from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from PIL import Image

from svoo.errors import ConfigError, ModelError
from svoo.plugin import load as load_module
from svoo.plugin.load import (
    check_takes,
    load_lora,
    load_pipeline,
    open_pipeline,
    read_image,
    takes,
)
from svoo.plugin.request import Request

BASE: dict[str, Any] = {"prompt": "x", "out": Path("x.mp4"), "model": "some/where"}


@pytest.fixture
def no_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_module, "load_pipeline", lambda *_: pytest.fail("too late"))


def test_an_image_where_none_is_taken_and_none_where_one_is() -> None:
    with pytest.raises(ConfigError, match="makes video from text: it takes no image"):
        check_takes(Request(**BASE), tiny.build("wan2.1-t2v"), image=True)
    with pytest.raises(ConfigError, match="makes video from an image: give one"):
        check_takes(Request(**BASE), tiny.build("wan2.1-i2v"), image=False)


def test_a_negative_prompt_where_none_is_taken() -> None:
    class Plain:
        def __call__(self, prompt: str) -> None: ...

    class Open:
        def __call__(self, **settings: Any) -> None: ...

    assert takes(Plain(), "prompt") and not takes(Plain(), "negative_prompt")
    check_takes(Request(**BASE, negative_prompt="fog"), Open(), image=False)
    with pytest.raises(ConfigError, match="takes no negative prompt"):
        check_takes(Request(**BASE, negative_prompt="fog"), Plain(), image=False)


def test_pictures_are_read_or_refused(tmp_path: Path) -> None:
    Image.fromarray(np.zeros((8, 6, 3), dtype=np.uint8)).save(tmp_path / "i.png")
    assert read_image(tmp_path / "i.png").size == (6, 8)
    whole = (tmp_path / "i.png").read_bytes()
    for number, data in enumerate((b"no picture", whole[:40], b"")):
        (tmp_path / f"{number}.png").write_bytes(data)
        with pytest.raises(ConfigError, match="cannot read the image"):
            read_image(tmp_path / f"{number}.png")
    with pytest.raises(ConfigError, match="cannot read the image"):
        read_image(tmp_path / "none.png")


def test_a_model_that_cannot_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    absent = Request(prompt="x", out=tmp_path / "x.mp4", model=str(tmp_path / "nothing"))
    with pytest.raises(ModelError, match=r"cannot load .*\n.*without a network only folders"):
        load_pipeline(absent, None)


@pytest.mark.usefixtures("no_loading")
@pytest.mark.parametrize("device", ["meta", "toaster", "cuda:99"])
def test_a_device_that_holds_no_numbers_or_is_not_here(device: str) -> None:
    with pytest.raises(ConfigError, match=f"--device {device} cannot be used here"):
        open_pipeline(Request(**BASE, device=device), None)


@pytest.mark.usefixtures("no_loading")
def test_of_what_torch_says_of_a_device_one_sentence_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise NotImplementedError("Could not run 'aten::empty'. This could be because " + 99 * "x")

    monkeypatch.setattr("torch.zeros", refuse)
    with pytest.raises(ConfigError, match=r"--device mps .* here: Could not run 'aten::empty'$"):
        open_pipeline(Request(**BASE, device="mps"), None)


@pytest.mark.usefixtures("no_loading")
@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is a GPU here")
def test_offloading_needs_a_gpu() -> None:
    with pytest.raises(ConfigError, match="--offload moves idle parts off a GPU"):
        open_pipeline(Request(**BASE, offload=True), None)


@pytest.mark.usefixtures("no_loading")
def test_sizes_that_cannot_fit_are_found_before_loading() -> None:
    huge = Request(**BASE, frames=100_001, height=16_000, width=16_000)
    with pytest.raises(ConfigError, match="needs at least .* GB beside the model"):
        open_pipeline(huge, None)


@pytest.mark.usefixtures("no_loading")
def test_a_lora_that_is_not_there_is_found_before_loading(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--lora .*none\.safetensors is no file"):
        open_pipeline(Request(**BASE, lora=str(tmp_path / "none.safetensors")), None)


def test_a_lora_changes_the_pipeline_or_is_refused(tmp_path: Path) -> None:
    from peft import LoraConfig
    from peft.utils import get_peft_model_state_dict

    pipe = tiny.build("wan2.1-t2v")
    pipe.transformer.add_adapter(LoraConfig(r=2, target_modules=["to_q"], init_lora_weights=False))
    layers = get_peft_model_state_dict(pipe.transformer)
    pipe.save_lora_weights(tmp_path, transformer_lora_layers=layers)
    (file,) = tmp_path.iterdir()
    fresh = tiny.build("wan2.1-t2v")
    load_lora(fresh, str(file))
    assert any("lora" in name for name, _ in fresh.transformer.named_parameters())
    file.write_bytes(b"damaged")
    with pytest.raises(ModelError, match="cannot load the LoRA"):
        load_lora(tiny.build("wan2.1-t2v"), str(file))
    with pytest.raises(ConfigError, match="object takes no LoRA"):
        load_lora(object(), str(file))
