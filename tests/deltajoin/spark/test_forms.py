"""The physical forms without Spark: what a task gets, and blobs that are damaged."""

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from deltajoin import BrokenPayloadError, DeltaJoinSpec, Side
from deltajoin.core.evaluate import Join
from deltajoin.core.shards import Split
from deltajoin.spark.offsets import JoinStep
from deltajoin.spark.shuffled import BlobLabel, JoinShard, decode
from deltajoin.spark.source import JoiningReader, ShardOfStep, SourceOptions
from deltajoin.spark.tables import JoinedTables, output_type
from tests.deltajoin.core.memory_tables import signed
from tests.deltajoin.spark.steps import FORMS, Steps
from tests.helpers import changelog, multiset
from upsert.blobs import BLOB_COLUMN, to_blobs
from upsert.schema import TableSchema
from upsert.store.alterations import RenameColumn
from upsert.store.table import Table
from upsert.store.version import Version

ORDERS = TableSchema.of({"id": pa.int64(), "product": pa.int64()}, primary_key=["id"]).index("product")
PRODUCTS = TableSchema.of({"code": pa.int64(), "name": pa.string()}, primary_key=["code"])


@pytest.fixture
def spec(tmp_path: Path) -> DeltaJoinSpec:
    """Orders and products with some rows; products are bucketed by the join key."""
    orders = Table.create(tmp_path / "orders", ORDERS, {"bucket": "2"})
    products = Table.create(tmp_path / "products", PRODUCTS, {"bucket": "4"})
    orders.write(pa.table({"id": range(30), "product": [i % 7 for i in range(30)]}))
    products.write(pa.table({"code": range(5), "name": list("abcde")}))
    left, right = (
        Side(orders.path, ORDERS.names, ("product",)),
        Side(products.path, PRODUCTS.names, ("code",)),
    )
    return DeltaJoinSpec.of("inner", left, right, shards=6)


def partitions(steps: Steps) -> list[ShardOfStep]:
    """What the tasks of the next micro-batch get."""
    end = steps.reader.latestOffset(steps.offset, ReadAllAvailable())
    found = steps.reader.partitions(steps.offset, end)
    return [part for part in found if isinstance(part, ShardOfStep)]


def test_first_load_is_cut_into_ranges_of_the_larger_table(spec: DeltaJoinSpec) -> None:
    """To each of its tasks only orders move, from one place in the order of their keys to the next."""
    steps = Steps(spec)
    slices = partitions(steps)
    assert len(slices) == 30
    assert {part.step.moved for part in slices} == {(0,)}
    assert [part.step.new[0] for part in slices[:-1]] == [part.step.old[0] for part in slices[1:]]
    assert (slices[0].step.old[0], slices[-1].step.new[0]) == (EMPTY, FIRST)
    assert len(list(steps)) == 1
    assert steps.emitted == steps.truth()
    assert steps.emitted.total() == 22


@pytest.mark.parametrize("form", FORMS)
def test_first_load_by_micro_batches_obeys_the_limit(spec: DeltaJoinSpec, form: str) -> None:
    steps = Steps(spec, max_rows=10, form=form, first_load="micro-batches")
    assert len(list(steps)) == 3
    assert steps.emitted == steps.truth()


def test_a_first_load_ends_where_the_streaming_goes_on(spec: DeltaJoinSpec) -> None:
    """What is committed after the first step was planned comes in the second one, once."""
    steps = Steps(spec)
    batches = iter(steps)
    next(batches)
    orders = Table.open(spec.tables[0].path)
    orders.write(changelog(ORDERS.arrow, "+I 30 1", "-D 0 0", "+U 1 2"))
    assert signed(next(batches)) == {
        (30, 1, 1, "b"): 1,
        (0, 0, 0, "a"): -1,
        (1, 1, 1, "b"): -1,
        (1, 2, 2, "c"): 1,
    }
    assert steps.emitted == steps.truth()


