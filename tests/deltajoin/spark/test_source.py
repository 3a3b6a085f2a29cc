"""The source's offsets, steps and refusals, without Spark."""

from dataclasses import replace
from pathlib import Path
from shutil import rmtree
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from deltajoin import CheckpointMismatchError, DeltaJoinSpec, Side
from deltajoin.core.keys import key_columns
from deltajoin.spark.source import ChangesReader, SourceOptions
from deltajoin.spark.tables import JoinedTables
from tests.deltajoin.spark.steps import Steps, sides_of, with_sides
from tests.helpers import changelog
from upsert.errors import ConfigurationError, SchemaError, TableNotFoundError, UntrackedChangesError
from upsert.schema import TableSchema
from upsert.store.files.data_file import DataFile
from upsert.store.metadata.file_entry import FileEntry
from upsert.store.read.snapshot import Snapshot
from upsert.store.read.steps import step_size
from upsert.store.rows.hashing import hash_columns
from upsert.store.table import Table
from upsert.store.version import Version

ORDERS = TableSchema.of({"id": pa.int64(), "product": pa.int32(), "note": pa.string()}, primary_key=["id"])
PRODUCTS = TableSchema.of({"code": pa.int64(), "name": pa.string()}, primary_key=["code"])
ALL = ReadAllAvailable()


@pytest.fixture
def spec(tmp_path: Path) -> DeltaJoinSpec:
    """Orders and products with a few rows, joined by product; the keys are INT and BIGINT."""
    orders = Table.create(tmp_path / "orders", ORDERS.index("product"), {"bucket": "2"})
    products = Table.create(tmp_path / "products", PRODUCTS)
    orders.write(changelog(orders.schema.arrow, "+I 1 7 a", "+I 2 8 b", "+I 3 NULL c"))
    products.write(changelog(products.schema.arrow, "+I 7 apple", "+I 9 pear"))
    left = Side(orders.path, ("id", "product"), ("product",))
    return DeltaJoinSpec.of("inner", left, Side(products.path, ("code", "name"), ("code",)))


def reader_of(spec: DeltaJoinSpec) -> ChangesReader:
    """The part of the source that all forms share."""
    return ChangesReader(SourceOptions(spec, gives_joined=False))


def test_keys_of_different_width_meet_in_one_shard(spec: DeltaJoinSpec) -> None:
    """Spark's hash of 7 as INT differs from that of 7 as BIGINT."""
    assert Steps(replace(spec, shards=64)).run() == {(1, 7, 7, "apple"): 1}
    narrow, wide = pa.table({"k": pa.array([7], pa.int32())}), pa.table({"k": pa.array([7])})
    assert hash_columns([narrow["k"]]) != hash_columns([wide["k"]])
    as_wide = [hash_columns(key_columns(rows, ["k"], [pa.int64()])) for rows in (narrow, wide)]
    assert as_wide[0] == as_wide[1]


def test_an_update_of_a_column_that_is_not_selected_emits_nothing(spec: DeltaJoinSpec) -> None:
    steps = Steps(spec)
    steps.run()
    orders = Table.open(spec.tables[0].path)
    orders.write(changelog(orders.schema.arrow, "+U 1 7 other"))
    assert list(steps) == [[]]


def test_an_update_within_a_filter_on_another_column_emits_nothing(spec: DeltaJoinSpec) -> None:
    steps = Steps(with_sides(spec, left=replace(sides_of(spec)[0], where=[("note", "!=", "hidden")])))
    steps.run()
    orders = Table.open(spec.tables[0].path)
    orders.write(changelog(orders.schema.arrow, "+U 1 7 other"))
    assert list(steps) == [[]]
    orders.write(changelog(orders.schema.arrow, "+U 1 7 hidden"))
    assert list(steps) == [[(1, 7, 7, "apple", "-U")]]


def test_a_row_limit_cuts_every_step(spec: DeltaJoinSpec) -> None:
    assert len(list(Steps(spec, max_rows=1, first_load="micro-batches"))) == 3


