from svoo.plugin.machine import describe_machine


def test_a_figure_says_where_it_was_made() -> None:
    expected = {"processor", "instructions", "threads", "device", "python", "svoo", "torch"}
    assert expected <= set(describe_machine())
