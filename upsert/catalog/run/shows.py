"""``SHOW``: catalogs, databases, tables, partitions, definitions; and ``SET`` with no value: all options."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from upsert.catalog.results import Result, Rows
from upsert.catalog.run.definitions import given_options, managed
from upsert.catalog.run.describe import partition_details
from upsert.catalog.session import OPTIONS
from upsert.errors import ConfigurationError
from upsert.sql import statements as s
from upsert.sql.show_create import create_text, masked, plain_view_text, view_text
from upsert.store.table_options import MATERIALIZED_VIEW
from upsert.views.view import ViewDefinition

if TYPE_CHECKING:
    from upsert.catalog.context import Context
    from upsert.catalog.namespace import Databases


def texts(name: str, values: Iterable[str]) -> pa.Table:
    """One column of texts."""
    return pa.table({name: pa.array(list(values), pa.string())})


def show_databases(context: Context, statement: s.ShowDatabases) -> Result:
    """``SHOW DATABASES``: one column, ``database``."""
    databases = context.databases
    if statement.catalog is not None:
        databases, _own = context.catalogs.database(f"{statement.catalog}.default")
    names = [databases.current] if statement.only_current else databases.names()
    return Rows("SHOW DATABASES", texts("database", names))


def show_catalogs(context: Context, statement: s.ShowCatalogs) -> Result:
    """``SHOW CATALOGS``: one column, ``catalog``."""
    names = [context.databases.catalog] if statement.only_current else context.catalogs.names()
    return Rows("SHOW CATALOGS", texts("catalog", names))


def show_tables(context: Context, statement: s.ShowTables) -> Result:
    """``SHOW TABLES``: one column, ``table``."""
    databases, own = context.catalogs.database(statement.database)
    temporary = (*databases.temporary.names(own), *temporary_views(context, databases, own))
    names = sorted({*context.tables(statement.database), *temporary})
    return Rows("SHOW TABLES", texts("table", matching(names, statement.like)))


def temporary_views(context: Context, databases: Databases, database: str) -> list[str]:
    """Names of the session's views in a database."""
    before = f"{databases.catalog}.{database}."
    return [name.removeprefix(before) for name in context.temporary_views if name.startswith(before)]


def matching(names: Sequence[str], like: str | None) -> Sequence[str]:
    """The names that a pattern of LIKE matches; all if it is None.

    ``*`` is Spark's ``%``: no name has one.

    >>> matching(["orders", "users"], "o*"), matching(["orders", "users"], "%_rs")
    (('orders',), ('orders', 'users'))
    """
    if like is None:
        return names
    parts = (".*" if sign in "%*" else "." if sign == "_" else re.escape(sign) for sign in like)
    # Arrow's regular expressions take a time that grows with the name, whatever the pattern
    pattern = f"(?s)\\A{''.join(parts)}\\z"
    found = pc.match_substring_regex(pa.array(names, pa.string()), pattern).to_pylist()
    return tuple(name for name, matches in zip(names, found, strict=True) if matches)


def show_create_table(context: Context, statement: s.ShowCreateTable) -> Result:
    """``SHOW CREATE TABLE`` and ``SHOW CREATE VIEW``: one row with the text, secrets masked."""
    table_ref = context.databases.resolve(statement.name)
    if (plain := context.plain_view(statement.name)) is not None:
        text = plain_view_text(
            table_ref.shown, plain.schema, plain.text.query, is_temporary=plain.is_temporary
        )
        return Rows(f"SHOW CREATE VIEW {table_ref.shown}", texts("create view", [text]))
    if statement.must_be_view:
        table_ref.existing()
        raise ConfigurationError(f"{table_ref.shown!r} is no view; write SHOW CREATE TABLE")
    options, schema = given_options(table_ref.existing()), context.schema(statement.name)
    if (view := options.pop(MATERIALIZED_VIEW.key, None)) is not None:
        shown = view_text(table_ref.shown, schema, options, ViewDefinition.from_option(view).query)
    else:
        shown = create_text(table_ref.shown, schema, options)
    return Rows(f"SHOW CREATE TABLE {table_ref.shown}", texts("create table", [shown]))


def show_partitions(context: Context, statement: s.ShowPartitions) -> Result:
    """``SHOW PARTITIONS``: one row for each, with FLIP-188's columns."""
    table = managed(context, statement.name, "SHOW PARTITIONS")
    if not table.schema.partitioned_by:
        raise ConfigurationError(
            f"table {statement.name!r}: SHOW PARTITIONS needs PARTITIONED BY, which it has not"
        )
    return partition_details(table, statement.partition, f"SHOW PARTITIONS {statement.name}")


def show_options(context: Context, statement: s.ShowOptions) -> Result:
    """``SET``: the options that are set and those that have a default, secrets masked; or one of them."""
    key = statement.key
    shown: Mapping[str, str | None] = {
        option.key: None if option.default in (None, {}) else str(option.default).lower()
        for option in OPTIONS
    }
    shown = {**shown, **masked(dict(context.options))}
    if key is not None:
        shown = {name: value for name, value in shown.items() if name == key.lower() or name == key}
        if not shown:
            raise ConfigurationError(f"SET: option {key!r} is not set, or unknown; SET lists those that are")
    rows = ({"key": name, "value": shown[name]} for name in sorted(shown))
    return Rows.listed("SET", {"key": pa.string(), "value": pa.string()}, rows)
