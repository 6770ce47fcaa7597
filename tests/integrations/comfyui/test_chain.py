from typing import Any

from integrations.comfyui.chain import Chain


def named(name: str, calls: list[str], next_one: Any = None) -> Any:
    def override(func: Any, *args: Any) -> Any:
        calls.append(name)
        return next_one(func, *args) if next_one else func(*args)

    return override


def test_a_call_goes_to_the_later_the_earlier_and_the_models_own() -> None:
    calls: list[str] = []
    chain = Chain()
    assert chain.pass_on(lambda x: x + 1, 1) == 2
    chain.before = named("before", calls)
    chain.pass_on(lambda x: x, 1)
    chain.after = named("after", calls, chain.pass_on)  # it leads back to us
    chain.pass_on(lambda x: x, 1)
    assert calls == ["before", "after", "before"] and not chain.passing


def test_an_error_in_another_node_leaves_the_chain_usable() -> None:
    chain = Chain()

    def broken(*_args: Any) -> Any:
        raise ValueError

    chain.after = broken
    for _ in range(2):
        try:
            chain.pass_on(lambda x: x, 1)
        except ValueError:
            continue
        raise AssertionError("the later override was not asked")
