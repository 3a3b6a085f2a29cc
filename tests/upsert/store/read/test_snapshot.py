"""Scans and lookups of a table of many runs, against a dict."""

import threading
from collections import Counter
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.upsert.store.samples import KEY_VALUES, Runs, canonical, canonical_rows, multiset, table_of
from upsert.errors import ChangelogError, CorruptTableError, SchemaError
from upsert.schema import Index, TableSchema
from upsert.store.alterations import AddIndex
from upsert.store.files import data_file, lookup_index
from upsert.store.files.data_file import DataFile, forget_open_files
from upsert.store.predicate import parse_where
from upsert.store.read import lookup
from upsert.store.read import snapshot as snapshots
from upsert.store.read.snapshot import Snapshot
from upsert.store.read.splits import Split, tasks
from upsert.store.rows import hashing
from upsert.store.rows.layout import Layout
from upsert.store.table import Table

TYPES = list(KEY_VALUES)


@st.composite
def keyed_tables(draw: st.DrawFn, max_key: int = 2) -> tuple[Layout, list[Any]]:
    """A table with a primary key of any types, an index of any type, and what is done to it.

    A step is a list of (kind, row), or a number of old runs to compact.
    """
    key_types = draw(st.lists(st.sampled_from(TYPES), min_size=1, max_size=max_key))
    index_type = draw(st.sampled_from(TYPES))
    names = [f"k{i}" for i in range(len(key_types))]
    columns = {**dict(zip(names, key_types, strict=True)), "x": index_type, "v": pa.int32()}
    can_part = not pa.types.is_duration(key_types[0])
    partitioned = draw(st.sampled_from([(), (names[0],)] if can_part else [()]))
    schema = TableSchema.of(columns, primary_key=names, partitioned_by=partitioned).index("x")
    bucket_key = draw(st.sampled_from([(), tuple(names[:1])]))
    layout = Layout.of(schema, draw(st.sampled_from([1, 3])), bucket_key)
    values = [st.sampled_from(KEY_VALUES[type_]) for type_ in key_types]
    row = st.tuples(*values, st.none() | st.sampled_from(KEY_VALUES[index_type]), st.sampled_from([1, 2, 3]))
    write = st.lists(st.tuples(st.sampled_from(["+I", "+U", "-D"]), row), min_size=1, max_size=8)
    return layout, draw(st.lists(write | st.integers(1, 4), min_size=1, max_size=6))


def build(root: Path, layout: Layout, steps: list[Any]) -> tuple[Runs, dict[Any, Any]]:
    """The table after the steps, and the same in a dict from key to row."""
    runs, model = Runs(root, layout), {}
    width = len(layout.key)
    for step in steps:
        if isinstance(step, int):
            runs.compact(step, max_rows=3)
            continue
        runs.write(table_of(layout.schema, [row for _, row in step], [kind for kind, _ in step]), max_rows=3)
        for kind, row in step:
            plain = tuple(map(canonical, row))
            if kind == "-D":
                model.pop(plain[:width], None)
            else:
                model[plain[:width]] = plain
    return runs, model


def expected_pairs(
    model: dict[Any, Any], schema: TableSchema, columns: list[str], keys: pa.Table
) -> Counter[Any]:
    """Every (position of a key, row) that a lookup must answer."""
    places = [schema.names.index(name) for name in columns]
    pairs: Counter[Any] = Counter()
    for position, key in enumerate(canonical_rows(keys)):
        if None not in key:
            pairs.update((position, row) for row in model.values() if tuple(row[p] for p in places) == key)
    return pairs


def found_pairs(runs: Runs, columns: list[str], keys: pa.Table, **options: Any) -> Counter[Any]:
    positions, rows = runs.snapshot().match(columns, keys, **options)
    return Counter(zip(positions.tolist(), canonical_rows(rows), strict=True))


@given(keyed_tables())
def test_scan_shows_the_rows_of_the_dict(case):
    layout, steps = case
    with TemporaryDirectory() as folder:
        runs, model = build(Path(folder), layout, steps)
        snapshot = runs.snapshot()
        found = snapshot.scan()
        assert found.schema == layout.schema.arrow
        assert multiset(found) == Counter(model.values())
        assert multiset(snapshot.scan(["v", "k0"])) == Counter((r[-1], r[0]) for r in model.values())
        parts = [multiset(snapshot.scan(buckets=[bucket])) for bucket in snapshot.files.groups]
        assert sum(parts, Counter()) == multiset(found)


