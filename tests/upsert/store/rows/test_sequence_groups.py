"""Columns of ``partial-update`` that follow a sequence of their own, beside a plain Python fold."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from upsert.errors import ChangelogError, ConfigurationError, SchemaError
from upsert.schema import TableSchema
from upsert.store import Table
from upsert.store.alterations import DropColumn, RenameColumn, SetOptions

COLUMNS = {"id": pa.int64(), "plain": pa.string(), "g": pa.int64(), "h": pa.string(), "a": pa.string()}
SCHEMA = TableSchema.of({**COLUMNS, "b": pa.int64()}, primary_key=["id"])
GROUP = {"write-only": "true", "merge-engine": "partial-update", "fields.g,h.sequence-group": "a,b"}
Row = dict[str, Any]

ROWS = st.fixed_dictionaries(
    {
        "id": st.integers(0, 2),
        "plain": st.sampled_from([None, "p", "q"]),
        "g": st.sampled_from([None, 1, 2]),
        "h": st.sampled_from([None, "x"]),
        "a": st.sampled_from([None, "v", "w"]),
        "b": st.sampled_from([None, 5]),
    }
)


def arrow(rows: list[Row]) -> pa.Table:
    return pa.table({c.name: pa.array([row.get(c.name) for row in rows], c.type) for c in SCHEMA.columns})


def rank(row: Row) -> tuple[Any, ...]:
    return tuple(item for name in ("g", "h") for item in (row[name] is not None, row[name] or 0))


def fold(model: dict[int, Row], row: Row) -> None:
    there = model.setdefault(row["id"], dict.fromkeys(row) | {"id": row["id"]})
    if row["plain"] is not None:
        there["plain"] = row["plain"]
    if (row["g"], row["h"]) != (None, None) and rank(row) >= rank(there):
        there.update({name: row[name] for name in ("g", "h", "a", "b")})


@settings(max_examples=15)
@given(st.lists(st.lists(ROWS, min_size=1, max_size=5), min_size=1, max_size=4))
def test_group_comes_from_the_row_that_is_highest_in_its_sequence(commits: list[list[Row]]) -> None:
    with TemporaryDirectory() as folder:
        table = Table.create(folder + "/t", SCHEMA, GROUP)
        model: dict[int, Row] = {}
        for commit in commits:
            table.write(arrow(commit))
            for row in commit:
                fold(model, row)
        assert {row["id"]: row for row in table.snapshot().scan().to_pylist()} == model


def fold_functions(model: dict[int, Row], commit: list[Row], function: str) -> None:
    """``b`` is a sum, and ``a`` by ``function``, of the rows that have a sequence."""
    for key in {row["id"] for row in commit}:
        there = model.setdefault(key, dict.fromkeys(COLUMNS | {"b": None}) | {"id": key})
        rows = [row for row in commit if row["id"] == key]
        there["plain"] = ([there["plain"]] + [row["plain"] for row in rows if row["plain"]])[-1]
        new = sorted((row for row in rows if (row["g"], row["h"]) != (None, None)), key=rank)
        if new:
            in_order = sorted([there, *new], key=rank)
            texts = [row["a"] for row in ([there, *new] if function == "listagg" else in_order) if row["a"]]
            amounts = [row["b"] for row in (there, *new) if row["b"] is not None]
            there |= {"a": ",".join(texts) if function == "listagg" else texts[-1]} if texts else {}
            there |= {"b": sum(amounts) if amounts else None}
            there |= {name: in_order[-1][name] for name in ("g", "h")}


@settings(max_examples=15)
@given(
    st.lists(st.lists(ROWS, min_size=1, max_size=5), min_size=1, max_size=4),
    st.sampled_from(["listagg", "last_non_null_value"]),
)
def test_function_takes_all_rows_in_the_order_of_its_group(commits: list[list[Row]], function: str) -> None:
    with TemporaryDirectory() as folder:
        functions = {"fields.default-aggregate-function": "sum", "fields.a.aggregate-function": function}
        functions |= {"fields.plain.aggregate-function": "last_non_null_value"}
        table = Table.create(folder + "/t", SCHEMA, GROUP | functions)
        model: dict[int, Row] = {}
        for commit in commits:
            table.write(arrow(commit))
            fold_functions(model, commit, function)
        assert {row["id"]: row for row in table.snapshot().scan().to_pylist()} == model


def test_function_without_an_order_needs_one_only_within_a_sequence(tmp_path: Path) -> None:
    functions = {"fields.a.aggregate-function": "listagg", "fields.b.aggregate-function": "sum"}
    table = Table.create(tmp_path / "t", SCHEMA, GROUP | functions)
    rows = [{"id": 1, "g": g, "a": a, "b": 2} for g, a in ((2, "v"), (1, "w"), (2, "v"), (None, "no"))]
    table.commit([table.stage_raw(arrow(rows))])
    assert table.snapshot().scan().select(["g", "a", "b"]).to_pylist() == [{"g": 2, "a": "w,v,v", "b": 6}]
    same = arrow([{"id": 1, "g": 3, "a": "v"}, {"id": 1, "g": 3, "a": "w"}])
    with pytest.raises(ChangelogError, match="must give column 'a' one value"):
        table.commit([table.stage_raw(same)])


@pytest.mark.parametrize("function", ["sum", "first_value", "last_value"])
def test_group_that_comes_later_keeps_the_values_of_older_rows(tmp_path: Path, function: str) -> None:
    options = {"merge-engine": "partial-update", "fields.b.aggregate-function": function}
    table = Table.create(tmp_path / "t", SCHEMA, options)
    table.write(arrow([{"id": 1, "b": 5}, {"id": 2}]))
    table.alter(SetOptions({"fields.g.sequence-group": "b"}))
    found = []
    for rows in ([{"id": 1, "a": "v"}, {"id": 2}], [{"id": 1, "g": 1, "b": 2}, {"id": 2, "g": 1, "b": 2}]):
        table.write(arrow(rows))
        found.append(table.snapshot().scan().sort_by("id")["b"].to_pylist())
    assert found == [[5, None], [{"sum": 7, "first_value": 5, "last_value": 2}[function], 2]]


def test_sums_take_rows_back_whatever_orders_them(tmp_path: Path) -> None:
    schema = TableSchema.of({name: pa.int64() for name in ("id", "g", "b")}, ["id"])
    options = {"merge-engine": "partial-update", "fields.g.sequence-group": "b"}
    table = Table.create(tmp_path / "t", schema, options | {"fields.b.aggregate-function": "sum"})
    table.write(pa.table({"id": [1, 1, 1], "g": [1, 1, 2], "b": [5, 5, 6], "_row_kind": ["+I", "-U", "+U"]}))
    assert table.snapshot().scan().to_pylist() == [{"id": 1, "g": 2, "b": 6}]


def test_rows_without_an_order_need_none_where_their_sequences_differ(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", SCHEMA, GROUP)
    table.commit([table.stage_raw(arrow([{"id": 1, "g": 2, "a": "v"}, {"id": 1, "g": 1, "a": "w"}]))])
    assert table.snapshot().scan()["a"].to_pylist() == ["v"]
    same = arrow([{"id": 1, "g": 3, "a": "v"}, {"id": 1, "g": 3, "a": "w"}])
    with pytest.raises(ChangelogError, match=r"columns of 'fields\.g,h\.sequence-group' one value"):
        table.commit([table.stage_raw(same)])


def test_group_follows_renamed_and_dropped_columns(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", SCHEMA, GROUP)
    with pytest.raises(SchemaError, match=r"'fields\.g,h\.sequence-group' needs it"):
        table.alter(DropColumn("g"))
    table.alter(RenameColumn("g", "at"), RenameColumn("a", "first"), DropColumn("b"))
    (group,) = table.options.merge.groups
    assert (group.sequence, group.columns) == (("at", "h"), ("first",))
    table.alter(DropColumn("first"))
    assert table.options.merge.groups == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"merge-engine": "deduplicate"}, "needs 'merge-engine' = 'partial-update', got 'deduplicate'"),
        ({"fields.plain.sequence-group": "a"}, "must name columns of no other group, got 'a'"),
        (
            {"fields.plain.sequence-group": "nope"},
            "outside of the primary key and of 'sequence.field', got 'nope'",
        ),
        ({"fields.plain.sequence-group": "id"}, "got 'id'"),
        ({"sequence.field": "a"}, "got 'a'"),
        ({"fields.plain.sequence-group": ""}, "must be"),
        ({"fields.g.aggregate-function": "max"}, "another column than those of .* and of a sequence group"),
        (
            {"fields.default-aggregate-function": "sum"},
            r"'fields\.default-aggregate-function' = 'sum' needs columns that are a number, got 'plain'",
        ),
    ],
)
def test_group_that_cannot_be_is_refused(tmp_path: Path, options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Table.create(tmp_path / "t", SCHEMA, GROUP | options)