@pytest.mark.parametrize("form", ["fused", "shuffled"])
def test_steps_as_large_as_the_memory_of_a_task_are_the_join(spec: DeltaJoinSpec, form: str) -> None:
    """A table with a backlog has what the other one leaves of the room."""
    orders, products = (Table.open(part.path) for part in spec.tables)
    steps = Steps(spec, form=form)
    steps.run()
    orders.write(changelog(orders.schema.arrow, *(f"+I {i} {i % 9} {'x' * 90}" for i in range(10, 400))))
    products.write(changelog(products.schema.arrow, "+I 8 plum"))
    steps.reader.readable_bytes = 20_000
    count = 0
    for _ in steps:
        count += 1
        assert steps.emitted == steps.truth()
    assert 3 < count < 16
    # with half of the room it would take four
    orders.write(changelog(orders.schema.arrow, *(f"+I {i} {i % 9} {'x' * 90}" for i in range(1000, 2000))))
    last = orders.snapshot().id
    size = step_size(orders.pinned(), Version.complete(last - 1), Version.complete(last)).bytes
    steps.reader.readable_bytes = 6 * size // 10
    assert len(list(steps)) == 3
    assert steps.emitted == steps.truth()
    steps.reader.readable_bytes = 1 << 20
    products.write(changelog(products.schema.arrow, "+U 8 damson"))
    assert len(list(steps)) == 1
    assert steps.emitted == steps.truth()


def test_available_now_reads_no_further_than_what_was_there(spec: DeltaJoinSpec) -> None:
    steps = Steps(spec)
    steps.reader.prepareForTriggerAvailableNow()
    products = Table.open(spec.tables[1].path)
    products.write(changelog(products.schema.arrow, "+I 8 plum"))
    assert steps.run() == {(1, 7, 7, "apple"): 1}
    assert Steps(spec).run() == {(1, 7, 7, "apple"): 1, (2, 8, 8, "plum"): 1}


