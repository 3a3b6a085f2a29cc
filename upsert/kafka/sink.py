"""Spark rows into Kafka: each task writes its records, the driver checks that all have.

Kafka has no transaction over several producers, so a micro-batch becomes visible task by task. With
``exactly-once`` each task writes in a transaction of its own, which also keeps the micro-batch's number; a
replay finds the number and writes nothing. That is right as long as a replay gives each task the same rows:
either the keys are distributed by their hash (``write_changes``, ``write_upsert``), which every task checks
of each key, or the rows of a task are compared by a checksum.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Final, NoReturn

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StringType, StructField, StructType

from upsert.errors import ConfigurationError
from upsert.kafka.client.connection import Connection
from upsert.kafka.client.producer import produce
from upsert.kafka.client.transactions import Outcome, produce_once, read_marker, settled_marker
from upsert.kafka.declaration import declared
from upsert.kafka.encode import RecordEncoder, RecordMaker, Seen, sink_of, written_schema
from upsert.kafka.table import KafkaTable
from upsert.kafka.topics import partitions_of, warning_of_write
from upsert.materializer.choice import check_raw
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.spark.batches import from_spark
from upsert.spark.columns import check_fits
from upsert.spark.task import begin_task, micro_batch_here, task_number

LOG: Final = logging.getLogger("upsert.kafka")

DEAD_AFTER_S: Final = 2.0
"""A transaction that stays open for longer while its task runs again is that of a task that died."""


def write_once(
    maker: RecordMaker, batches: Iterable[pa.RecordBatch], *, query: str, batch: int, task: int
) -> Outcome:
    """Write the records of a task unless an earlier attempt of the micro-batch did.

    The transactional id is ``<prefix>-<query>-<task>``. Where keys are distributed by their hash a replay is
    the same if the number of tasks is; the rows may be fewer, when Kafka has compacted the source meanwhile.
    Elsewhere it must have as many rows, with the same checksum.

    A task without rows leaves no mark: there is nothing that a replay could write twice. Only task 0 always
    does where keys are distributed, so that another number of tasks is noticed whatever rows there are.
    """
    table = maker.table
    connection, topic = table.connection, (table.topics or ("",))[0]
    base = f"{table.values['sink.transactional-id-prefix']}-{query}"
    seen = Seen() if maker.tasks is None else None
    records = maker.records(batches, task, seen)
    if maker.tasks is not None:
        _check_number_of_tasks(connection, topic, base, maker.tasks, table.name)
    first = next(records, None)
    if first is None:
        # a task without rows may have to leave a mark, or to be held against one
        if maker.tasks is not None:
            needs_mark = task == 0
        else:
            marker = settled_marker(connection, topic, f"{base}-{task}", DEAD_AFTER_S)
            needs_mark = marker is not None and marker.batch >= batch
        if not needs_mark:
            return Outcome(0, skipped=False)
    return produce_once(
        connection,
        topic,
        records if first is None else chain((first,), records),
        transactional_id=f"{base}-{task}",
        batch=batch,
        fingerprint=f"{maker.tasks} tasks by key" if seen is None else seen.__str__,
    )


@lru_cache(maxsize=64)
def _check_number_of_tasks(connection: Connection, topic: str, base: str, tasks: int, of: str) -> None:
    """Refuse a query that shares its keys among another number of tasks than before; once per process.

    A micro-batch that was cut short would give a key to a task that has not written it, though another has.
    """
    # not waiting: task 0 itself ends what a task before it may have left open
    marker = read_marker(connection, topic, f"{base}-0", settled=False)
    if marker is not None and marker.fingerprint != f"{tasks} tasks by key":
        raise ConfigurationError(
            f"{of}: a query must keep its number of tasks, it was written by {marker.fingerprint!r} and has "
            f"{tasks} now; set 'sink.parallelism' to the old number, or begin with a new checkpoint"
        )


@dataclass(frozen=True)
class TaskResult(WriterCommitMessage):
    """How many records of a task are in Kafka, and whether an earlier attempt had written them."""

    records: int
    skipped: bool = False


class _Writer:
    """What batch and stream have in common."""

    def __init__(self, table: KafkaTable, given: StructType, overwrite: bool) -> None:
        if overwrite:
            raise ConfigurationError(
                f"{table.name}: a topic cannot be overwritten, got mode 'overwrite' or output mode "
                "'complete'; append, or write aggregates that change with upsert.write_upsert"
            )
        self._maker = record_maker(table, given)
        tasks, order = table.values["sink.parallelism"], table.values.get("sink.row-order", "arrival")
        if (order == "none") != (tasks is not None):
            raise ConfigurationError(
                f"{table.name}: options 'sink.parallelism' and 'sink.row-order' = 'none' are for rows that "
                "are distributed by their key; leave them out, or write with write_changes or write_upsert"
            )
        _warn_once(table, partitions_of(table), given.names)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        """Write one task's records; what is visible of them when it fails depends on the guarantee."""
        begin_task()
        given = from_spark(iterator)
        table = self._maker.table
        guarantee = table.values["sink.delivery-guarantee"]
        if guarantee == "exactly-once":
            query, batch = self._micro_batch()
            outcome = write_once(self._maker, given, query=query, batch=batch, task=task_number())
            return TaskResult(outcome.rows, outcome.skipped)
        records = self._maker.records(given, task_number())
        topic = (table.topics or ("",))[0]  # where there are several, each record names its own
        return TaskResult(produce(table.connection, topic, records, guarantee))

    def _micro_batch(self) -> tuple[str, int]:
        given = self._maker.table.values["sink.micro-batch"]
        if given is not None:
            return given[0], given[1]
        return micro_batch_here() or _refuse_without_batch(self._maker.table)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int = 0) -> None:  # noqa: ARG002, N803
        """Refuse a micro-batch whose tasks are not all there; nothing can be taken back any more."""
        tasks = self._maker.tasks
        done = [message for message in messages if isinstance(message, TaskResult)]
        if len(done) != len(messages):
            raise ConfigurationError(
                f"{self._maker.table.name}: every task must say what it wrote, got {messages!r}; report this "
                "as a bug"
            )
        # Spark may plan no shuffle, but one empty task, where it knows that there are no rows
        if tasks is not None and len(done) != tasks and any(result.records for result in done):
            raise ConfigurationError(
                f"{self._maker.table.name}: 'sink.parallelism' says {tasks} tasks, got {len(messages)}; let "
                "write_changes or write_upsert distribute the rows"
            )

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int = 0) -> None:  # noqa: N803
        """Do nothing: what tasks have written is read already, and replaced or skipped if it comes again."""


