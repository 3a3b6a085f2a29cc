"""Tables of a catalog whose rows lie elsewhere: the file that defines one, and the connector that it names.

The file is the ``table.json`` that managed tables have too. One name for both, published put-if-absent, lets
exactly one of two concurrent CREATE TABLEs win, of whatever kind they are. Kafka, PostgreSQL, HTTP and Delta
are imported when a table needs them: every worker of a query imports the catalog.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self
from uuid import uuid4

from upsert.catalog.connectors import spark as spark_connector
from upsert.catalog.connectors.base import MIRRORED, Connector
from upsert.codec import MAY_BE_MISSING, Jsonable
from upsert.errors import (
    CommitConflictError,
    ConfigurationError,
    CorruptTableError,
    SchemaError,
    TableExistsError,
)
from upsert.options import suggestion
from upsert.schema import Column, TableSchema
from upsert.store.metadata import table_file
from upsert.store.paths import TABLE_FILE
from upsert.store.storage import storage_of
from upsert.views.hidden_tables import release_all
from upsert.views.view import ViewText

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_HTTP: Final = "http"
_POSTGRES: Final = "postgres"
_DELTA: Final = "delta"
_OF_SPARK: Final = (*spark_connector.FORMATS, spark_connector.SPARK)


@dataclass(frozen=True)
class Definition(Jsonable):
    """What CREATE TABLE said about a table with a connector.

    Attributes:
        connector: name of the connector, as it was written.
        schema: columns, METADATA columns at their places, and the primary key.
        options: as they were written, without ``connector``; may hold secrets, so they are not in the repr.
        uuid: distinguishes the table from any other one of its name.
        version: how often its columns were changed.
        last_id: the highest id that any column has had, once they were changed.
    """

    connector: str
    schema: TableSchema
    options: Mapping[str, str] = field(repr=False)
    uuid: str = field(default_factory=lambda: uuid4().hex)
    version: int = field(default=0, metadata=MAY_BE_MISSING)
    last_id: int = field(default=0, metadata=MAY_BE_MISSING)


VIEW: Final = "view"
"""What stands in the place of the connector in the definition of a plain view."""


@dataclass(frozen=True)
class PlainView:
    """A plain view, which lies beside the tables of a database, or in the session alone.

    Attributes:
        text: its query, and what names in it mean.
        catalog: in which the names in its query are looked up.
        schema: its columns, and its comment.
    """

    text: ViewText
    catalog: str
    schema: TableSchema
    is_temporary: bool = False

    @property
    def definition(self) -> Definition:
        """What lies in the folder of its name."""
        return Definition(VIEW, self.schema, {VIEW: json.dumps(self.text.to_json())})

    @classmethod
    def of(cls, definition: Definition, catalog: str, folder: str) -> Self | None:
        """The view that a definition in a folder is; None for a table."""
        if definition.connector != VIEW:
            return None
        try:
            return cls(ViewText.from_json(json.loads(definition.options[VIEW])), catalog, definition.schema)
        except (ValueError, KeyError, TypeError, RecursionError) as cause:
            raise CorruptTableError(
                f"{os.path.join(folder, TABLE_FILE)}: the definition of the view cannot be read, {cause!r}; "
                "restore the file, or DROP TABLE and create the view again"
            ) from cause


def no_table(name: str) -> ConfigurationError:
    """The refusal of a view where a table is needed."""
    return ConfigurationError(
        f"{name!r} is a view, a name for a query, which only queries read; write SELECT … FROM {name}, or "
        "name a table that it reads"
    )


def redefine(folder: str, definition: Definition, before: Definition | None = None) -> None:
    """Let a folder have another definition, from one moment on; the caller holds the catalog's lock.

    ``before`` is the definition that the other one was made of.

    Raises:
        CommitConflictError: another process has changed it meanwhile.
    """
    said = {} if before is None else before.to_json()
    if not table_file.replace_pointer(folder, {"uuid": definition.uuid, **definition.to_json()}, said):
        raise CommitConflictError(
            f"{folder!r}: another process has replaced or dropped it meanwhile; execute the statement again"
        )


def define(folder: str, definition: Definition) -> None:
    """Make a folder a table with a connector. After a crash it is one or it is none.

    Raises:
        TableExistsError: there is a table of either kind already.
        ConfigurationError: the folder cannot be made or written.
    """
    value = {"uuid": definition.uuid, **definition.to_json()}
    if not table_file.publish_pointer(folder, value, folder):
        raise TableExistsError(f"table {folder!r} exists already; choose another name, or IF NOT EXISTS")


def definition_in(folder: str) -> Definition | None:
    """The definition in the folder of a table, None for a managed one."""
    value = table_file.seen_in(folder)
    if "connector" not in value:
        return None
    try:
        return Definition.from_json(value)
    except (KeyError, TypeError, CorruptTableError) as cause:
        raise CorruptTableError(
            f"{os.path.join(folder, TABLE_FILE)}: the definition of the table cannot be read, {cause!r}; "
            "restore the file, or DROP TABLE and create it again"
        ) from cause


def connect(name: str, definition: Definition, folder: str, options: Mapping[str, str] = {}) -> Connector:
    """The table that the definition in a folder describes, after every check that needs no connection.

    State lies in the folder unless ``state.path`` says otherwise. The options of one query replace those of
    the definition.
    """
    connector = _known_connector(name, definition)
    schema, given = definition.schema, {**definition.options, **options}
    _refuse_what_it_has_not(name, connector, schema, given)
    # no folder of an object store can be deleted atomically: there what belongs to the table lies in one of
    # its own, which no later table of the name will use
    own_folder = folder if storage_of(folder).is_local else os.path.join(folder, definition.uuid)
    if connector == _DELTA and schema.primary_key:
        from upsert.catalog.connectors.delta import DeltaConnector

        return DeltaConnector.of(name, schema, given, folder, own_folder)
    if connector in _OF_SPARK:
        return spark_connector.SparkConnector.of(name, connector, schema, given)
    if connector == _HTTP:
        from upsert.catalog.connectors.lookups import HttpConnector
        from upsert.lookups.http import HttpTable

        return HttpConnector(HttpTable.of(name, schema, given))
    if connector == _POSTGRES:
        from upsert.catalog.connectors.postgres import PostgresConnector

        return PostgresConnector.of(name, schema, given, own_folder)
    return _of_kafka(name, connector, definition, folder, own_folder, options)


def _of_kafka(
    name: str,
    connector: str,
    definition: Definition,
    folder: str,
    own_folder: str,
    options: Mapping[str, str],
) -> Connector:
    from upsert.catalog.connectors.kafka import MIRROR_OPTION, KafkaConnector
    from upsert.catalog.connectors.mirror import PREFIX, Mirror, split_options
    from upsert.kafka.options import key_of
    from upsert.kafka.table import KafkaTable

    schema, given = definition.schema, {**definition.options, **options}
    if "state.path" not in map(str.lower, given):
        given["state.path"] = os.path.join(own_folder, "state")
    if definition.version:
        given["state.version"] = str(definition.version)
    mirror = None
    given, of_mirror = split_options(given)
    if _has_mirror(connector, schema, given):
        mirror = Mirror.of(name, folder, own_folder, schema, of_mirror)
        given[MIRROR_OPTION] = mirror.path
    elif of_mirror:
        raise ConfigurationError(
            f"table {name!r}: options that begin with {PREFIX!r} need {MIRRORED}, got "
            f"{PREFIX + next(iter(of_mirror))!r}; leave it out"
        )
    table = KafkaTable.of(connector, schema, given, name=name)
    return KafkaConnector(table, mirror, frozenset(map(key_of, options)))


_OF_DEBEZIUM: Final = "let Debezium write a topic, and use 'kafka' with 'format' = 'debezium-json'"
_ELSEWHERE: Final = {
    "blackhole": "in Python, df.writeStream.format('noop')",
    "datagen": "use 'rate', or SELECT … FROM range(n)",
    "filesystem": "use the format, as 'parquet' or 'json', with 'path'",
    **dict.fromkeys(
        ("mysql-cdc", "postgres-cdc", "oracle-cdc", "sqlserver-cdc", "mongodb-cdc"), _OF_DEBEZIUM
    ),
    "print": "a streaming SELECT shows the rows",
}
"""Connectors of Flink, and what is used here instead."""


def _known_connector(name: str, definition: Definition) -> str:
    """The name of the connector in small letters, that of an alias being what it stands for."""
    from upsert.kafka.options import CONNECTOR_ALIASES, OPTIONS

    connector = definition.connector.lower()
    if connector == VIEW:
        raise no_table(name)
    known = (*OPTIONS, *CONNECTOR_ALIASES, _HTTP, _POSTGRES, *_OF_SPARK)
    if connector not in known:
        hint = _ELSEWHERE.get(connector) or suggestion(connector, known, "connectors are")
        raise ConfigurationError(f"table {name!r}: unknown connector {definition.connector!r}; {hint}")
    return CONNECTOR_ALIASES.get(connector, connector)


def columns_of(
    of: str, connector: str, options: Mapping[str, str], session: Callable[[], SparkSession]
) -> tuple[Column, ...]:
    """The columns of what a table with a connector is to stand for; only Delta tells them.

    Raises:
        SchemaError: the connector does not know them.
    """
    if connector.lower() != _DELTA or "path" not in options:
        raise SchemaError(
            f"{of}: expected ( and the table's columns, which only the connector {_DELTA!r} with a 'path' "
            f"knows by itself, got none for {connector!r}"
        )
    from upsert.delta.table import columns_at, declared_columns

    return declared_columns(columns_at(session(), options["path"], of), of)


def _has_mirror(connector: str, schema: TableSchema, options: Mapping[str, str]) -> bool:
    """Whether a table may have a mirror, and so an INDEX.

    Of topics of changes these are those in which each partition has all changes of its keys.
    """
    if connector != "kafka" or not schema.primary_key:
        return connector == "upsert-kafka" or (connector == _DELTA and bool(schema.primary_key))
    from upsert.formats.base import FORMATS, format_named
    from upsert.kafka.options import key_of

    named = [text for key, text in options.items() if key_of(key) == "value.format" and text in FORMATS]
    return any(format_named(name, "").splits_key_changes for name in named)


def _refuse_what_it_has_not(
    name: str, connector: str, schema: TableSchema, options: Mapping[str, str]
) -> None:
    from upsert.kafka.options import OPTIONS

    if schema.metadata and connector not in OPTIONS:
        raise SchemaError(
            f"table {name!r}: the connector {connector!r} has no METADATA columns, got "
            f"{schema.metadata[0].name!r}; leave it out"
        )
    clauses: dict[str, object] = {"PARTITIONED BY": schema.partitioned_by}
    if not _has_mirror(connector, schema, options):
        clauses["INDEX"] = schema.indexes
    for clause, given in clauses.items():
        if given:
            needs = f" without {MIRRORED}" if (clause, connector) == ("INDEX", "kafka") else ""
            raise SchemaError(
                f"table {name!r}: the connector {connector!r} has no {clause}{needs}; leave it out, or leave "
                "out 'connector' for a managed table"
            )


def clean_up(folder: str, made: tuple[str, ...]) -> None:
    """Delete what a failed CREATE TABLE AS has created outside for the table in ``folder``.

    Of a view these are the folders of tables that it reads, whose changes it holds.
    """
    if (definition := definition_in(folder)) is not None:
        connect("of a failed CREATE TABLE AS", definition, folder).clean_up(made)
    elif (uuid := table_file.value_in(folder).get("uuid")) is not None:
        release_all(uuid, made)
