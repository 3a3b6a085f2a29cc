"""-0.0 and NaN: equal as a key, kept as a value; in tables, their changes, joins, aggregates and folding."""

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from deltajoin import DeltaJoinSpec, Side
from deltajoin.aggregate.evaluate import computed, differences, output_schema, touched_groups
from deltajoin.aggregate.spec import DeltaAggregateSpec, Measure
from deltajoin.core.consolidate import consolidate_batches, consolidate_changes
from deltajoin.core.rows import Changes
from deltajoin.enrichment import Enrichment, InTable
from deltajoin.spark.consolidate import consolidate_rows
from deltajoin.spec import JoinedTable
from deltajoin.tree import Inner, Leaf, Ref
from tests.deltajoin.spark.steps import FORMS, Steps
from upsert.schema import TableSchema
from upsert.store import Table
from upsert.store.rows.codes import codes_of_keys, codes_of_rows
from upsert.store.rows.keys import as_key, as_values, same_keys, same_values

DOUBLE, FLOAT = pa.float64(), pa.float32()
NAN = float(np.array([0xFFF8_0000_0000_0001], np.uint64).view(np.float64)[0])
"""A NaN of other bits than `math.nan`."""
TYPES: dict[str, tuple[pa.DataType, Callable[[float | None], Any]]] = {
    "double": (DOUBLE, lambda x: x),
    "float": (FLOAT, lambda x: x),
    "struct": (pa.struct([("x", DOUBLE)]), lambda x: {"x": x}),
    "array": (pa.list_(FLOAT), lambda x: [x, None]),
    "map": (pa.map_(pa.string(), DOUBLE), lambda x: [("x", x)]),
    "deep": (pa.list_(pa.struct([("m", pa.map_(pa.int64(), FLOAT))])), lambda x: [{"m": [(1, x)]}]),
}


@pytest.mark.parametrize("name", TYPES)
def test_zeros_are_one_key_and_two_values(name: str) -> None:
    """Also in parts of an array, and below NULLs."""
    type_, value = TYPES[name]
    rows = [None, *map(value, (0.0, -0.0, math.nan, NAN, 1.5, -1.5, None))]
    array = pa.array([value(9.0), *rows], type_)[1:]
    key = as_key(array)
    assert repr(key.to_pylist()) == repr([*map(_without_sign, array.to_pylist())])
    assert codes_of_keys([array]).tolist()[:7] == [0, 1, 1, 2, 2, 3, 4]
    assert codes_of_rows(pa.table({"v": array})).tolist()[:7] == [0, 1, 2, 3, 3, 4, 5]
    turned = array.take(pa.array([2, 1, 4, 3, 5]))
    assert same_keys(array[1:6], turned).all()
    assert same_values(array[1:6], turned).tolist() == [False, False, True, True, True]
    assert len(as_values(array[:0])) == 0


def _without_sign(value: Any) -> Any:
    if isinstance(value, float):
        return value + 0.0
    if isinstance(value, dict):
        return {name: _without_sign(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_without_sign, value))
    return value


def doubles(*values: float) -> pa.Array:
    return pa.array(values, DOUBLE)


def texts(rows: pa.Table) -> list[str]:
    """Rows as texts, in which -0.0 shows."""
    return sorted(repr(tuple(row.values())) for row in rows.to_pylist())


def test_a_primary_key_and_an_index_know_one_zero(tmp_path: Path) -> None:
    schema = TableSchema.of({"k": DOUBLE, "x": DOUBLE}, ["k"]).index("x")
    table = Table.create(tmp_path / "t", schema)
    table.write(pa.table({"k": doubles(-0.0, NAN), "x": doubles(-0.0, 0.0)}))
    table.write(pa.table({"k": doubles(0.0, math.nan), "x": doubles(0.0, -0.0)}))
    snapshot = table.snapshot()
    assert texts(snapshot.scan()) == ["(0.0, 0.0)", "(nan, -0.0)"]
    for zero in (0.0, -0.0):
        assert snapshot.lookup(["k"], pa.table({"k": doubles(zero)})).num_rows == 1
        assert texts(snapshot.lookup(["x"], pa.table({"x": doubles(zero)}))) == texts(snapshot.scan())
        assert texts(snapshot.scan(where=[("x", "=", zero)])) == texts(snapshot.scan())


