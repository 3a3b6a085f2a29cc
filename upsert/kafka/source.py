"""The Spark formats ``upsert-kafka`` and ``kafka-changelog``, and their sources: offsets, and ranges of them.

A reader is made, pickled and dropped by Spark as it likes; what a task needs is in its partition. One process
on the driver plans all micro-batches of a query; it keeps the planner.

In a task the records of a range become rows, folded or normalized where keys matter. Chunks are passed on one
by one where nothing has to be folded, so a task needs memory for a few of them only. Folding remembers one
row for each key of the range. `BadRecords` applies ``bad-records``: the query stops at a record that cannot
be read, or such records are counted, or copied to a topic.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import chain
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from upsert.arrays import one_array
from upsert.changelog.image_log import ImageLog
from upsert.changelog.normalizer import Expiry, folded, net
from upsert.errors import ConfigurationError, RecordsExpiredError, SchemaError
from upsert.formats.base import BadMessage
from upsert.formats.metadata_columns import MetadataColumn
from upsert.kafka.client import admin
from upsert.kafka.client.admin import GroupCommits
from upsert.kafka.client.connection import Connection
from upsert.kafka.client.consumer import read_range
from upsert.kafka.client.java_properties import COMMITS
from upsert.kafka.client.producer import produce
from upsert.kafka.client.records import HEADERS, TopicPartition, record_metadata
from upsert.kafka.declaration import check_asked, declared, struct_of
from upsert.kafka.decode import DecodedRecords, RecordDecoder
from upsert.kafka.options import PLAIN, UPSERT
from upsert.kafka.planning import Offset, Planner, Range, ranges, split
from upsert.kafka.sink import BatchWriter, StreamWriter, declared_for_write
from upsert.kafka.table import SPARK_FORMATS, KafkaTable
from upsert.rowkind import ROW_KIND_COLUMN, RowKind
from upsert.schema import Column, TableSchema
from upsert.spark.batches import to_spark
from upsert.spark.task import QUERY_ID, begin_task, end_if_spark_has_left, task_property
from upsert.store.paths import table_folder
from upsert.store.rows.keys import same_keys

LOG: Final = logging.getLogger("upsert.kafka")


@dataclass
class BadRecords:
    """Applies ``bad-records`` to one task's records, and counts what gave no rows."""

    _table: KafkaTable
    _connection: Connection
    _partition: TopicPartition
    _count: int = 0
    _without_key: int = 0

    @property
    def wanted(self) -> frozenset[str]:
        """Columns of raw records that a copy needs."""
        return frozenset({"headers"}) if self._table.values["bad-records"] == "dead-letter" else frozenset()

    def handle(self, records: pa.Table, decoded: DecodedRecords) -> None:
        """Do what the option says with the bad records of a chunk, before its rows are handed on.

        Copies are at least once: a batch that is read again copies its bad records again.
        """
        self._without_key += decoded.without_key
        if not decoded.bad:
            return
        self._count += len(decoded.bad)
        match self._table.values["bad-records"]:
            case "fail":
                first = decoded.bad[0]
                offset = records.column("offset")[first.position].as_py()
                raise SchemaError(
                    f"{self._table.name}: topic {self._partition.topic!r}, partition "
                    f"{self._partition.partition}, offset {offset}: the record cannot be read: "
                    f"{first.reason}; correct the format, or say 'bad-records' = 'skip' or 'dead-letter' to "
                    "go on without such records"
                )
            case "dead-letter":
                (topic,) = self._table.values["bad-records.topic"]
                copies = self._copies(records, decoded.bad)
                produce(self._connection, topic, [copies], guarantee="at-least-once")

    def report(self) -> None:
        """Log how many records gave no rows, on the executor that read them; nothing where all did."""
        where = f"{self._table.name}: {self._partition}"
        if self._count:
            copies = self._table.values["bad-records.topic"]
            fate = "left out" if copies is None else f"copied to topic {copies[0]!r}"
            LOG.warning("%s: %d records could not be read and were %s", where, self._count, fate)
        if self._without_key:
            LOG.warning("%s: %d records have no key and gave no rows", where, self._without_key)

    def _copies(self, records: pa.Table, bad: Sequence[BadMessage]) -> pa.Table:
        chosen = records.take(pa.array([record.position for record in bad]))
        offsets = chosen.column("offset").to_pylist()
        headers = []
        for record, own, offset in zip(bad, chosen.column("headers").to_pylist(), offsets, strict=True):
            added = {
                "upsert.error.reason": record.reason,
                "upsert.error.topic": self._partition.topic,
                "upsert.error.partition": str(self._partition.partition),
                "upsert.error.offset": str(offset),
            }
            entries = ({"key": name, "value": text.encode()} for name, text in added.items())
            headers.append([*(own or ()), *entries])
        columns = {name: chosen.column(name) for name in ("key", "value")}
        return pa.table({**columns, "headers": pa.array(headers, HEADERS)})


