"""``ALTER TABLE`` and ``ALTER MATERIALIZED VIEW`` to statement objects (pure).

Follows FLIP-188, and for columns the spelling of Spark and Flink; docs/sql.md lists the forms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from upsert.errors import SchemaError
from upsert.options import boolean
from upsert.sql import statements as s
from upsert.sql.columns import Elements, read_type
from upsert.sql.statements import Statement
from upsert.sql.tokens import Cursor, options, partition, table_name
from upsert.store import alterations
from upsert.store.alterations import Alteration

_TRACKING: Final = "change-tracking"

_FORMS: Final = (
    "ADD, DROP COLUMN, DROP INDEX, DROP WATERMARK, RENAME COLUMN, RENAME TO, ALTER COLUMN, MODIFY, SET (…), "
    "RESET (…), COMMENT, DROP PARTITION, COMPACT, PUBLISH LOG or PARTITION (…)"
)

_REFUSALS: Final = {
    ("ADD", "PARTITION"): "partitions need not be added; writing a row makes its partition",
    ("ADD", "PRIMARY"): "the primary key cannot change; create another table and copy",
    ("ADD", "CONSTRAINT"): "the primary key cannot change; create another table and copy",
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
    if cursor.skip("RENAME", "TO"):
        return s.RenameTable(name, table_name(cursor))
    if cursor.skip("COMPACT"):
        return s.CompactTable(name, partition(cursor) if cursor.skip("PARTITION") else None)
    if cursor.skip("PUBLISH", "LOG"):
        return s.PublishLog(name, accept_gap=cursor.skip("ACCEPT", "GAP"))
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
            return s.AlterTable(name, tuple(read(cursor)))
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


def _added(cursor: Cursor) -> Alteration:
    elements = Elements(cursor, ends=("FIRST", "AFTER"))
    elements.read()
    if elements.primary_key:
        raise SchemaError(f"{cursor.subject}: {_REFUSALS['ADD', 'PRIMARY']}")
    if elements.watermark is not None:
        return alterations.AddWatermark(elements.watermark)
    if elements.indexes:
        return alterations.AddIndex(elements.indexes[0])
    if elements.computed:
        return alterations.AddComputed(elements.computed[0])
    if elements.columns[0].metadata is not None:
        return alterations.AddComputed(elements.columns[0])
    if cursor.skip("FIRST"):
        return alterations.AddColumn(elements.columns[0], "")
    after = cursor.name("the name of a column") if cursor.skip("AFTER") else None
    return alterations.AddColumn(elements.columns[0], after)


def _drop(cursor: Cursor) -> list[Alteration]:
    def column() -> Alteration:
        return alterations.DropColumn(cursor.name("the name of a column"))

    return cursor.listed(column) if cursor.ahead("(") else [column()]


def _rename(cursor: Cursor) -> list[Alteration]:
    old = cursor.name("the name of a column")
    cursor.expect("TO")
    return [alterations.RenameColumn(old, cursor.name("the new name"))]


def _alter(cursor: Cursor) -> list[Alteration]:
    name = cursor.name("the name of a column")
    if cursor.skip("COMMENT"):
        return [alterations.SetComment(name, cursor.string("a comment in quotes"))]
    if not cursor.skip("TYPE"):
        raise cursor.refusal("expected TYPE or COMMENT")
    return [alterations.WidenColumn(name, read_type(cursor))]


def _modify(cursor: Cursor) -> list[Alteration]:
    name = cursor.name("the name of a column")
    found: list[Alteration] = [alterations.WidenColumn(name, read_type(cursor))]
    if cursor.skip("COMMENT"):
        found.append(alterations.SetComment(name, cursor.string("a comment in quotes")))
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
    ("DROP", "COLUMNS"): _drop,
    ("DROP", "COLUMN"): _drop,
    ("RENAME", "COLUMN"): _rename,
    ("ALTER", "COLUMN"): _alter,
    ("MODIFY", "COLUMN"): _modify,
    ("MODIFY", "WATERMARK"): _modify_watermark,
    ("MODIFY",): _modify,
    ("SET",): lambda cursor: [alterations.SetOptions(options(cursor))],
    ("RESET",): _reset,
    ("COMMENT",): lambda cursor: [alterations.SetComment(None, cursor.string("a comment in quotes"))],
}
"""The first words of each change of a definition, and what reads the rest of it."""


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