def test_a_few_changes_are_one_task(spec: DeltaJoinSpec) -> None:
    steps = Steps(spec)
    steps.run()
    orders = Table.open(spec.tables[0].path)
    orders.write(changelog(ORDERS.arrow, "+I 30 1", "+I 31 1"))
    assert [(part.shard, part.shards) for part in partitions(steps)] == [(0, 2), (1, 2)]
    options, asked = SourceOptions(spec), output_type(JoinedTables.open(spec))
    reader = JoiningReader(options, asked)
    end = reader.latestOffset(steps.offset, ReadAllAvailable())
    assert [(part.shard, part.shards) for part in reader.partitions(steps.offset, end)] == [(0, 1)]


def test_tasks_agree_with_the_buckets_of_tables_that_are_bucketed_by_the_join_key(tmp_path: Path) -> None:
    """Five rows would be worth five tasks; four of them read a bucket or two each, and none is read twice."""
    tables = [Table.create(tmp_path / n, PRODUCTS, {"bucket": n}) for n in ("2", "4")]
    one, other = (Side(table.path, PRODUCTS.names, ("code",)) for table in tables)
    steps = Steps(DeltaJoinSpec.of("inner", one, other, shards=7))
    tables[1].write(pa.table({"code": range(3, 30), "name": ["x"] * 27}))
    steps.run()
    tables[0].write(pa.table({"code": range(5), "name": list("abcde")}))
    assert [(part.shard, part.shards) for part in partitions(steps)] == [(n, 4) for n in range(4)]
    end, most = steps.reader.latestOffset(steps.offset, ReadAllAvailable()), steps.reader.readable_bytes
    steps.reader.readable_bytes = 2
    assert len(steps.reader.partitions(steps.offset, end)) == 7, "the memory of four tasks is not enough"
    steps.reader.readable_bytes = most
    assert steps.run() == steps.truth()
    assert steps.emitted.total() == 2


