"""``CREATE TABLE`` and ``CREATE MATERIALIZED VIEW`` to statement objects (pure).

Follows the DDL of FLIP-188 (managed tables), FLIP-486 (``INDEX``), FLIP-107 (``METADATA``) and FLIP-218::

    CREATE TABLE [IF NOT EXISTS] name (
        { column type [NOT NULL] [METADATA [FROM 'key'] [VIRTUAL]]
          [[CONSTRAINT n] PRIMARY KEY NOT ENFORCED] [COMMENT 'text']
        | column AS expression [COMMENT 'text']
        | WATERMARK FOR column AS { column | column - INTERVAL 'number' unit }
        | [CONSTRAINT n] PRIMARY KEY (column, …) NOT ENFORCED
        | [UNIQUE] INDEX [n] (column, …) } [, …]
    ) [COMMENT 'text'] [PARTITIONED BY (column, …)] [WITH ('key' = 'value', …)]

A table AS a query, and a view, may have keys and indexes between the parentheses. LIKE is Flink's, with
INDEXES beside its features; without the list it is INCLUDING ALL OVERWRITING OPTIONS.
Stored columns are always taken over; columns and indexes of the statement come after them, its comment is the
table's. Views are after Flink's materialized tables and the views of Databricks and RisingWave.
No word is reserved: ``index INT`` is a column, ``INDEX (a)`` is an index. The name of a constraint is not
kept.
"""

from __future__ import annotations

from typing import Final

from upsert.errors import SchemaError
from upsert.sql import statements as s
from upsert.sql.columns import Elements
from upsert.sql.query import query_at
from upsert.sql.tokens import Cursor, names, options, table_name

_MERGED: Final = ("GENERATED", "METADATA", "OPTIONS", "WATERMARKS")
_DEFAULT: Final = {
    **dict.fromkeys((*s.MERGED_ONCE, *_MERGED), s.Merging.INCLUDING),
    "OPTIONS": s.Merging.OVERWRITING,
}
_CLAUSE_REFUSALS: Final = {
    "USING": "USING is not supported: use WITH ('connector' = 'name'), or neither for a managed table",
    "LOCATION": "LOCATION is not supported: a table lies in the catalog's folder, under its name",
    "TBLPROPERTIES": "TBLPROPERTIES is not supported: use WITH ('key' = 'value')",
    "OPTIONS": "OPTIONS is not supported: use WITH ('key' = 'value')",
    "PARTITION": "expected PARTITIONED BY (columns)",
    "CLUSTERED": "CLUSTERED BY is not supported: use WITH ('bucket' = 'n', 'bucket-key' = 'columns')",
    "DISTRIBUTED": "DISTRIBUTED BY is not supported: use WITH ('bucket' = 'n', 'bucket-key' = 'columns')",
}


def create_table(
    cursor: Cursor, *, replaces: bool = False
) -> s.CreateTable | s.CreateTableAs | s.CreateTableLike:
    """Read what follows ``CREATE TABLE`` or, where it ``replaces`` one, ``CREATE OR REPLACE TABLE``."""
    if_not_exists = cursor.skip("IF", "NOT", "EXISTS")
    name = table_name(cursor)
    cursor.subject = f"table {name!r}"
    _refuse_clauses(cursor)
    elements = Elements(cursor)
    if cursor.ahead("("):
        cursor.listed(elements.read)
    comment, partitioned_by, with_ = _clauses(cursor)
    declared = s.Declared(
        tuple(elements.columns),
        elements.primary_key,
        tuple(elements.indexes),
        partitioned_by,
        comment,
        tuple(elements.computed),
        elements.watermark,
        with_,
    )
    if cursor.skip("AS"):
        return _create_as(cursor, name, declared, if_not_exists, replaces)
    if not replaces and cursor.skip("LIKE"):
        return s.CreateTableLike(name, read_like(cursor, table_name(cursor)), declared, if_not_exists)
    if replaces:
        raise cursor.refusal("expected AS and a query: only CREATE OR REPLACE TABLE … AS SELECT is supported")
    if not declared.columns and not declared.computed:
        raise cursor.refusal("expected ( and the table's columns, or AS and a query")
    return s.CreateTable(name, declared.schema(cursor.subject), with_, if_not_exists)


def _create_as(
    cursor: Cursor, name: str, declared: s.Declared, if_not_exists: bool, replaces: bool
) -> s.CreateTableAs:
    """``… AS SELECT``: the columns are those of the query, so the parentheses may hold keys and indexes."""
    if declared.columns or declared.computed or declared.watermark:
        raise SchemaError(
            f"{cursor.subject}: CREATE TABLE … AS SELECT takes its columns from the query, so between the "
            "parentheses may be PRIMARY KEY and INDEX only; name and cast columns in the query"
        )
    if unique_index := next((index for index in declared.indexes if index.unique), None):
        raise SchemaError(
            f"{cursor.subject}: CREATE TABLE … AS SELECT has no {unique_index}; leave out UNIQUE"
        )
    return s.CreateTableAs(
        name,
        query_at(cursor),
        declared.primary_key,
        declared.partitioned_by,
        tuple(index.columns for index in declared.indexes),
        declared.comment,
        declared.options,
        if_not_exists,
        replaces,
    )


