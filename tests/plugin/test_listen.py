from typing import Any

import pytest
import tiny

from svoo.plugin.listen import listen


@pytest.fixture
def transformer() -> Any:
    return tiny.wan_transformer()


def test_hears_the_context_and_the_end_of_a_call_until_undone(transformer: Any) -> None:
    heard: list[object] = []
    with transformer.cache_context("cond"):
        pass  # diffusers begins to keep hooks
    before = dict(transformer.__dict__), dict(transformer.blocks.__dict__)
    undo = listen(transformer, transformer.blocks, heard.append, lambda: heard.append("end"))
    with transformer.cache_context("cond"):
        assert getattr(heard[-1], "name", None) == "cond"
    transformer.blocks._diffusers_hook.reset_stateful_hooks(recurse=False)
    assert heard[-1] == "end"
    count = len(heard)
    undo()
    with transformer.cache_context("uncond"):
        assert len(heard) == count
    assert (dict(transformer.__dict__), dict(transformer.blocks.__dict__)) == before
