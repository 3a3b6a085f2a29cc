"""``DELETE FROM`` and ``UPDATE`` to statement objects (pure).

Both have the query of the rows that they change, in the statement's own text: a few words of it are
exchanged, so that Spark reads the user's expressions, and errors have their places::

    DELETE FROM t WHERE c                SELECT * FROM t WHERE c
    UPDATE t SET a = x, b = y WHERE c    SELECT *, x AS `_new_value_0`, y AS `_new_value_1` FROM t WHERE c
"""

from __future__ import annotations

from upsert.catalog.ddl import table_name
from upsert.catalog.dialect import expression_tree
from upsert.catalog.places import Edit
from upsert.catalog.query_text import QueryText
from upsert.catalog.statements import NEW_VALUE, Delete, Update
from upsert.catalog.tokens import Cursor, blanked, without_hints
from upsert.errors import SchemaError


def delete(cursor: Cursor) -> Delete:
    """Read what follows ``DELETE FROM``.

    Raises:
        SchemaError: it is no such statement; the message has the place.
    """
    head = Edit(cursor.first, cursor.reached, "SELECT * FROM")
    options, name, _ = _target(cursor, "DELETE FROM")
    if cursor.at_end:
        return Delete(name, None, options)
    cursor.expect("WHERE")
    start = cursor.offset
    cursor.raw("a condition", lambda: False)
    tree = expression_tree(blanked(cursor.text, start, cursor.reached), cursor.subject)
    return Delete(name, tree, options, _query(cursor, [head]))


def update(cursor: Cursor) -> Update:
    """Read what follows ``UPDATE``.

    Raises:
        SchemaError: it is no such statement; the message has the place.
    """
    options, name, table = _target(cursor, "UPDATE")
    cursor.expect("SET")
    edits, columns = [Edit(cursor.first, cursor.reached, "SELECT *,")], list[str]()
    while True:
        start = cursor.offset
        columns.append(cursor.name("the name of a column"))
        cursor.expect("=")
        edits.append(Edit(start, cursor.reached, ""))
        begins = cursor.offset
        cursor.raw("an expression", lambda: cursor.ahead("WHERE"))
        expression_tree(blanked(cursor.text, begins, cursor.reached), cursor.subject)
        alias = NEW_VALUE.format(len(columns) - 1)
        source = "" if cursor.ahead(",") else f" FROM {table} "
        edits.append(Edit(cursor.reached, cursor.reached, f" AS `{alias}`{source}"))
        if not cursor.skip(","):
            break
    if not cursor.at_end:
        cursor.expect("WHERE")
        cursor.raw("a condition", lambda: False)
    if repeated := next((column for column in columns if columns.count(column) > 1), None):
        raise SchemaError(f"{cursor.subject}: column {repeated!r} gets two values; give one")
    return Update(name, tuple(columns), _query(cursor, edits), options)


def _target(cursor: Cursor, what: str) -> tuple[dict[str, str], str, str]:
    """Options of the hint, the table's name, and the name as it is written."""
    options = cursor.hint()
    start = cursor.offset
    name = table_name(cursor)
    written = cursor.text[start : cursor.reached]
    cursor.subject = f"{what} {name}"
    return options | cursor.hint(), name, written


def _query(cursor: Cursor, edits: list[Edit]) -> QueryText:
    text = without_hints(cursor.text, cursor.subject)
    return QueryText.of(text, cursor.first, cursor.reached, cursor.subject, edits)