CHUNK_ROWS: Final = 65_536
"""Records that are read and decoded at once: many enough for speed, few beside a task's memory."""

_OF_RECORD_ALONE: Final = frozenset({"offset", "timestamp", "leader-epoch"})
"""Metadata in which a record differs from its own repetition."""

_TIME: Final = MetadataColumn(
    Column("_record_time", pa.int64()),
    record_metadata(topic_is_writable=False, partition_is_writable=False)["timestamp"],
)
"""The time of a record, where ``state.ttl`` needs it."""


class ReadMode(StrEnum):
    """What a read gives of the records of a range."""

    ROWS = "all rows as they come"
    NEWEST = "the newest row of each key, +U or -D"
    NET = "what the changes of each key leave: a row that goes, and one that comes"
    TABLE = "the newest row of each key that is not deleted"
    CHANGES = "a full changelog, by the images that the query remembers"


def mode_of_stream(table: KafkaTable) -> ReadMode:
    """What a stream of the table gives; refuses one that must remember images, and has no folder for them."""
    if table.is_upsert and table.values["changelog"] == "upsert":
        return ReadMode.ROWS if table.values["scan.versions"] else ReadMode.NEWEST
    if not table.is_upsert and not table.values["cdc-events-duplicate"]:
        return ReadMode.NET if table.values["scan.net-changes"] else ReadMode.ROWS
    if table.values["state.path"] is None:
        what = "'changelog' = 'all'" if table.is_upsert else "'cdc-events-duplicate' = 'true'"
        raise ConfigurationError(
            f"{table.name}: {what} remembers the newest row of each key, and needs the option 'state.path', "
            "a folder that the driver and all executors share; set it"
            + (", or say 'changelog' = 'upsert' for a sink with the same key" if table.is_upsert else "")
        )
    return ReadMode.CHANGES


def rows_of(
    table: KafkaTable,
    part: Range,
    output: ReadMode,
    query_id: str | None,
    wanted: Collection[str] | None = None,
) -> Iterator[pa.Table]:
    """The rows of a range, in log order: the table's columns, and ``_row_kind`` where they are changes.

    Only those columns are decoded that are ``wanted`` (None: all), and those of the key; but a changelog
    needs all, for the images that it keeps do not follow the query. It needs the id of the query, whose
    images these are.
    """
    if wanted is not None:
        wanted = {*wanted, *table.primary_key}
    rows = _rows_of(table, part, output, query_id, wanted)
    if table.values["scan.updates-before"]:
        return rows
    return (_without_updates_before(some, table.primary_key) for some in rows)


def _rows_of(
    table: KafkaTable, part: Range, output: ReadMode, query_id: str | None, wanted: Collection[str] | None
) -> Iterator[pa.Table]:
    match output:
        case ReadMode.ROWS:
            return _decoded(table, part, wanted=wanted)
        case ReadMode.NEWEST:
            return folded(_decoded(table, part, wanted=wanted), table.primary_key)
        case ReadMode.NET:
            return _net(table, part, wanted)
        case ReadMode.TABLE:
            return _present(folded(_decoded(table, part, wanted=wanted), table.primary_key))
        case ReadMode.CHANGES:
            return _changes(table, part, query_id)


