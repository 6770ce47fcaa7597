import inspect
import re
from pathlib import Path

import pytest
import tiny
import torch
from diffusers import WanPipeline, WanTransformer3DModel, WanVACEPipeline
from transformers import AutoConfig, AutoTokenizer

from tools import diffusers_tests as tool


@pytest.mark.parametrize("name", ["wan2.1-t2v", "wan2.2-t2v", "wan-vace"])
def test_every_pipeline_call_is_sparse_and_the_video_is_the_same(name: str) -> None:
    pipe, tally = tiny.build(name), tool.Tally()
    expected = tiny.generate(pipe, steps=2)
    with tool.sparse_pipelines(tally):
        found = tiny.generate(pipe, steps=2)
        first = tally.sparse_calls
        tiny.generate(pipe, steps=2)
    assert first > 0
    assert (tally.sparse_calls, tally.dense_calls) == (2 * first, 0)
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=0)


@torch.no_grad()
def test_every_transformer_is_sparse_from_its_constructor() -> None:
    chance = torch.Generator().manual_seed(0)
    arguments = {
        "hidden_states": torch.randn(1, 16, 3, 8, 8, generator=chance),
        "encoder_hidden_states": torch.randn(1, 5, 32, generator=chance),
        "timestep": torch.tensor([500]),
        "return_dict": False,
    }
    tally, plain = tool.Tally(), tiny.wan_transformer()
    with tool.sparse_transformers(tally):
        sparse = tiny.wan_transformer()
        sparse.load_state_dict(plain.state_dict())
        found = sparse(**arguments)[0]
    torch.testing.assert_close(found, plain(**arguments)[0], atol=1e-5, rtol=1e-5)
    assert (tally.sparse_calls, tally.dense_calls) == (3, 0)
    assert sparse.config == plain.config
    torch.testing.assert_close(sparse(**arguments), plain(**arguments), atol=0, rtol=0)


def test_the_classes_keep_their_signatures_and_come_back() -> None:
    before = WanPipeline.__call__, WanVACEPipeline.__call__, WanTransformer3DModel.__init__
    with tool.sparse_pipelines(tool.Tally()), tool.sparse_transformers(tool.Tally()):
        now = WanPipeline.__call__, WanVACEPipeline.__call__, WanTransformer3DModel.__init__
        for each, earlier in zip(now, before, strict=True):
            assert each is not earlier
            assert inspect.signature(each) == inspect.signature(earlier)
    assert before == (
        WanPipeline.__call__, WanVACEPipeline.__call__, WanTransformer3DModel.__init__
    )  # fmt: skip


def test_a_failing_call_leaves_a_plain_pipeline() -> None:
    pipe = tiny.build("wan2.1-t2v")
    expected = tiny.generate(pipe, steps=1)
    with tool.sparse_pipelines(tool.Tally()), pytest.raises(ValueError, match="height"):
        tiny.generate(pipe, steps=1, height=7)
    torch.testing.assert_close(tiny.generate(pipe, steps=1), expected, atol=0, rtol=0)


def test_the_stand_in_is_only_for_the_tiny_t5(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(name: str) -> None:
        raise OSError(f"no hub for {name}")

    monkeypatch.setattr(AutoConfig, "from_pretrained", unreachable)
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", unreachable)
    with tool.stand_in_for_t5():
        config = AutoConfig.from_pretrained(tool.TINY_T5)
        tokenizer = AutoTokenizer.from_pretrained(tool.TINY_T5)
        with pytest.raises(OSError, match="no hub for another"):
            AutoConfig.from_pretrained("another")
    assert len(tokenizer) <= config.vocab_size
    padded = tokenizer("a b", padding="max_length", max_length=6).input_ids
    assert tokenizer.convert_ids_to_tokens(padded) == ["a", " ", "b", "</s>", "<pad>", "<pad>"]
    assert AutoConfig.from_pretrained is unreachable


def test_a_test_that_ends_differently_is_named() -> None:
    without = {"same": "failed", "worse": "passed", "gone": "passed"}
    lines = tool.differences(without, {"same": "failed", "worse": "failed", "new": "skipped"})
    assert lines == [
        "gone: passed without svoo, not run with",
        "new: not run without svoo, skipped with",
        "worse: passed without svoo, failed with",
    ]


def test_a_folder_without_the_tests_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        tool.main([str(tmp_path)])
    message = capsys.readouterr().err
    assert re.search("expected the folder tests of a checkout of diffusers", message)
    assert "test_models_transformer_wan.py" in message


SMALL_TESTS = """
import pytest
import tiny

def test_the_same():
    tiny.generate(tiny.build("wan2.1-t2v"), steps=1)

def test_another(request):
    assert request.config.getoption("--svoo") == "off"

@pytest.mark.skip(reason="not here")
def test_skipped():
    pass
"""


def test_both_sides_are_run_and_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / tool.PIPELINE_TESTS[0]
    path.parent.mkdir(parents=True)
    path.write_text(SMALL_TESTS)
    find_tiny = f"pythonpath={Path(tiny.__file__).parent}"
    with pytest.raises(SystemExit) as ended:
        tool.main([str(tmp_path), "--only", tool.PIPELINE_TESTS[0], "-o", find_tiny])
    assert re.fullmatch(r".*test_another: passed without svoo, failed with", str(ended.value.code))
    printed = capsys.readouterr().out
    assert "without svoo: 2 passed, 0 failed, 1 skipped; 0 sparse calls\n" in printed
    assert re.search(r"with svoo: 1 passed, 1 failed, 1 skipped; [1-9]\d* sparse calls\n", printed)
