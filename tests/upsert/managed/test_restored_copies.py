"""Folders that come back older than a checkpoint, or than what a process knows: right, or refused.

Each test copies real folders, and puts the copies back.
"""

import errno
import json
import shutil
import threading
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

from deltajoin import DeltaJoinSpec, Side
from deltajoin.aggregate.evaluate import output_schema
from deltajoin.aggregate.source import AggregateReader
from deltajoin.aggregate.spec import DeltaAggregateSpec, Measure
from deltajoin.spark.source import ChangesReader as JoinReader
from deltajoin.spark.source import SourceOptions
from upsert.errors import MissingStateError, StaleWriterError, own_error
from upsert.managed import checkpoint_mark
from upsert.managed.checkpoint_mark import MARK, CheckpointMark
from upsert.managed.frames import read_changes, write_changes
from upsert.managed.options import ReadOptions
from upsert.managed.reader import ChangesReader
from upsert.schema import TableSchema
from upsert.spark.columns import spark_schema
from upsert.store import Table, paths
from upsert.store.commit.append import Terms
from upsert.store.commit.append import write as write_rows
from upsert.store.metadata.history import _shared
from upsert.store.metadata.snapshot import SnapshotInfo

SCHEMA = TableSchema.of({"id": pa.int64(), "v": pa.int64()}, primary_key=["id"])
ALL = ReadAllAvailable()

Restore = Callable[[], None]


def write(table: Table, *ids: int, v: int = 0) -> int:
    return table.write(pa.table({"id": ids, "v": [v] * len(ids)})).id


def kept_copy(folder: Path) -> Restore:
    """A copy of a folder, as a backup is one; what is given puts it back in the folder's place."""
    copy = folder.with_name(f"{folder.name}-copy")
    shutil.copytree(folder, copy)

    def restore() -> None:
        shutil.rmtree(folder)
        shutil.copytree(copy, folder)

    return restore


def forget_all() -> None:
    """Let this process know as little as one that has just begun."""
    _shared.clear()


def reader_of(table: Table) -> ChangesReader:
    parsed = ReadOptions.parse({"path": table.path})
    return ChangesReader(parsed, spark_schema(table.schema, row_kind=True))


def reached(reader: Any, start: Any = None) -> Any:
    """The end of the next micro-batch."""
    return reader.latestOffset(reader.initialOffset() if start is None else start, ALL)


