import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from torch import Tensor

import svoo
from svoo import Profile
from svoo.core.density import required_density
from svoo.core.random import mix_seeds
from svoo.errors import ConfigError, FileError, ProfileError, ShapeError
from svoo.methods.base import Call
from svoo.plugin.record import RecordConfig, record_profile

SIZES: dict[str, Any] = {
    "num_inference_steps": 4, "num_frames": 9, "height": 64, "width": 64,
    "max_sequence_length": 16,
}  # fmt: skip
TOKENS = 3 * 4 * 4
PROMPTS = ["a red fox", "the lazy dog jumps"]


def exactly(**changes: Any) -> dict[str, Any]:
    return {"masses": (0.5, 0.95), "rows": None, "every": 1, "exact": True} | changes


@pytest.fixture(scope="module")
def pipe() -> Any:
    return tiny.build("wan2.1-t2v")


@pytest.fixture(scope="module")
def profile(pipe: Any) -> Profile:
    return record_profile(pipe, PROMPTS, **exactly(), **SIZES)


def calls_of_first_input(pipe: Any) -> list[tuple[Call, Tensor, Tensor]]:
    """What a recording of the first prompt sees."""
    seen: list[tuple[Call, Tensor, Tensor]] = []
    with svoo.apply(pipe, profile=None, method="dense") as handle:
        handle.observe(lambda *entry: seen.append(entry))
        generator = torch.Generator().manual_seed(mix_seeds(0, 0))
        pipe(PROMPTS[0], generator=generator, output_type="latent", **SIZES)
    return seen


def test_every_entry_is_the_required_density_of_its_call(pipe: Any, profile: Profile) -> None:
    assert profile.density.shape == (2, 4, profile.layers, tiny.HEADS, 2)
    compared = 0
    for call, query, key in calls_of_first_input(pipe):
        if call.branch == "cond":
            expected = required_density(query, key, mass=[0.5, 0.95]).value[0]
            torch.testing.assert_close(profile.density[0, call.step, call.layer], expected)
            compared += 1
    assert compared == 4 * profile.layers
    assert profile.error is not None and bool((profile.error == 0).all())


def test_the_provenance_says_what_was_done(profile: Profile) -> None:
    facts = profile.provenance
    assert (facts["frames"], facts["height"], facts["width"]) == ("9", "64", "64")
    assert (facts["tokens"], facts["rows"], facts["counted"]) == (str(TOKENS), "all", "by sorting")
    assert (facts["steps"], facts["asked steps"], facts["asked rows"]) == ("4", "4", "all")
    assert len(facts["inputs"].split()) == 2
    assert facts["svoo"] == svoo.__version__
    assert not any("/" in fact for fact in facts.values())


def test_sizes_that_come_with_the_inputs_are_in_the_provenance(pipe: Any) -> None:
    sizes = {name: SIZES[name] for name in SIZES if name not in ("height", "num_inference_steps")}
    inputs = [{"prompt": PROMPTS[0], "height": height} for height in (64, 32)]
    one = record_profile(pipe, inputs[:1], rows=4, num_inference_steps=2, **sizes).provenance
    assert (one["height"], one["width"], one["steps"]) == ("64", "64", "2")
    both = record_profile(pipe, inputs, rows=4, num_inference_steps=2, **sizes).provenance
    assert (both["height"], both["width"], both["tokens"]) == ("varies", "64", "48; 24")


def test_the_steps_are_those_of_the_run() -> None:
    pipe = tiny.build("hunyuanvideo-t2v")
    given = tiny.call_arguments(pipe, 3) | {"sigmas": [1.0, 0.5]}
    facts = record_profile(pipe, [given], rows=4).provenance
    assert (facts["asked steps"], facts["steps"]) == ("3", "2")


def test_the_default_rows_are_those_of_the_video_if_it_is_smaller(pipe: Any) -> None:
    found = record_profile(pipe, PROMPTS[:1], **SIZES)
    assert (found.provenance["asked rows"], found.provenance["rows"]) == ("auto", str(TOKENS))
    assert found.error is not None and float(found.error.max()) == 0
    measuring = RecordConfig()
    assert (measuring.count_rows(10_000), measuring.count_rows(48)) == (640, 48)
    assert RecordConfig(rows=None).count_rows(48) is None
    with pytest.raises(ShapeError, match=f"between 1 and the {TOKENS} query tokens, got 640"):
        record_profile(pipe, PROMPTS, rows=640, **SIZES)


