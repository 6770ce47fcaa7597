from svoo import Call, Dense, DenseConfig
from svoo.methods.warm_up import warm_up


def test_first_steps_and_first_layers_are_dense() -> None:
    config = DenseConfig(dense_steps=0.2, dense_layers=1)
    dense = [
        [warm_up(config, 10, Call(step, layer)) is not None for layer in range(3)]
        for step in range(10)
    ]
    assert dense[:2] == [[True] * 3] * 2
    assert dense[2:] == [[True, False, False]] * 8
    reason = "warm-up: the first 2 of 10 steps are dense"
    assert warm_up(config, 10, Call(0, 2)) == Dense(reason, planned=True)
    layers = Dense("the first 1 layers are dense", planned=True)
    assert warm_up(config, 10, Call(5, 0)) == layers
