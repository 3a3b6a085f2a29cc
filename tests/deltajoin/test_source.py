"""The source's offsets, steps and refusals, without Spark."""

from dataclasses import replace
from pathlib import Path
from shutil import rmtree

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from deltajoin import BrokenPayloadError, CheckpointMismatchError, DeltaJoinSpec, Side
from deltajoin.forms.shuffled import JoinShard
from deltajoin.options import spec_of
from deltajoin.payload import Step, decode, encode
from deltajoin.row_codes import key_columns
from deltajoin.source import DeltaJoinReader
from deltajoin.tables import JoinedTables
from tests.deltajoin.steps import Steps, with_sides
from tests.helpers import changelog
from upsert.errors import ConfigurationError, SchemaError, TableNotFoundError, UntrackedChangesError
from upsert.schema import TableSchema
from upsert.store.hashing import hash_columns
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
    steps = Steps(with_sides(spec, left=replace(spec.sides[0], where=[("note", "!=", "hidden")])))
    steps.run()
    orders = Table.open(spec.tables[0].path)
    orders.write(changelog(orders.schema.arrow, "+U 1 7 other"))
    assert list(steps) == [[]]
    orders.write(changelog(orders.schema.arrow, "+U 1 7 hidden"))
    assert list(steps) == [[(1, 7, 7, "apple", "-U")]]


def test_a_row_limit_cuts_every_step(spec: DeltaJoinSpec) -> None:
    assert len(list(Steps(spec, max_rows=1))) == 3


def test_available_now_reads_no_further_than_what_was_there(spec: DeltaJoinSpec) -> None:
    steps = Steps(spec)
    steps.reader.prepareForTriggerAvailableNow()
    products = Table.open(spec.tables[1].path)
    products.write(changelog(products.schema.arrow, "+I 8 plum"))
    assert steps.run() == {(1, 7, 7, "apple"): 1}
    assert Steps(spec).run() == {(1, 7, 7, "apple"): 1, (2, 8, 8, "plum"): 1}


def test_compaction_is_not_seen(spec: DeltaJoinSpec) -> None:
    steps = Steps(spec)
    steps.run()
    for side in spec.sides:
        Table.open(side.path).compact()
    assert list(steps) == []


def test_reported_latest_offset_is_where_the_stream_ends(spec: DeltaJoinSpec) -> None:
    steps = Steps(spec)
    steps.run()
    assert DeltaJoinReader(spec).reportLatestOffset() == steps.offset


def test_partitions_are_the_buckets_that_changed(spec: DeltaJoinSpec) -> None:
    reader = DeltaJoinReader(spec)
    start = reader.initialOffset()
    first = reader.latestOffset(start, ALL)
    assert [(p.side, p.bucket) for p in reader.partitions(start, first)] == [(0, 0), (0, 1), (1, 0)]
    assert reader.partitions(first, first) == []


def test_checkpoint_of_another_join_is_refused_by_both_names(spec: DeltaJoinSpec) -> None:
    offset = DeltaJoinReader(spec).initialOffset()
    other = with_sides(spec, left=replace(spec.sides[0], select=("id", "product", "note")))
    with pytest.raises(CheckpointMismatchError, match=f"{spec.fingerprint}.*{other.fingerprint}"):
        DeltaJoinReader(other).latestOffset(offset, ALL)


def test_checkpoint_of_a_table_made_anew_is_refused_by_both_uuids(spec: DeltaJoinSpec) -> None:
    offset = DeltaJoinReader(spec).initialOffset()
    old = Table.open(spec.tables[1].path)
    rmtree(spec.tables[1].path)
    new = Table.create(spec.tables[1].path, PRODUCTS)
    with pytest.raises(CheckpointMismatchError, match=f"{old.uuid}.*{new.uuid}.*made again"):
        DeltaJoinReader(spec).latestOffset(offset, ALL)


def test_checkpoint_of_another_source_is_refused(spec: DeltaJoinSpec) -> None:
    with pytest.raises(CheckpointMismatchError, match="must hold offsets with fingerprint, join"):
        DeltaJoinReader(spec).latestOffset({"logOffset": 3}, ALL)


def test_a_commit_without_change_tracking_stops_the_join_and_is_named(spec: DeltaJoinSpec) -> None:
    steps = Steps(spec)
    steps.run()
    products = Table.open(spec.tables[1].path)
    staged = products.stage(changelog(products.schema.arrow, "+I 8 plum"), order="rows")
    snapshot = products.commit([staged], tracked=False)
    with pytest.raises(UntrackedChangesError, match=str(snapshot.id)):
        steps.run()