def changed(reader: Any, start: Any, end: Any) -> set[int]:
    parts = reader.partitions(start, end)
    return {row["id"] for part in parts for batch in reader.read(part) for row in batch.to_pylist()}


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Five commits, with the ids 1 to 5."""
    table = Table.create(tmp_path / "t", SCHEMA, {"write-only": "true"})
    for id in range(1, 6):
        write(table, id)
    return table


@pytest.mark.parametrize("commits", [0, 3, 4])
@pytest.mark.parametrize("is_new_process", [True, False])
def test_a_stream_of_a_table_that_came_back_older_is_refused(
    table: Table, commits: int, is_new_process: bool
) -> None:
    """Also when the ids have come so far again: 8 is another snapshot then, and rows would be lost."""
    restore = kept_copy(Path(table.path))
    for id in (6, 7, 8):
        write(table, id)
    offset = reached(reader_of(table))
    assert offset["version"]["base"] == 8
    restore()
    if is_new_process:
        forget_all()
    for id in range(100, 100 + commits):
        write(Table.open(table.path), id)
    found = "the newest here is" if commits < 3 else "which is another one here"
    with pytest.raises(
        MissingStateError, match=rf"table 't': the snapshots .* snapshot 8, {found}.*older copy"
    ):
        reached(reader_of(table), offset)


def test_a_micro_batch_that_was_planned_before_is_refused(table: Table) -> None:
    start = reached(reader_of(table))
    restore = kept_copy(Path(table.path))
    write(table, 6)
    end = reached(reader_of(table), start)
    restore()
    write(Table.open(table.path), 7)
    with pytest.raises(MissingStateError, match=r"snapshot 6, which is another one here"):
        reader_of(table).partitions(start, end)


def test_a_table_that_came_back_as_it_was_goes_on(table: Table) -> None:
    offset = reached(reader_of(table))
    restore = kept_copy(Path(table.path))
    restore()
    forget_all()
    write(Table.open(table.path), 9)
    reader = reader_of(table)
    assert changed(reader, offset, reached(reader, offset)) == {9}


def test_a_copy_of_both_goes_on_wherever_the_table_went_meanwhile(table: Table) -> None:
    """A table and a checkpoint of one time; what the table had later is nothing to the stream."""
    offset = reached(reader_of(table))
    restore = kept_copy(Path(table.path))
    write(table, 6, 7)
    restore()
    write(Table.open(table.path), 8)
    reader = reader_of(table)
    assert changed(reader, offset, reached(reader, offset)) == {8}


def test_offsets_of_older_releases_go_on(table: Table) -> None:
    """What they name is not known by more than its number; the text that nothing has changed is theirs."""
    old = reached(reader_of(table))
    assert old["version"].pop("uuids").keys() == {"5"}
    assert json.dumps(reached(reader_of(table), old)) == json.dumps(old)
    write(table, 6)
    reader = reader_of(table)
    end = reached(reader, old)
    assert changed(reader, old, end) == {6}
    assert end["version"]["uuids"] == {"6": table.snapshot(6).info.uuid}


def test_compaction_and_expiry_leave_a_stream_where_it_is(table: Table) -> None:
    """The snapshot that the offset names is gone, and another one with its rows is known by its uuid."""
    offset = reached(reader_of(table))
    table.compact()
    table.expire(keep=1)
    assert table.snapshot().info.oldest > 5
    assert reached(reader_of(table), offset) == offset
    restore = kept_copy(Path(table.path))
    write(table, 6)
    later = reached(reader_of(table), offset)
    restore()
    other = Table.open(table.path)
    write(other, 7)
    other.compact()
    other.expire(keep=1)
    forget_all()
    with pytest.raises(MissingStateError, match=r"which is another one here"):
        reached(reader_of(table), later)


def test_a_join_is_refused_if_one_of_its_tables_came_back_older(table: Table, tmp_path: Path) -> None:
    other = Table.create(tmp_path / "u", SCHEMA)
    write(other, 1)
    restore = kept_copy(Path(other.path))
    write(other, 2)
    spec = DeltaJoinSpec.of(
        "inner", Side(table.path, ("id", "v"), ("id",)), Side(other.path, ("id", "v"), ("id",))
    )
    start = reached(JoinReader(SourceOptions(spec)))
    write(table, 1, v=1)
    end = reached(JoinReader(SourceOptions(spec)), start)
    restore()
    write(Table.open(other.path), 3)
    with pytest.raises(MissingStateError, match=r"table 'u': .* snapshot 2, which is another one here"):
        reached(JoinReader(SourceOptions(spec)), end)
    with pytest.raises(MissingStateError, match=r"table 'u': .* snapshot 2, which is another one here"):
        JoinReader(SourceOptions(spec)).partitions(start, end)


def test_an_aggregate_of_a_table_that_came_back_older_is_refused(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "t", SCHEMA.index("v"))
    write(table, 1)
    restore = kept_copy(Path(table.path))
    write(table, 2)
    spec = DeltaAggregateSpec(table.path, ("v",), (Measure("max", ("id",)),))
    asked = spark_schema(TableSchema.of(output_schema(spec, table.schema)), row_kind=True)
    offset = reached(AggregateReader(spec, asked))
    restore()
    write(Table.open(table.path), 3)
    with pytest.raises(MissingStateError, match=r"table 't': .* snapshot 2, which is another one here"):
        reached(AggregateReader(spec, asked), offset)


@pytest.mark.parametrize("commits", [0, 3, 5])
def test_a_process_that_knew_a_newer_state_reads_and_writes_the_one_that_is_there(
    table: Table, commits: int
) -> None:
    """What it remembers by ids is another's by now."""
    restore = kept_copy(Path(table.path))
    for id in (6, 7, 8):
        write(table, id)
    assert [info.id for info in table.history()] == [*range(1, 9)]
    assert table.snapshot(7).row_count == 7
    restore()
    ids = [100 + number for number in range(commits)]
    for id in ids:
        _in_another_process(table, id)
    there = [1, 2, 3, 4, 5, *ids]
    assert sorted(table.snapshot().scan()["id"].to_pylist()) == there
    write(table, 200)
    assert table.history()[-1].id == 6 + commits
    for number in range(1, 7 + commits):
        snapshot = table.snapshot(number)
        assert sorted(snapshot.scan()["id"].to_pylist()) == [*there, 200][:number]
        assert snapshot.row_count == number
    assert not table.check(deep=True)


