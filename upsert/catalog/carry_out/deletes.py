"""Statements that change rows that are there: ``DELETE FROM``, ``UPDATE`` and ``DROP PARTITION``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from upsert.catalog import statements as s
from upsert.catalog.carry_out.definitions import managed
from upsert.catalog.carry_out.rewrites import delete_found, update_found
from upsert.catalog.carry_out.spark_sessions import active, needed, zone
from upsert.catalog.details import fitting
from upsert.catalog.predicates import alternatives
from upsert.catalog.results import Done, Result
from upsert.errors import ConfigurationError, SchemaError
from upsert.options import boolean
from upsert.store.filters import Where
from upsert.store.partitions import partition_name, specified

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from upsert.catalog.context import Context

_TRACKING = "change-tracking"


def delete(context: Context, statement: s.Delete, spark: SparkSession | None) -> Result:
    """``DELETE FROM t WHERE …``: in one commit, which change streams show unless tracking is off.

    Comparisons of columns with literals are looked up in the files. Of any other condition Spark says which
    rows it is true of, see ``rewrites``.
    """
    subject = f"DELETE FROM {statement.name}"
    table = managed(context, statement.name, "DELETE")
    tracked = _tracked(statement.options, subject)
    where: Where = []
    if statement.condition is not None:
        session = active(spark)
        own_zone = "UTC" if session is None else zone(session)
        try:
            where = alternatives(statement.condition, table.schema, own_zone, subject)
        except SchemaError:
            if statement.rows is None or session is None:
                raise
            return delete_found(context, session, statement, tracked)
    done = table.delete(where, tracked=tracked)
    return Done(subject, f"deleted, snapshot {done.id}")


def _tracked(given: Mapping[str, str], subject: str) -> bool | None:
    options = dict(given)
    text = options.pop(_TRACKING, None)
    if options:
        raise ConfigurationError(f"{subject}: the one option is {_TRACKING!r}, got {', '.join(options)}")
    try:
        return None if text is None else boolean(text)
    except ValueError as cause:
        raise ConfigurationError(f"{subject}: option {_TRACKING!r} must be {cause}, got {text!r}") from None


def update(context: Context, statement: s.Update, spark: SparkSession | None) -> Result:
    """``UPDATE t SET … WHERE …``: in one commit, which change streams show unless tracking is off."""
    subject = f"UPDATE {statement.name}"
    tracked = _tracked(statement.options, subject)
    return update_found(context, needed(spark, subject), statement, tracked)


def drop_partition(context: Context, statement: s.DropPartition) -> Result:
    """``ALTER TABLE t DROP [IF EXISTS] PARTITION (…)``: its rows are deleted.

    Raises:
        ConfigurationError: there is no such partition, and the statement does not say IF EXISTS.
        SchemaError: a column is no partition column, or a value does not fit it.
    """
    table = managed(context, statement.name, "DROP PARTITION")
    what = f"ALTER TABLE {statement.name} DROP PARTITION"
    found = fitting(table, statement.partition)
    if not found and statement.partition:
        if statement.if_exists:
            return Done(what, "there was no such partition")
        name = partition_name(specified(table.schema, statement.partition, f"table {table.name!r}"))
        raise ConfigurationError(
            f"{what}: there must be a partition {name}, there is none; see SHOW PARTITIONS {statement.name}, "
            "or write DROP IF EXISTS PARTITION"
        )
    done = table.drop_partition(statement.partition)
    return Done(what, f"dropped, snapshot {done.id}")