def test_an_update_of_a_zero_is_a_change(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", TableSchema.of({"k": pa.int64(), "x": DOUBLE}, ["k"]))
    table.write(pa.table({"k": [1, 2], "x": doubles(0.0, NAN)}))
    first = table.snapshot()
    table.write(pa.table({"k": [1, 2], "x": doubles(-0.0, math.nan)}))
    assert texts(table.changes(first.id, table.snapshot().id)) == ["(1, -0.0, '+U')", "(1, 0.0, '-U')"]


def test_whole_rows_are_the_key_of_a_table_without_one(tmp_path: Path) -> None:
    nested = pa.struct([pa.field("y", FLOAT, nullable=False)])
    table = Table.create(tmp_path / "t", TableSchema.of({"x": DOUBLE, "s": nested}))
    rows = {"x": doubles(-0.0, 0.0), "s": pa.array([{"y": -0.0}, {"y": 0.0}], nested)}
    table.write(pa.table(rows))
    assert texts(table.snapshot().scan()) == ["(0.0, {'y': 0.0})"] * 2
    table.write(pa.table({**rows, "_row_kind": ["-D", "-D"]}))
    assert table.snapshot().scan().num_rows == 0


def test_a_partition_knows_one_zero(tmp_path: Path) -> None:
    schema = TableSchema.of({"k": pa.int64(), "x": DOUBLE}, ["k", "x"], partitioned_by=["x"])
    table = Table.create(tmp_path / "t", schema)
    table.write(pa.table({"k": [1, 2], "x": doubles(-0.0, 0.0)}))
    assert texts(table.snapshot().scan()) == ["(1, 0.0)", "(2, 0.0)"]
    assert len(table.partitions()) == 1


SIGNED = pa.table({"x": doubles(0.0, -0.0, NAN, math.nan), "_row_kind": ["-U", "+U", "-U", "+U"]})
LEFT = ["(-0.0, '+U')", "(0.0, '-U')"]


def test_what_cancels_is_the_same_value() -> None:
    assert texts(consolidate_changes(Changes(SIGNED)).rows) == LEFT
    assert texts(pa.Table.from_batches(consolidate_batches(SIGNED.to_batches()))) == LEFT
    joined = SIGNED.rename_columns(["c0", "_kind_0"]).to_batches()
    assert texts(pa.Table.from_batches(consolidate_rows(joined))) == ["(-0.0, '+I')", "(0.0, '-D')"]


def test_a_batch_folds_to_the_newest_zero(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", TableSchema.of({"k": pa.int64(), "x": DOUBLE}, ["k"]))
    table.write(pa.table({"k": [1], "x": doubles(0.0)}))
    staged = table.stage(
        pa.table({"k": [1, 1], "x": doubles(0.0, -0.0), "_row_kind": ["-U", "+U"]}), order="none"
    )
    table.commit([staged])
    assert texts(table.snapshot().scan()) == ["(1, -0.0)"]


@pytest.mark.parametrize("form", FORMS)
def test_joins_keep_zeros(tmp_path: Path, form: str) -> None:
    """By a key that is a zero, and in columns that are none; what was emitted adds up to the tables' rows."""
    schema = TableSchema.of({"id": pa.int64(), "x": DOUBLE, "v": DOUBLE}, ["id"]).index("x")
    a = Table.create(tmp_path / "a", schema)
    b = Table.create(tmp_path / "b", TableSchema.of({"y": DOUBLE, "w": DOUBLE}, ["y"]))
    sides = Side(a.path, ("id", "x", "v"), ("x",)), Side(b.path, ("y", "w"), ("y",))
    steps = Steps(DeltaJoinSpec.of("left", *sides), form=form)
    result: Counter[str] = Counter()
    for table, rows in (
        (a, {"id": [1, 2, 3], "x": doubles(-0.0, 0.0, NAN), "v": doubles(-0.0, 0.0, -0.0)}),
        (b, {"y": doubles(-0.0, math.nan), "w": doubles(-0.0, 0.0)}),
        (a, {"id": [1, 2], "x": doubles(0.0, -0.0), "v": doubles(0.0, -0.0)}),
        (b, {"y": doubles(0.0), "w": doubles(0.0)}),
    ):
        table.write(pa.table(rows))
        for *row, kind in (row for micro_batch in steps for row in micro_batch):
            result[repr(row)] += 1 if kind[0] == "+" else -1
    assert {row: count for row, count in result.items() if count} == {
        "[1, 0.0, 0.0, 0.0, 0.0]": 1,
        "[2, -0.0, -0.0, 0.0, 0.0]": 1,
        "[3, nan, -0.0, nan, 0.0]": 1,
    }


@pytest.mark.parametrize("form", FORMS)
def test_a_zero_of_another_sign_that_does_not_come_out_is_no_change(tmp_path: Path, form: str) -> None:
    """Of two columns that are joined one does not follow from the other."""
    schema = TableSchema.of({"id": pa.int64(), "x": DOUBLE}, ["id"]).index("x")
    a, b = (Table.create(tmp_path / name, schema) for name in "ab")
    tables = JoinedTable(a.path, ("id", "x")), JoinedTable(b.path, ("id", "x"), emit=("id",))
    spec = DeltaJoinSpec(tables, Inner((Leaf(0), Leaf(1)), ((Ref(0, "x"), Ref(1, "x")),)))
    steps = Steps(spec, form=form)
    for table in (a, b):
        table.write(pa.table({"id": [1], "x": doubles(0.0)}))
    assert [tuple(row) for micro_batch in steps for row in micro_batch] == [(1, 0.0, 1, "+I")]
    b.write(pa.table({"id": [1], "x": doubles(-0.0)}))
    assert [row for micro_batch in steps for row in micro_batch] == []


def test_a_dimension_join_keeps_zeros(tmp_path: Path) -> None:
    b = Table.create(tmp_path / "b", TableSchema.of({"y": DOUBLE, "w": DOUBLE}, ["y"]))
    b.write(pa.table({"y": doubles(0.0), "w": doubles(-0.0)}))
    enrichment = Enrichment(InTable(b.path, b.uuid), (("x", "y"),), ("w",), "inner")
    found = enrichment(pa.table({"x": doubles(-0.0, 0.0)}).to_batches())
    assert texts(pa.Table.from_batches(found)) == ["(-0.0, -0.0)", "(0.0, -0.0)"]


@pytest.mark.parametrize(
    ("function", "result"),
    [
        ("max", "0.0"),
        ("min", "-0.0"),
        ("collect_set", "[0.0]"),
        ("collect_list", "[-0.0, 0.0]"),
        ("count", "1"),
        ("sum", "0.0"),
        ("max_by", "0.0"),
        ("min_by", "-0.0"),
    ],
)
def test_aggregates_of_zeros(function: str, result: str) -> None:
    """Functions of the rows, in whatever order these are; a set is of keys."""
    columns = ("x", "x") if function.endswith("_by") else ("x",)
    measure = Measure(function, columns, is_distinct=function in ("count", "sum"))
    for zeros in (doubles(0.0, -0.0), doubles(-0.0, 0.0)):
        found = computed(measure, pa.table({"x": zeros}), np.zeros(2, np.int64), 1)
        assert repr(found[0].as_py()) == result


def test_groups_come_out_as_one_zero() -> None:
    schema = TableSchema.of({"x": DOUBLE, "v": DOUBLE})
    spec = DeltaAggregateSpec("t", ("x",), (Measure("max", ("v",)),))
    old = pa.table({"x": doubles(-0.0), "v": doubles(0.0)})
    new = pa.table({"x": doubles(-0.0), "v": doubles(-0.0)})
    keys = touched_groups(spec, pa.concat_tables([old, new]))
    found = differences(spec, output_schema(spec, schema), keys, lambda _: old, lambda _: new)
    assert texts(pa.Table.from_batches(found)) == ["(0.0, -0.0, '+U')", "(0.0, 0.0, '-U')"]


@pytest.mark.parametrize(
    ("function", "ties"),
    [("max_by", {"h": 5, "x": math.nan}), ("min_by", {"h": None, "x": -math.inf})],
)
def test_of_rows_that_tie_the_value_decides(function: str, ties: dict[str, Any]) -> None:
    """As `max(struct(by, value))` and `min(struct(by, value))` have it: NULL is least, NaN greatest."""
    rows = pa.table(
        {"h": [3, None, 5, 9], "x": doubles(1.0, -math.inf, math.nan, 2.0), "by": [7, 7, 7, None]}
    )
    for order in ([0, 1, 2, 3], [3, 2, 1, 0], [1, 2, 0, 3]):
        for column, wanted in ties.items():
            shuffled = rows.take(pa.array(order))
            found = computed(Measure(function, (column, "by")), shuffled, np.zeros(4, np.int64), 1)
            assert repr(found[0].as_py()) == repr(wanted)
