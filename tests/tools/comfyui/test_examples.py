from copy import deepcopy
from typing import Any

from tools.comfyui.examples import count_widgets, find_problems

NODES: dict[str, Any] = {
    "Sampler": {
        "input": {
            "required": {
                "model": ["MODEL"],
                "seed": ["INT", {}],
                "name": [["euler"], {}],
                "linked": ["INT", {"forceInput": True}],
            },
            "optional": {"strict": ["BOOLEAN"]},
        },
        "output": ["LATENT"],
    },
    "Loader": {"input": {"required": {}}, "output": ["MODEL"]},
}
WORKFLOW: dict[str, Any] = {
    "nodes": [
        {"id": 1, "type": "Loader", "inputs": [], "widgets_values": []},
        {
            "id": 2,
            "type": "Sampler",
            "inputs": [{"name": "model", "type": "MODEL"}],
            "widgets_values": [3, "fixed", "euler", False],
        },
    ],
    "links": [[1, 1, 0, 2, 0, "MODEL"]],
}


def test_a_right_workflow_has_no_problems() -> None:
    assert count_widgets(NODES["Sampler"]) == 4
    assert find_problems(WORKFLOW, NODES) == []


def test_every_kind_of_problem_is_found() -> None:
    broken = deepcopy(WORKFLOW)
    broken["nodes"][1]["widgets_values"].pop()
    broken["nodes"][1]["inputs"].append({"name": "vae", "type": "VAE"})
    broken["nodes"].append({"id": 3, "type": "Other", "inputs": [], "widgets_values": []})
    broken["links"].append([2, 2, 0, 2, 1, "LATENT"])
    assert find_problems(broken, NODES) == [
        "Sampler has no input vae",
        "Sampler has 4 widgets, not 3",
        "there is no node Other",
        "link 2 gives what is not VAE",
    ]
