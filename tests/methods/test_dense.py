from making import normal

from svoo import VideoLayout
from svoo.methods.base import Call
from svoo.methods.dense import DenseMethod
from svoo.methods.schedule import Dense


def test_it_is_always_dense() -> None:
    method, tokens = DenseMethod(), normal(1, 1, 8, 4)
    call = Call(step=3, layer=2, layout=VideoLayout(2, 2, 2))
    assert method.plan(tokens, tokens, tokens, call) == Dense("the method is dense")
    method.reset()
    assert method.state_bytes == 0
