import json

from typer.testing import CliRunner

from svoo.app.cli import app


def test_doctor_prints_a_table_or_json() -> None:
    shown = CliRunner().invoke(app, ["doctor"])
    assert shown.exit_code == 0
    assert "backend blocked" in shown.output
    found = json.loads(CliRunner().invoke(app, ["doctor", "--json"]).stdout)
    assert found.keys() == {"svoo", "system", "machine", "findings", "needs"}
    assert any(row["name"] == "backend blocked" and row["good"] for row in found["findings"])
