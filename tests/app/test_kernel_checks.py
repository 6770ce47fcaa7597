import pytest
import torch
from synthetic import clustered_tokens

from svoo import SVOOConfig, make_plan, select_blocks
from svoo.app import kernel_checks
from svoo.app.kernel_checks import LIMIT, check_kernels
from svoo.core import clustering
from svoo.core.random import seeded


def test_every_kernel_is_right_and_a_wrong_one_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = clustered_tokens(1, 2, 500, 32, generator=seeded(0))
    plan = make_plan(*tokens, SVOOConfig.paper().always_sparse())
    found = check_kernels(tokens, plan)
    assert len(found) == 9 and max(found.values()) < 1e-3 < LIMIT, found
    right = clustering.update_centroids

    def wrong(*given: object, **named: object) -> object:
        made = right(*given, **named)  # type: ignore[arg-type]
        made.centroids[:, :, 0] += 1
        return made

    monkeypatch.setattr(kernel_checks, "update_centroids", wrong)
    assert check_kernels(tokens, plan)["means"] > LIMIT
    monkeypatch.setattr(
        kernel_checks,
        "assign_tokens",
        lambda t, *_a, **_b: torch.zeros_like(t[..., 0], dtype=torch.int64),
    )
    wrong_labels = check_kernels(tokens, plan)
    assert wrong_labels["assignment"] > LIMIT and wrong_labels["assignment, features"] > LIMIT
    sorts = select_blocks
    monkeypatch.setattr(
        kernel_checks,
        "select_blocks",
        lambda clusters, budgets, implementation="auto": (
            sorts(clusters, budgets) ^ (implementation == "auto")
        ),
    )
    assert check_kernels(tokens, plan)["selection"] > LIMIT
