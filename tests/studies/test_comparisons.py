import math

import pytest
import studying

from svoo.studies.comparisons import (
    PSNR,
    SPEED_UP,
    by_prompt,
    difference,
    groups_of,
    make_table,
    read_entries,
    say_difference,
    say_interval,
    say_times,
    verdict_of,
)
from svoo.studies.statistics import Interval


def test_a_table_has_medians_and_marks() -> None:
    results = studying.empty()
    for number in range(6):
        facts = {"psnr": None, "ssim": None}
        studying.add_run(results, "quality", "g", "dense", f"prompt {number}", **facts)
    studying.add_runs(results, "quality", "g", good=(40.0, 3.0), fair=(30.0, 2.0), bad=(20.0, 1.0))
    entries = read_entries(results, "quality")
    assert list(groups_of(entries)) == ["g"]
    table = make_table("title", entries)
    assert table.columns[:3] == ["", "PSNR, dB ↑", "SSIM ↑"]
    assert "LPIPS ↓" not in table.columns  # nobody has any
    rows = {row[0].text: row for row in table.rows}
    assert rows["good"][1].text.startswith("40.25 (40.") and rows["good"][1].rank == 1
    assert (rows["fair"][1].rank, rows["bad"][1].rank, rows["dense"][1].rank) == (2, 0, 0)
    place = list(table.columns).index("speed-up ↑")
    assert rows["good"][place].text.startswith("3.0") and rows["good"][place].rank == 1


def test_rows_of_few_prompts_say_so_and_win_nothing() -> None:
    results = studying.empty()
    studying.add_runs(results, "quality", "g", good=(40.0, 3.0), fair=(30.0, 2.0))
    for number in range(2):
        facts = {"psnr": 99.0, "seconds": 0.01, "commit": "abc"}
        studying.add_run(results, "quality", "g", "lucky", f"prompt {number}", **facts)
    studying.add_run(results, "quality", "g", "lucky", "prompt 2", commit="def")
    table = make_table("t", read_entries(results, "quality"))
    rows = {row[0].text: [cell.rank for cell in row] for row in table.rows}
    assert not any(rows["lucky (3 prompts)"]) and rows["good"][1] == 1
    assert "made by several commits (abc, def)" in table.note


def test_calls_that_a_method_left_dense_are_shown_beside_its_density() -> None:
    results = studying.empty()
    studying.add_runs(results, "quality", "g", sparse=(30.0, 2.0))
    entries = read_entries(results, "quality")
    assert "of all calls" not in make_table("t", entries).note
    facts = {"sparse_calls": 3, "dense_calls": 4, "dense_reasons": {"too dense": 4}}
    for number in range(6):
        studying.add_run(results, "quality", "g", "half", f"prompt {number}", **facts)
    table = make_table("t", read_entries(results, "quality"))
    place = list(table.columns).index("density")
    texts = [row[place].text for row in table.rows]
    alone = "0.300"  # the same on every prompt
    assert texts == [alone, f"{alone}; 0.700 of all calls"]
    assert table.note.count("left calls dense after the warm-up") == 1


def test_a_row_that_is_dense_in_content_is_not_ranked() -> None:
    results = studying.empty()
    studying.add_runs(results, "quality", "g", good=(40.0, 3.0), fair=(30.0, 2.0))
    for number in range(6):
        facts = {"psnr": 90.0, "density": 0.999}
        studying.add_run(results, "quality", "g", "sta", f"prompt {number}", **facts)
    table = make_table("t", read_entries(results, "quality"))
    assert [row[1].rank for row in table.rows] == [1, 2, 0]
    assert "Dense in content (density over 0.99), so not ranked: sta." in table.note
    assert "With all pairs kept a call is 3.00x as fast as dense attention" in table.note


def test_times_are_those_of_one_machine() -> None:
    results = studying.empty()
    studying.add_runs(results, "quality", "g", one=(30.0, 2.0))
    studying.add_run(results, "quality", "g", "one", "elsewhere", machine="other", seconds=1e-3)
    entries = read_entries(results, "quality")
    assert "elsewhere" in by_prompt(entries, PSNR)["one"]
    assert "elsewhere" not in by_prompt(entries, SPEED_UP)["one"]


