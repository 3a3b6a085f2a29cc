"""``ALTER TABLE`` of tables with a connector: the definition changes, and what is kept of their rows follows.

Nothing changes where the rows are: no topic, and no table of a database. The mirror of a topic gets the same
columns and indexes at once; the images that a query remembers get them when it starts again, see
``upsert.changelog.image_log``. What would give kept rows another meaning is refused by its name.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from upsert.catalog.connectors.definition import Definition, connect, definition_in, redefine
from upsert.catalog.results import Done, Running
from upsert.catalog.run.definitions import check_no_mirror_runs
from upsert.catalog.run.jobs import needed
from upsert.catalog.session import CHECKPOINT, TRIGGER
from upsert.errors import ConfigurationError, SchemaError
from upsert.kafka.options import key_of
from upsert.schema import Column, TableSchema
from upsert.spark.queries import checkpoint_of, forget_ended
from upsert.sql import statements as s
from upsert.sql.show_create import declared_names
from upsert.store import alterations as a
from upsert.store.metadata.definition import Definition as Columns
from upsert.store.storage import storage_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from upsert.catalog.context import Context

FIXED: Final = frozenset({
    *("connector", "topic", "topic-pattern", "key.format", "key.fields", "key.fields-prefix", "value.format"),
    *("value.fields-include", "sequence.field", "cdc-events-duplicate", "state.path", "state.version"),
    *("table-name", "path"),
})  # fmt: skip
"""Options that say which rows these are, what identifies them, or where what is kept of them lies."""


def alter(context: Context, statement: s.AlterTable) -> Done:
    """All changes of one ``ALTER TABLE`` of a table with a connector, or none of them."""
    table_ref = context.databases.resolve(statement.name)
    what, of = f"ALTER TABLE {statement.name}", f"table {table_ref.shown!r}"
    check_no_mirror_runs(context, table_ref)
    with table_ref.tables.alone():
        path = table_ref.existing()
        if (old := definition_in(path)) is None:
            raise ConfigurationError(f"{of}: another process has replaced it; execute the statement again")
        new = _altered(old, statement.changes, f"{of}: ALTER TABLE")
        if new == old and [c.id for c in new.schema.columns] == [c.id for c in old.schema.columns]:
            return Done(what, "as it was")
        connected = connect(table_ref.shown, new, path)
        connected.check_target(lambda: needed(None, what))
        # after a crash between these two the mirror has columns more, or less, until it is continued
        connected.bring_mirror_along()
        redefine(path, new, old)
    return Done(what, "altered")


def _altered(old: Definition, changes: Iterable[a.Alteration], of: str) -> Definition:
    new = old
    for change in changes:
        match change:
            case a.SetOptions(options):
                _check_can_change(old.options, options, of)
                new = replace(new, options={**_without(new.options, options), **options})
            case a.ResetOptions(keys):
                known = {key_of(key) for key in new.options}
                if unknown := [key for key in keys if key_of(key) not in known]:
                    raise ConfigurationError(
                        f"{of}: RESET of an option needs one that is set, got {unknown[0]!r}; set are "
                        f"{', '.join(new.options)}"
                    )
                _check_can_change(old.options, dict.fromkeys(keys), of)
                new = replace(new, options=_without(new.options, keys))
            case a.AddColumn(column) if old.connector.lower() == "delta" and old.schema.primary_key:
                raise SchemaError(
                    f"{of}: column {column.name!r} cannot be added to a Delta table with a key, because rows "
                    "that its mirror already has would have NULL in it; DROP TABLE, and CREATE TABLE with it"
                )
            case _:
                columns = _changed(Columns(0, new.schema, {}, last_id=new.last_id, owner=of), change, of)
                new = replace(new, schema=columns.schema, last_id=columns.last_id)
    if _stored(new.schema) != _stored(old.schema):
        new = replace(new, version=old.version + 1)
    return new


def _stored(schema: TableSchema) -> list[tuple[int, str]]:
    return [(column.id, column.name) for column in schema.columns]


def _check_can_change(before: Mapping[str, str], after: Mapping[str, str | None], of: str) -> None:
    given = {key_of(key): text for key, text in before.items()}
    for key, text in after.items():
        if key_of(key) in FIXED and given.get(key_of(key)) != text:
            raise ConfigurationError(
                f"{of}: option {key!r} cannot change, because the state of queries and the mirror hold rows "
                "of its present value; DROP TABLE, and CREATE TABLE with another value"
            )


def _without(options: Mapping[str, str], keys: Iterable[str]) -> dict[str, str]:
    gone = {key_of(key) for key in keys}
    return {key: text for key, text in options.items() if key_of(key) not in gone}


def _changed(columns: Columns, change: Any, of: str) -> Columns:
    known = declared_names(columns.schema)
    match change:
        case a.AddComputed(Column() as column):
            change = a.AddColumn(column)
        case a.AddColumn(column) if not column.nullable:
            raise SchemaError(
                f"{of}: column {column.name!r} is NOT NULL, and stored rows would have NULL in it; leave out "
                "NOT NULL"
            )
        case a.RenameColumn(name) | a.WidenColumn(name) | a.MoveColumn(name) if name not in known:
            columns.schema.type_of(name, of)  # refuses it
        case a.RenameColumn(name) | a.WidenColumn(name):
            raise SchemaError(
                f"{of}: column {name!r} must keep its name and type, under which records and stored rows "
                "have its values; add another column, or for another type create another table"
            )
        case a.SetNullable(name) if name in known:
            raise SchemaError(
                f"{of}: column {name!r} must stay NOT NULL or nullable as it is, by which records and stored "
                "rows were read; create another table"
            )
        case a.MoveColumn(name):
            raise SchemaError(
                f"{of}: column {name!r} must keep its place, where records may have its values; SELECT the "
                "columns in another order"
            )
        case a.DropField(path) | a.RenameField(path) | a.WidenPart(path):
            raise SchemaError(
                f"{of}: {'.'.join(path)!r} must keep its name and type, under which records and stored rows "
                "have its values; add another field"
            )
        case a.TrackPartition():
            raise SchemaError(f"{of}: a table with a connector has no partitions")
    taken = [one.name for one in columns.schema.computed]
    if isinstance(change, a.AddColumn) and change.column.name in taken:
        raise SchemaError(f"{of}: ADD COLUMN {change.column.name!r}: there is a column of this name")
    return a.changed(columns, change)


def start_mirror(
    context: Context,
    name: str,
    spark: SparkSession,
    trigger: Mapping[str, Any] | None,
    checkpoints: str | os.PathLike[str] | None,
) -> StreamingQuery:
    """Keep the mirror of a topic, as ``Catalog.mirror``."""
    connected = context.connected(name)
    if connected is None:
        raise ConfigurationError(
            f"table {name!r}: only a topic or a table of Delta Lake has a mirror, got a "
            "managed one, which can be looked up itself; use it as it is"
        )
    path = context.databases.resolve(name).path
    if checkpoints is None and not storage_of(path).is_local:
        checkpoints = context.options.value(CHECKPOINT)
    folder = None if checkpoints is None else os.fspath(checkpoints)
    forget_ended(context.mirrors)
    query = context.mirrors[path] = connected.keep_mirror(spark, trigger or {}, folder)
    return query


def keep_mirror(context: Context, statement: s.KeepMirror, spark: SparkSession | None) -> Done | Running:
    """``ALTER TABLE t START MIRROR`` and ``STOP MIRROR``."""
    path = context.databases.resolve(statement.name).path
    what = f"ALTER TABLE {statement.name} {'STOP' if statement.is_stopped else 'START'} MIRROR"
    if statement.is_stopped:
        query = context.mirrors.pop(path, None)
        if query is None or not query.isActive:
            return Done(what, "did not run in this session")
        query.stop()
        return Done(what, "stopped")
    session = needed(spark, what, context.options.forwarded())
    query = start_mirror(context, statement.name, session, context.options.value(TRIGGER), None)
    return Running(what, query, checkpoint_of(session, str(query.id)) or "")