@given(keyed_tables(), st.data())
def test_scan_with_a_filter_shows_only_rows_that_pass_whichever_files_are_skipped(case, data):
    layout, steps = case
    limit = data.draw(st.sampled_from([0, 1, 2, 3]))
    with TemporaryDirectory() as folder:
        runs, model = build(Path(folder), layout, steps)
        filtered = runs.snapshot().scan(["v"], [("v", ">", limit)])
        assert multiset(filtered) == Counter((r[-1],) for r in model.values() if r[-1] > limit)
        key_type = layout.stored.field("k0").type
        if not pa.types.is_floating(key_type):
            wanted = data.draw(st.sampled_from(KEY_VALUES[key_type]))
            filtered = runs.snapshot().scan(where=[("k0", "=", wanted), ("v", "<=", limit)])
            assert multiset(filtered) == Counter(
                r for r in model.values() if r[0] == wanted and r[-1] <= limit
            )


@given(keyed_tables(), st.sampled_from([1, 1, 10**9]), st.sampled_from([50, 500, 10**6]), st.data())
def test_rows_of_named_keys_are_those_of_the_dict_looked_up_or_not(case, rows_of_key, task_bytes, data):
    layout, steps = case
    types = {name: layout.stored.field(name).type for name in (*layout.key, "x")}
    named = data.draw(st.sampled_from([layout.key, layout.key[:1], ("x",), (*layout.key, "x")]))
    asked = {
        name: data.draw(st.lists(st.sampled_from(KEY_VALUES[types[name]]), min_size=1, max_size=3))
        for name in named
        if not pa.types.is_floating(types[name])
    }
    where: list[Any] = [(name, "in", values) for name, values in asked.items()]
    where += [(name, "=", values[0]) for name, values in asked.items() if len(values) == 1]
    least = data.draw(st.sampled_from([0, 1]))
    where.append(("v", ">", least))
    places = {layout.schema.names.index(name): set(map(canonical, values)) for name, values in asked.items()}
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        runs, model = build(Path(folder), layout, steps)
        patch.setattr(snapshots, "_ROWS_OF_KEY", rows_of_key)
        snapshot = runs.snapshot()
        expected = Counter(
            row
            for row in model.values()
            if row[-1] > least and all(row[p] in there for p, there in places.items())
        )
        assert multiset(snapshot.scan(where=where)) == expected
        left = snapshot.bucket_filters(parse_where(where, layout.schema))
        splits = [split for share in tasks(snapshot.files, left, task_bytes) for split in share]
        each = [
            rows
            for split in splits
            for rows in snapshot.stored_rows(split, left[split.bucket_id], ["v", *layout.key])
        ]
        assert sum(rows.num_rows for rows in each) == expected.total()


@given(keyed_tables(), st.sampled_from([50, 500, 10**6]), st.sampled_from([1, 200, 10**6]))
def test_splits_and_pieces_together_are_a_scan(case, task_bytes, piece_bytes):
    layout, steps = case
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        runs, model = build(Path(folder), layout, steps)
        patch.setattr(snapshots, "PIECE_BYTES", piece_bytes)
        snapshot = runs.snapshot()
        shares = tasks(snapshot.files, snapshot.files.groups, task_bytes)
        found = [multiset(rows) for share in shares for rows in snapshot.pieces(["v", "k0"], splits=share)]
        assert sum(found, Counter()) == Counter((r[-1], r[0]) for r in model.values())
        filtered = [rows for share in shares for rows in snapshot.pieces(where=[("v", ">", 1)], splits=share)]
        assert sum(map(multiset, filtered), Counter()) == Counter(r for r in model.values() if r[-1] > 1)