def test_a_first_load_reads_on_where_each_look_finds_that_more_has_expired(
    spec: DeltaJoinSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds what it reads, and looks at nothing before."""
    orders, own, looks = Table.open(spec.tables[0].path), Snapshot.open, list[FileEntry]()
    rows = changelog(orders.schema.arrow, "+I 1 7 a", "+I 2 8 b", "+I 3 NULL c")
    orders.write(rows)  # how many rows there are is only known from files, by their keys

    def late(snapshot: Snapshot, entry: FileEntry) -> DataFile:
        if len(looks) < 3:
            looks.append(entry)
            orders.write(rows)
            orders.compact()
            orders.expire(keep=1)
        return own(snapshot, entry)

    monkeypatch.setattr(Snapshot, "open", late)
    assert Steps(spec).run() == {(1, 7, 7, "apple"): 1}
    assert len(looks) == 3


def test_compaction_is_not_seen(spec: DeltaJoinSpec) -> None:
    steps = Steps(spec)
    steps.run()
    for side in spec.tables:
        Table.open(side.path).compact()
    assert list(steps) == []


def test_reported_latest_offset_is_where_the_stream_ends(spec: DeltaJoinSpec) -> None:
    steps = Steps(spec)
    steps.run()
    without_owner = {name: value for name, value in steps.offset.items() if name != "consumer"}
    assert reader_of(spec).reportLatestOffset() == without_owner


def test_partitions_are_the_buckets_that_changed(spec: DeltaJoinSpec) -> None:
    reader = reader_of(spec)
    start = reader.initialOffset()
    first = reader.latestOffset(start, ALL)
    assert [(p.table, p.bucket) for p in reader.partitions(start, first)] == [(0, 0), (0, 1), (1, 0)]
    assert reader.partitions(first, first) == []


def test_checkpoint_of_another_join_is_refused_by_both_names(spec: DeltaJoinSpec) -> None:
    offset = reader_of(spec).initialOffset()
    other = with_sides(spec, left=replace(sides_of(spec)[0], select=("id", "product", "note")))
    ours = JoinedTables.open(other).identity.fingerprint
    with pytest.raises(CheckpointMismatchError, match=f"{offset['fingerprint']}.*{ours}"):
        reader_of(other).latestOffset(offset, ALL)


def test_checkpoint_of_a_table_made_anew_is_refused_by_both_uuids(spec: DeltaJoinSpec) -> None:
    offset = reader_of(spec).initialOffset()
    old = Table.open(spec.tables[1].path)
    rmtree(spec.tables[1].path)
    new = Table.create(spec.tables[1].path, PRODUCTS)
    with pytest.raises(CheckpointMismatchError, match=f"{old.uuid}.*{new.uuid}.*made again"):
        reader_of(spec).latestOffset(offset, ALL)


def test_checkpoint_of_another_source_is_refused(spec: DeltaJoinSpec) -> None:
    with pytest.raises(CheckpointMismatchError, match="must belong to a join, it belongs to another s"):
        reader_of(spec).latestOffset({"logOffset": 3}, ALL)


def test_a_commit_without_change_tracking_stops_the_join_and_is_named(spec: DeltaJoinSpec) -> None:
    steps = Steps(spec)
    steps.run()
    products = Table.open(spec.tables[1].path)
    staged = products.stage(changelog(products.schema.arrow, "+I 8 plum"), order="rows")
    snapshot = products.commit([staged], tracked=False)
    with pytest.raises(UntrackedChangesError, match=str(snapshot.id)):
        steps.run()


def test_a_missing_index_is_named_with_the_one_to_add(spec: DeltaJoinSpec) -> None:
    by_note = replace(sides_of(spec)[0], select=("id", "product", "note"), keys=("note",))
    by_name = replace(sides_of(spec)[1], keys=("name",))
    tables = JoinedTables.open(with_sides(spec, left=by_note, right=by_name))
    with pytest.raises(SchemaError, match=r"'orders' \(t0\).*declare INDEX \(note\)"):
        tables.check_lookups()


def test_keys_that_do_not_compare_are_refused(spec: DeltaJoinSpec) -> None:
    with pytest.raises(SchemaError, match=r"orders.product and products.name.*got INT and STRING"):
        JoinedTables.open(with_sides(spec, right=replace(sides_of(spec)[1], keys=("name",))))


def test_unknown_columns_are_refused(spec: DeltaJoinSpec) -> None:
    with pytest.raises(SchemaError, match=r"table t0 of the join.*unknown column 'x'"):
        JoinedTables.open(with_sides(spec, left=replace(sides_of(spec)[0], select=("product", "x"))))
    with pytest.raises(SchemaError, match="unknown column 'y'"):
        JoinedTables.open(with_sides(spec, right=replace(sides_of(spec)[1], where=[("y", "=", 1)])))


def test_a_missing_table_is_named(spec: DeltaJoinSpec, tmp_path: Path) -> None:
    with pytest.raises(TableNotFoundError, match="nowhere"):
        JoinedTables.open(with_sides(spec, left=replace(sides_of(spec)[0], path=str(tmp_path / "nowhere"))))


def test_a_relative_path_is_made_absolute(
    spec: DeltaJoinSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Executors may run in another folder than the driver."""
    monkeypatch.chdir(tmp_path)
    relative = with_sides(spec, left=replace(sides_of(spec)[0], path="orders"))
    assert JoinedTables.open(relative).located == spec
    assert relative.fingerprint == spec.fingerprint


def test_unknown_options_are_refused(spec: DeltaJoinSpec) -> None:
    with pytest.raises(ConfigurationError, match="unknown option 'spek'; did you mean 'spec'"):
        SourceOptions.parse({"spek": spec.to_json()})
    with pytest.raises(ConfigurationError, match="option 'start' must be a JSON object"):
        SourceOptions.parse({"spec": spec.to_json(), "start": "[1]"})


@pytest.mark.parametrize("options", [{}, {"first_load": "batch"}, {"start": {"a": 1}, "gives_joined": False}])
def test_options_cross_as_text(spec: DeltaJoinSpec, options: dict[str, Any]) -> None:
    value = SourceOptions(spec, **options)
    assert SourceOptions.parse(value.to_options()) == value
