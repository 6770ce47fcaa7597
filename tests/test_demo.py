from svoo.demo import measure


def test_the_table_has_dense_paper_and_default() -> None:
    rows = measure(3000, repeats=1)
    assert [row.name for row in rows] == ["dense", "paper", "default"]
    assert (rows[0].density, rows[0].recall, rows[0].error) == (1.0, 1.0, 0.0)
    assert all(0 < row.density < 0.6 and row.recall > 0.6 for row in rows[1:])
    assert rows[2].error < rows[1].error
