"""The results of studies: JSON lines, appended as they come, never lost and never made twice."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from svoo.errors import ConfigError
from svoo.storage import check_writable, locked, write_atomically

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Row = TypeVar("Row", bound="DataclassInstance")
FORMAT = 2  # of the file; another one is refused
_TITLE = "svoo study"  # the first key of a file's first line
_ADVICE = "choose another folder with --out, or move the file away"


@dataclass(frozen=True)
class Record:
    """One line: what was found for a key, the session that found it, and the seconds it took.

    `kind` is the name of a study for its rows, "run" for a generated video that several studies
    may use, "profile" for measured densities, "session" for a start of the command, and "skipped"
    for what could not be made, with the reason.
    """

    kind: str
    key: str
    session: int
    data: dict[str, Any]
    seconds: float = 0.0


@dataclass
class Results:
    """All records of a file; with `path`, new ones are appended to it at once."""

    about: dict[str, Any]
    records: list[Record] = field(default_factory=list)
    path: Path | None = None
    session: int = 0

    def find(self, kind: str, key: str) -> dict[str, Any] | None:
        """Return what the latest record of a kind and key says, or None."""
        for record in reversed(self.records):
            if (record.kind, record.key) == (kind, key):
                return record.data
        return None

    def of_kind(self, kind: str) -> dict[str, dict[str, Any]]:
        """Return the latest data of every key of a kind, in the order of their last lines."""
        found: dict[str, dict[str, Any]] = {}
        for record in self.records:
            if record.kind == kind:
                found.pop(record.key, None)
                found[record.key] = record.data
        return found

    def rows_of(self, kind: str, row: type[Row]) -> list[Row]:
        """Return the typed rows of a kind, of each prompt those of its latest record (one row, or
        a list `rows`). Rows with other fields are of an older rule and left out."""
        names = {entry.name for entry in fields(row)}
        latest: dict[str, list[dict[str, Any]]] = {}
        for data in self.of_kind(kind).values():
            found = data.get("rows", [data])
            if found and all(set(part) == names for part in found):
                latest[found[0]["prompt"]] = found
        return [row(**part) for found in latest.values() for part in found]

    def sessions(self) -> list[dict[str, Any]]:
        """Return what is known of every start of the command."""
        return [record.data for record in self.records if record.kind == "session"]

    def begin_session(self, facts: Mapping[str, Any]) -> None:
        """Note a start of the command, for the provenance of what follows."""
        self.session = len(self.sessions())
        self.add("session", str(self.session), facts)

    def add(self, kind: str, key: str, data: Mapping[str, Any], seconds: float = 0.0) -> None:
        """Append a record: one write of one whole line, on the disk when this returns."""
        record = Record(kind, key, self.session, dict(data), round(seconds, 2))
        line = _as_line(vars(record))
        if self.path is not None:
            try:
                with self.path.open("ab") as file:
                    file.write(line)
                    file.flush()
                    os.fsync(file.fileno())
            except OSError:
                _cut_unfinished(self.path)  # else the next line would go on with half of this
                raise
        # As a later start would read it: lists, not tuples.
        self.records.append(Record(**json.loads(line)))


def read_results(path: Path) -> Results:
    """Read a file of results; refuse what is none, and one of another version. A last line that a
    kill left unfinished is left out."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"there are no results in {path.parent}: {error.strerror or error}; make them with "
            "`svoo study all --out FOLDER`"
        ) from error
    lines = text.splitlines(keepends=True)
    whole = [line for line in lines if line.endswith(b"\n")]
    try:
        first, *others = (json.loads(line) for line in whole)
        version, about = first[_TITLE], first["about"]
        if version == FORMAT:
            records = [Record(**entry) for entry in others]
            return Results(about, records, session=sum(r.kind == "session" for r in records))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(f"{path} holds no results of `svoo study`; {_ADVICE}") from error
    raise ConfigError(
        f"{path} holds results of version {version}, this svoo has version {FORMAT}; {_ADVICE}"
    )


@contextmanager
def continue_results(path: Path, about: Mapping[str, Any]) -> Iterator[Results]:
    """Open a file of results to add to it, alone; begin it if there is none.

    `about` is what all its figures share; a file that was begun for something else is refused. One
    that is begun and comes to no result, as after a wrong size, is taken away again.
    """
    check_writable(path)
    with locked(path):
        begun = not path.exists()
        if not begun:
            results = read_results(path)
            _check_same(path, results.about, json.loads(json.dumps(about)))
            _cut_unfinished(path)
        else:
            results = Results(dict(about))
            write_atomically(path, _as_line({_TITLE: FORMAT, "about": dict(about)}))
        results.path = path
        try:
            yield results
        except Exception:
            if begun and all(record.kind == "session" for record in results.records):
                path.unlink(missing_ok=True)
            raise


def _check_same(path: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    differences = [
        f"  {name}: {before.get(name)} there, {now.get(name)} now"
        for name in {**before, **now}
        if before.get(name) != now.get(name)
    ]
    if differences:
        what = f"{path} was begun for another run, whose figures must not be mixed with these:"
        raise ConfigError("\n".join((what, *differences, _ADVICE)))


def _cut_unfinished(path: Path) -> None:
    """Remove what follows the last whole line: a kill came while it was written."""
    data = path.read_bytes()
    end = data.rfind(b"\n") + 1
    if end < len(data):
        with path.open("r+b") as file:
            file.truncate(end)


def _as_line(data: Mapping[str, Any]) -> bytes:
    return (json.dumps(data, allow_nan=False, separators=(",", ":")) + "\n").encode()
