from itertools import pairwise

import studying

from svoo.studies.comparisons import make_table, read_entries
from svoo.studies.scatter import _lifts, points


def test_points_are_the_medians_of_the_table() -> None:
    results = studying.empty()
    studying.add_runs(results, "quality", "g", one=(30.0, 2.0))
    studying.add_run(results, "quality", "g", "one", "elsewhere", machine="other", psnr=90.0)
    studying.add_run(results, "quality", "g", "two", "elsewhere", machine="other", psnr=90.0)
    entries = read_entries(results, "quality")
    assert list(points(entries)) == ["one"]  # the other has no time
    table = make_table("t", entries)
    faster, psnr = points(entries)["one"]
    place = list(table.columns).index("speed-up ↑")
    assert table.rows[0][1].text.startswith(f"{psnr:.2f}")
    assert table.rows[0][place].text.startswith(f"{faster:.2f}x")


def test_names_of_a_picture_do_not_lie_on_each_other() -> None:
    points = {"rainfusion": (1.0, 30.0), "rainfusion2": (1.0, 30.1), "svg-ear": (1.01, 30.2)}
    lifts = _lifts({**points, "far away": (2.0, 30.0), "high": (1.0, 50.0)})
    assert lifts["far away"] == lifts["high"] == lifts["rainfusion"] == 0
    heights = [lifts[name] + 250 * points[name][1] / (20 * 1.24) for name in points]
    gaps = [after - before for before, after in pairwise(heights)]
    assert all(gap >= 8 for gap in gaps)
    assert _lifts({}) == {} and _lifts({"one": (1.0, 1.0)}) == {"one": 0.0}
