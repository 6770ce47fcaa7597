import torch
from making import normal

from svoo import LabelState, co_cluster


def test_labels_are_reused_until_they_are_old_and_only_for_their_shape() -> None:
    query, key = normal(1, 2, 30, 8), normal(1, 2, 40, 8, seed=1)
    state = LabelState(step=3)
    assert state.reuse(query, key, 5) is None
    made = co_cluster(query, key, 3, 4)
    state.remember(made)
    state.step = 7
    again = state.reuse(-query, key, 5)
    assert again is not None and torch.equal(again.query.labels, made.query.labels)
    assert state.reuse(query[:, :, 1:], key, 5) is None
    state.step = 8
    assert state.reuse(query, key, 5) is None


def test_samples_of_one_video_take_its_labels() -> None:
    query, key = normal(1, 2, 30, 8), normal(1, 2, 40, 8, seed=1)
    state = LabelState()
    made = co_cluster(query, key, 3, 4)
    state.remember(made)
    both = state.reuse(query.repeat(2, 1, 1, 1), key.repeat(2, 1, 1, 1), 1, [0, 0])
    assert both is not None
    assert torch.equal(both.key.labels, made.key.labels.repeat(2, 1, 1))
