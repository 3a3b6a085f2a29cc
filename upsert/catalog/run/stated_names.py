"""Names of columns in ALTER TABLE and PARTITION (…), as the table declares them: case counts as for Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from upsert import nested
from upsert.catalog.run.jobs import active
from upsert.catalog.run.scans import is_case_sensitive
from upsert.errors import SchemaError
from upsert.schema import Column, TableSchema
from upsert.sql import statements as s
from upsert.sql.show_create import declared_names
from upsert.store import alterations as a
from upsert.store.table_options import with_own_columns
from upsert.types import any_case, first_repeated

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from upsert.catalog.context import Context

_Own = Callable[[str], str]


def as_declared(context: Context, statement: s.Statement, spark: SparkSession | None) -> s.Statement:
    """The statement, with the names of columns as its table declares them; names of none stay as they are."""
    match statement:
        case s.AlterTable(name=name, changes=changes) if not _tells_case(spark):
            schema = context.schema(name)
            added = [one.column.name for one in changes if isinstance(one, a.AddColumn | a.AddComputed)]
            own = any_case(dict.fromkeys([*declared_names(schema), *added]))
            return replace(statement, changes=tuple(_change(one, own, schema) for one in changes))
        case (
            s.TrackPartitions(name=name, partition=spec)
            | s.DropPartition(name=name, partition=spec)
            | s.TruncateTable(name=name, partition=spec)
            | s.CompactTable(name=name, partition=spec)
            | s.ShowPartitions(name=name, partition=spec)
            | s.DescribeTable(name=name, partition=spec)
        ) if spec and not _tells_case(spark):
            return replace(statement, partition=_partition(context.schema(name), spec, f"table {name!r}"))
    return statement


def _tells_case(spark: SparkSession | None) -> bool:
    session = active(spark)
    return session is not None and is_case_sensitive(session)


def _partition(schema: TableSchema, spec: Mapping[str, Any], of: str) -> dict[str, Any]:
    names = [*map(any_case(schema.partitioned_by), spec)]
    if repeated := first_repeated(names):
        raise SchemaError(f"{of}: PARTITION names column {repeated!r} twice; leave one out")
    return dict(zip(names, spec.values(), strict=True))


def _change(change: a.Alteration, own: _Own, schema: TableSchema) -> a.Alteration:
    match change:
        case a.DropColumn(name) | a.WidenColumn(name) | a.SetDefault(name) | a.SetNullable(name):
            return replace(change, name=own(name))
        case a.SetComment(str(name)):
            return replace(change, name=own(name))
        case a.RenameColumn(name):
            return replace(change, old=own(name))
        case a.MoveColumn(name, after):
            return replace(change, name=own(name), after=own(after))
        case a.AddColumn(after=str(after)):
            return replace(change, after=own(after))
        case a.AddField(path) | a.DropField(path) | a.RenameField(path) | a.WidenPart(path):
            return replace(change, path=_path(path, own, schema))
        case a.AddIndex(index):
            return replace(change, index=index.named(own))
        case a.AddComputed(column) if not isinstance(column, Column):
            return replace(change, column=column.named(own))
        case a.AddWatermark(watermark) | a.ModifyWatermark(watermark):
            return replace(change, watermark=watermark.named(own))
        case a.SetOptions(given):
            return replace(change, options=with_own_columns(given, own))
        case a.ResetOptions(keys):
            return replace(change, keys=tuple(with_own_columns(dict.fromkeys(keys, ""), own)))
    return change


def _path(path: tuple[str, ...], own: _Own, schema: TableSchema) -> tuple[str, ...]:
    name = own(path[0])
    return (name, *(nested.own_path(schema.type_of(name), path[1:]) if name in schema.names else path[1:]))