@given(keyed_tables(), st.data())
def test_lookup_by_any_index_finds_the_rows_of_the_dict(case, data):
    """By key, key prefix, secondary index and more columns than these have; repeated and NULL keys too."""
    layout, steps = case
    schema = layout.schema
    names = list(layout.key)
    columns = data.draw(
        st.sampled_from([names, names[:1], ["x"], [*names, "x"], ["x", "v"], ["v", *names[:1]]])
    )
    values = [st.none() | st.sampled_from(KEY_VALUES.get(schema.type_of(c), [1, 2])) for c in columns]
    rows = data.draw(st.lists(st.tuples(*values), max_size=12))
    keys = pa.table(
        [pa.array([r[i] for r in rows], schema.type_of(c)) for i, c in enumerate(columns)], names=columns
    )
    with TemporaryDirectory() as folder:
        runs, model = build(Path(folder), layout, steps)
        expected = expected_pairs(model, schema, columns, keys)
        assert found_pairs(runs, columns, keys) == expected
        looked_up = runs.snapshot().lookup(columns, keys)
        assert looked_up.schema == schema.arrow
        assert multiset(looked_up) == Counter({row for _, row in expected})
        some = found_pairs(runs, columns, keys, select=["v"], where=[("v", "=", 2)])
        assert some == Counter((p, row[-1:]) for p, row in expected.elements() if row[-1] == 2)


@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from([1, 1, -1]), st.sampled_from([0, 1, 2])), max_size=6), max_size=5
    )
)
def test_table_without_key_is_a_multiset(commits):
    """Equal rows are repeated; a count below zero is an error in every read that meets it."""
    nested = pa.list_(pa.float64())
    schema = TableSchema.of({"a": pa.int64(), "l": nested}).index("a")
    layout = Layout.of(schema, 2)
    values = [(0, [0.0, None]), (1, None), (None, [])]
    model: Counter[Any] = Counter()
    with TemporaryDirectory() as folder:
        runs = Runs(Path(folder), layout)
        for commit in commits:
            rows = table_of(
                schema, [values[v] for _, v in commit], ["+I" if s > 0 else "-D" for s, _ in commit]
            )
            runs.write(rows, order="none")
            for sign, v in commit:
                model[v] += sign
        snapshot = runs.snapshot()
        keys = pa.table({"a": [1, 0, 0, None, 7]})
        if min(model.values(), default=0) < 0:
            with pytest.raises(ChangelogError, match="count of at least 0"):
                snapshot.scan()
            return
        assert Counter(snapshot.scan(["a"])["a"].to_pylist()) == Counter(
            values[v][0] for v in model.elements()
        )
        positions, found = snapshot.match(["a"], keys)
        assert Counter(positions.tolist()) == +Counter({0: model[1], 1: model[0], 2: model[0]})
        assert found.schema == schema.arrow
        assert snapshot.lookup(["a"], keys).num_rows == model[0] + model[1]
        assert snapshot.scan(where=[("a", "=", 1)]).num_rows == model[1]


def test_count_below_zero_is_an_error_in_a_lookup(tmp_path):
    schema = TableSchema.of({"a": pa.int64()}).index("a")
    runs = Runs(tmp_path, Layout.of(schema))
    runs.write(table_of(schema, [(1,), (2,)], ["-D", "+I"]), order="none")
    with pytest.raises(ChangelogError, match=r"row \{'a': 1\}"):
        runs.snapshot().lookup(["a"], pa.table({"a": [1]}))
    assert runs.snapshot().lookup(["a"], pa.table({"a": [2]})).num_rows == 1


KV = TableSchema.of({"k": pa.string(), "x": pa.int32(), "v": pa.string()}, primary_key=["k"]).index("x")


def test_rows_that_are_looked_up_ascend_by_key(tmp_path: Path) -> None:
    runs = Runs(tmp_path, Layout.of(KV))
    runs.write(table_of(KV, [(f"{n:03}", n % 32, "v") for n in range(320)], ["+I"] * 320))
    snapshot = runs.snapshot()
    for predicate in [("k", "in", [f"{n:03}" for n in range(0, 320, 32)]), ("x", "=", 0)]:
        where = parse_where([predicate], KV)
        [rows] = snapshot.stored_rows(Split(((), 0)), where, ["k"])
        assert rows["k"].to_pylist() == [f"{n:03}" for n in range(0, 320, 32)]
        parts = [split for share in tasks(snapshot.files, [((), 0)], 2000) for split in share]
        with patch.object(Snapshot, "_merged", side_effect=AssertionError):
            each = [rows["k"] for split in parts for rows in snapshot.stored_rows(split, where, ["k"])]
        assert len(each) > 1
        assert [key for keys in each for key in keys.to_pylist()] == rows["k"].to_pylist()


