from types import SimpleNamespace
from typing import Any

from matplotlib.figure import Figure

from svoo.studies.base import as_png, per_input
from svoo.studies.scale import Scale, VideoSize


def test_there_is_one_job_per_input_and_its_key_names_what_decides_it() -> None:
    size = VideoSize(9, 32, 48)
    lab: Any = SimpleNamespace(
        inputs=[{"prompt": "one"}, {"prompt": "two"}],
        scale=Scale(size, size, 4),
        input_facts=dict,
    )
    jobs = per_input(lab, size, lambda entry: {"seen": entry["prompt"]})
    assert [job.make()["seen"] for job in jobs] == ["one", "two"]
    assert jobs[0].key != jobs[1].key and jobs[0].key.startswith("one | ")
    lab.scale = Scale(size, size, 5)
    assert per_input(lab, size, dict)[0].key != jobs[0].key
    assert len(per_input(lab, size, dict, prompts=1)) == 1
    other = per_input(lab, size, dict, budgets=(0.1, 0.2))[0].key
    assert other not in (jobs[0].key, per_input(lab, size, dict)[0].key)


def test_a_figure_becomes_a_png() -> None:
    assert as_png(Figure(figsize=(1, 1))).startswith(b"\x89PNG")