def test_a_join_more_than_a_process_keeps_makes_it_plan_no_other_one_again(
    spec: DeltaJoinSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It forgot all of them; and threads that came at once could make it keep any number."""
    joins = [JoinedTables.open(replace(spec, shards=shards)) for shards in range(1, 19)]
    planned = [joined.join for joined in joins]
    monkeypatch.setattr(Join, "of", None)
    assert [joined.join for joined in joins[2:]] == planned[2:]


def test_only_buckets_that_can_hold_a_shard_are_read(spec: DeltaJoinSpec) -> None:
    """Products are bucketed by the join key in four; of six shards each has keys of two of the buckets."""
    tables = JoinedTables.open(spec)
    step = JoinStep((EMPTY, EMPTY), (FIRST, FIRST))
    read = []
    tables.tables[1].changes_between = lambda *_, buckets, **__: read.append(buckets) or empty  # type: ignore
    empty = Table.open(spec.tables[1].path).changes(1, 1)
    for shard in range(6):
        tables.shard_changes(step, 1, shard, 6)
    assert read == [[0, 2], [1, 3]] * 3


def test_a_shard_that_has_whole_buckets_reads_all_of_their_rows(
    spec: DeltaJoinSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No row is looked at to find whose it is."""
    tables = JoinedTables.open(spec)
    step = JoinStep((EMPTY, EMPTY), (FIRST, FIRST))
    monkeypatch.setattr(Split, "shard_of", None)
    for shards in (1, 2, 4):
        found = [tables.shard_changes(step, 1, shard, shards).rows for shard in range(shards)]
        assert multiset(pa.concat_tables(found)) == multiset(Table.open(spec.tables[1].path).changes(0))


def test_a_shard_reads_only_its_own_keys(spec: DeltaJoinSpec) -> None:
    """Products are joined by their primary key, orders by a column that an update may change."""
    tables = JoinedTables.open(spec)
    step = JoinStep((EMPTY, EMPTY), (FIRST, FIRST))
    for table, is_of_key in enumerate((False, True)):
        shares, own = [], tables.tables[table].changes_between

        def read(
            *given: Any, share: Any = None, own: Any = own, shares: Any = shares, **others: Any
        ) -> pa.Table:
            shares.append(share)
            return own(*given, share=share, **others)

        tables.tables[table].changes_between = read  # type: ignore[method-assign]
        found = [tables.shard_changes(step, table, shard, 6).rows for shard in range(6)]
        assert {share.is_of_key for share in shares} == {is_of_key}
        assert pa.concat_tables(found).num_rows == (5 if is_of_key else 30)


def test_a_shard_reads_a_bucket_at_a_time_where_the_join_key_was_renamed(spec: DeltaJoinSpec) -> None:
    """Then it gets the rows of all shards, and cuts each bucket's before it reads the next one."""
    begun = JoinedTables.open(spec).located
    Table.open(spec.tables[0].path).alter(RenameColumn("product", "sku"))
    tables = JoinedTables.open(begun)
    step = JoinStep((EMPTY, EMPTY), (FIRST, FIRST))
    read, own = [], tables.tables[0].changes_between

    def counted(*given: Any, buckets: Any, **others: Any) -> pa.Table:
        read.append(list(buckets))
        return own(*given, buckets=buckets, **others)

    tables.tables[0].changes_between = counted  # type: ignore[method-assign]
    found = [tables.shard_changes(step, 0, shard, 6).rows for shard in range(6)]
    assert read == [[0], [1]] * 6
    assert pa.concat_tables(found).num_rows == 30


def test_partitions_and_readers_cross_to_executors(spec: DeltaJoinSpec) -> None:
    steps = Steps(spec)
    for part in partitions(steps):
        assert pickle.loads(pickle.dumps(part)) == part
    rows = pickle.loads(pickle.dumps(steps.reader)).read(partitions(steps)[0])
    assert sum(batch.num_rows for batch in rows) <= 1


EMPTY, FIRST = Version.EMPTY, Version.complete(1)
STEP = JoinStep((FIRST, EMPTY), (FIRST, FIRST))
CHANGES = pa.table({"id": [1], "product": pa.array([7], pa.int32()), "_row_kind": ["+I"]})


def shard_of(*blobs: bytes) -> list[pa.RecordBatch]:
    return [pa.record_batch({"shard": pa.array([0], pa.int32()), BLOB_COLUMN: [blob]}) for blob in blobs]


@pytest.mark.parametrize("cut", [0, 1, 100, -1])
def test_a_damaged_blob_is_an_error(spec: DeltaJoinSpec, cut: int) -> None:
    (blob,) = to_blobs(CHANGES, BlobLabel(spec.fingerprint, STEP, 0).to_json())
    with pytest.raises(BrokenPayloadError, match="run the micro-batch again"):
        list(
            JoinShard(spec)(
                shard_of(blob[:cut] if cut >= 0 else blob.replace(b"fingerprint", b"FINGERPRINT"))
            )
        )


def test_blobs_of_another_join_or_step_are_an_error(spec: DeltaJoinSpec) -> None:
    (own,) = to_blobs(CHANGES, BlobLabel(spec.fingerprint, STEP, 0).to_json())
    (other,) = to_blobs(
        CHANGES, BlobLabel(spec.fingerprint, JoinStep((EMPTY,) * 2, (FIRST,) * 2), 0).to_json()
    )
    (foreign,) = to_blobs(CHANGES, BlobLabel("another", STEP, 0).to_json())
    for blobs in ((own, other), (foreign,)):
        with pytest.raises(BrokenPayloadError, match="changes of one step"):
            list(JoinShard(spec)(shard_of(*blobs)))


def test_blobs_with_other_columns_are_an_error(spec: DeltaJoinSpec) -> None:
    (blob,) = to_blobs(CHANGES, BlobLabel(spec.fingerprint, STEP, 1).to_json())
    with pytest.raises(BrokenPayloadError, match="table 1 must have the columns"):
        list(JoinShard(spec)(shard_of(blob)))


def test_rows_are_spread_over_blobs_of_bounded_size() -> None:
    rows = pa.table({"k": range(10_000)})
    blobs = list(to_blobs(rows, BlobLabel("2f6c", STEP, 0).to_json(), blob_bytes=8_000))
    assert len(blobs) == 10
    assert all(len(blob) < 10_000 for blob in blobs)
    assert pa.concat_tables([decode(blob).rows for blob in blobs]) == rows