def _decoded(
    table: KafkaTable,
    part: Range,
    hidden: Sequence[MetadataColumn] = (),
    wanted: Collection[str] | None = None,
) -> Iterator[pa.Table]:
    return (rows for _, rows in _decoded_records(table, part, hidden, wanted))


def _net(table: KafkaTable, part: Range, wanted: Collection[str] | None) -> Iterator[pa.Table]:
    """What the changes of each key leave; all of them if a record has no key, for it may lie anywhere."""
    chunks = _decoded_records(table, part, (), wanted)
    without_key: list[pa.Table] = []

    def with_keys() -> Iterator[pa.Table]:
        for records, rows in chunks:
            if records.column("key").null_count:
                without_key.append(rows)
                return
            yield rows

    left = list(folded(with_keys(), table.primary_key, net))
    if not without_key:
        return iter(left)
    if left:  # what was folded is read again
        return _decoded(table, part, wanted=wanted)
    return chain(without_key, (rows for _, rows in chunks))


def _decoded_records(
    table: KafkaTable, part: Range, hidden: Sequence[MetadataColumn], wanted: Collection[str] | None
) -> Iterator[tuple[pa.Table, pa.Table]]:
    """The records of a range, a chunk at a time, and the rows of each."""
    connection = table.connection
    decoder = RecordDecoder(table, part.partition.topic, hidden, wanted)
    bad_records = BadRecords(table, connection, part.partition)
    for records in _records(table, connection, part, decoder.wanted | bad_records.wanted):
        decoded = decoder.decode(records)
        bad_records.handle(records, decoded)
        yield records, decoded.rows
    bad_records.report()


def _records(
    table: KafkaTable, connection: Connection, part: Range, wanted: frozenset[str]
) -> Iterator[pa.Table]:
    """The raw records of a range; past a gap where ``fail-on-data-loss`` is off."""
    start, end, failed_at = part.start, part.end, -1
    while start < end:
        try:
            place = connection, part.partition, start, end
            for records in read_range(*place, wanted, max_rows=CHUNK_ROWS, topic_id=part.topic_id):
                yield records
                if records.num_rows:
                    start = records.column("offset")[-1].as_py() + 1
            return
        except RecordsExpiredError:
            # a reader that was kept notices that a log was cut; a new one reads what it has got since
            if table.values["fail-on-data-loss"] or failed_at == start:
                raise
            failed_at = start
        (first,) = admin.earliest_offsets(connection, [part.partition]).values()
        (last,) = admin.latest_offsets(connection, [part.partition]).values()
        gaps = (
            (start, first, "were deleted before they were read"),
            (max(start, last), end, "are no longer there: the partition was shortened"),
        )
        for low, high, what in gaps:
            if low < high:
                text = "%s: %s: offsets %d to %d %s; going on, as 'fail-on-data-loss' = 'false' says"
                LOG.warning(text, table.name, part.partition, low, high - 1, what)
        start, end = max(start, first), min(end, last)


def _present(rows: Iterator[pa.Table]) -> Iterator[pa.Table]:
    for newest in rows:
        values = newest.filter(pc.equal(newest.column(ROW_KIND_COLUMN), RowKind.UPDATE_AFTER.value))
        index = values.column_names.index(ROW_KIND_COLUMN)
        yield values.set_column(index, ROW_KIND_COLUMN, pa.repeat(RowKind.INSERT.value, values.num_rows))


