import studying

from svoo.studies.steps import StepsStudy


def test_densities_by_step_are_drawn_and_their_deviations_told() -> None:
    results = studying.empty()
    assert StepsStudy().show(results).parts == ()
    for number in range(2):
        by_step = [[[0.1 * step + 0.2 * layer] * 2 for layer in range(3)] for step in range(4)]
        row = {"prompt": str(number), "tokens": 9, "by_step": by_step, "sigma": [1, 0.7, 0.4, 0.1]}
        results.add("steps", str(number), row)
    table, *plots = StepsStudy().show(results).parts
    assert [cell.text for cell in table.rows[0]] == ["80%", "0.1118", "0.1633"]  # type: ignore[union-attr]
    assert len(plots) == 2
