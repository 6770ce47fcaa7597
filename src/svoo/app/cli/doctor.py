"""`svoo doctor`: what can run here."""

from __future__ import annotations

from svoo.app.cli.shared import Json, Output
from svoo.app.tables import doctor_table


def run(*, as_json: Json = False) -> None:
    """Say what can run here, and why not where it cannot.

    For a bug report copy what `--json` prints: versions, the machine, the backends, what each
    needs and why it does not run. It holds no paths and no names.

    Examples:

    [bold]svoo doctor[/]

    [bold]svoo doctor --json > doctor.json[/]
    """
    from svoo.app.doctor import examine, report

    output = Output(json=as_json)
    with output.notes():
        findings = examine()
    output.show(doctor_table(findings))
    if as_json:
        output.data(report(findings))