def _in_another_process(table: Table, id: int) -> None:
    """A commit of which the table that is given remembers nothing."""
    forget_all()
    write(Table.open(table.path), id)
    forget_all()


def test_a_writer_that_knows_a_newer_state_takes_its_commit_back(table: Table) -> None:
    """One in an object store does not look before each attempt: its snapshot would follow none."""
    restore = kept_copy(Path(table.path))
    write(table, 6)
    restore()
    table.published.seen_just_now = lambda: table.published.seen  # type: ignore[method-assign]
    rows = pa.table({"id": [7], "v": [0]})
    with pytest.raises(StaleWriterError, match=r"no longer has snapshot 6; write the rows again"):
        write_rows(table._committer, rows, Terms())
    write(table, 7)
    assert table.snapshot().id == 6
    assert table.check(deep=True) == (), "nothing is left of the commit taken back"


@pytest.fixture
def mark(tmp_path: Path) -> CheckpointMark:
    """That of the checkpoint ``c`` of query ``q``."""
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "metadata").write_text('{"id":"q"}')
    return CheckpointMark.of(str(tmp_path / "c"), "q")


def test_a_slow_look_of_another_thread_is_no_older_table(
    table: Table, mark: CheckpointMark, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends between the look of a micro-batch and the comparison, with what the table was before."""
    published = table.published
    begun, may_end, look_at = threading.Event(), threading.Event(), published._look_at

    def slow(info: SnapshotInfo) -> None:
        if threading.current_thread() is other:
            begun.set()
            may_end.wait()
        look_at(info)

    monkeypatch.setattr(published, "_look_at", slow)
    other = threading.Thread(target=published.latest)
    other.start()
    begun.wait()
    table.commit([table.stage_raw(pa.table({"id": [6], "v": [0]}))], writer_id="q", transaction=0)
    mark.note(table, 0)
    opened = Table.open(table.path)
    may_end.set()
    other.join()
    assert published.seen.id == 5
    assert not mark.has_rows(opened, 1)


def test_a_micro_batch_that_the_mark_names_is_a_replay_whatever_the_clock_was_set_to(
    table: Table, mark: CheckpointMark, tmp_path: Path
) -> None:
    """It was planned by a clock that went ahead, and committed when that had been set."""
    (tmp_path / "c" / "offsets").mkdir()

    def plan(hours_ahead: int) -> None:
        planned_ms = int(time.time() * 1000) + hours_ahead * 3_600_000
        offsets = f'v1\n{{"batchTimestampMs":{planned_ms}}}\n{{}}'
        (tmp_path / "c" / "offsets" / "0").write_text(offsets)

    plan(2)
    table.commit([table.stage_raw(pa.table({"id": [6], "v": [0]}))], writer_id="q", transaction=0)
    mark.note(table, 0)
    assert mark.has_rows(table, 0)
    plan(3)
    for id in range(8):  # of what others have committed since, little is read
        table.write(pa.table({"id": [id], "v": [1]}))
    Path(table.path, paths.snapshot_file(table.snapshot().id - 1)).unlink()
    table.published = table.published.reread()
    with pytest.raises(MissingStateError, match=r"micro-batch 0, planned at .* must not be there yet"):
        mark.has_rows(table, 0)


def commit(table: Table, batch: int) -> SnapshotInfo:
    """A micro-batch of query ``q``."""
    rows = table.stage_raw(pa.table({"id": [batch], "v": [batch]}))
    return table.commit([rows], writer_id="q", transaction=batch).info


def test_a_micro_batch_that_was_planned_well_after_its_commit_is_another_one(
    mark: CheckpointMark, tmp_path: Path
) -> None:
    """A clock may have been set back a little; whether an expired commit was earlier is not known."""
    table = Table.create(tmp_path / "t", SCHEMA, {"write-only": "true"})
    (tmp_path / "c" / "offsets").mkdir()

    def plan(ms: int) -> None:
        (tmp_path / "c" / "offsets" / "0").write_text(f'v1\n{{"batchTimestampMs":{ms}}}\n{{}}')

    committed_ms = commit(table, 0).time_ms
    plan(committed_ms + 30_000)
    assert mark.has_rows(table, 0)
    plan(committed_ms + 90_000)
    with pytest.raises(MissingStateError, match=r"micro-batch 0, planned at .* must not be there yet"):
        mark.has_rows(table, 0)
    write(table, 7)
    table.expire(keep=1)
    assert table.snapshot().info.oldest == 2
    assert mark.has_rows(table, 0)


def test_a_sink_without_what_its_checkpoint_says_was_written_is_refused(
    mark: CheckpointMark, table: Table
) -> None:
    """Also if it has others of the same numbers, for it was written on from an older copy."""
    restore = kept_copy(Path(table.path))
    commit(table, 3)
    mark.note(table, 3)
    assert [mark.has_rows(table, batch) for batch in (3, 4)] == [True, False]
    with pytest.raises(MissingStateError, match=r"micro-batch 2 must follow .* that is 3: the checkpoint is"):
        mark.has_rows(table, 2)
    restore()
    forget_all()
    older = Table.open(table.path)
    for last, found in ((None, "it has none of them"), (2, "up to 2 only"), (3, "others of these numbers")):
        if last is not None:
            commit(older, last)
        with pytest.raises(MissingStateError, match=rf"up to 3 that the checkpoint says .* {found}"):
            mark.has_rows(older, 4)


def test_a_mark_that_cannot_be_written_leaves_no_file(
    table: Table, mark: CheckpointMark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("json.dump", is_full)
    mark.note(table, 0)
    assert [one.name for one in (tmp_path / "c").iterdir()] == ["metadata"]


def test_what_a_process_that_was_killed_in_a_mark_left_is_gone_after_the_next_one(
    table: Table, mark: CheckpointMark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", is_killed)
        with pytest.raises(KeyboardInterrupt):
            mark.note(table, 0)
    mark.note(table, 1)
    assert sorted(one.name for one in (tmp_path / "c").iterdir()) == [MARK, "metadata"]


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path) -> Callable[..., None]:
    def run(table: Table, sink: Table, way: str = "own") -> None:
        df = read_changes(spark, table.path)
        writer = write_changes(df, sink.path, {"sink.materialize": "force"} if way == "kept" else {})
        if way == "raw":
            writer = df.writeStream.format("upsert-table").option("path", sink.path)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        except Exception as error:
            own = own_error(error)
            raise own or error from error

    return run


@pytest.mark.spark
@pytest.mark.parametrize("way", ["own", "raw", pytest.param("kept", marks=pytest.mark.long)])
def test_a_sink_that_came_back_older_than_the_checkpoint_is_refused(
    table: Table, tmp_path: Path, run: Callable[..., None], way: str
) -> None:
    sink = Table.create(tmp_path / "sink", SCHEMA)
    run(table, sink, way)
    restore = kept_copy(Path(sink.path))
    write(table, 6)
    run(table, sink, way)
    restore()
    forget_all()
    write(table, 7)
    with pytest.raises(MissingStateError, match=r"table .* and query .* up to 1 .* has up to 0 only"):
        run(table, sink, way)
    assert sorted(Table.open(sink.path).snapshot().scan()["id"].to_pylist()) == [1, 2, 3, 4, 5]


@pytest.mark.spark
@pytest.mark.parametrize(
    ("way", "newer"),
    [("own", 1), *(pytest.param(way, 2, marks=pytest.mark.long) for way in ("own", "raw", "kept"))],
)
def test_a_checkpoint_that_came_back_older_than_the_sink_is_refused(
    table: Table,
    tmp_path: Path,
    run: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    way: str,
    newer: int,
) -> None:
    """Its next micro-batch has the number of one that the sink has, and other rows."""
    monkeypatch.setattr(checkpoint_mark, "_CLOCK_MS", 0)
    sink = Table.create(tmp_path / "sink", SCHEMA)
    run(table, sink, way)
    restore = kept_copy(tmp_path / "checkpoint")
    for id in range(6, 6 + newer):
        write(table, id)
        run(table, sink, way)
    restore()
    write(table, 9)
    with pytest.raises(MissingStateError, match=r"the checkpoint is older than the table"):
        run(table, sink, way)


@pytest.mark.spark
def test_a_sink_without_the_rows_of_some_micro_batches_goes_on(
    table: Table, tmp_path: Path, spark: SparkSession
) -> None:
    """Micro-batches without rows are no commits, and no sign of an older copy."""
    sink = Table.create(tmp_path / "sink", SCHEMA)
    for id in (6, 100):
        df = read_changes(spark, table.path).where("id < 6 OR id > 99")
        writer = write_changes(df, sink.path).option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()
        write(table, id)
    writer.trigger(availableNow=True).start().awaitTermination()
    assert sorted(sink.snapshot().scan()["id"].to_pylist()) == [1, 2, 3, 4, 5, 100]


@pytest.mark.spark
@pytest.mark.long  # each refusal and each replay is tested without Spark above
@pytest.mark.parametrize("seed", range(40))
def test_whatever_comes_back_older_the_sink_has_the_rows_of_its_source_or_is_refused(
    tmp_path: Path, run: Callable[..., None], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Copies of source, sink and checkpoint of several times, put back in any mixture."""
    print("seed", seed)
    random = Random(seed)
    monkeypatch.setattr(checkpoint_mark, "_CLOCK_MS", 0)
    numbers = count()
    folders = [tmp_path / name for name in ("source", "sink", "checkpoint")]
    source, sink = (Table.create(folder, SCHEMA) for folder in folders[:2])

    def change() -> None:
        ids = random.sample(range(12), 4)
        kinds = ["+I", *random.choices(["+I", "-D"], [3, 1], k=3)]
        values = [next(numbers) for _ in ids]
        Table.open(source.path).write(pa.table({"id": ids, "v": values, "_row_kind": kinds}))

    def copy(time: int) -> None:
        for folder in folders:
            shutil.copytree(folder, tmp_path / "copies" / str(time) / folder.name)

    def put_back(folder: Path, time: int) -> None:
        shutil.rmtree(folder)
        shutil.copytree(tmp_path / "copies" / str(time) / folder.name, folder)

    def runs() -> bool:
        if random.random() < 0.5:
            forget_all()
        try:
            run(source, sink)
        except MissingStateError:
            return False
        found = [Table.open(each.path).snapshot().scan().sort_by("id").to_pylist() for each in (source, sink)]
        assert found[0] == found[1]
        return True

    change()
    assert runs()
    copy(0)
    times = 1
    for _ in range(4):
        for _ in range(random.randrange(3)):
            change()
            assert runs()
        if random.random() < 0.6:
            copy(times)
            times += 1
        time = random.randrange(times)
        for folder in random.sample(folders, random.randrange(4)):
            put_back(folder, random.choice([time, random.randrange(times)]))
        for _ in range(random.randrange(1, 4)):  # without a change there is no micro-batch
            change()
        if not runs():
            for folder in folders:
                put_back(folder, time)
            change()
            assert runs()
