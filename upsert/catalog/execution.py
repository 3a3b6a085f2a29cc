"""Carrying statements out: which function does it for each of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from upsert.catalog import namespace_statements as n
from upsert.catalog import statements as s
from upsert.catalog.carry_out import definitions, deletes, inserts, queries, shows
from upsert.catalog.carry_out.spark_sessions import active
from upsert.catalog.results import Done, Result, Rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from upsert.catalog.catalog import Catalog


def execute(catalog: Catalog, statement: s.Statement, spark: SparkSession | None) -> Result:
    """Carry a statement out.

    Args:
        catalog: whose tables it names.
        statement: what to do.
        spark: the session that runs queries; the active one of this thread if None.

    Raises:
        UpsertError: as ``Catalog.sql``.
    """
    return _CARRIED_OUT_BY[type(statement)](catalog, statement, spark)


def planned(
    catalog: Catalog, statement: s.Statement, spark: SparkSession | None
) -> Callable[[], Result] | Result:
    """What runs an ``INSERT`` of a stream, after it was found possible; all else is carried out at once.

    So the queries of a script start when all of them are known to be right.

    Raises:
        UpsertError: as ``Catalog.sql``.
    """
    if isinstance(statement, s.Insert) and catalog.options.is_streaming:
        return inserts.planned(catalog, statement, spark)
    return execute(catalog, statement, spark)


def _set(catalog: Catalog, statement: s.SetOption, _: SparkSession | None) -> Result:
    catalog.options[statement.key] = statement.value
    return Done(f"SET {statement.key}", "set")


def _reset(catalog: Catalog, statement: s.ResetOption, spark: SparkSession | None) -> Result:
    options, key = catalog.options, statement.key
    session = active(spark)
    for forwarded in options.forwarded():
        if session is not None and key in (None, forwarded):
            session.conf.unset(forwarded)
    if key is None:
        options.clear()
        return Done("RESET", "all options have their defaults")
    options.reset(key)
    return Done(f"RESET {key}", "reset")


def _options(catalog: Catalog, statement: s.ShowOptions, _: SparkSession | None) -> Result:
    return Rows("SET", shows.options_table(catalog.options, statement.key))


_CARRIED_OUT_BY: Final[Mapping[type, Callable[[Any, Any, Any], Result]]] = {
    s.CreateTable: definitions.create_table,
    s.CreateTableLike: definitions.create_table_like,
    s.CreateTableAs: queries.create_table_as,
    s.DropTable: definitions.drop_table,
    s.AlterTable: definitions.alter_table,
    s.RenameTable: definitions.rename_table,
    s.TrackPartitions: definitions.track_partition,
    s.DropPartition: deletes.drop_partition,
    s.CompactTable: definitions.compact_table,
    s.PublishLog: definitions.publish_log,
    n.CreateCatalog: definitions.create_catalog,
    n.DropCatalog: definitions.drop_catalog,
    n.UseCatalog: definitions.use_catalog,
    n.ShowCatalogs: shows.show_catalogs,
    n.CreateDatabase: definitions.create_database,
    n.DropDatabase: definitions.drop_database,
    n.UseDatabase: definitions.use_database,
    n.ShowDatabases: shows.show_databases,
    n.ShowTables: shows.show_tables,
    s.ShowCreateTable: shows.show_create_table,
    s.ShowPartitions: shows.show_partitions,
    s.DescribeTable: shows.describe_table,
    s.SetOption: _set,
    s.ShowOptions: _options,
    s.ResetOption: _reset,
    s.Insert: inserts.insert,
    s.Delete: deletes.delete,
    s.Update: deletes.update,
    s.Select: queries.select,
}