def test_sampled_rows_carry_their_error(pipe: Any, profile: Profile) -> None:
    sampled = record_profile(pipe, PROMPTS[:1], **exactly(rows=12), **SIZES)
    assert sampled.error is not None and bool((sampled.error > 0).any())
    distance = (sampled.density[0] - profile.density[0]).abs()
    assert float((distance / sampled.error[0].clamp(min=0.005)).mean()) < 2


def test_every_other_step_and_both_branches(pipe: Any, profile: Profile) -> None:
    both = record_profile(pipe, PROMPTS[:1], **exactly(every=2, branch="both"), **SIZES)
    assert both.density.shape[:2] == (2, 2)
    assert torch.equal(both.sigma, profile.sigma[::2])
    torch.testing.assert_close(both.density[0], profile.density[0, ::2])
    assert not torch.equal(both.density[0], both.density[1])
    with pytest.raises(ProfileError, match=r"step 0, layer 0, uncond.*needs a run with guidance"):
        record_profile(
            pipe,
            PROMPTS[:1],
            **exactly(branch="both"),
            on_step=_never,  # it is refused in the first step
            **SIZES,
            guidance_scale=1.0,
        )


OTHERS = ("wan2.2-t2v", "wan2.1-i2v", "hunyuanvideo-t2v", *tiny.WIDER)


@pytest.mark.filterwarnings("ignore:In CPU autocast")
@pytest.mark.parametrize("name", [name for name in OTHERS if name != "cogvideox"])
def test_other_pipelines(name: str) -> None:
    pipe = tiny.build(name)
    found = record_profile(pipe, [tiny.call_arguments(pipe, 3)], **exactly(rows=4))
    assert found.density.shape[1] == 3
    assert sorted(set(found.stage.tolist())) == ([0, 1] if name == "wan2.2-t2v" else [0])


@pytest.mark.filterwarnings("ignore:In CPU autocast")
@pytest.mark.parametrize("name", ["ltx-video", "mochi"])
def test_branches_of_one_forward(name: str) -> None:
    """Both in one batch, or sample by sample; the conditional one is the same as on its own."""
    pipe = tiny.build(name)
    inputs = [tiny.call_arguments(pipe, 2)]
    both = record_profile(pipe, inputs, **exactly(rows=4, branch="both"))
    alone = record_profile(pipe, inputs, **exactly(rows=4))
    assert both.inputs == 2 and not torch.equal(both.density[0], both.density[1])
    torch.testing.assert_close(both.density[0], alone.density[0])


def test_a_scheduler_without_noise_levels_is_found_in_the_first_step() -> None:
    pipe = tiny.build("cogvideox")
    with pytest.raises(ProfileError, match="the scheduler has no noise levels"):
        record_profile(pipe, [tiny.call_arguments(pipe, 2)], **exactly(rows=4), on_step=_never)


def test_the_pipeline_is_given_back(pipe: Any) -> None:
    before = {name: type(module) for name, module in pipe.transformer.named_modules()}

    def stop(_done: int, _total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        record_profile(pipe, PROMPTS, **exactly(), on_step=stop, **SIZES)
    assert {name: type(module) for name, module in pipe.transformer.named_modules()} == before
    assert "_svoo_handle" not in pipe.transformer.__dict__


def test_bad_requests(pipe: Any) -> None:
    for changes, message in (
        ({"masses": (0.5, 1.5)}, r"mass must be in \(0, 1\]"),
        ({"masses": ()}, r"masses must contain 0\.95"),
        ({"masses": (0.5, 0.9)}, r"masses must contain 0\.95, which budgets are taken at: \[0\.5"),
        ({"masses": (0.5, 0.95, 0.5)}, "masses has one twice"),
        ({"masses": 0.95}, r"masses must be a list of numbers, got 0\.95"),
        ({"masses": "0.95"}, "masses must be a list of numbers, got '0.95'"),
        ({"rows": 0}, "a whole number from 2, got 0"),
        ({"rows": 1}, "a whole number from 2, got 1"),
        ({"rows": 4.5}, r"a whole number from 2, got 4\.5"),
        ({"rows": "many"}, "rows must be auto, None or a whole number from 2, got many"),
        ({"every": 0}, "every must be a whole number from 1, got 0"),
        ({"every": 1.5}, r"every must be a whole number from 1, got 1\.5"),
        ({"branch": "neither"}, "branch must be cond or both"),
    ):
        with pytest.raises(ConfigError, match=message):
            RecordConfig(**exactly(**changes))
    with pytest.raises(ConfigError, match="there are no inputs"):
        record_profile(pipe, [], **SIZES)
    for one in ("a fox", {"prompt": "a fox"}):
        with pytest.raises(ConfigError, match="inputs must be a list of prompts or mappings, got"):
            record_profile(pipe, one, **SIZES)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="the pipeline refuses this request: .*divisible by 16"):
        record_profile(pipe, PROMPTS, **(SIZES | {"height": 50}))