def test_of_two_runs_of_a_name_the_later_counts() -> None:
    results = studying.empty()
    studying.add_run(results, "quality", "g", "one", "p", psnr=1.0)
    studying.add_run(results, "quality", "g", "one", "p", psnr=2.0)
    assert by_prompt(read_entries(results, "quality"), PSNR) == {"one": {"p": 2.0}}


def test_runs_with_earlier_settings_of_a_name_are_left_out() -> None:
    results = studying.empty()
    for prompt in "ab":
        studying.add_run(results, "quality", "g", "ours", prompt, config={"tolerance": 1})
    studying.add_run(results, "quality", "g", "ours", "c", config={"tolerance": 2})
    assert list(by_prompt(read_entries(results, "quality"), PSNR)["ours"]) == ["c"]


def test_a_table_says_where_its_times_are_from() -> None:
    results = studying.empty()
    studying.add_runs(results, "quality", "g", one=(30.0, 2.0))
    assert make_table("t", read_entries(results, "quality"), note="N.").note == (
        "6 prompts. N. Times are of one kind of machine (m)."
    )
    studying.add_run(results, "quality", "g", "one", "elsewhere", machine="other", others=0.9)
    studying.add_run(results, "quality", "g", "one", "prompt 0", others=0.02)
    assert say_times(read_entries(results, "quality")) == (
        "Times are of one kind of machine (m); other processes took at most 2% of it meanwhile; "
        "of 7 runs these have no time: 1 on a busy machine (`--retime` times them again)."
    )
    studying.add_run(results, "quality", "g", "one", "far away", machine="other")
    studying.add_run(results, "quality", "g", "one", "untimed", timed=False)
    assert say_times(read_entries(results, "quality")).endswith(
        "of 9 runs these have no time: 1 on a busy machine (`--retime` times them again), 1 on "
        "another kind of machine, 1 made for their quality alone."
    )
    assert say_times([]) == ""


def test_runs_for_quality_alone_have_no_times() -> None:
    results = studying.empty()
    studying.add_runs(results, "quality", "g", one=(30.0, 2.0))
    studying.add_run(results, "quality", "g", "one", "untimed", psnr=31.0, timed=False)
    entries = read_entries(results, "quality")
    assert "untimed" in by_prompt(entries, PSNR)["one"]
    assert "untimed" not in by_prompt(entries, SPEED_UP)["one"]
    table = make_table("t", entries)
    column = [name.startswith(SPEED_UP.name) for name in table.columns].index(True)
    assert table.rows[0][column].text.endswith("; 6 prompts")


def test_times_of_a_busy_machine_do_not_count() -> None:
    results = studying.empty()
    studying.add_runs(results, "quality", "g", one=(30.0, 2.0), two=(20.0, 3.0))
    for number in range(2):
        studying.add_run(results, "quality", "g", "two", f"prompt {number}", others=0.3)
    entries = read_entries(results, "quality")
    assert "of 12 runs these have no time: 2 on a busy machine" in say_times(entries)
    assert len(by_prompt(entries, PSNR)["two"]) == 6
    assert len(by_prompt(entries, SPEED_UP)["two"]) == 4
    table = make_table("t", entries)
    rows = {row[0].text: row for row in table.rows}
    place = list(table.columns).index("speed-up ↑")
    assert rows["two"][place].text.endswith("; 4 prompts") and rows["two"][place].rank == 0
    assert rows["one"][place].rank == 1 and "prompts" not in rows["one"][place].text
    for number in range(6):
        for name in ("one", "two"):
            studying.add_run(results, "quality", "g", name, f"prompt {number}", others=0.3)
    busy = read_entries(results, "quality")
    assert say_times(busy) == ("No times: 12 on a busy machine (`--retime` times them again).")
    assert "speed-up ↑" not in make_table("t", busy).columns


def test_rows_are_ranked_on_the_prompts_that_they_share() -> None:
    results = studying.empty()
    studying.add_runs(results, "quality", "g", good=(40.0, 3.0), fair=(30.0, 2.0))
    for number in range(12, 20):  # easier prompts, which the good one was not run on
        studying.add_run(results, "quality", "g", "fair", f"prompt {number}", psnr=60.0)
    rows = {row[0].text: row for row in make_table("t", read_entries(results, "quality")).rows}
    assert rows["good (6 prompts)"][1].rank == 1 and rows["fair"][1].rank == 2