def create_view(cursor: Cursor, *, replaces: bool = False) -> s.CreateView:
    """Read what follows ``CREATE [OR REPLACE] MATERIALIZED VIEW``."""
    if_not_exists = cursor.skip("IF", "NOT", "EXISTS")
    name = table_name(cursor)
    cursor.subject = f"view {name!r}"
    elements = Elements(cursor)
    if cursor.ahead("("):
        cursor.listed(elements.read)
    if elements.columns or elements.computed or elements.watermark:
        raise SchemaError(
            f"{cursor.subject}: a view takes its columns from its query, so between the parentheses may be "
            "PRIMARY KEY and INDEX only; name and cast columns in the query"
        )
    if unique_index := next((index for index in elements.indexes if index.unique), None):
        raise SchemaError(f"{cursor.subject}: a view has no {unique_index}; leave out UNIQUE")
    key = elements.primary_key
    if not key and cursor.skip("PRIMARY", "KEY"):
        key = names(cursor)
        cursor.skip("NOT", "ENFORCED")
    comment, partitioned_by, with_ = _clauses(cursor)
    if not cursor.skip("AS"):
        raise cursor.refusal("expected AS and a query")
    return s.CreateView(
        name,
        query_at(cursor),
        key,
        partitioned_by,
        tuple(index.columns for index in elements.indexes),
        comment,
        with_,
        if_not_exists,
        replaces,
    )


def create_plain_view(
    cursor: Cursor, *, replaces: bool = False, is_temporary: bool = False
) -> s.CreatePlainView:
    """Read what follows ``CREATE [OR REPLACE] [TEMPORARY] VIEW``."""
    before = cursor.refusal("either OR REPLACE or IF NOT EXISTS, not both")
    if_not_exists = cursor.skip("IF", "NOT", "EXISTS")
    if replaces and if_not_exists:
        raise before
    name = table_name(cursor)
    cursor.subject = f"view {name!r}"
    columns = names(cursor) if cursor.ahead("(") else ()
    if repeated := next((one for one in columns if columns.count(one) > 1), None):
        raise SchemaError(f"{cursor.subject}: column {repeated!r} is named twice")
    comment = cursor.string("a comment in quotes") if cursor.skip("COMMENT") else None
    if not cursor.skip("AS"):
        raise cursor.refusal("expected AS and a query")
    query = query_at(cursor)
    return s.CreatePlainView(name, query, columns, comment, is_temporary, if_not_exists, replaces)


def _clauses(cursor: Cursor) -> tuple[str | None, tuple[str, ...], dict[str, str]]:
    """What follows the parentheses, each at most once, in any order: comment, partition columns, options."""
    comment: str | None = None
    partitioned_by: tuple[str, ...] | None = None
    with_: dict[str, str] | None = None
    while not (cursor.at_end or cursor.ahead("AS") or cursor.ahead("LIKE")):
        if comment is None and cursor.skip("COMMENT"):
            comment = cursor.string("a comment in quotes")
        elif partitioned_by is None and cursor.skip("PARTITIONED", "BY"):
            partitioned_by = names(cursor)
        elif with_ is None and cursor.skip("WITH"):
            with_ = options(cursor)
        else:
            _refuse_clauses(cursor)
            raise cursor.refusal("expected COMMENT, PARTITIONED BY or WITH, each at most once")
    return comment, partitioned_by or (), with_ or {}


def _refuse_clauses(cursor: Cursor) -> None:
    for word, reason in _CLAUSE_REFUSALS.items():
        if cursor.ahead(word):
            raise cursor.refusal(reason)


def read_like(cursor: Cursor, source: str) -> s.Like:
    """Read what follows ``LIKE source``, which may be nothing.

    >>> read_like(Cursor("(INCLUDING ALL EXCLUDING OPTIONS)"), "t").features["OPTIONS"].value
    'EXCLUDING'
    """
    given: dict[str, s.Merging] = {}
    everything: s.Merging | None = None
    has_list = cursor.skip("(")
    while has_list and not cursor.skip(")"):
        merging = next((merging for merging in s.Merging if cursor.skip(merging.value)), None)
        if merging is None:
            raise cursor.refusal("expected INCLUDING, EXCLUDING or OVERWRITING, and a feature")
        known = _MERGED if merging is s.Merging.OVERWRITING else (*s.MERGED_ONCE, *_MERGED)
        feature = cursor.word(0)
        if feature == "ALL" and everything is None and not given:
            everything = merging
        elif feature in known and feature not in given:
            given[feature] = merging
        else:
            raise cursor.refusal(f"expected ALL before all others, or one of {', '.join(known)}, each once")
        cursor.expect(feature)
    features = dict.fromkeys(_DEFAULT, everything) if everything else _DEFAULT
    if everything is s.Merging.OVERWRITING:
        features |= dict.fromkeys(s.MERGED_ONCE, s.Merging.INCLUDING)
    return s.Like(source, {**features, **given})
