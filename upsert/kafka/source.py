"""The Spark formats ``upsert-kafka`` and ``kafka-changelog``, and their sources: offsets, and ranges of them.

A reader is made, pickled and dropped by Spark as it likes; what a task needs is in its partition. One process
on the driver plans all micro-batches of a query; it keeps the planner.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, ClassVar

import pyarrow as pa
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

from upsert.errors import ConfigurationError
from upsert.kafka.client.group_commits import GroupCommits
from upsert.kafka.client.java_properties import COMMITS
from upsert.kafka.client.records import TopicPartition
from upsert.kafka.declaration import check_asked, declared, struct_of
from upsert.kafka.options import PLAIN, UPSERT
from upsert.kafka.planning import Offset, Planner, Range, ranges, split
from upsert.kafka.reading import ReadMode, mode_of_stream, rows_of
from upsert.kafka.sink import BatchWriter, StreamWriter, declared_for_write
from upsert.kafka.table import SPARK_FORMATS, KafkaTable
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.spark_table import to_spark
from upsert.store.paths import table_folder
from upsert.streaming_query import QUERY_ID, task_property


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
        return self._planning().next(begun, max_rows, self._until).to_json()

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where the stream will be when it has read all: for the progress that Spark shows."""
        return self._planning().latest.to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[RangePartition]:
        """One range for each partition that the step reaches, or more where ``scan.parallelism`` says so."""
        first, last = (Offset.from_json(offset, self._table.name) for offset in (start, end))
        return _partitions(self._table, ranges(first, last))

    def read(self, partition: RangePartition) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """The rows of a range."""
        rows = rows_of(self._table, partition.part, self._output, task_property(QUERY_ID))
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
        rows = rows_of(self._table, partition.part, output, None)
        return chain.from_iterable(to_spark(some, self._asked) for some in rows)


def _partitions(table: KafkaTable, found: list[Range]) -> list[RangePartition]:
    """Only rows that are merely added may be split: the changes of a key have to stay in order."""
    tasks = table.values["scan.parallelism"]
    parts = found if tasks is None or table.is_changelog else split(found, tasks)
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