class BatchWriter(_Writer, DataSourceArrowWriter):
    """``df.write``: what a failed write has written stays."""

    def __init__(self, table: KafkaTable, given: StructType, overwrite: bool) -> None:
        """See `_Writer`; also refuses ``exactly-once`` outside of ``write_upsert``."""
        is_once = table.values["sink.delivery-guarantee"] == "exactly-once"
        if is_once and table.values["sink.micro-batch"] is None:
            _refuse_without_batch(table)
        super().__init__(table, given, overwrite)


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """``df.writeStream``: micro-batches, which may come again."""

    def __init__(self, table: KafkaTable, given: StructType, overwrite: bool) -> None:
        """See `_Writer`; also refuses a table that must keep all rows of each key, which this does not."""
        super().__init__(table, given, overwrite)
        check_raw(sink_of(table), given.jsonValue())


def declared_for_write(connector: str, given: Mapping[str, str], columns: StructType) -> KafkaTable:
    """The table that the options of a write declare; without ``columns`` it has those of the query."""
    own = [field for field in columns.fields if field.name != ROW_KIND_COLUMN]
    return declared(connector, given, StructType([*own, StructField(ROW_KIND_COLUMN, StringType())]))


def record_maker(table: KafkaTable, given: StructType) -> RecordMaker:
    """How a query with these columns is written into the table; refuses columns that do not fit it."""
    schema = written_schema(table, given.names)
    check_fits(given, schema, of=table.name)
    sequence = table.values.get("sequence.field")
    if sequence is not None and sequence not in schema.names:
        raise ConfigurationError(
            f"{table.name}: option 'sequence.field' must name a column that the query writes, got "
            f"{sequence!r}"
        )
    RecordEncoder(table, schema)  # refuses here, and not in a task, options by which a format is only read
    return RecordMaker(table, schema)


_warned: Final[set[tuple[Connection, str]]] = set()


def _warn_once(table: KafkaTable, partitions: Mapping[str, int], columns: Collection[str]) -> None:
    """Log what is to be said of the topics; once: each micro-batch has a writer of its own."""
    key = (table.connection, str(table.topics or table.values["topic-pattern"]))
    if key not in _warned:
        _warned.add(key)
        if warning := warning_of_write(table, partitions, columns):
            LOG.warning(warning)


def _refuse_without_batch(table: KafkaTable) -> NoReturn:
    raise ConfigurationError(
        f"{table.name}: 'exactly-once' is for streams, whose micro-batches have numbers, got a batch write; "
        "choose 'at-least-once', or write a stream with upsert.write_upsert"
    )
