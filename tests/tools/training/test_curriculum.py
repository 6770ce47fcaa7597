from tools.training.curriculum import CODE_FRAMES, FULL, NEWER, STAGES


def test_stages_are_consistent() -> None:
    names = [stage.name for stage in STAGES]
    assert len(set(names)) == len(names)
    guides = {"shape", "cover", "place", "time", "motion", *NEWER}
    for stage in STAGES:
        assert set(stage.guides) == guides
        assert all(1 <= kind.frames <= CODE_FRAMES for kind in stage.kinds)
        for gate in stage.gates:
            assert gate.step <= stage.steps
            measured = gate.number in ("shape", "colour", "background", "motion", "shape of two")
            assert not measured or gate.step % stage.measure_every == 0
    assert sum(stage.look_at_ends for stage in STAGES) == 1
    assert sum(stage.widen for stage in STAGES) == 1
    whole = STAGES[-1].kinds[-1]
    assert (whole.grid, whole.frames, whole.name) == (FULL, 13, "13x18x32")
