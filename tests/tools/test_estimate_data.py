from pathlib import Path

from svoo.app.estimate.data import read
from tools.estimate_data import TABLES, by_layer


def test_the_package_carries_what_the_authors_tables_say(official_profiles: Path) -> None:
    carried = read("densities")["models"]
    assert carried.keys() == TABLES.keys()
    name = "wan2.1-t2v-1.3b"  # the smallest table
    assert by_layer(official_profiles, [name]) == {name: carried[name]}
