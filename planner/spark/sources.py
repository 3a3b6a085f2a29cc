"""What the relations of a Spark plan read: managed tables, topics, their mirrors, anything else.

Managed tables are opened here for their keys and indexes; nothing else of them is read. What is known of
a topic of Kafka is what the query declares; no broker is asked.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from deltajoin.aggregate.source import FORMAT as AGGREGATE_FORMAT
from deltajoin.filters import normalized
from planner.plan.nodes import Changelog, Plan, Relation, TableRows, Upserts
from planner.plan.sources import KafkaTopic, ManagedTable, Mode, RecordRange
from planner.refusals import Rewrite, not_held
from planner.spark.catalyst import JavaObject
from planner.spark.expressions import ExpressionReader
from upsert.errors import TableNotFoundError
from upsert.kafka.declaration import declared
from upsert.kafka.options import UPSERT
from upsert.kafka.table import SPARK_FORMATS, KafkaTable
from upsert.managed.options import ReadOptions
from upsert.spark_table import FORMAT
from upsert.store.predicate import parse_where
from upsert.store.read.row_metadata import is_of_commit
from upsert.store.table import Table
from upsert.stream_keys import UpsertKey

JOIN_FORMAT: Final = "delta-join"

_MIRROR: Final = "mirror.path"

_APART: Final = "mirror.not-given"

_CONNECTORS: Final = {name: connector for connector, name in SPARK_FORMATS.items()}


class SourceReader:
    """Reads the leaves of one plan; a table is opened once."""

    def __init__(self, expressions: ExpressionReader) -> None:
        """Of the plan whose columns ``expressions`` reads."""
        self.catalyst = expressions.catalyst
        self.expressions = expressions
        self.tables: dict[str, Table] = {}

    def stream(self, node: JavaObject, ref: int) -> Plan:
        """A streaming relation."""
        name, options = self.catalyst.source(node)
        columns = self.expressions.output(node)
        if name.lower() == FORMAT:
            asked_of_table = ReadOptions.parse(options)
            table = self.table(asked_of_table.beginning_as(self.opened(asked_of_table.path)))
            origin = _upserts_of(table) if asked_of_table.changelog == "upsert" else table
            return Changelog(table.name, columns, origin, ref=ref)
        if name.lower() == JOIN_FORMAT and any(column.is_row_kind for column in columns):
            return Changelog(JOIN_FORMAT, columns, None, ref=ref)
        if name.lower() == AGGREGATE_FORMAT:
            return Changelog(AGGREGATE_FORMAT, columns, None, ref=ref)
        connector = _CONNECTORS.get(name.lower())
        if connector is None:
            return Relation(name, columns, is_streaming=True, ref=ref)
        asked = self.catalyst.struct(self.catalyst.output(node))
        topic = topic_of(declared(connector, options, asked), options)
        label, apart = self.catalyst.label(node), options.get(_APART)
        topic = replace(topic, source=name.lower(), label=label, apart=apart)
        if topic.mode is Mode.ROWS:
            return Relation(name, columns, is_streaming=True, topic=topic, ref=ref)
        if (mirror := options.get(_MIRROR)) is not None:
            topic = replace(topic, table=os.path.basename(mirror), mirror=self.mirror(mirror, options))
        return Changelog(topic.name, columns, topic, ref=ref)

    def rows(self, node: JavaObject) -> TableRows | None:
        """What a relation reads of a managed table, or of a topic that has a mirror; None for all others."""
        name, options = self.catalyst.batch_source(node)
        if _CONNECTORS.get(name) == UPSERT and _MIRROR in options:
            mirror = self.mirror(options[_MIRROR], options)
            return None if mirror is None else TableRows(mirror)
        if name != FORMAT:
            return None
        asked = ReadOptions.parse(options)
        table = self.table(asked)
        if asked.row_kind or not_held(table, Rewrite.ENRICHMENT) is not None:
            return None
        return TableRows(table, asked.snapshot_id)

    def mirror(self, path: str, options: Mapping[str, str]) -> ManagedTable | None:
        """The managed table that mirrors a topic, read in steps of the same size; None if there is none."""
        own = {name: options[name] for name in ("max-rows-per-trigger",) if name in options}
        try:
            return self.table(ReadOptions.parse({"path": path, **own}))
        except TableNotFoundError:
            return None

    def opened(self, path: str) -> Table:
        """The managed table in a folder."""
        table = self.tables[path] = self.tables.get(path) or Table.open(path)
        return table

    def table(self, options: ReadOptions) -> ManagedTable:
        """What the planner needs of a managed table that is read with these options.

        Raises:
            SchemaError: ``scan.where`` is malformed, or does not fit the table.
        """
        path = options.path
        table = self.opened(path)
        where = options.where_of(table.schema)
        parse_where(where, table.schema)
        snapshot = table.snapshot()
        latest = snapshot.info
        return ManagedTable(
            table.name,
            path,
            table.schema,
            table.options.bucket,
            table.options.bucket_key or table.schema.primary_key,
            options.scan_mode,
            options.max_rows,
            changed_rows=latest.delta_rows if latest.changes_rows else None,
            rows=snapshot.row_count,
            rows_per_key={
                index.label: snapshot.rows_per_key(index.columns) for index in table.layout.indexes
            },
            consumer_id=options.consumer_id,
            lease_ms=options.lease_ms,
            changing=frozenset(name for name, key in options.metadata.items() if is_of_commit(key)),
            where=normalized(where),
            asked=options.asked - ({"scan.source"} if options.source == "files" else set()),
        )


def _upserts_of(table: ManagedTable) -> Upserts:
    """What a stream gives of a table's log that has no UPDATE_BEFORE, and that adds none."""
    names = tuple((name,) for name in table.schema.primary_key)
    return Upserts(UpsertKey(names, of=f"table {table.name!r} with 'changelog' = 'upsert'", is_append=True))


def topic_of(table: KafkaTable, options: Mapping[str, str]) -> KafkaTopic:
    """What the planner needs of a topic that a query reads with these options."""
    name = ";".join(table.topics) if table.topics is not None else table.values["topic-pattern"]
    return KafkaTopic(name, table.schema, _mode(table), RecordRange.of(table.values), options=options)


def _mode(table: KafkaTable) -> Mode:
    if table.is_upsert:
        return Mode(table.values["changelog"])
    if table.values["cdc-events-duplicate"]:
        return Mode.CDC_NORMALIZED
    return Mode.CDC if table.is_changelog else Mode.ROWS
