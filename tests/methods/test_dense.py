from making import normal

from svoo import Call, Dense, DenseConfig, Run, VideoLayout


def test_it_is_always_dense() -> None:
    method, tokens = DenseConfig().start(Run(steps=4)), normal(1, 1, 8, 4)
    call = Call(step=3, layer=2, layout=VideoLayout(2, 2, 2))
    assert method.plan(tokens, tokens, tokens, call) == Dense("the method is dense", planned=True)
    assert method.state_bytes == 0
