"""Sequences and merge engines beside a plain Python fold, over random commits, races and crashes."""

import json
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.upsert.store.disk import KILLED, assert_nothing_is_left_over, files_on_disk, finish, run, start
from upsert.errors import ChangelogError, ConfigurationError, SchemaError
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.schema import Column, TableSchema
from upsert.store import Table
from upsert.store.alterations import AddColumn, ResetOptions, SetOptions
from upsert.store.checksums import FORMAT_OF_FUNCTIONS, FORMAT_VERSION
from upsert.store.commit import append
from upsert.store.commit.committer import Committer, Environment
from upsert.store.rows import aggregate_functions
from upsert.store.rows.partitions import Overwrite
from upsert.store.storage import put_if_absent

Row = dict[str, Any]
EXAMPLES = max(10, settings.default.max_examples // 2)


def arrow(table: Table, rows: Sequence[Row], kinds: Sequence[str] | None = None) -> pa.Table:
    columns = {c.name: pa.array([row.get(c.name) for row in rows], c.type) for c in table.schema.columns}
    if kinds is not None:
        columns[ROW_KIND_COLUMN] = pa.array(list(kinds), pa.string())
    return pa.table(columns)


def contents(table: Table) -> dict[Any, Row]:
    return {row["id"]: row for row in table.snapshot().scan().to_pylist()}


def followed(table: Table, since: int, before: Mapping[Any, Row]) -> dict[Any, Row]:
    """The rows that a reader of changes has, who had ``before``; each -U and -D must be what it had."""
    now = dict(before)
    for row in table.changes(since).to_pylist():
        kind = row.pop(ROW_KIND_COLUMN)
        if kind in ("-U", "-D"):
            assert now.pop(row["id"]) == row
        else:
            assert row["id"] not in now
            now[row["id"]] = row
    return now


def check_lives(
    table: Table, commits: Sequence[Sequence[Row]], expected: Callable[[], dict[Any, Row]]
) -> None:
    """All ways to read say what is expected, at the end and from the middle on."""
    assert contents(table) == expected()
    found = table.snapshot().lookup(["id"], pa.table({"id": list(range(4))})).to_pylist()
    assert {row["id"]: row for row in found} == expected()
    assert table.check(deep=True) == ()
    middle = len(commits) // 2
    assert (
        followed(table, middle, {r["id"]: r for r in table.snapshot(middle).scan().to_pylist()}) == expected()
    )


SEQUENCED = TableSchema.of(
    {"id": pa.int64(), "s": pa.int64(), "t": pa.string(), "v": pa.int64()}, primary_key=["id"]
)
LAZY = {"write-only": "true"}
sequenced_rows = st.lists(
    st.fixed_dictionaries(
        {
            "id": st.integers(0, 3),
            "s": st.sampled_from([None, 1, 2, 3]),
            "t": st.sampled_from([None, "", "a", "b"]),
            "kind": st.sampled_from(["+U", "+U", "-D"]),
        }
    ),
    min_size=1,
    max_size=6,
)


def rank(row: Row, columns: Sequence[str]) -> tuple[Any, ...]:
    return tuple((row[name] is not None, row[name] or ("" if name == "t" else 0)) for name in columns)


@settings(max_examples=EXAMPLES)
@given(
    st.lists(sequenced_rows, min_size=1, max_size=5), st.sampled_from([("s",), ("t",), ("s", "t")]), st.data()
)
def test_of_each_key_the_highest_sequence_wins_whenever_it_came(commits, columns, data) -> None:
    with TemporaryDirectory() as folder:
        table = Table.create(
            folder + "/t", SEQUENCED, LAZY | {"sequence.field": ",".join(columns), "bucket": "2"}
        )
        model: dict[Any, tuple[Row, str]] = {}
        for number, commit in enumerate(commits):
            rows = [{**row, "v": 10 * number + place} for place, row in enumerate(commit)]
            table.write(arrow(table, rows, [row["kind"] for row in rows]), writer_id="w", transaction=number)
            for row in rows:
                there = model.get(row["id"])
                if there is None or rank(row, columns) >= rank(there[0], columns):
                    model[row["id"]] = row, row["kind"]
        plain = {key: row for key, (row, kind) in model.items() if kind != "-D"}
        expected = {key: {name: row[name] for name in ("id", "s", "t", "v")} for key, row in plain.items()}
        check_lives(table, commits, lambda: expected)
        table.compact()
        assert contents(table) == expected
        table.write(arrow(table, [{"id": key, "s": None, "t": None, "v": -1} for key in model], None))
        late = {
            key
            for key, (row, _) in model.items()
            if rank(row, columns) > rank({"s": None, "t": None}, columns)
        }
        assert {key: row for key, row in contents(table).items() if key in late} == {
            key: row for key, row in expected.items() if key in late
        }, "a deleted key is remembered after compaction"


def test_without_an_order_the_sequence_decides_and_equal_rows_of_opposite_sign_cancel(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", SEQUENCED, {"sequence.field": "s"})
    rows = [{"id": 1, "s": s, "t": "x", "v": v} for s, v in [(1, 1), (1, 1), (2, 2), (2, 2), (3, 3), (2, 9)]]
    parts = [arrow(table, rows[:3], ["+I", "-U", "+U"]), arrow(table, rows[3:], ["-U", "+U", "+U"])]
    table.commit([table.stage_raw(part) for part in parts])
    assert contents(table)[1]["v"] == 3
    table.commit([table.stage(arrow(table, [{"id": 1, "s": 4, "v": v} for v in (5, 6)]), order="none")])
    assert contents(table)[1]["v"] == 6, "of one sequence the last to arrive"


def test_a_deletion_takes_the_row_of_its_own_sequence_and_no_higher_one(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", SEQUENCED, {"sequence.field": "s"})
    table.write(arrow(table, [{"id": n, "s": 5} for n in range(3)]))
    deletions = [{"id": 0, "s": 4}, {"id": 1, "s": 5}, {"id": 2, "s": None}]
    table.write(arrow(table, deletions, ["-D"] * 3))
    assert sorted(contents(table)) == [0, 2]
    table.delete([("id", "=", 0)])
    table.compact()
    table.write(arrow(table, [{"id": 0, "s": 4}]))
    assert sorted(contents(table)) == [2]
    assert table.compact() is None or table.compact() is None, "remembered deletions are no work left"


COUNTED = {"bucket": "1", "sequence.field": "s", "num-sorted-run.compaction-trigger": "3"}


def race(path: str, process: int) -> None:
    table = Table.open(path)
    for number in range(15):
        sequence = (7 * number + 5 * process) % 60
        row = {"id": number % 3, "s": sequence, "t": "x", "v": process}
        table.write(arrow(table, [row]), writer_id=str(process), transaction=number)


def test_the_highest_of_four_processes_wins(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", SEQUENCED, COUNTED)
    assert finish([start(partial(race, table.path, process)) for process in range(4)]) == [0] * 4
    best: dict[int, int] = {}
    for process in range(4):
        for number in range(15):
            best[number % 3] = max(best.get(number % 3, 0), (7 * number + 5 * process) % 60)
    assert {key: row["s"] for key, row in contents(table).items()} == best
    table.clean(older_than_s=0)
    table.expire(keep=1)
    assert_nothing_is_left_over(table)


def slowed(table: Table, rivals: list[Callable[[Table], object]]) -> Table:
    """The table for a writer before each of whose publications a rival commits."""

    def publish(path: str, content: bytes) -> bool:
        if rivals:
            rivals.pop(0)(Table.open(table.path))
        return put_if_absent(path, content)

    slow = Table.open(table.path)
    slow._committer = Committer(slow.published, Environment(put_if_absent=publish))
    return slow


def test_what_lost_a_race_is_combined_with_what_won_it(tmp_path: Path) -> None:
    schema = TableSchema.of({"id": pa.int64(), "n": pa.int64()}, primary_key=["id"])
    table = Table.create(
        tmp_path / "t", schema, LAZY | {"merge-engine": "aggregation", "fields.n.aggregate-function": "sum"}
    )
    add = partial(arrow, table, [{"id": 1, "n": 1}])
    slow = slowed(table, [lambda rival: rival.write(add()), lambda rival: rival.compact()])
    slow.write(arrow(table, [{"id": 1, "n": 10}]), writer_id="w", transaction=0)
    slow.write(arrow(table, [{"id": 1, "n": 10}]), writer_id="w", transaction=0)
    assert contents(table) == {1: {"id": 1, "n": 11}}
    assert len([name for name in files_on_disk(table) if "bucket" in name and "index" not in name]) == 2
    table.clean(older_than_s=0)
    assert_nothing_is_left_over(table)


def test_a_race_about_another_bucket_needs_no_second_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = TableSchema.of({"id": pa.int64(), "n": pa.int64()}, primary_key=["id"])
    table = Table.create(tmp_path / "t", schema, LAZY | {"merge-engine": "partial-update", "bucket": "2"})
    buckets = table.layout.buckets_of(pa.table({"id": list(range(9))}))
    here, there = buckets.tolist().index(0), buckets.tolist().index(1)
    looks: list[int] = []
    find = append.find_stored
    monkeypatch.setattr(append, "find_stored", lambda *a: looks.append(1) or find(*a))
    slow = slowed(table, [lambda rival: rival.write(arrow(table, [{"id": there, "n": 1}]))])
    slow.write(arrow(table, [{"id": here, "n": 1}]))
    assert len(looks) == 2, "one by each of the two writers"


FUNCTIONS = {
    "n": "sum", "f": "sum", "d": "sum", "c": "count", "lo": "min", "hi": "max", "w": "max",
    "last": "last_value", "known": "last_non_null_value", "first": "first_value", "every": "bool_and",
    "some": "bool_or", "all": "listagg", "once": "first_non_null_value", "kept": "collect", "tags": "collect",
    "facts": "merge_map",
}  # fmt: skip
TYPES = {
    "n": pa.int64(), "f": pa.float64(), "d": pa.decimal128(10, 2), "c": pa.int64(), "lo": pa.string(),
    "hi": pa.int32(), "w": pa.float64(), "last": pa.int64(), "known": pa.list_(pa.int64()),
    "first": pa.string(), "every": pa.bool_(), "some": pa.bool_(), "all": pa.string(),
    "once": pa.list_(pa.string()), "kept": pa.list_(pa.int32()),
    "tags": pa.list_(pa.struct([("a", pa.float64()), ("b", pa.string())])),
    "facts": pa.map_(pa.string(), pa.list_(pa.int64())),
}  # fmt: skip
VALUES: dict[str, list[Any]] = {
    "n": [0, 1, -5, 2**40], "f": [0.5, -2.0], "d": [Decimal("1.25"), Decimal("-3.50")], "c": [1, 7],
    "lo": ["", "a", "é", "b"], "hi": [-5, 0, 7], "w": [1.0, -math.inf, 2.5], "last": [1, 2],
    "known": [[], [1, None], [2]], "first": ["x", "y"], "every": [True, False], "some": [True, False],
    "all": ["p", "", "q"], "once": [["x"], []], "kept": [[], [1, None], [2, 1]],
    "tags": [[], [{"a": 0.5, "b": "x"}, None], [{"a": None, "b": ""}, {"a": 0.5, "b": "x"}]],
    "facts": [[], [("x", [1]), ("y", None)], [("y", [2])], [("x", [3, None])]],
}  # fmt: skip


def distinct(old: list[Any], new: list[Any]) -> list[Any]:
    found: list[Any] = []
    for value in (*old, *new):
        found += [value] * (value not in found)
    return found


def fold_aggregates(there: Row | None, row: Row, is_late: bool) -> Row:
    """One more row of a key; a late one counts before the stored one where the order matters."""
    old = there or dict.fromkeys(FUNCTIONS)
    new: Row = {"id": row["id"], "s": row["s"]}
    if is_late:
        new["s"] = old["s"]
    for name, function in FUNCTIONS.items():
        a, b = old[name], row[name]
        if function == "count":
            new[name] = (a or 0) + (b is not None)
        elif function == "last_value":
            new[name] = a if is_late else b
        elif function == "first_value":
            new[name] = b if there is None else a
        elif function == "first_non_null_value":
            new[name] = b if a is None else a
        elif function == "last_non_null_value":
            new[name] = a if b is None or (is_late and a is not None) else b
        elif a is None or b is None:
            new[name] = b if a is None else a
            if name == "tags" and b is not None:
                new[name] = distinct([], b)
        else:
            new[name] = {
                "sum": lambda x, y: x + y,
                "min": min,
                "max": max,
                "bool_and": lambda x, y: x and y,
                "bool_or": lambda x, y: x or y,
                "listagg": lambda x, y: f"{x}|{y}",
                "collect": distinct if name == "tags" else operator.add,
                "merge_map": lambda x, y: list((dict(x) | dict(y)).items()),
            }[function](a, b)
    return new


def rows_strategy(values: Mapping[str, Sequence[Any]]) -> st.SearchStrategy[list[list[Row]]]:
    fields = {name: st.sampled_from([None, None, *options]) for name, options in values.items()}
    row = st.fixed_dictionaries({"id": st.integers(0, 3), "s": st.sampled_from([None, 1, 2, 3]), **fields})
    return st.lists(st.lists(row, min_size=1, max_size=6), min_size=1, max_size=4)


AGGREGATED = TableSchema.of({"id": pa.int64(), "s": pa.int64(), **TYPES}, primary_key=["id"])
AGGREGATION = (
    LAZY
    | {
        "merge-engine": "aggregation",
        "fields.all.list-agg-delimiter": "|",
        "fields.tags.distinct": "true",
        "fields.s.aggregate-function": "max",
    }
    | {f"fields.{name}.aggregate-function": function for name, function in FUNCTIONS.items()}
)


@settings(max_examples=EXAMPLES)
@given(rows_strategy(VALUES), st.sampled_from(["1", "3"]))
def test_every_function_does_what_a_plain_fold_does(commits, buckets) -> None:
    assert set(FUNCTIONS.values()) == set(aggregate_functions.FUNCTIONS)
    with TemporaryDirectory() as folder:
        table = Table.create(folder + "/t", AGGREGATED, AGGREGATION | {"bucket": buckets})
        model: dict[Any, Row] = {}
        for commit in commits:
            table.write(arrow(table, commit))
            for row in commit:
                there = model.get(row["id"])
                model[row["id"]] = fold_aggregates(there, row, is_late=False)
                known = [s for s in (there and there["s"], row["s"]) if s is not None]
                model[row["id"]]["s"] = max(known, default=None)
        check_lives(table, commits, lambda: model)


def in_one_batch(rows: Sequence[Row], there: Row | None) -> Row:
    """The new rows of a key by sequence, the stored one among them as if it were their fold so far."""
    ordered = sorted(
        [*([there] if there else []), *rows], key=lambda row: (row["s"] is not None, row["s"] or 0)
    )
    known = [name for name in rows[0] if name not in ("id", "s")]
    new = {"id": rows[0]["id"], "s": ordered[-1]["s"]}
    return new | {
        name: next((row[name] for row in reversed(ordered) if row[name] is not None), None) for name in known
    }


PARTIAL = TableSchema.of(
    {"id": pa.int64(), "s": pa.int64(), "a": pa.string(), "b": pa.int64()}, primary_key=["id"]
)


@settings(max_examples=EXAMPLES)
@given(
    rows_strategy({"a": ["x", ""], "b": [1, 2]}),
    st.sampled_from([{}, {"sequence.field": "s"}]),
    st.booleans(),
)
def test_partial_updates_keep_what_no_row_gives(commits, sequence, is_unordered) -> None:
    with TemporaryDirectory() as folder:
        table = Table.create(folder + "/t", PARTIAL, LAZY | {"merge-engine": "partial-update"} | sequence)
        model: dict[Any, Row] = {}
        for commit in commits:
            if is_unordered and sequence:
                table.commit([table.stage(arrow(table, commit), order="none")])
            else:
                table.write(arrow(table, commit))
            for key in {row["id"] for row in commit}:
                rows = [row for row in commit if row["id"] == key]
                if sequence:
                    model[key] = in_one_batch(rows, model.get(key))
                    continue
                for row in rows:
                    there = model.setdefault(key, dict.fromkeys(row) | {"id": key})
                    there.update({name: value for name, value in row.items() if value is not None})
        check_lives(table, commits, lambda: model)


@settings(max_examples=EXAMPLES)
@given(rows_strategy({"a": ["x", ""], "b": [1, 2]}))
def test_the_first_row_of_a_key_stays(commits) -> None:
    with TemporaryDirectory() as folder:
        table = Table.create(folder + "/t", PARTIAL, LAZY | {"merge-engine": "first-row"})
        model: dict[Any, Row] = {}
        for number, commit in enumerate(commits):
            if number % 2:
                table.compact()
                table.commit([table.stage(arrow(table, commit), order="none")])
            else:
                table.write(arrow(table, commit))
            for row in commit:
                model.setdefault(row["id"], row)
        assert contents(table) == model


def engine(folder: Path, engine: str, **options: str) -> Table:
    schema = TableSchema.of({"id": pa.int64(), "n": pa.int32(), "m": pa.int64()}, primary_key=["id"])
    given = {key.replace("__", ".").replace("_", "-"): value for key, value in options.items()}
    return Table.create(folder / engine / str(len(options)), schema, {"merge-engine": engine, **given})


def test_sums_and_counts_take_back_and_other_functions_refuse(tmp_path: Path) -> None:
    sums = engine(
        tmp_path, "aggregation", fields__n__aggregate_function="sum", fields__m__aggregate_function="count"
    )
    sums.write(arrow(sums, [{"id": 1, "n": 5, "m": 1}, {"id": 2, "n": 1, "m": 1}]))
    changes = [{"id": 1, "n": 5, "m": 1}, {"id": 1, "n": 7, "m": None}, {"id": 2, "n": 1, "m": 9}]
    sums.commit([sums.stage_raw(arrow(sums, changes, ["-U", "+U", "-D"]))])
    assert contents(sums) == {1: {"id": 1, "n": 7, "m": 0}, 2: {"id": 2, "n": 0, "m": 0}}
    assert sorted(sums.changes(1)[ROW_KIND_COLUMN].to_pylist()) == ["+U", "+U", "-U", "-U"]
    for name in ("aggregation", "partial-update", "first-row"):
        table = engine(tmp_path, name)
        table.write(arrow(table, [{"id": 1, "n": 5}]))
        with pytest.raises(
            ChangelogError, match="of kind -U or -D; filter them, or set the option 'ignore-delete'"
        ):
            table.write(arrow(table, [{"id": 1, "n": 5}], ["-D"]))
        table.alter(SetOptions({"ignore-delete": "true"}))
        table.write(arrow(table, [{"id": 1, "n": 6}, {"id": 1, "n": 5}], ["-D", "+U"]))
        assert contents(table)[1]["n"] == 5


def test_a_sum_that_does_not_fit_is_refused_and_a_large_one_is_exact(tmp_path: Path) -> None:
    table = engine(
        tmp_path, "aggregation", fields__n__aggregate_function="sum", fields__m__aggregate_function="sum"
    )
    large = 2**63 - 1
    table.write(arrow(table, [{"id": 1, "m": large}, {"id": 1, "m": large}, {"id": 1, "m": -large}]))
    assert contents(table)[1]["m"] == large
    for row, type_ in (({"id": 1, "m": 1}, "BIGINT"), ({"id": 1, "n": 2**31 - 1}, "INT")):
        with pytest.raises(ChangelogError, match=f"a sum must fit {type_}"):
            table.write(arrow(table, [row, row]))
    assert table.snapshot().id == 1
    assert_nothing_is_left_over(table)


def test_without_an_order_no_value_is_chosen_by_chance(tmp_path: Path) -> None:
    table = engine(tmp_path, "partial-update")
    parts = [arrow(table, [{"id": 1, "n": 1, "m": None}]), arrow(table, [{"id": 1, "n": 1, "m": 2}])]
    table.commit([table.stage_raw(part) for part in parts])
    assert contents(table) == {1: {"id": 1, "n": 1, "m": 2}}
    clash = table.stage_raw(arrow(table, [{"id": 1, "m": 3}, {"id": 1, "m": 4}]))
    with pytest.raises(
        ChangelogError, match=r"key \{'id': 1\}: rows without an order must give column 'm' one"
    ):
        table.commit([clash])


def test_maps_need_an_order_only_where_they_say_different_things_of_a_key(tmp_path: Path) -> None:
    columns = {"id": pa.int64(), "m": pa.map_(pa.string(), pa.int64()), "l": pa.list_(pa.int64())}
    functions = {"fields.m.aggregate-function": "merge_map", "fields.l.aggregate-function": "collect"}
    table = Table.create(
        tmp_path / "t",
        TableSchema.of(columns, primary_key=["id"]),
        {"merge-engine": "aggregation", **functions},
    )

    def write(name: str, *values: Any) -> None:
        table.commit([table.stage_raw(arrow(table, [{"id": 1, name: value} for value in values]))])

    write("m", [("a", 1), ("b", 2)], [("c", 3), ("a", 1)])
    write("m", [("a", 4)], None, [])
    assert dict(contents(table)[1]["m"]) == {"a": 4, "b": 2, "c": 3}
    with pytest.raises(ChangelogError, match="must give column 'm' one value"):
        write("m", [("a", 1), ("b", 2)], [("b", 3)])
    with pytest.raises(ChangelogError, match="must give column 'l' one value"):
        write("l", [1], [2])


def test_not_null_is_asked_of_the_combined_row(tmp_path: Path) -> None:
    columns = (Column("id", pa.int64()), Column("a", pa.int64(), nullable=False), Column("b", pa.int64()))
    table = Table.create(tmp_path / "t", TableSchema(columns, ("id",)), {"merge-engine": "partial-update"})
    table.write(arrow(table, [{"id": 1, "a": 1}]))
    table.write(arrow(table, [{"id": 1, "b": 2}]))
    assert contents(table) == {1: {"id": 1, "a": 1, "b": 2}}
    with pytest.raises(SchemaError, match="column 'a' is NOT NULL, got 1 keys"):
        table.write(arrow(table, [{"id": 2, "b": 2}]))


def test_an_overwrite_combines_its_own_rows_only(tmp_path: Path) -> None:
    table = engine(tmp_path, "aggregation", fields__n__aggregate_function="sum")
    table.write(arrow(table, [{"id": 1, "n": 1}, {"id": 2, "n": 1}]))
    staged = table.stage(arrow(table, [{"id": 1, "n": 5}, {"id": 1, "n": 6}]), order="rows")
    table.commit([staged], overwrite=Overwrite())
    assert contents(table) == {1: {"id": 1, "n": 11, "m": None}}


def test_a_column_that_comes_later_takes_part(tmp_path: Path) -> None:
    table = engine(tmp_path, "aggregation", fields__n__aggregate_function="sum")
    rows = arrow(table, [{"id": 1, "n": 1, "m": 4}])
    table.write(rows)
    staged = table.stage(rows, order="rows")
    table.alter(
        AddColumn(Column("hits", pa.int64())), SetOptions({"fields.hits.aggregate-function": "count"})
    )
    table.commit([staged])
    table.write(arrow(table, [{"id": 1, "hits": 9}]))
    assert contents(table) == {1: {"id": 1, "n": 2, "m": 4, "hits": 1}}
    with pytest.raises(ConfigurationError, match=r"option 'fields\.hits\.aggregate-function' cannot change"):
        table.alter(SetOptions({"fields.hits.aggregate-function": "sum"}))


def test_default_function_may_change_where_no_column_takes_it(tmp_path: Path) -> None:
    table = engine(tmp_path, "aggregation", fields__n__aggregate_function="sum", sequence__field="m")
    default = "fields.default-aggregate-function"
    table.alter(SetOptions({default: "max"}))
    table.alter(AddColumn(Column("top", pa.int64())))
    table.write(arrow(table, [{"id": 1, "n": 1, "m": 2, "top": 3}, {"id": 1, "n": 1, "m": 1, "top": 2}]))
    assert contents(table) == {1: {"id": 1, "n": 2, "m": 2, "top": 3}}
    with pytest.raises(ConfigurationError, match=r"option 'fields\.top\.aggregate-function' cannot change"):
        table.alter(ResetOptions((default,)))


def test_earlier_releases_refuse_functions_that_they_do_not_know(tmp_path: Path) -> None:
    of_n = "fields.n.aggregate-function"
    formats = []
    for number, options in enumerate(
        [
            {"merge-engine": "aggregation", of_n: "sum"},
            {"merge-engine": "aggregation", "fields.default-aggregate-function": "max"},
            {"merge-engine": "partial-update", of_n: "sum"},
        ]
    ):
        folder = tmp_path / str(number)
        Table.create(folder, TableSchema.of({"id": pa.int64(), "n": pa.int64()}, ["id"]), options)
        formats.append(json.loads((folder / "table.json").read_text())["format"])
        Table.open(folder)
    assert formats == [FORMAT_VERSION, FORMAT_OF_FUNCTIONS, FORMAT_OF_FUNCTIONS]


COLLECTED = {"merge-engine": "aggregation", "fields.l.aggregate-function": "collect"}
REFUSED = [
    ({"sequence.field": "x"}, "'sequence.field' must name a column outside of the primary key .*'x'"),
    ({"sequence.field": "id"}, "outside of the primary key"),
    ({"sequence.field": "l"}, "of a scalar type, got 'l'"),
    ({"merge-engine": "first-row", "sequence.field": "n"}, "goes with every 'merge-engine' but 'first-row'"),
    ({"merge-engine": "newest"}, "must be one of deduplicate, first-row"),
    ({"ignore-delete": "true"}, "needs another 'merge-engine'"),
    (
        {"fields.n.aggregate-function": "sum"},
        "needs 'merge-engine' = 'aggregation' or 'partial-update', got 'd",
    ),
    (
        {"merge-engine": "first-row", "fields.default-aggregate-function": "max"},
        "'fields.default-aggregate-function' needs 'merge-engine' = 'aggregation' or",
    ),
    (
        {"fields.n.ignore-retract": "true"},
        "unknown option 'fields.n.ignore-retract'; of a column there are aggregate-function, list-agg-delim",
    ),
    ({"merge-engine": "aggregation", "fields.n.aggregate-function": "avg"}, "must be one of sum, count"),
    ({"merge-engine": "aggregation", "fields.l.aggregate-function": "sum"}, "that is a number, got 'l'"),
    ({"merge-engine": "aggregation", "fields.n.aggregate-function": "count"}, "that is BIGINT"),
    ({"merge-engine": "aggregation", "fields.id.aggregate-function": "sum"}, "primary key .*, got 'id'"),
    ({"merge-engine": "aggregation", "fields.x.aggregate-function": "sum"}, "primary key .*, got 'x'"),
    ({"merge-engine": "aggregation", "fields.n.list-agg-delimiter": ";"}, "must be one of sum"),
    ({"merge-engine": "aggregation", "fields.n.aggregate-function": "collect"}, "that is an ARRAY"),
    ({"merge-engine": "aggregation", "fields.n.aggregate-function": "merge_map"}, "that is a MAP"),
    (COLLECTED | {"fields.l.distinct": "yes"}, "'fields.l.distinct' must be true or false, got 'yes'"),
    (COLLECTED | {"fields.l.list-agg-delimiter": ""}, "needs the function 'listagg', got 'collect'"),
    (
        {"merge-engine": "aggregation", "fields.n.aggregate-function": "max", "sequence.field": "n"},
        "of another column than those of 'sequence.field'",
    ),
]


@pytest.mark.parametrize(("options", "reason"), REFUSED, ids=[reason for _, reason in REFUSED])
def test_rules_that_do_not_fit_are_refused(tmp_path: Path, options: dict[str, str], reason: str) -> None:
    columns = {"id": pa.int64(), "n": pa.int32(), "l": pa.list_(pa.int32())}
    with pytest.raises(ConfigurationError, match=reason):
        Table.create(tmp_path / "t", TableSchema.of(columns, primary_key=["id"]), options)


def test_rows_without_a_key_have_no_rules(tmp_path: Path) -> None:
    for option in ({"sequence.field": "n"}, {"merge-engine": "partial-update"}):
        with pytest.raises(ConfigurationError, match=f"option '{next(iter(option))}' needs a PRIMARY KEY"):
            Table.create(tmp_path / "t", TableSchema.of({"n": pa.int32()}), option)


@pytest.mark.parametrize(
    "point", ["stage.after-raw", "resolve.after-write", "publish.before-link", "publish.after-link"]
)
def test_a_killed_writer_adds_once_when_it_comes_back(tmp_path: Path, point: str) -> None:
    table = engine(tmp_path, "aggregation", fields__n__aggregate_function="sum")
    rows = arrow(table, [{"id": 1, "n": 1}])

    def add(transaction: int) -> None:
        again = Table.open(table.path)
        again.commit([again.stage_raw(rows)], writer_id="w", transaction=transaction)

    add(0)
    assert run(partial(add, 1), point) == KILLED
    add(1)
    assert contents(Table.open(table.path))[1]["n"] == 2
    table.clean(older_than_s=0)
    assert_nothing_is_left_over(table)
