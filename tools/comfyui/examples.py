"""Are the example workflows right? Held against what a running ComfyUI says of its nodes."""

from __future__ import annotations

from typing import Any

WIDGETS = ("INT", "FLOAT", "STRING", "BOOLEAN", "COMBO")


def count_widgets(node: dict[str, Any]) -> int:
    """Return how many values a node's widgets have, from its row of `/object_info`; a seed has one
    more, for what becomes of it after a run."""
    count = 0
    for part in ("required", "optional"):
        for name, (kind, *rest) in node["input"].get(part, {}).items():
            facts = rest[0] if rest else {}
            if (isinstance(kind, list) or kind in WIDGETS) and not facts.get("forceInput"):
                seeded = name in ("seed", "noise_seed") or facts.get("control_after_generate")
                count += 2 if seeded else 1
    return count


def find_problems(workflow: dict[str, Any], nodes: dict[str, Any]) -> list[str]:
    """Return what is wrong with a workflow in the format of ComfyUI's page: unknown nodes and
    inputs, other numbers of widgets, links between other types."""
    problems = []
    by_number = {node["id"]: node for node in workflow["nodes"]}
    for node in workflow["nodes"]:
        kind = node["type"]
        if kind not in nodes:
            problems.append(f"there is no node {kind}")
            continue
        known = nodes[kind]["input"]
        inputs = {**known.get("required", {}), **known.get("optional", {})}
        problems += [
            f"{kind} has no input {row['name']}"
            for row in node["inputs"]
            if row["name"] not in inputs
        ]
        if len(node["widgets_values"]) != count_widgets(nodes[kind]):
            problems.append(
                f"{kind} has {count_widgets(nodes[kind])} widgets, not "
                f"{len(node['widgets_values'])}"
            )
    for number, source, slot, target, entry, _ in workflow["links"]:
        given = nodes.get(by_number[source]["type"], {"output": []})["output"]
        wanted = by_number[target]["inputs"][entry]["type"]
        if slot >= len(given) or wanted not in ("*", given[slot]):
            problems.append(f"link {number} gives what is not {wanted}")
    return problems
