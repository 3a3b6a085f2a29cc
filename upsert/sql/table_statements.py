"""CREATE and ALTER of tables and materialized views to statement objects (pure).

CREATE TABLE follows the DDL of FLIP-188 (managed tables), FLIP-486 (``INDEX``), FLIP-107 (``METADATA``) and
FLIP-218::

    CREATE TABLE [IF NOT EXISTS] name (
        { column type [NOT NULL] [METADATA [FROM 'key'] [VIRTUAL]]
          [[CONSTRAINT n] PRIMARY KEY NOT ENFORCED] [COMMENT 'text']
        | column AS expression [COMMENT 'text']
        | WATERMARK FOR column AS { column | column - INTERVAL 'number' unit }
        | [CONSTRAINT n] PRIMARY KEY (column, …) NOT ENFORCED
        | [UNIQUE] INDEX [n] (column, …) } [, …]
    ) [COMMENT 'text'] [PARTITIONED BY (column, …)] [WITH ('key' = 'value', …)]

A table AS a query, and a view, may have keys and indexes between the parentheses. LIKE is Flink's, with
INDEXES beside its features; without the list it is INCLUDING ALL OVERWRITING OPTIONS. A table with a
connector may leave its columns out, if the connector knows them.
Stored columns are always taken over; columns and indexes of the statement come after them, its comment is the
table's. Views are after Flink's materialized tables and the views of Databricks and RisingWave.
No word is reserved: ``index INT`` is a column, ``INDEX (a)`` is an index. The name of a constraint is not
kept.

ALTER TABLE follows FLIP-188, and for columns the spelling of Spark and Flink; docs/sql.md lists the forms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from upsert.errors import SchemaError
from upsert.options import boolean
from upsert.sql import statements as s
from upsert.sql.checks import check_default, with_checks
from upsert.sql.columns import Elements, read_check, read_default
from upsert.sql.declared import MERGED_ONCE, Declared, Like, Merging
from upsert.sql.query import QueryText, query_at
from upsert.sql.statements import Statement
from upsert.sql.tokens import Cursor, dotted, names, options, partition, table_name
from upsert.sql.types import read_column_type, read_type
from upsert.store import alterations
from upsert.store.alterations import Alteration
from upsert.types import first_repeated

_MERGED: Final = ("GENERATED", "METADATA", "OPTIONS", "WATERMARKS")
_DEFAULT: Final = {
    **dict.fromkeys((*MERGED_ONCE, *_MERGED), Merging.INCLUDING),
    "OPTIONS": Merging.OVERWRITING,
}
_CLAUSE_REFUSALS: Final = {
    "USING": "USING is not supported: use WITH ('connector' = 'name'), or neither for a managed table",
    "LOCATION": "LOCATION is not supported: a table lies in the catalog's folder, under its name",
    "TBLPROPERTIES": "TBLPROPERTIES is not supported: use WITH ('key' = 'value')",
    "OPTIONS": "OPTIONS is not supported: use WITH ('key' = 'value')",
    "PARTITION": "expected PARTITIONED BY (columns)",
    "CLUSTERED": "CLUSTERED BY is not supported: use WITH ('bucket' = 'n', 'bucket-key' = 'columns')",
    **dict.fromkeys(
        ("CLONE", "DEEP", "SHALLOW"),
        "clones are not supported: use CREATE TABLE … LIKE for the definition, CREATE TABLE … AS for a copy",
    ),
    "CLUSTER": "CLUSTER BY is not supported: rows are sorted by the primary key; use INDEX (columns)",
    **dict.fromkeys(
        ("SCHEDULE", "TRIGGER", "REFRESH", "FRESHNESS"),
        "nothing runs by itself: use REFRESH MATERIALIZED VIEW, which in streaming mode goes on",
    ),
    "DISTRIBUTED": "DISTRIBUTED BY is not supported: use WITH ('bucket' = 'n', 'bucket-key' = 'columns')",
}


def create_table(
    cursor: Cursor, *, replaces: bool = False
) -> s.CreateTable | s.CreateTableOver | s.CreateTableAs | s.CreateTableLike:
    """Read what follows ``CREATE TABLE`` or, where it ``replaces`` one, ``CREATE OR REPLACE TABLE``."""
    if_not_exists = cursor.skip("IF", "NOT", "EXISTS")
    name = table_name(cursor)
    cursor.subject = f"table {name!r}"
    declared = _declared(cursor)
    for column in declared.columns:
        check_default(column, cursor.subject)
    if cursor.skip("AS"):
        what = "CREATE TABLE … AS SELECT"
        return s.CreateTableAs(name, *_as_query(cursor, declared, what), if_not_exists, replaces)
    if not replaces and cursor.skip("LIKE"):
        return s.CreateTableLike(name, read_like(cursor, table_name(cursor)), declared, if_not_exists)
    if replaces:
        raise cursor.refusal("expected AS and a query: only CREATE OR REPLACE TABLE … AS SELECT is supported")
    if not declared.columns and "connector" in declared.options:
        return s.CreateTableOver(name, declared, if_not_exists)
    if not declared.columns and not declared.computed:
        raise cursor.refusal("expected ( and the table's columns, or AS and a query")
    schema = with_checks(declared.schema(cursor.subject), declared.checks, cursor.subject)
    return s.CreateTable(name, schema, declared.options, if_not_exists)


def create_view(cursor: Cursor, *, replaces: bool = False) -> s.CreateView:
    """Read what follows ``CREATE [OR REPLACE] MATERIALIZED VIEW``."""
    if_not_exists = cursor.skip("IF", "NOT", "EXISTS")
    name = table_name(cursor)
    cursor.subject = f"view {name!r}"
    declared = _declared(cursor, has_key_behind=True)
    if not cursor.skip("AS"):
        raise cursor.refusal("expected AS and a query")
    return s.CreateView(name, *_as_query(cursor, declared, "a view"), if_not_exists, replaces)


def _declared(cursor: Cursor, *, has_key_behind: bool = False) -> Declared:
    """What stands between the parentheses and behind them; of a view also the primary key behind them."""
    _refuse_clauses(cursor)
    elements = Elements(cursor)
    if has_columns := cursor.ahead("("):
        cursor.listed(elements.read)
    if has_key_behind and not elements.primary_key and cursor.skip("PRIMARY", "KEY"):
        elements.primary_key = names(cursor)
        cursor.skip("NOT", "ENFORCED")
    comment, partitioned_by, with_ = _clauses(cursor, "" if has_columns else "( and the table's columns, ")
    return Declared(
        tuple(elements.columns),
        elements.primary_key,
        tuple(elements.indexes),
        partitioned_by,
        comment,
        tuple(elements.computed),
        elements.watermark,
        with_,
        tuple(elements.checks),
    )


_Names = tuple[str, ...]


def _as_query(
    cursor: Cursor, declared: Declared, what: str
) -> tuple[QueryText, _Names, _Names, tuple[_Names, ...], str | None, Mapping[str, str]]:
    """The query, and what is declared beside its columns, in the order of ``s.CreateTableAs``."""
    if declared.columns or declared.computed or declared.watermark or declared.checks:
        raise SchemaError(
            f"{cursor.subject}: {what} takes its columns from its query, so between the parentheses may be "
            "PRIMARY KEY and INDEX only; name and cast columns in the query"
        )
    if unique_index := next((index for index in declared.indexes if index.unique), None):
        raise SchemaError(f"{cursor.subject}: {what} has no {unique_index}; leave out UNIQUE")
    indexes = tuple(index.columns for index in declared.indexes)
    key, partitions = declared.primary_key, declared.partitioned_by
    return query_at(cursor), key, partitions, indexes, declared.comment, declared.options


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
    if repeated := first_repeated(columns):
        raise SchemaError(f"{cursor.subject}: column {repeated!r} is named twice")
    comment = cursor.string("a comment in quotes") if cursor.skip("COMMENT") else None
    if not cursor.skip("AS"):
        raise cursor.refusal("expected AS and a query")
    query = query_at(cursor)
    return s.CreatePlainView(name, query, columns, comment, is_temporary, if_not_exists, replaces)


def _clauses(cursor: Cursor, before: str) -> tuple[str | None, tuple[str, ...], dict[str, str]]:
    """What follows the parentheses, each at most once, in any order: comment, partition columns, options.

    ``before`` is what else could have stood there.
    """
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
            raise cursor.refusal(f"expected {before}COMMENT, PARTITIONED BY or WITH, each at most once")
    return comment, partitioned_by or (), with_ or {}


def _refuse_clauses(cursor: Cursor) -> None:
    for word, reason in _CLAUSE_REFUSALS.items():
        if cursor.ahead(word):
            raise cursor.refusal(reason)


def read_like(cursor: Cursor, source: str) -> Like:
    """Read what follows ``LIKE source``, which may be nothing.

    >>> read_like(Cursor("(INCLUDING ALL EXCLUDING OPTIONS)"), "t").features["OPTIONS"].value
    'EXCLUDING'
    """
    given: dict[str, Merging] = {}
    everything: Merging | None = None
    has_list = cursor.skip("(")
    while has_list and not cursor.skip(")"):
        merging = next((merging for merging in Merging if cursor.skip(merging.value)), None)
        if merging is None:
            raise cursor.refusal("expected INCLUDING, EXCLUDING or OVERWRITING, and a feature")
        known = _MERGED if merging is Merging.OVERWRITING else (*MERGED_ONCE, *_MERGED)
        feature = cursor.word(0)
        if feature == "ALL" and everything is None and not given:
            everything = merging
        elif feature in known and feature not in given:
            given[feature] = merging
        else:
            raise cursor.refusal(f"expected ALL before all others, or one of {', '.join(known)}, each once")
        cursor.expect(feature)
    features = dict.fromkeys(_DEFAULT, everything) if everything else _DEFAULT
    if everything is Merging.OVERWRITING:
        features |= dict.fromkeys(MERGED_ONCE, Merging.INCLUDING)
    return Like(source, {**features, **given})


_TRACKING: Final = "change-tracking"

_FORMS: Final = (
    "ADD, DROP COLUMN, DROP INDEX, DROP WATERMARK, RENAME COLUMN, RENAME TO, ALTER COLUMN, MODIFY, SET (…), "
    "RESET (…), COMMENT, DROP CONSTRAINT, DROP PARTITION, COMPACT, ROLLBACK TO, PUBLISH LOG, START MIRROR, "
    "STOP MIRROR or PARTITION (…)"
)

_KEY_STAYS: Final = "the primary key cannot change; create another table and copy"
_REFUSALS: Final[Mapping[tuple[str, ...], str]] = {
    ("ADD", "PARTITION"): "partitions need not be added; writing a row makes its partition",
    ("ADD", "PRIMARY"): _KEY_STAYS,
    ("ADD", "CHECK"): "a constraint gets a name; write ADD CONSTRAINT name CHECK (…)",
    ("CHANGE",): "CHANGE is not supported: use RENAME COLUMN a TO b, or MODIFY a type",
    ("CLUSTER",): _CLAUSE_REFUSALS["CLUSTER"],
    ("DROP", "PRIMARY"): _KEY_STAYS,
    ("RECOVER",): "a table knows its partitions; leave it out",
    ("SET", "LOCATION"): _CLAUSE_REFUSALS["LOCATION"],
    ("SET", "TBLPROPERTIES"): "TBLPROPERTIES is not supported: use SET ('key' = 'value')",
    ("UNSET",): "UNSET is not supported: use RESET ('key')",
}


def alter_table(cursor: Cursor) -> Statement:
    """Read what follows ``ALTER TABLE``.

    >>> alter_table(Cursor("t RENAME COLUMN a TO b")).changes
    (RenameColumn(old='a', new='b'),)
    """
    name = table_name(cursor)
    cursor.subject = f"ALTER TABLE {name}"
    for words, reason in _REFUSALS.items():
        if cursor.ahead(*words):
            raise cursor.refusal(reason)
    if cursor.skip("ADD", "CONSTRAINT"):
        constraint = cursor.name("the name of a constraint")
        if cursor.ahead("PRIMARY"):
            raise cursor.refusal(_KEY_STAYS)
        return s.AddConstraint(name, read_check(cursor, constraint))
    if cursor.skip("RENAME", "TO"):
        return s.RenameTable(name, table_name(cursor))
    if cursor.skip("COMPACT"):
        return s.CompactTable(name, partition(cursor) if cursor.skip("PARTITION") else None)
    if cursor.skip("ROLLBACK", "TO"):
        is_tag = cursor.is_string(0)
        return s.RollBack(name, cursor.string("a tag") if is_tag else cursor.number("a snapshot, or a 'tag'"))
    if cursor.skip("PUBLISH", "LOG"):
        return s.PublishLog(name, accept_gap=cursor.skip("ACCEPT", "GAP"))
    for word in ("START", "STOP"):
        if cursor.skip(word, "MIRROR"):
            return s.KeepMirror(name, is_stopped=word == "STOP")
    if cursor.skip("PARTITION"):
        return _of_partition(cursor, name)
    if cursor.ahead("DROP", "PARTITION") or cursor.ahead("DROP", "IF", "EXISTS", "PARTITION"):
        cursor.expect("DROP")
        if_exists = cursor.skip("IF", "EXISTS")
        cursor.expect("PARTITION")
        return s.DropPartition(name, partition(cursor), if_exists)
    for head, read in _CHANGES.items():
        if cursor.ahead(*head):
            # what follows MODIFY in this form is read as in CREATE TABLE, its first word too
            cursor.skip(*(head[:1] if read is _modify_watermark else head))
            changes = tuple(read(cursor))
            if cursor.ahead(","):
                several = _OF_SEVERAL.get(head[0], "a statement for each change")
                raise cursor.refusal(f"several changes are one list; write {several}")
            return s.AlterTable(name, changes)
    raise cursor.refusal(f"expected {_FORMS}")


def _of_partition(cursor: Cursor, name: str) -> Statement:
    spec = partition(cursor)
    if cursor.skip("COMPACT"):
        return s.CompactTable(name, spec)
    cursor.expect("SET")
    given = options(cursor)
    if list(given) != [_TRACKING]:
        raise SchemaError(
            f"{cursor.subject}: a partition has the option {_TRACKING!r} alone, got {', '.join(given)}"
        )
    try:
        return s.TrackPartitions(name, spec, boolean(given[_TRACKING]))
    except ValueError as cause:
        raise SchemaError(
            f"{cursor.subject}: option {_TRACKING!r} must be {cause}, got {given[_TRACKING]!r}"
        ) from None


def _add(cursor: Cursor) -> list[Alteration]:
    return cursor.listed(lambda: _added(cursor)) if cursor.ahead("(") else [_added(cursor)]


def _added_field(cursor: Cursor) -> Alteration:
    found = alterations.AddField(dotted(cursor), read_type(cursor))
    if cursor.ahead("NOT", "NULL") or cursor.ahead("DEFAULT"):
        raise cursor.refusal("existing rows have NULL in a field that is added; leave it out")
    if cursor.ahead("COMMENT") or cursor.ahead("FIRST") or cursor.ahead("AFTER"):
        raise cursor.refusal("a field of a struct has no comment, and becomes the last one; leave it out")
    return found


def _added(cursor: Cursor) -> Alteration:
    if cursor.is_name(0) and cursor.word(1) == ".":
        return _added_field(cursor)
    elements = Elements(cursor, ends=("FIRST", "AFTER"))
    elements.read()
    if elements.primary_key:
        raise SchemaError(f"{cursor.subject}: {_KEY_STAYS}")
    if elements.checks:
        raise SchemaError(
            f"{cursor.subject}: CHECK ({elements.checks[0].text}) is added by itself: ADD COLUMN, and then "
            "ADD CONSTRAINT name CHECK (…)"
        )
    for column in elements.columns:
        check_default(column, cursor.subject)
    if elements.watermark is not None:
        return alterations.AddWatermark(elements.watermark)
    if elements.indexes:
        return alterations.AddIndex(elements.indexes[0])
    if elements.computed:
        return alterations.AddComputed(elements.computed[0])
    if elements.columns[0].metadata is not None:
        return alterations.AddComputed(elements.columns[0])
    return alterations.AddColumn(elements.columns[0], _after(cursor))


def _after(cursor: Cursor) -> str | None:
    """Where a column is to stand: after another one, "" for the first place, None if it is not said."""
    if cursor.skip("FIRST"):
        return ""
    return cursor.name("the name of a column") if cursor.skip("AFTER") else None


def _drop(cursor: Cursor) -> list[Alteration]:
    def column() -> Alteration:
        path = dotted(cursor)
        return alterations.DropField(path) if path[1:] else alterations.DropColumn(path[0])

    return cursor.listed(column) if cursor.ahead("(") else [column()]


def _drop_constraint(cursor: Cursor) -> list[Alteration]:
    if_exists = cursor.skip("IF", "EXISTS")
    return [alterations.DropCheck(cursor.name("the name of a constraint"), if_exists)]


def _rename(cursor: Cursor) -> list[Alteration]:
    path = dotted(cursor)
    cursor.expect("TO")
    new = cursor.name("the new name")
    return [alterations.RenameField(path, new) if path[1:] else alterations.RenameColumn(path[0], new)]


def _alter(cursor: Cursor) -> list[Alteration]:
    name, *between = path = dotted(cursor)
    if between:
        if not cursor.skip("TYPE"):
            raise cursor.refusal("expected TYPE: a part of a column has no comment, no DEFAULT, no NOT NULL")
        return [alterations.WidenPart(path, read_type(cursor))]
    if cursor.skip("COMMENT"):
        return [alterations.SetComment(name, cursor.string("a comment in quotes"))]
    if cursor.skip("SET", "DEFAULT"):
        return [alterations.SetDefault(name, read_default(cursor))]
    if cursor.skip("DROP", "DEFAULT"):
        return [alterations.SetDefault(name, None)]
    for word in ("SET", "DROP"):
        if cursor.skip(word, "NOT", "NULL"):
            return [alterations.SetNullable(name, word == "DROP")]
    if (after := _after(cursor)) is not None:
        return [alterations.MoveColumn(name, after)]
    if not cursor.skip("TYPE"):
        raise cursor.refusal(
            "expected TYPE, COMMENT, SET or DROP DEFAULT, SET or DROP NOT NULL, FIRST or AFTER"
        )
    return [alterations.WidenColumn(name, *read_column_type(cursor))]


def _modify(cursor: Cursor) -> list[Alteration]:
    if not cursor.ahead("("):
        return _modified(cursor)
    return [change for changes in cursor.listed(lambda: _modified(cursor)) for change in changes]


def _modified(cursor: Cursor) -> list[Alteration]:
    name, *between = path = dotted(cursor)
    if between:
        return [alterations.WidenPart(path, read_type(cursor))]
    found: list[Alteration] = [alterations.WidenColumn(name, *read_column_type(cursor))]
    if cursor.skip("NOT", "NULL"):
        found.append(alterations.SetNullable(name, nullable=False))
    if cursor.skip("COMMENT"):
        found.append(alterations.SetComment(name, cursor.string("a comment in quotes")))
    if (after := _after(cursor)) is not None:
        found.append(alterations.MoveColumn(name, after))
    return found


def _modify_watermark(cursor: Cursor) -> list[Alteration]:
    elements = Elements(cursor)
    elements.read()
    return [] if elements.watermark is None else [alterations.ModifyWatermark(elements.watermark)]


def _reset(cursor: Cursor) -> list[Alteration]:
    return [
        alterations.ResetOptions(
            tuple(cursor.listed(lambda: cursor.string("the key of an option in quotes")))
        )
    ]


_CHANGES: Final[Mapping[tuple[str, ...], Callable[[Cursor], list[Alteration]]]] = {
    ("ADD", "COLUMNS"): _add,
    ("ADD", "COLUMN"): _add,
    ("ADD",): _add,
    ("DROP", "WATERMARK"): lambda _: [alterations.DropWatermark()],
    ("DROP", "INDEX"): lambda cursor: [alterations.DropIndex(cursor.name("the name of an index"))],
    ("DROP", "CONSTRAINT"): _drop_constraint,
    ("DROP", "COLUMNS"): _drop,
    ("DROP", "COLUMN"): _drop,
    ("DROP",): _drop,
    ("RENAME", "COLUMN"): _rename,
    ("RENAME",): _rename,
    ("ALTER", "COLUMN"): _alter,
    ("MODIFY", "COLUMN"): _modify,
    ("MODIFY", "WATERMARK", "FOR"): _modify_watermark,  # else a column of this name
    ("MODIFY",): _modify,
    ("SET",): lambda cursor: [alterations.SetOptions(options(cursor))],
    ("RESET",): _reset,
    ("COMMENT",): lambda cursor: [alterations.SetComment(None, cursor.string("a comment in quotes"))],
}
"""The first words of each change of a definition, and what reads the rest of it."""

_OF_SEVERAL: Final = {
    "ADD": "ADD (a type, b type)",
    "DROP": "DROP COLUMNS (a, b)",
    "MODIFY": "MODIFY (a type, b type)",
    "SET": "SET ('key' = 'value', 'key' = 'value')",
}
"""How several changes are written that begin with a word."""


def alter_view(cursor: Cursor) -> s.SuspendView | s.AlterView:
    """Read what follows ``ALTER MATERIALIZED VIEW``."""
    name = table_name(cursor)
    cursor.subject = f"ALTER MATERIALIZED VIEW {name}"
    if cursor.skip("SUSPEND"):
        return s.SuspendView(name, is_suspended=True)
    if cursor.skip("RESUME"):
        return s.SuspendView(name, is_suspended=False)
    for head in ("SET", "RESET", "COMMENT"):
        if cursor.skip(head):
            (change,) = _CHANGES[head,](cursor)
            return s.AlterView(name, change)
    raise cursor.refusal("expected SUSPEND, RESUME, SET, RESET or COMMENT")
