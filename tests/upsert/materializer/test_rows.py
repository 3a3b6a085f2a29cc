"""The rows of each key as a multiset, against a model of dicts, over random histories."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from upsert.errors import ConfigurationError, MissingStateError, SchemaError
from upsert.materializer.hidden_table import ARRIVAL, COUNT, IDENTITY, HiddenTable, KeptRows
from upsert.materializer.micro_batch import whole_keys
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.schema import Column, TableSchema
from upsert.store import Snapshot, Table

Values = tuple[Any, ...]

SCHEMA = TableSchema(
    (
        Column("count", pa.int64(), id=4),
        Column("k", pa.string(), id=2),
        Column("value", pa.float64(), id=3),
        Column("tags", pa.list_(pa.int64()), id=7),
    ),
    ("k",),
)
"""Names that the hidden table has itself are those of other columns here."""
NUMBERS = (None, 1, 2, 3)
FLOATS = (None, 0.0, -1.5, float("inf"))
TAGS = (None, (), (1,), (1, 2))


@dataclass
class Model:
    """Entries of rows: how often, and the micro-batch that last added one."""

    entries: dict[Values, tuple[int, int]] = field(default_factory=dict)

    def apply(self, changes: list[tuple[Values, int]], batch: int) -> None:
        net: dict[Values, int] = {}
        for row, sign in changes:
            net[row] = net.get(row, 0) + sign
        for row, sum_ in net.items():
            count, arrival = self.entries.get(row, (0, 0))
            if sum_:
                self.entries[row] = (max(count + sum_, 0), batch if sum_ > 0 else arrival)
        self.entries = {row: entry for row, entry in self.entries.items() if entry[0]}

    def newest(self, sequence: bool) -> dict[str, Values]:
        found: dict[str, Values] = {}
        for row in sorted(self.entries, key=lambda row: self.order(row, sequence)):
            found[row[1]] = row
        return found

    def order(self, row: Values, sequence: bool) -> tuple[Any, ...]:
        ordered = tuple((value is not None, value) for value in (row[0], row[2]))
        first = ((row[2] is not None, row[2]),) if sequence else ()
        return (*first, self.entries[row][1], *ordered)


def table_of(rows: list[Values], form: KeptRows, kinds: list[str] | None = None) -> pa.Table:
    columns = [pa.array([row[n] for row in rows], c.type) for n, c in enumerate(form.schema.columns)]
    table = pa.table(columns, names=list(form.names))
    return table if kinds is None else table.append_column(ROW_KIND_COLUMN, pa.array(kinds))


def history(rng: random.Random, batches: int) -> Iterator[list[tuple[Values, int]]]:
    """Rows that come and go; of those that go some were never there."""
    present: list[Values] = []
    for _ in range(batches):
        changes: list[tuple[Values, int]] = []
        for _ in range(rng.randrange(8)):
            row = (rng.choice(NUMBERS), rng.choice("ab"), rng.choice(FLOATS), rng.choice(TAGS))
            if present and rng.random() < 0.5:
                row = present.pop(rng.randrange(len(present)))
                changes.append((row, -1))
            elif rng.random() < 0.1:
                changes.append((row, -1))
            else:
                present.append(row)
                changes.append((row, 1))
        rng.shuffle(changes)
        yield changes


def step(table: Table, form: KeptRows, changes: list[tuple[Values, int]], batch: int) -> pa.Table:
    """What the sink is told of one micro-batch."""
    base = table.snapshot()
    kinds = ["+I" if sign > 0 else "-D" for _, sign in changes]
    rows, weights = form.conformed(table_of([row for row, _ in changes], form, kinds), "table 's'")
    table.write(form.entries(base, rows, weights, batch))
    keys = pa.table({form.kept_key[0]: ["a", "b"]})
    return form.written(base, table.snapshot(), keys)


def kept(snapshot: Snapshot, form: KeptRows) -> dict[Values, tuple[int, int]]:
    return {
        tuple(tuple(v) if isinstance(v, list) else v for v in (row[name] for name in form.names)): (
            row[COUNT],
            row[ARRIVAL],
        )
        for row in snapshot.scan().to_pylist()
    }


def run(seed: int, folder: Path, batches: int, *, sequence: bool) -> None:
    rng = random.Random(seed)
    form = KeptRows(SCHEMA, ("k",), ("value",) if sequence else ())
    table = Table.create(
        folder / f"hidden-{seed}-{sequence}", form.table_schema(), {"bucket": "2", "bucket-key": "c2"}
    )
    model, sink = Model(), dict[str, Values]()
    for batch, changes in enumerate(history(rng, batches)):
        model.apply(changes, batch)
        written = step(table, form, changes, batch)
        assert written.column_names == [*SCHEMA.names, ROW_KIND_COLUMN]
        for row in written.to_pylist():
            kind = row.pop(ROW_KIND_COLUMN)
            values = tuple(tuple(v) if isinstance(v, list) else v for v in row.values())
            if kind == "-D":
                assert sink.pop(values[1]) == values, seed  # the last row that there was
            else:
                assert sink.get(values[1]) != values, seed  # nothing is written that is there
                sink[values[1]] = values
        assert kept(table.snapshot(), form) == model.entries, seed
        wanted = model.newest(sequence)
        # tags are compared by an identity of their own: of rows that differ in them alone either is right
        assert {k: row[:3] for k, row in sink.items()} == {k: row[:3] for k, row in wanted.items()}, seed


@pytest.mark.parametrize("sequence", [False, True])
def test_the_newest_row_that_is_left_is_written(tmp_path: Path, sequence: bool) -> None:
    for seed in range(4):
        run(seed, tmp_path, 12, sequence=sequence)


@pytest.mark.long
@pytest.mark.minutes
@pytest.mark.parametrize("sequence", [False, True])
def test_the_newest_row_is_written_in_many_histories(tmp_path: Path, sequence: bool) -> None:
    for seed in range(100, 200):
        run(seed, tmp_path, 30, sequence=sequence)


def test_a_row_that_does_not_fit_is_told_by_the_sink_s_names() -> None:
    form = KeptRows(SCHEMA, ("k",))
    with pytest.raises(SchemaError, match="table 's': PRIMARY KEY column 'k' must not be NULL"):
        form.conformed(table_of([(1, None, 1.0, None)], form), "table 's'")


def test_columns_are_kept_by_their_ids() -> None:
    """A column that is renamed is the same, and no name is taken."""
    form = KeptRows(SCHEMA, ("k",))
    assert form.table_schema().names == ("c4", "c2", "c3", "c7", IDENTITY, COUNT, ARRIVAL)
    assert form.table_schema().primary_key == ("c2", IDENTITY)


@pytest.mark.parametrize(
    ("columns", "key", "found"),
    [
        (SCHEMA.columns[1:], ("k",), "fewer columns, of which one was dropped meanwhile"),
        ((*SCHEMA.columns, Column("n", pa.int8(), id=8)), ("k",), "column 'n', which was added meanwhile"),
        (
            (SCHEMA.columns[0], SCHEMA.columns[1], Column("value", pa.float32(), id=3), SCHEMA.columns[3]),
            ("k",),
            "column 'value' of type FLOAT, which was DOUBLE",
        ),
        (SCHEMA.columns, ("k", "count"), "another PRIMARY KEY"),
        (SCHEMA.columns[::-1], ("k",), "them in another order, which ALTER COLUMN … AFTER takes back"),
    ],
)
def test_a_sink_whose_columns_have_changed_is_refused_by_what_has(
    tmp_path: Path, columns: tuple[Column, ...], key: tuple[str, ...], found: str
) -> None:
    HiddenTable("table 's'", str(tmp_path), KeptRows(SCHEMA, ("k",)), 1, ("k",)).opened("query", 0)
    renamed = tuple(replace(column, name=column.name + "_") for column in SCHEMA.columns)
    same = KeptRows(TableSchema(renamed, ("k_",)), ("k_",))
    HiddenTable("table 's'", str(tmp_path), same, 1, ("k_",)).opened("query", 1)
    other = HiddenTable("table 's'", str(tmp_path), KeptRows(TableSchema(columns, key), key), 1, key)
    with pytest.raises(ConfigurationError, match=f", got {found}; begin with a new checkpoint and an empty"):
        other.opened("query", 1)


def test_a_micro_batch_goes_on_from_the_rows_as_they_were_before_it(tmp_path: Path) -> None:
    """Also when it is repeated; and it is refused where they are not there, or no longer."""
    form = KeptRows(SCHEMA, ("k",))
    hidden = HiddenTable("table 's'", str(tmp_path), form, 1, ("k",))
    with pytest.raises(MissingStateError, match=r"since micro-batch 0, got none in .* at micro-batch 1"):
        hidden.opened("query", 1)
    table = hidden.opened("query", 0)
    for number, batch in enumerate((0, 2, 3)):  # one without rows is no commit
        rows, weights = form.conformed(table_of([(batch, "a", 1.0, None)], form), "table 's'")
        entries = form.entries(table.snapshot(), rows, weights, batch)
        assert hidden.base(table, "query", batch).id == number
        table.commit([table.stage_raw(entries)], writer_id="query", transaction=batch)
        assert hidden.base(table, "query", batch).id == number
    with pytest.raises(MissingStateError, match=r"micro-batch 2 must find .*, got those of micro-batch 3;"):
        hidden.base(table, "query", 2)
    table.expire(keep=1)
    assert hidden.base(table, "query", 4).data_version == 3
    with pytest.raises(MissingStateError, match=r"micro-batch 3 must find .*, got none that are older;"):
        hidden.base(table, "query", 3)


def test_whole_keys_ends_where_a_key_ends() -> None:
    rng = random.Random(3)
    keys = sorted((rng.choice("abc"), rng.randrange(4)) for _ in range(200))
    batches, rest = [], keys
    while rest:
        size = rng.randrange(1, 20)
        part, rest = rest[:size], rest[size:]
        batches.append(pa.record_batch({"a": [a for a, _ in part], "b": [b for _, b in part]}))
    pieces = [
        list(zip(piece["a"].to_pylist(), piece["b"].to_pylist(), strict=True))
        for piece in whole_keys(batches, ("a", "b"), most_rows=30)
    ]
    assert [key for piece in pieces for key in piece] == keys
    assert len(pieces) > 3
    assert all(one[-1] != other[0] for one, other in pairwise(pieces))
