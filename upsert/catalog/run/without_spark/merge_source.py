"""The rows of the source of a MERGE that needs no Spark: literals, or those of one managed table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
from sqlglot import exp

from upsert.catalog.run.without_spark.columns import UnknownColumnError
from upsert.catalog.run.without_spark.given import Given
from upsert.catalog.run.without_spark.literals import literal_rows
from upsert.catalog.run.without_spark.select import plain_select
from upsert.catalog.run.without_spark.settings import MOST_BYTES, Settings
from upsert.catalog.run.without_spark.words import (
    NotPlainError,
    is_source_of_literals,
    is_source_of_query,
    words_of,
)
from upsert.errors import UpsertError
from upsert.sql.dialect import outside_of_brackets, tokens_of
from upsert.sql.tokens import blanked

if TYPE_CHECKING:
    from upsert.catalog.context import Context
    from upsert.sql import statements as s
    from upsert.sql.query import QueryText, Reference
    from upsert.store import Table


def source_rows(
    context: Context, statement: s.Merge, table: Table, snapshot: int, settings: Settings
) -> pa.Table:
    """The rows of the source, in which the target is that of a snapshot.

    Raises:
        NotPlainError: Spark has to read them.
    """
    query = replace(statement.source, args=statement.rows.args)
    words = words_of(query)
    if words is None:
        raise NotPlainError
    if is_source_of_literals(words):
        found = _literals(query.tree.args["from_"].this, settings.zone)
    else:
        found = _stored(
            context, _inner(query) if is_source_of_query(words) else query, table, snapshot, settings
        )
    if found is None or len({name.lower() for name in found.column_names}) < found.num_columns:
        raise NotPlainError
    return found


def _literals(source: exp.Expr, zone: str | None) -> pa.Table | None:
    """The rows of ``VALUES …``, of a query of such, or of rows that UNION ALL unites."""
    query = source.this if isinstance(source, exp.Subquery) else None
    if query is not None and query.args.get("from_") is None:
        rows = list(_united(query))
        return literal_rows(
            [[one.unalias() for one in row] for row in rows], [one.alias for one in rows[0]], zone
        )
    values = source if query is None else query.args["from_"].this
    rows = [row.expressions for row in values.expressions]
    names = [name.name for name in values.args["alias"].columns]
    return literal_rows(rows, names or [f"col{place}" for place, _ in enumerate(rows[0], 1)], zone)


def _united(query: exp.Expr) -> Iterator[list[exp.Expr]]:
    """The row of each SELECT."""
    if isinstance(query, exp.Select):
        yield query.expressions
        return
    if not isinstance(query, exp.Union) or query.args.get("distinct"):
        raise NotPlainError
    yield from _united(query.left)
    yield from _united(query.right)


def _inner(query: QueryText) -> QueryText:
    """The query in the brackets of a source."""
    words = tokens_of(blanked(query.statement, query.start, query.end), query.subject)
    opened, closed, *_ = outside_of_brackets(words)
    return replace(query, start=opened.end + 1, end=closed.start, edits=())


def _stored(
    context: Context, query: QueryText, table: Table, snapshot: int, settings: Settings
) -> pa.Table | None:
    """The rows of a query of one managed table."""
    is_target = any(_is(context, one, table) for one in query.references)
    if is_target and len(query.references) > 1:
        return None  # one of them is of that snapshot, which may be older than the others
    if (given := Given.read_by(context, settings, query, snapshot if is_target else None)) is None:
        return None
    try:
        plain = plain_select(query, given.names)
        return None if plain is None else given.rows(plain, MOST_BYTES)
    except UnknownColumnError:
        return None  # a session may have a variable that is called so


def _is(context: Context, reference: Reference, table: Table) -> bool:
    """Whether a query names a table, and no state of it."""
    try:
        return reference.as_of is None and context.databases.resolve(reference.name).path == table.path
    except UpsertError:
        return False  # it may be a file, which Spark reads
