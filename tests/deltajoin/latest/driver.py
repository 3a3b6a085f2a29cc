"""The operator without Spark: tables that change, streams that follow them, a sink by the join's key."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from deltajoin.errors import LookupUnavailableError
from deltajoin.latest.spec import LatestJoin, LookupSide
from deltajoin.latest.step import Drivers, Found, TaskRows, Waiting, join_keys, step
from deltajoin.lookup.memory import MemoryLookup
from tests.helpers import changelog
from upsert.rowkind import ROW_KIND_COLUMN

Row = tuple[Any, ...]

LEFT = pa.schema({"lid": pa.int64(), "lk": pa.int64(), "lv": pa.string()})
RIGHT = pa.schema({"rid": pa.int64(), "rk": pa.int64(), "rv": pa.string()})
ON = (("lk", "rk"),)


def side(
    columns: pa.Schema,
    asked_by: Sequence[str],
    upsert_key: Sequence[str],
    kinds: Sequence[str] = ("+I", "+U"),
    **more: Any,
) -> LookupSide:
    source = MemoryLookup(columns.empty_table(), asked_by)
    return LookupSide(columns, source, tuple(upsert_key), tuple(kinds), **more)


@dataclass
class World:
    """The rows of one side as they are now, by upsert key; a finder over them, with no memory."""

    join: LatestJoin
    number: int
    rows: dict[Row, Row] = field(default_factory=dict)
    failing: set[Row] = field(default_factory=set)
    asked: list[Row] = field(default_factory=list)

    @property
    def side(self) -> LookupSide:
        return self.join.sides[self.number]

    def apply(self, change: Row) -> None:
        kind, *values = change
        row = dict(zip(self.side.columns.names, values, strict=True))
        key = tuple(row[name] for name in self.side.upsert_key)
        if kind == "-D":
            self.rows.pop(key, None)
        else:
            self.rows[key] = tuple(values)

    def table(self) -> pa.Table:
        return as_table(self.side.columns, self.rows.values())

    def start(self, keys: pa.Table) -> "World":
        self.asked += as_rows(keys)
        self._keys = keys
        return self

    def result(self) -> Found:
        wanted = set(as_rows(self._keys))
        table = self.table()
        own = as_rows(join_keys(self.join, self.number, table))
        met = [key in wanted and key not in self.failing for key in own]
        failures = {
            at: LookupUnavailableError("not now")
            for at, key in enumerate(as_rows(self._keys))
            if key in self.failing
        }
        return Found(table.filter(pa.array(met, pa.bool_())), failures)

    def cancel(self) -> None:
        """Nothing is under way."""

    def learn(self, keys: pa.Table, rows: pa.Table, changes: Drivers) -> None:
        """Remembers nothing."""


def as_table(schema: pa.Schema, rows: Iterable[Row]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema=schema)


def as_rows(table: pa.Table) -> list[Row]:
    return [tuple(row.values()) for row in table.to_pylist()]


def changes(join: LatestJoin, number: int, rows: Iterable[Row]) -> pa.Table:
    """Changes ``(kind, *values)`` of a side as a table."""
    schema = join.sides[number].columns
    rows = list(rows)
    table = as_table(schema, [row[1:] for row in rows])
    return table.append_column(ROW_KIND_COLUMN, pa.array([row[0] for row in rows], pa.string()))


class Driver:
    """Steps of one shard, one after the other, with what waits between them."""

    def __init__(self, join: LatestJoin, finders: Any) -> None:
        self.join, self.finders = join, finders
        self.waiting: Waiting = (None, None)
        self.sink: dict[Row, Row] = {}

    def step(self, left: Iterable[Row] = (), right: Iterable[Row] = ()) -> list[Row]:
        """Outputs ``(kind, *values)`` of a batch, in the order of their text."""
        parts = tuple([TaskRows(0, 0, changes(self.join, n, rows))] for n, rows in enumerate((left, right)))
        result = step(self.join, self.waiting, parts, self.finders)
        found = [row for piece in result.output for row in as_rows(piece)]
        self.waiting = result.waiting
        self._into_sink(found)
        return sorted(((row[-1], *row[:-1]) for row in found), key=repr)

    def _into_sink(self, rows: list[Row]) -> None:
        names = self.join.output.names
        at = [names.index(name) for name in self.join.output_key]
        keys = [tuple(row[n] for n in at) for row in rows]
        assert len(set(keys)) == len(keys), f"two rows of a key in one batch: {rows}"
        for key, row in zip(keys, rows, strict=True):
            if row[-1] == "-D":
                self.sink.pop(key, None)
            else:
                self.sink[key] = row[:-1]


def rows(schema: pa.Schema, *lines: str) -> list[Row]:
    """Changes from lines like ``+I 1 7 a``."""
    return [(row[-1], *row[:-1]) for row in as_rows(changelog(schema, *lines))]
