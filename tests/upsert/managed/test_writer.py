"""The writer's two halves, called as Spark calls them: tasks stage, the driver commits or aborts."""

import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import WriterCommitMessage

from tests.helpers import changelog, multiset
from upsert.errors import ChangelogError, ConfigurationError
from upsert.managed.options import WriteOptions
from upsert.managed.writer import BatchWriter, StreamWriter, TaskResult
from upsert.schema import TableSchema
from upsert.spark.columns import spark_schema
from upsert.store.commit.append import LeftoverWarning
from upsert.store.table import Table

SCHEMA = TableSchema.of({"id": pa.int64(), "v": pa.string()}, primary_key=["id"])


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.create(tmp_path / "t", SCHEMA, {"bucket": "2"})


def stream_writer(table: Table, *, bucketed: int = 0, overwrite: bool = False) -> StreamWriter:
    """As Spark has it in a process of its own."""
    options = WriteOptions(table.path, bucketed)
    writer = StreamWriter(options, spark_schema(table.schema, row_kind=True), overwrite)
    return pickle.loads(pickle.dumps(writer))  # type: ignore[no-any-return]


def task(writer: StreamWriter | BatchWriter, *lines: str, query: str = "q1") -> WriterCommitMessage:
    result = writer.write(batches(*lines))
    sent = TaskResult(query, result.staged)
    return pickle.loads(pickle.dumps(sent))  # type: ignore[no-any-return]


def batches(*lines: str) -> Iterator[pa.RecordBatch]:
    return iter(changelog(SCHEMA.arrow, *lines).to_batches(max_chunksize=2))


def content(table: Table) -> list[tuple[Any, ...]]:
    return sorted(multiset(table.snapshot().scan()))


def files(table: Table) -> list[str]:
    return sorted(p.name for p in Path(table.path).rglob("*.arrow") if p.parent.name != "manifest")


def test_tasks_of_a_batch_become_one_snapshot(table: Table) -> None:
    """Any partitioning is right: both halves of an update may come from different tasks."""
    writer = stream_writer(table)
    writer.commit([task(writer, "+I 1 a", "+I 2 b", "-U 3 c"), task(writer, "+U 3 d"), task(writer)], 0)
    assert content(table) == [(1, "a"), (2, "b"), (3, "d")]
    assert table.snapshot().id == 1


def test_replayed_batch_is_committed_once(table: Table) -> None:
    for _ in range(2):
        writer = stream_writer(table)
        writer.commit([task(writer, "+I 1 a")], 0)
    table.write(changelog(SCHEMA.arrow, "+U 1 later"))
    writer = stream_writer(table)
    writer.commit([task(writer, "+I 1 a")], 0)
    assert content(table) == [(1, "later")]
    assert [info.kind for info in table.history()] == ["append", "append"]


def test_same_batch_of_another_query_is_another_transaction(table: Table) -> None:
    writer = stream_writer(table)
    writer.commit([task(writer, "+I 1 a", query="q1")], 0)
    writer.commit([task(writer, "+I 2 b", query="q2")], 0)
    assert content(table) == [(1, "a"), (2, "b")]


def test_batch_without_rows_is_no_snapshot(table: Table) -> None:
    writer = stream_writer(table)
    writer.commit([task(writer), task(writer)], 0)
    assert table.snapshot().id == 0


def test_complete_mode_replaces_the_table(table: Table) -> None:
    writer = stream_writer(table, overwrite=True)
    writer.commit([task(writer, "+I 1 a", "+I 2 b")], 0)
    writer.commit([task(writer, "+I 2 c")], 1)
    assert content(table) == [(2, "c")]
    writer.commit([task(writer)], 2)
    assert content(table) == []


def test_abort_after_a_failed_task_removes_the_others_files(table: Table) -> None:
    writer = stream_writer(table)
    done = task(writer, "+I 1 a")
    assert files(table)
    writer.abort([done, None], 0)
    assert files(table) == []


def test_abort_that_fails_leaves_the_reason_of_the_write_s_failure_to_spark(table: Table) -> None:
    writer = stream_writer(table)
    done = task(writer, "+I 1 a")
    Path(table.path, "table.json").rename(table.path + "/hidden")
    with pytest.warns(LeftoverWarning, match="table 't': files of a write that has failed could not be del"):
        writer.abort([done, None], 0)


def test_abort_after_commit_began_removes_nothing(table: Table) -> None:
    """The commit may have happened, or may still be going on in a process that lost its query."""
    writer = stream_writer(table, bucketed=table.options.bucket)
    done: list[WriterCommitMessage | None] = [task(writer, "+I 1 a", "+I 2 b", "+I 3 c")]
    writer.commit(done, 0)
    writer.abort(done, 0)
    assert content(table) == [(1, "a"), (2, "b"), (3, "c")]


def test_two_values_for_a_key_are_refused_and_nothing_is_published(table: Table) -> None:
    writer = stream_writer(table)
    with pytest.raises(ChangelogError, match="'id': 1"):
        writer.commit([task(writer, "+I 1 a"), task(writer, "+I 1 b")], 0)
    assert table.snapshot().id == 0


def test_table_that_was_replaced_during_the_query_is_not_written(table: Table, tmp_path: Path) -> None:
    writer = stream_writer(table)
    message = task(writer, "+I 1 a")
    Path(table.path).rename(tmp_path / "old")
    Table.create(table.path, SCHEMA)
    with pytest.raises(ConfigurationError, match="was replaced by another table"):
        writer.commit([message], 0)


def test_tasks_must_know_their_query(table: Table) -> None:
    writer = stream_writer(table)
    messages: Sequence[Sequence[WriterCommitMessage | None]] = [
        [writer.write(batches("+I 1 a"))],
        [task(writer, "+I 1 a", query="q1"), task(writer, "+I 2 a", query="q2")],
    ]
    for sent in messages:
        with pytest.raises(ConfigurationError, match="must name one query"):
            writer.commit(list(sent), 0)


def test_batch_write_appends_or_overwrites(table: Table) -> None:
    given = spark_schema(SCHEMA, row_kind=True)
    for overwrite, lines in (
        (False, ("+I 1 a", "+I 2 b")),
        (False, ("-D 1 a", "+I 3 c")),
        (True, ("+I 4 d",)),
    ):
        writer = BatchWriter(WriteOptions(table.path), given, overwrite)
        writer.commit([writer.write(batches(*lines)), writer.write(batches())])
    assert content(table) == [(4, "d")]
    assert [info.kind for info in table.history()] == ["append", "append", "overwrite"]
