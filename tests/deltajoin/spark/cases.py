"""The fixtures in ``cases/``: two tables, their changes, and the SQL that their join must equal.

Changes are lines as `tests.helpers.changelog` reads them, applied in order; the SQL names the tables ``l``
and ``r`` and gives the selected columns of the left, then of the right.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from deltajoin import DeltaJoinSpec, Side, filters
from tests.deltajoin.core.memory_tables import Rows, counted
from tests.helpers import changelog
from tests.in_duckdb import duckdb_with
from upsert import types
from upsert.schema import TableSchema
from upsert.store.table import Table

CASES = {path.stem: path for path in sorted((Path(__file__).parent / "cases").glob("*.json"))}

Commit = tuple[list[str], list[str]]
"""Lines of the left and of the right table that are committed before the join makes its next step."""


@dataclass(frozen=True)
class Case:
    """One fixture with its tables made in a folder."""

    spec: DeltaJoinSpec
    left: Table
    right: Table
    lines: tuple[list[str], list[str]]
    sql: str

    def commit(self, lines: Commit) -> None:
        """Write lines to both tables, one commit each."""
        for table, some in zip((self.left, self.right), lines, strict=True):
            if some:
                table.write(changelog(table.schema.arrow, *some))

    def truth(self) -> Rows:
        """The answer of DuckDB over the tables as they are."""
        with duckdb_with({"l": self.left.snapshot().scan(), "r": self.right.snapshot().scan()}) as db:
            return counted(db.execute(self.sql).fetchall())


def load(name: str, folder: Path, *, shards: int = 2) -> Case:
    """A fixture with empty tables."""
    value = json.loads(CASES[name].read_text(encoding="utf-8"))
    of_left, of_right = value["tables"]["left"], value["tables"]["right"]
    left, right = _table(folder / "left", of_left), _table(folder / "right", of_right)
    spec = DeltaJoinSpec.of("inner", _side(left, of_left), _side(right, of_right), shards=shards)
    return Case(spec, left, right, (of_left["changes"], of_right["changes"]), value["sql"])


def _table(path: Path, value: dict[str, Any]) -> Table:
    columns = {name: types.from_json(type_) for name, type_ in value["columns"].items()}
    schema = TableSchema.of(columns, primary_key=value["primary_key"])
    for index in value["indexes"]:
        schema = schema.index(*index)
    return Table.create(path, schema)


def _side(table: Table, value: dict[str, Any]) -> Side:
    where = filters.from_json(value["where"])
    return Side(table.path, tuple(value["select"]), tuple(value["keys"]), where)


def all_at_once(case: Case) -> Iterator[Commit]:
    """Everything in one commit a table, seen by one step."""
    yield case.lines


def one_side_after_the_other(case: Case) -> Iterator[Commit]:
    """The whole left, then the whole right."""
    yield case.lines[0], []
    yield [], case.lines[1]


def line_by_line(case: Case) -> Iterator[Commit]:
    """One change of each table at a time, so that both sides change in every step."""
    for left, right in zip_longest(*case.lines):
        yield [left] if left else [], [right] if right else []


def halves(case: Case) -> Iterator[Commit]:
    """The first half of both, then the rest: updates and deletions meet rows of an earlier step."""
    left, right = case.lines
    yield left[: len(left) // 2], right[: len(right) // 2]
    yield left[len(left) // 2 :], right[len(right) // 2 :]


ARRANGEMENTS = (all_at_once, one_side_after_the_other, line_by_line, halves)
