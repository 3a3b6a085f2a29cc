"""Statements that delete rows: ``DELETE FROM`` and ``DROP PARTITION``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from upsert.catalog import statements as s
from upsert.catalog.carry_out.definitions import managed
from upsert.catalog.carry_out.spark_sessions import active, zone
from upsert.catalog.predicates import alternatives
from upsert.catalog.results import Done, Result
from upsert.errors import ConfigurationError
from upsert.options import boolean

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from upsert.catalog.catalog import Catalog

_TRACKING = "change-tracking"


def delete(catalog: Catalog, statement: s.Delete, spark: SparkSession | None) -> Result:
    """``DELETE FROM t WHERE …``: in one commit, which change streams show unless tracking is off."""
    subject = f"DELETE FROM {statement.name}"
    table = managed(catalog, statement.name, "DELETE")
    tracked = _tracked(statement, subject)
    if statement.condition is None:
        done = table.delete([], tracked=tracked)
    else:
        session = active(spark)
        own_zone = "UTC" if session is None else zone(session)
        where = alternatives(statement.condition, table.schema, own_zone, subject)
        done = table.delete(where, tracked=tracked)
    return Done(subject, f"deleted, snapshot {done.id}")


def _tracked(statement: s.Delete, subject: str) -> bool | None:
    options = dict(statement.options)
    text = options.pop(_TRACKING, None)
    if options:
        raise ConfigurationError(f"{subject}: the one option is {_TRACKING!r}, got {', '.join(options)}")
    try:
        return None if text is None else boolean(text)
    except ValueError as cause:
        raise ConfigurationError(f"{subject}: option {_TRACKING!r} must be {cause}, got {text!r}") from None


def drop_partition(catalog: Catalog, statement: s.DropPartition, _: SparkSession | None) -> Result:
    """``ALTER TABLE t DROP PARTITION (…)``: its rows are deleted."""
    table = managed(catalog, statement.name, "DROP PARTITION")
    done = table.drop_partition(statement.partition)
    return Done(f"ALTER TABLE {statement.name} DROP PARTITION", f"dropped, snapshot {done.id}")