def test_a_pipeline_that_svoo_is_applied_to_is_not_recorded(pipe: Any) -> None:
    with svoo.apply(pipe) as handle:
        with pytest.raises(ConfigError, match=r"call handle\.remove\(\) first"):
            record_profile(pipe, PROMPTS, **SIZES)
        assert pipe.transformer.__dict__["_svoo_handle"] is handle
    assert record_profile(pipe, PROMPTS[:1], rows=2, **SIZES).inputs == 1


def test_settings_that_no_other_process_could_compare_are_refused(pipe: Any) -> None:
    for value in (torch.Generator(), object(), {"inside": [print]}, np.array([object()])):
        with pytest.raises(ConfigError, match="a recording cannot have a "):
            record_profile(pipe, PROMPTS, **SIZES, generator=value)


def test_progress_runs_over_inputs_and_steps(pipe: Any) -> None:
    seen: list[tuple[int, int]] = []
    record_profile(
        pipe,
        PROMPTS,
        **exactly(rows=2),
        on_step=lambda done, total: seen.append((done, total)),
        **SIZES,
    )
    assert seen == [(done, 8) for done in range(1, 9)]


def test_another_request_for_the_same_file_is_refused(
    pipe: Any, profile: Profile, tmp_path: Path
) -> None:
    out = tmp_path / "p.safetensors"
    recorded = record_profile(pipe, PROMPTS, **exactly(), out=out, **SIZES)
    assert torch.equal(recorded.density, profile.density)
    assert [path.name for path in tmp_path.iterdir()] == ["p.safetensors"]
    before = out.read_bytes()
    again = record_profile(pipe, PROMPTS, **exactly(), out=out, on_step=_never, **SIZES)
    assert torch.equal(again.density, profile.density)
    with pytest.raises(
        ProfileError, match=r"(?s)another request.*asked rows: all there, 5 now.*restart"
    ):
        record_profile(pipe, PROMPTS, **exactly(rows=5), out=out, **SIZES)
    assert out.read_bytes() == before
    record_profile(pipe, PROMPTS, **exactly(rows=5), out=out, restart=True, **SIZES)
    assert Profile.load(out).provenance["rows"] == "5"


def test_damaged_and_foreign_files_can_be_restarted(pipe: Any, tmp_path: Path) -> None:
    out = tmp_path / "p.safetensors"
    for place in (out, tmp_path / "p.safetensors.unfinished"):
        place.write_bytes(b"damaged")
        with pytest.raises(ProfileError, match=r"(?s)is not a whole.*\(--restart\) to replace it"):
            record_profile(pipe, PROMPTS[:1], rows=3, out=out, **SIZES)
        assert place.read_bytes() == b"damaged"
        record_profile(pipe, PROMPTS[:1], rows=3, out=out, restart=True, **SIZES)
        assert [path.name for path in tmp_path.iterdir()] == ["p.safetensors"]
        assert Profile.load(out).inputs == 1


def _never(_done: int, _total: int) -> None:
    raise AssertionError("a step was run that should not have been")