def test_where_most_are_as_good_as_the_best_nobody_is_marked() -> None:
    results = studying.empty()
    for number in range(6):
        noise = (-1) ** number
        for name, psnr in (("a", 30.0), ("b", 30.0 + noise), ("c", 30.0 - noise), ("d", 20.0)):
            studying.add_run(results, "quality", "g", name, f"prompt {number}", psnr=psnr)
    rows = make_table("t", read_entries(results, "quality")).rows
    assert [row[1].rank for row in rows] == [0, 0, 0, 0]


def test_a_table_has_differences_from_one_of_its_rows() -> None:
    results = studying.empty()
    studying.add_runs(results, "quality", "g", whole=(40.0, 3.0), part=(30.0, 2.0))
    entries = read_entries(results, "quality")
    table = make_table("t", entries, minus="whole")
    assert table.columns[1] == "minus whole, dB"
    assert [row[1].text for row in table.rows] == ["", "-10.00 (-10.00 to -10.00, 6 prompts)"]
    assert make_table("t", entries, minus="nobody").columns == make_table("t", entries).columns


def test_work_is_the_kept_pairs_and_all_else() -> None:
    results = studying.empty()
    studying.add_run(results, "quality", "g", "one", "p", density=0.2, work=0.05)
    table = make_table("t", read_entries(results, "quality"))
    assert table.rows[0][list(table.columns).index("work")].text == "0.250"


def test_methods_that_need_training_are_named() -> None:
    results = studying.empty()
    runs = {"vsa, sparsity 0.4": (25.0, 2.0), "vsa, sparsity 0.9": (20.0, 3.0)}
    studying.add_runs(results, "quality", "g", svg2=(30.0, 2.0), **runs)
    note = make_table("t", read_entries(results, "quality")).note
    assert "Trained by their authors, not here: vsa." in note


def test_four_prompts_rank_nobody() -> None:
    results = studying.empty()
    for number in range(5):
        for name, psnr in (("good", 40.0), ("bad", 20.0)):
            studying.add_run(results, "quality", "g", name, f"prompt {number}", psnr=psnr)
        rows = make_table("t", read_entries(results, "quality")).rows
        assert [row[1].rank for row in rows] == ([1, 2] if number == 4 else [0, 0])


def test_equal_videos_are_infinitely_alike_and_dense_has_no_psnr() -> None:
    results = studying.empty()
    studying.add_run(results, "quality", "g", "same", "p", psnr=None, ssim=1.0)
    studying.add_run(results, "quality", "g", "dense", "p", psnr=None, ssim=None)
    entries = read_entries(results, "quality")
    assert by_prompt(entries, PSNR) == {"same": {"p": math.inf}}
    cell = make_table("t", entries).rows[0][1]
    assert (cell.text, cell.rank) == ("equal", 0)  # one prompt ranks nobody


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (Interval(1, 0.5, 2, 6), "holds"),
        (Interval(-1, -2, -0.5, 6), "does not hold"),
        (Interval(1, -0.5, 2, 6), "cannot be told here"),
        (Interval(1, 0.5, 2, 4), "cannot be told here"),  # too few prompts
        (None, "cannot be told here"),
    ],
)
def test_verdicts_need_prompts_and_a_difference(found: Interval | None, verdict: str) -> None:
    assert verdict_of(found) == verdict


def test_differences_in_words() -> None:
    results = studying.empty()
    studying.add_runs(results, "quality", "g", good=(40.0, 3.0), fair=(30.0, 2.0))
    found = difference(read_entries(results, "quality"), "good", "fair", PSNR)
    assert found is not None
    assert say_difference(found, " dB") == "+10.00 dB (+10.00 to +10.00, 6 prompts)"
    assert say_interval(Interval(1.5, 1.25, 2.0, 3), "{:.2f}x") == "1.50x (1.25 to 2.00)"
    assert say_interval(Interval(40, 30, math.inf, 3), "{:.1f}") == "40.0 (30.0 to equal)"
    assert say_interval(Interval(math.inf, math.inf, math.inf, 3), "{:.1f}") == "equal"
    assert say_interval(Interval(0.1, 0.05, 0.2, 3), "{:.0%} of loop") == "10% of loop (5 to 20)"