def _changes(table: KafkaTable, part: Range, query_id: str | None) -> Iterator[pa.Table]:
    if query_id is None:
        raise ConfigurationError(f"{table.name}: a full changelog is read by a streaming query only")
    ttl_ms = table.values["state.ttl"]
    hidden = () if ttl_ms is None else (_TIME,)
    # a folder for one partition of one stream; a topic that is created again has another one
    name = str(part.partition) if part.topic_id is None else f"{part.partition}-{part.topic_id}"
    folder = os.path.join(table.values["state.path"], query_id, part.stream or "", name)
    columns = (*table.schema.columns, *(column.column for column in hidden))
    images = TableSchema(tuple(c.as_data for c in columns), table.schema.primary_key)
    version = table.values["state.version"]
    log = ImageLog.open(folder, images, str(part.partition), beginning=part.begin, version=version)
    varying = {c.column.name for c in table.metadata(writing=False) if c.key.key in _OF_RECORD_ALONE}
    compared = [name for name in table.schema.names if name not in varying]
    expiry = None if ttl_ms is None else Expiry(_TIME.column.name, ttl_ms)
    records = _decoded(table, part, hidden)
    if not table.is_upsert:
        records = (_without_updates_before(rows, table.primary_key) for rows in records)
    for rows in log.advance(part.start, part.end, records, compare=compared, expiry=expiry):
        yield rows.drop_columns([column.column.name for column in hidden]) if hidden else rows