@pytest.mark.parametrize("is_counted", [False, True])
def test_rows_are_looked_up_in_files_that_bounds_allow(tmp_path: Path, is_counted: bool):
    columns = {"k": pa.int32(), "x": pa.int32(), "v": pa.string()}
    layout = Layout.of(TableSchema.of(columns, primary_key=() if is_counted else ["k"]).index("x"))
    runs = Runs(tmp_path, layout)
    runs.write(table_of(layout.schema, [(n, n // 4, "a") for n in range(2000)], ["+I"] * 2000), max_rows=500)
    runs.write(table_of(layout.schema, [(0, 0, "a")], ["-D"]))
    if not is_counted:
        runs.compact(2, max_rows=500)
    snapshot = runs.snapshot()
    left = [("x", "in", [0, 1]), ("v", "=", "a")]
    forget_open_files()
    with patch.object(DataFile, "_map", side_effect=DataFile._map) as opened:
        assert sorted(snapshot.scan(["k"], left)["k"].to_pylist()) == list(range(1, 8))
    if not is_counted:
        assert opened.call_count == 1 < len(snapshot.files.entries)
    assert snapshot.scan(["k"], [*left, ("v", ">", "a")]).num_rows == 0


def test_rows_that_are_too_many_to_look_up_are_not_looked_for_in_each_bucket(tmp_path: Path):
    runs = Runs(tmp_path, Layout.of(KV, 4))
    runs.write(table_of(KV, [(f"{n:03}", 0, "v") for n in range(320)], ["+I"] * 320))
    with patch.object(Snapshot, "_looked_up", autospec=True, side_effect=Snapshot._looked_up) as looks:
        assert runs.snapshot().scan(where=[("x", "=", 0)]).num_rows == 320
    assert looks.call_count == 1


def test_count_of_other_rows_may_be_below_zero_where_their_files_are_skipped(tmp_path: Path):
    layout = Layout.of(TableSchema.of({"x": pa.int32(), "v": pa.int32()}).index("x"))
    runs = Runs(tmp_path, layout)
    others = [(n, 9) for n in range(100, 200)]
    runs.write(table_of(layout.schema, [(5, 1)], ["+I"]))
    runs.write(table_of(layout.schema, [(5, 1), (5, 9), *others], ["-D", "+I", *["+I"] * 100]))
    found = runs.snapshot().scan(where=[("x", "=", 5), ("v", ">", 2)])
    assert found.to_pylist() == [{"x": 5, "v": 9}]


@pytest.mark.sidecars
def test_index_that_files_lack_is_not_built_for_a_filter(tmp_path: Path):
    plain = TableSchema.of({"k": pa.int32(), "x": pa.int32()}, primary_key=["k"])
    table = Table.create(tmp_path / "t", plain, {"write-only": "true"})
    table.write(pa.table({"k": range(64), "x": range(64)}).cast(plain.arrow))
    table.alter(AddIndex(Index.over(["x"])))
    with patch.object(data_file, "build_index", side_effect=AssertionError):
        assert table.snapshot().scan(where=[("x", "=", 5)]).num_rows == 1


def test_hit_in_an_old_run_is_stale_once_a_newer_run_has_its_key(tmp_path):
    """A row that moved to another index value, or is gone, must not be found under its old one."""
    runs = Runs(tmp_path, Layout.of(KV))
    runs.write(table_of(KV, [("moved", 1, "old"), ("gone", 1, "old"), ("kept", 1, "old")]))
    runs.write(table_of(KV, [("moved", 2, "new"), ("gone", 2, "new")]))
    runs.write(table_of(KV, [("gone", 2, None)], ["-D"]))
    found = runs.snapshot().lookup(["x"], pa.table({"x": [1, 2]}))
    assert sorted(found["k"].to_pylist()) == ["kept", "moved"]


def test_colliding_hashes_are_told_apart_by_their_values(tmp_path, monkeypatch):
    """With a hash of two values every lookup meets collisions: in key, index and confirmation."""

    def weak(columns, rows=None):
        hashes = real(columns, rows)
        return hashes % np.uint64(2)

    real = hashing.hash_columns
    monkeypatch.setattr(lookup_index, "hash_columns", weak)
    monkeypatch.setattr(lookup, "hash_columns", weak)
    runs = Runs(tmp_path, Layout.of(KV))
    model = {}
    for version in range(4):
        rows = [(f"k{i}", i % 5, f"v{version}") for i in range(version * 7, version * 7 + 20)]
        runs.write(table_of(KV, rows))
        model.update({(key,): (key, x, v) for key, x, v in rows})
    runs.write(table_of(KV, [("k30", None, None)], ["-D"]))
    del model[("k30",)]
    keys = pa.table(
        {"k": ["k1", "k30", "k8", "nobody", "k40"], "x": pa.array([1, 0, 2, 3, None], pa.int32())}
    )
    for columns in (["k"], ["x"], ["k", "x"]):
        chosen = keys.select(columns)
        assert found_pairs(runs, columns, chosen) == expected_pairs(model, KV, columns, chosen)


def test_keys_of_other_width_are_cast_and_those_that_do_not_fit_match_nothing(tmp_path):
    columns = {
        "k": pa.int16(),
        "d": pa.decimal128(5, 1),
        "e": pa.decimal128(38, 18),
        "f": pa.float32(),
    }
    schema = TableSchema.of(columns, primary_key=["k"])
    schema = schema.index("d").index("e").index("f")
    runs = Runs(tmp_path, Layout.of(schema))
    runs.write(
        pa.table(
            {
                "k": pa.array([1, 2, -2], pa.int16()),
                "d": pa.array([1, 2, 3]).cast(pa.decimal128(19, 0)),
                "e": pa.array([Decimal("717633079061536536.625392568231788544"), Decimal(2), None]),
                "f": pa.array([0.5, -0.0, 1.5], pa.float32()),
            }
        )
    )
    snapshot = runs.snapshot()

    def positions(column: str, keys: pa.Array) -> list[int]:
        return sorted(snapshot.match([column], pa.table({column: keys}))[0].tolist())

    assert positions("k", pa.array([2, 2**40, None, 1])) == [0, 3]
    for key, type_ in ((2**16 - 2, pa.uint16()), (2**63 + 1, pa.uint64()), (2**64 - 2, pa.uint64())):
        assert positions("k", pa.array([1, key], type_)) == [0], "not the row of -2, which has the same bits"
    assert positions("k", pa.array([1, 70000]).dictionary_encode()) == [0]
    decimals = pa.array(["2.00", "1.05", "99999999.00", None]).cast(pa.decimal128(20, 2))
    assert positions("d", decimals) == [0]
    assert positions("e", pa.array([Decimal(341 * 10**18), Decimal(2)])) == [1], (
        "of the first Arrow makes 7.17…"
    )
    assert positions("f", pa.array([0.5, 0.1, 0.0], pa.float64())) == [0, 2]


@pytest.mark.parametrize(
    ("columns", "keys", "message"),
    [
        (
            ["v"],
            {"v": ["a"]},
            r"lookup by \(v\) needs an index .*has PRIMARY KEY \(k\), INDEX_x \(x\); .*INDEX \(v\)",
        ),
        (["k"], {"x": [1]}, "keys must have column 'k', got x"),
        (["k"], {"k": [1]}, "keys of column 'k' must be STRING, got Arrow type int64"),
        (["k", "k"], {"k": ["a"]}, "columns must be at least one and each once"),
        (["k", "z"], {"k": ["a"]}, "unknown column 'z'; columns are k, x, v"),
        ("k", {"k": ["a"]}, r"columns must be a list of names, got 'k'; write \['k'\]"),
    ],
)
def test_lookups_that_cannot_be_served_are_refused(tmp_path, columns, keys, message):
    snapshot = Runs(tmp_path, Layout.of(KV)).snapshot()
    with pytest.raises(SchemaError, match=message):
        snapshot.lookup(columns, pa.table(keys))
    with pytest.raises(SchemaError, match="select: unknown column 'z'"):
        snapshot.scan(["z"])
    with pytest.raises(SchemaError, match=r"keys must be a pyarrow\.Table or a DataFrame, got dict"):
        snapshot.lookup(["k"], {"k": ["a"]})


def test_index_for_names_what_serves_a_lookup(tmp_path):
    schema = TableSchema.of({n: pa.int64() for n in "abcd"}, primary_key=["a", "b", "c"])
    layout = Layout.of(schema.index("d").index("d", "b", name="two"))
    snapshot = Runs(tmp_path, layout).snapshot()
    served = {"abcd": "PRIMARY KEY", "ba": "PRIMARY KEY prefix (a, b)", "da": "PRIMARY KEY prefix (a)"}
    served |= {"d": "INDEX_d", "bd": "two", "cb": None}
    assert {columns: snapshot.index_for(list(columns)) for columns in served} == served


def test_empty_table_answers_with_no_rows(tmp_path):
    snapshot = Runs(tmp_path, Layout.of(KV, 2)).snapshot()
    assert snapshot.scan().schema == KV.arrow
    positions, rows = snapshot.match(["x"], pa.table({"x": [1]}), select=["v"])
    assert (positions.dtype, len(positions), rows.schema.names, rows.num_rows) == (np.int64, 0, ["v"], 0)


def test_a_lookup_by_the_bucket_key_opens_only_the_key_s_bucket(tmp_path):
    """Other buckets' files are gone here; a lookup that touched them would fail."""
    runs = Runs(tmp_path, Layout.of(KV, 4))
    runs.write(table_of(KV, [(f"k{i}", i, "v") for i in range(40)]))
    hashed = runs.layout.buckets_of(pa.table({"k": ["k7"]}))
    for entry in runs.entries:
        if entry.bucket != hashed[0]:
            (tmp_path / entry.file).unlink()
    forget_open_files()
    assert runs.snapshot().lookup(["k"], pa.table({"k": ["k7"]}))["x"].to_pylist() == [7]
    with pytest.raises(CorruptTableError, match="is missing"):
        runs.snapshot().lookup(["x"], pa.table({"x": [7]}))


def test_a_lookup_with_a_partition_column_opens_only_its_partition(tmp_path):
    schema = TableSchema.of(
        {"day": pa.string(), "k": pa.int64()}, primary_key=["day", "k"], partitioned_by=["day"]
    )
    runs = Runs(tmp_path, Layout.of(schema))
    runs.write(table_of(schema, [("monday", 1), ("tuesday", 1)]))
    (gone,) = [entry for entry in runs.entries if entry.partition == (("day", "tuesday"),)]
    (tmp_path / gone.file).unlink()
    forget_open_files()
    assert runs.snapshot().lookup(["day"], pa.table({"day": ["monday", "sunday"]})).num_rows == 1
    assert runs.snapshot().scan(where=[("day", "=", "monday")]).num_rows == 1
    with pytest.raises(CorruptTableError, match="is missing"):
        runs.snapshot().scan()


def test_a_filter_on_another_column_than_the_key_skips_no_file_that_hides_a_row(tmp_path):
    """The newer run has no row with v = 'old'; without it the older row would come back."""
    runs = Runs(tmp_path, Layout.of(KV))
    runs.write(table_of(KV, [("a", 1, "old")]))
    runs.write(table_of(KV, [("a", 1, "new")]))
    assert runs.snapshot().scan(where=[("v", "=", "old")]).num_rows == 0
    runs.compact(2)
    (tmp_path / runs.entries[0].file).unlink()
    forget_open_files()
    assert runs.snapshot().scan(where=[("v", "=", "old")]).num_rows == 0, (
        "a single run is skipped by its bounds"
    )


def test_threads_share_open_files(tmp_path):
    runs = Runs(tmp_path, Layout.of(KV, 2))
    runs.write(table_of(KV, [(f"k{i}", i % 10, "v") for i in range(200)]))
    forget_open_files()
    found: list[int] = []

    def work() -> None:
        answers = (runs.snapshot().lookup(["x"], pa.table({"x": [i % 10]})) for i in range(20))
        found.extend(answer.num_rows for answer in answers)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [20] * 80