def test_a_missing_index_is_named_with_the_one_to_add(spec: DeltaJoinSpec) -> None:
    by_note = replace(spec.sides[0], select=("id", "product", "note"), keys=("note",))
    by_name = replace(spec.sides[1], keys=("name",))
    tables = JoinedTables.open(with_sides(spec, left=by_note, right=by_name))
    with pytest.raises(SchemaError, match=r"left side.*'orders'.*declare INDEX \(note\)"):
        tables.check_lookups()


def test_keys_that_do_not_compare_are_refused(spec: DeltaJoinSpec) -> None:
    with pytest.raises(SchemaError, match=r"orders.product and products.name.*got INT and STRING"):
        JoinedTables.open(with_sides(spec, right=replace(spec.sides[1], keys=("name",))))


def test_unknown_columns_are_refused(spec: DeltaJoinSpec) -> None:
    with pytest.raises(SchemaError, match=r"left side.*unknown column 'x'"):
        JoinedTables.open(with_sides(spec, left=replace(spec.sides[0], select=("product", "x"))))
    with pytest.raises(SchemaError, match="unknown column 'y'"):
        JoinedTables.open(with_sides(spec, right=replace(spec.sides[1], where=[("y", "=", 1)])))


def test_a_missing_table_is_named(spec: DeltaJoinSpec, tmp_path: Path) -> None:
    with pytest.raises(TableNotFoundError, match="nowhere"):
        JoinedTables.open(with_sides(spec, left=replace(spec.sides[0], path=str(tmp_path / "nowhere"))))


def test_a_relative_path_is_made_absolute(
    spec: DeltaJoinSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Executors may run in another folder than the driver."""
    monkeypatch.chdir(tmp_path)
    relative = with_sides(spec, left=replace(spec.sides[0], path="orders"))
    assert JoinedTables.open(relative).located == spec
    assert relative.fingerprint == spec.fingerprint


def test_unknown_options_are_refused(spec: DeltaJoinSpec) -> None:
    with pytest.raises(ConfigurationError, match="unknown option 'spek'; did you mean 'spec'"):
        spec_of({"spek": spec.to_json()})
    assert spec_of({"spec": spec.to_json()}) == spec


VERSION = Version.complete(1)
CHANGES = pa.table({"id": [1], "product": pa.array([7], pa.int32()), "_row_kind": ["+I"]})


def shard_of(*blobs: bytes) -> list[pa.RecordBatch]:
    return [pa.record_batch({"shard": pa.array([0], pa.int32()), "payload": [blob]}) for blob in blobs]


@pytest.mark.parametrize("cut", [0, 1, 100, -1])
def test_a_damaged_blob_is_an_error(spec: DeltaJoinSpec, cut: int) -> None:
    (blob,) = encode(Step(spec.fingerprint, VERSION, VERSION), 0, CHANGES)
    with pytest.raises(BrokenPayloadError, match="run the micro-batch again"):
        list(
            JoinShard(spec)(
                shard_of(blob[:cut] if cut >= 0 else blob.replace(b"fingerprint", b"FINGERPRINT"))
            )
        )


def test_blobs_of_another_join_or_step_are_an_error(spec: DeltaJoinSpec) -> None:
    (own,) = encode(Step(spec.fingerprint, VERSION, VERSION), 0, CHANGES)
    (other,) = encode(Step(spec.fingerprint, Version.EMPTY, VERSION), 0, CHANGES)
    (foreign,) = encode(Step("another", VERSION, VERSION), 0, CHANGES)
    for blobs in ((own, other), (foreign,)):
        with pytest.raises(BrokenPayloadError, match="changes of one step"):
            list(JoinShard(spec)(shard_of(*blobs)))


def test_blobs_with_other_columns_are_an_error(spec: DeltaJoinSpec) -> None:
    (blob,) = encode(Step(spec.fingerprint, VERSION, VERSION), 1, CHANGES)
    with pytest.raises(BrokenPayloadError, match="right side must have the columns"):
        list(JoinShard(spec)(shard_of(blob)))


def test_rows_are_spread_over_blobs_of_bounded_size() -> None:
    rows = pa.table({"k": range(10_000)})
    blobs = list(encode(Step("2f6c", VERSION, VERSION), 0, rows, blob_bytes=8_000))
    assert len(blobs) == 10
    assert all(len(blob) < 10_000 for blob in blobs)
    assert pa.concat_tables([decode(blob).rows for blob in blobs]) == rows