def _without_updates_before(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """The changes without each ``-U`` whose ``+U`` has the same key and follows: the ``+U`` alone says both.

    What was repeated is recognised by its newest value, and a ``-U`` would take that away first. One whose
    ``+U`` has another key is the deletion of its own.
    """
    kinds = one_array(rows.column(ROW_KIND_COLUMN))
    before, after = (
        pc.equal(kinds, kind.value).to_numpy(zero_copy_only=False)
        for kind in (RowKind.UPDATE_BEFORE, RowKind.UPDATE_AFTER)
    )
    is_said_by_next = np.zeros(rows.num_rows, np.bool_)
    is_said_by_next[:-1] = before[:-1] & after[1:]
    for name in key:
        values = one_array(rows.column(name))
        is_said_by_next[:-1] &= same_keys(values[:-1], values[1:])
    return rows.filter(pa.array(~is_said_by_next)) if is_said_by_next.any() else rows


@dataclass(frozen=True)
class RangePartition(InputPartition):
    """A range of offsets of one partition, for one task."""

    part: Range


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics step by step; where it stands is in Spark's checkpoint alone."""

    def __init__(self, table: KafkaTable, asked: StructType) -> None:
        check_asked(asked, table)
        if table.is_changelog and ROW_KIND_COLUMN not in asked.names:
            raise ConfigurationError(
                f"{table.name}: a stream of changes must have the column {ROW_KIND_COLUMN!r}, or deletions "
                "would look like rows; leave out 'row-kind' = 'false', or name the column in .schema(…)"
            )
        self._output = mode_of_stream(table)
        if (path := table.values["state.path"]) is not None:  # a task may run in another folder
            table = replace(table, values={**table.values, "state.path": table_folder(path)})
        self._table = table
        self._asked = asked
        self._planner: Planner | None = None
        self._commits: GroupCommits | None = None
        self._until: dict[TopicPartition, int] | None = None
        self._planned: dict[str, Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Without what plans and commits: their clients belong to the process that made them."""
        return self.__dict__ | {"_planner": None, "_commits": None}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """No partition yet: which there are, and where they begin, the first `latestOffset` finds out.

        Spark asks for this again when it replays the first micro-batch, so it may not depend on the clock.
        """
        return Offset().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """``max-rows-per-trigger``."""
        return ReadMaxRows(self._table.values["max-rows-per-trigger"])

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read no further than the topics reach now."""
        self._until = self._planning().ends()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of the next step; ``start`` itself when nothing is new.

        What is before ``start`` has been processed, so it is committed to the group here: Spark calls
        `commit` only when it has planned the next micro-batch, and never for the last one.
        """
        max_rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        begun = Offset.from_json(start, self._table.name)
        self._commit_to_group(begun)
        self._planned = self._planning().next(begun, max_rows, self._until).to_json()
        return self._planned

    def stop(self) -> None:
        """Spark needs it no more."""
        end_if_spark_has_left()

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where the stream will be when it has read all: for the progress that Spark shows."""
        return self._planning().latest.to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[RangePartition]:
        """One range for each partition that the step reaches, or more where ``scan.parallelism`` says so.

        A step that an earlier run of the query has planned may be of topics that are others now.
        """
        first, last = (Offset.from_json(offset, self._table.name) for offset in (start, end))
        if end != self._planned:
            last = self._planning().replayed(last)
        return _partitions(self._table, ranges(first, last))

    def read(self, partition: RangePartition) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """The rows of a range."""
        begin_task()
        query_id, names = task_property(QUERY_ID), self._asked.names
        rows = rows_of(self._table, partition.part, self._output, query_id, names)
        return chain.from_iterable(to_spark(some, self._asked) for some in rows)

    def _commit_to_group(self, done: Offset) -> None:
        given = self._table.properties
        if (group := given.get("group.id")) is None or given.get(COMMITS, "true").lower() == "false":
            return
        if self._commits is None:
            self._commits = GroupCommits(self._table.connection, group, self._table.name)
        self._commits.commit({partition: progress.at for partition, progress in done.partitions.items()})

    def _planning(self) -> Planner:
        if self._planner is None:
            self._planner = Planner(self._table)
        return self._planner


class BatchReader(DataSourceReader):
    """Reads what is in topics when the query is planned: of an upsert topic the rows that are not deleted."""

    def __init__(self, table: KafkaTable, asked: StructType) -> None:
        check_asked(asked, table)
        if table.is_changelog and not table.is_upsert and ROW_KIND_COLUMN not in asked.names:
            raise ConfigurationError(
                f"{table.name}: the format {table.value.format_name!r} holds changes, and without the column "
                f"{ROW_KIND_COLUMN!r} deletions would look like rows; leave out 'row-kind' = 'false'"
            )
        self._table = table
        self._asked = asked

    def partitions(self) -> list[RangePartition]:
        """One range for each partition: from where a stream would begin to its bound, or to its end now."""
        planner = Planner(self._table)
        end = planner.next(Offset(), None)
        return _partitions(self._table, ranges(Offset(), end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a range; those of an upsert topic are of kind ``+I``."""
        if not isinstance(partition, RangePartition):
            return iter(())  # Spark's own partition, which it reads where there is none
        output = ReadMode.TABLE if self._table.is_upsert else ReadMode.ROWS
        begin_task()
        rows = rows_of(self._table, partition.part, output, None, self._asked.names)
        return chain.from_iterable(to_spark(some, self._asked) for some in rows)


def _partitions(table: KafkaTable, found: list[Range]) -> list[RangePartition]:
    """Only rows that are merely added may be split: the changes of a key have to stay in order."""
    tasks = table.values.get("scan.parallelism")
    parts = found if tasks is None else split(found, tasks)
    return [RangePartition(part) for part in parts]


class _KafkaSource(DataSource):
    """What both formats share; see ``upsert.kafka.options`` for the options.

    The columns are declared with ``columns`` and ``primary-key``, or with ``.schema(…)``; for a write they
    may be those of the query.
    """

    connector: ClassVar[str]

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return SPARK_FORMATS[cls.connector]

    def schema(self) -> StructType:
        """The declared columns, and ``_row_kind`` where rows are changes, unless ``row-kind = false``."""
        table = self._table()
        return struct_of(table, row_kind=table.values["row-kind"])

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch read."""
        return BatchReader(self._table(schema), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """A stream read."""
        return StreamReader(self._table(schema), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A batch write."""
        return BatchWriter(declared_for_write(self.connector, self.options, schema), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """A stream write."""
        return StreamWriter(declared_for_write(self.connector, self.options, schema), schema, overwrite)

    def _table(self, asked: StructType | None = None) -> KafkaTable:
        return declared(self.connector, self.options, asked)


class UpsertKafkaSource(_KafkaSource):
    """``spark.read`` and ``readStream`` of topics that hold the newest value of each key (FLIP-149)."""

    connector = UPSERT


class KafkaChangelogSource(_KafkaSource):
    """``spark.read`` and ``readStream`` of all other topics: rows that are only added, or changes."""

    connector = PLAIN