def test_a_full_disk_loses_nothing(
    pipe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "p.safetensors"
    old = record_profile(pipe, PROMPTS[:1], **exactly(rows=3), out=out, **SIZES)
    before, saves = out.read_bytes(), []
    write = Path.write_bytes

    def full(path: Path, data: bytes) -> int:
        saves.append(path)
        if len(saves) == 2:
            write(path, data[: len(data) // 2])
            raise OSError(28, "No space left on device")
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(FileError, match="No space left on device"):
        record_profile(pipe, PROMPTS, **exactly(rows=3), out=out, restart=True, **SIZES)
    assert out.read_bytes() == before
    kept = Profile.load(tmp_path / "p.safetensors.unfinished")
    assert kept.inputs == 1 and torch.equal(kept.density, old.density)


KILLED = """
import os, signal, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
sys.path.insert(0, sys.argv[1])
import tiny
from svoo.methods.base import Call
from svoo.plugin.record import record_profile

folder = Path(sys.argv[2])
pipe = tiny.build("wan2.1-t2v")
sizes = dict(num_inference_steps=2, num_frames=5, height=32, width=32, max_sequence_length=16)
write, rename, remove = Path.write_bytes, Path.replace, Path.unlink


def record(out, die_at):
    "Record three inputs; die before event number `die_at` if it is reached."
    events = 0

    def event(*_):
        nonlocal events
        events += 1
        if events == die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def write_halves(path, data):
        event()
        with path.open("wb") as file:
            file.write(data[: len(data) // 2])
            file.flush()
            event()
            file.write(data[len(data) // 2 :])

    Path.write_bytes = write_halves
    Path.replace = lambda path, to: (event(), rename(path, to), event())
    Path.unlink = lambda path, **options: (event(), remove(path, **options))
    prompts = ["a fox", "a dog", "the lazy fox"]
    record_profile(
        pipe, prompts, rows=3, out=out, on_step=event, restart=out.name.startswith("again"),
        **sizes,
    )
    return events


def in_child(out, die_at):
    child = os.fork()
    if not child:
        record(out, die_at)
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


assert not in_child(folder / "undisturbed", None)
deaths = 0
for moment in range(1, 100):
    out = folder / f"killed-{moment}"
    if not in_child(out, moment):
        break
    deaths += 1
    assert not in_child(out, None), moment
    assert out.read_bytes() == (folder / "undisturbed").read_bytes(), moment
    assert len(list(folder.iterdir())) == moment + 1, moment
out = folder / "again-and-again"
out.write_bytes(b"an older file, to be replaced by the restart")
chain = 0
while in_child(out, 7):  # a life is enough for one input: it gets on all the same
    chain += 1
    assert chain < 50
assert chain >= 2 and out.read_bytes() == (folder / "undisturbed").read_bytes()
print(deaths)
"""


def test_killed_at_any_moment_it_goes_on_to_the_same_file(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(Path(__file__).parents[1]), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 10


RESUMED = """
import sys
from pathlib import Path
import torch
torch.set_num_threads(1)
sys.path.insert(0, sys.argv[1])
import tiny
from svoo.plugin.record import record_profile

pipe = tiny.build("wan2.1-t2v")
partial = dict(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0)
pipe.scheduler = type(pipe.scheduler).from_config(partial)
assert len(pipe.scheduler.config["_use_default_values"]) > 5
sizes = dict(num_inference_steps=2, num_frames=5, height=32, width=32, max_sequence_length=16)
steps = []


def note(done, total):
    steps.append(done)
    if done == int(sys.argv[3]):
        sys.exit(str(steps))


record_profile(pipe, ["a fox", "a dog"], rows=3, out=Path(sys.argv[2]), on_step=note, **sizes)
sys.exit(str(steps))
"""


def test_another_process_goes_on(tmp_path: Path) -> None:
    """diffusers keeps the defaults of a partial scheduler config in the order of a hash."""
    said = []
    for seed, stop in (("1", "3"), ("2", "0")):
        command = [sys.executable, "-c", RESUMED, str(Path(__file__).parents[1])]
        done = subprocess.run(
            [*command, str(tmp_path / "p.safetensors"), stop],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        said.append(done.stderr.splitlines()[-1])
    assert said == ["[1, 2, 3]", "[3, 4]"]
    assert Profile.load(tmp_path / "p.safetensors").inputs == 2


def test_a_profile_of_four_steps_serves_a_run_of_three_by_noise_level(profile: Profile) -> None:
    by_step = torch.linspace(0.1, 0.4, 4).view(1, 4, 1, 1, 1).expand_as(profile.density)
    ramp = replace(profile, density=by_step.contiguous())
    levels = torch.tensor([1.0, 0.7, 0.3], dtype=torch.float64)
    found = ramp.at_sigmas(levels).budgets(0.95, over="mean")[:, 0, 0].double()
    ascending, order = profile.sigma.sort()
    values = by_step[0, order, 0, 0, 0].double()
    for level, budget in zip(levels, found, strict=True):
        above = int(torch.searchsorted(ascending, level).clamp(1, 3))
        part = ((level - ascending[above - 1]) / (ascending[above] - ascending[above - 1])).clamp(
            0, 1
        )
        expected = torch.lerp(values[above - 1], values[above], part)
        assert float(budget) == pytest.approx(float(expected), abs=1e-6)
