from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from svoo.errors import ConfigError
from svoo.mini.vocabulary import vocabulary
from svoo.plugin.calibrate import MINI_PROMPTS, read_inputs


def test_prompts_are_lines(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("# a comment\n\n a fox \nein Käfer\n")
    assert read_inputs(path) == [{"prompt": "a fox"}, {"prompt": "ein Käfer"}]
    assert read_inputs(path, count=1) == [{"prompt": "a fox"}]
    with pytest.raises(ConfigError, match="--inputs must be 1 to the 2 prompts"):
        read_inputs(path, count=3)
    path.write_text("# nothing\n")
    with pytest.raises(ConfigError, match="holds no prompt; write one per line"):
        read_inputs(path)
    for data, message in (
        (b"a fox\n\xff\xfe\n", "line 2 is no UTF-8 text"),
        (b"a fox\n\na \x1b[31mdog\n", r"line 3 holds the control character '.x1b'"),
    ):
        path.write_bytes(data)
        with pytest.raises(ConfigError, match=f"cannot read the prompts .*{message}"):
            read_inputs(path)
    path.write_bytes(b"\xef\xbb\xbfa fox\r\na\tdog\r\n")  # as Windows writes it
    assert read_inputs(path) == [{"prompt": "a fox"}, {"prompt": "a dog"}]
    with pytest.raises(ConfigError, match="cannot read the prompts"):
        read_inputs(tmp_path / "none.txt")


def test_images_go_with_prompts_by_name(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("a fox\na dog\n")
    with pytest.raises(ConfigError, match="--images must be a folder"):
        read_inputs(path, path)
    for name, level in (("b.png", 200), ("a.png", 10), ("notes.txt", None)):
        if level is None:
            (tmp_path / name).write_text("no picture")
        else:
            Image.fromarray(np.full((8, 8, 3), level, dtype=np.uint8)).save(tmp_path / name)
    inputs = read_inputs(path, tmp_path)
    assert [np.asarray(entry["image"])[0, 0, 0] for entry in inputs] == [10, 200]
    (tmp_path / "b.png").unlink()
    with pytest.raises(ConfigError, match="holds 1 pictures for 2 prompts"):
        read_inputs(path, tmp_path)


def test_the_embedded_models_prompts_are_in_its_words() -> None:
    known = set(vocabulary())
    inputs = read_inputs(MINI_PROMPTS)
    assert len(inputs) >= 8
    assert all(word in known for entry in inputs for word in entry["prompt"].split())
