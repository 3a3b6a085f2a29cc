"""A table of PostgreSQL as CREATE TABLE declares it: its options, and whether the real one fits (pure).

It is written by streams, and looked up by those that are joined with it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

import pyarrow as pa

from upsert import options, types
from upsert.errors import ConfigurationError, SchemaError
from upsert.lookups.options import LOOKUP_OPTIONS, LookupOptions, LookupTable
from upsert.options import Option, Secret
from upsert.postgres.types import pg_types, qualified, quoted, sink_types
from upsert.schema import TableSchema
from upsert.store.table_options import SINK_MATERIALIZE

CONNECTOR: Final = "postgres"

OPTIONS: Final = (
    Option(
        "url",
        Secret,
        "address of the database, `postgresql://host:port/database`, with options such as "
        "`?sslmode=verify-full`; `jdbc:postgresql://…` means the same",
    ),
    Option(
        "table-name",
        options.text,
        "the table that is written and looked up, `table` or `schema.table`, as PostgreSQL spells it; a view "
        "can only be looked up",
    ),
    Option("username", options.text, "the user of the database; default: that of the url", None),
    Option("password", Secret, "the user's password; masked wherever options are shown", None),
    SINK_MATERIALIZE,
    *LOOKUP_OPTIONS,
)
"""Options of ``'connector' = 'postgres'``; the first four have the names of Flink's JDBC connector."""


@dataclass(frozen=True)
class PostgresTable(LookupTable):
    """What counts of a declared table for those that write it or look its rows up.

    Attributes:
        url: address of the database.
        target: name of the table there, with or without its schema.
        user, password: None: what the address says.
        materialize: ``sink.materialize``.
    """

    connector = CONNECTOR

    url: str = field(repr=False)
    target: tuple[str, ...]
    user: str | None
    password: str | None = field(repr=False)
    materialize: str

    @classmethod
    def of(cls, name: str, schema: TableSchema, given: Mapping[str, str]) -> PostgresTable:
        """The table that a definition means, after every check that needs no connection.

        Raises:
            ConfigurationError: an option is unknown, missing or wrong.
            SchemaError: there is no primary key, or a column cannot be in PostgreSQL.
        """
        of = f"table {name!r}"
        values = options.parse(of, OPTIONS, given)
        url = str(values["url"]).removeprefix("jdbc:")
        parts = urlsplit(url)
        if parts.scheme not in ("postgresql", "postgres") or not parts.path.strip("/"):
            raise ConfigurationError(
                f"{of}: option 'url' must be like 'postgresql://host:5432/database', it is not"
            )
        target = tuple(values["table-name"].split("."))
        if len(target) > 2 or not all(target):
            raise ConfigurationError(
                f"{of}: option 'table-name' must be 'table' or 'schema.table', got {values['table-name']!r}"
            )
        cls.check_key(schema, of, "rows are replaced and deleted; name columns that are unique there")
        for column in schema.columns:
            if not sink_types(column.type):
                raise SchemaError(
                    f"{of}: column {column.name!r} must have a scalar type to go into PostgreSQL, got "
                    f"{types.sql_name(column.type)}; leave it out, or declare it STRING and write "
                    "to_json(…)"
                )
        own = Secret(url), target, values["username"], values["password"], values["sink.materialize"]
        return cls(name, dict(given), schema, LookupOptions.of(of, values), *own)

    def asked_by(self, equated: tuple[str, ...]) -> tuple[str, ...] | None:
        """The columns that it is asked by where some have values: all of these; None if there are none."""
        return equated or None

    @property
    def shown(self) -> str:
        """The table for messages: its name here, and where it lies, without user and password."""
        parts = urlsplit(self.url)
        where = f"{parts.netloc.rpartition('@')[2]}{parts.path}"
        return f"table {self.name!r} ({where}, {'.'.join(self.target)})"

    @property
    def ddl(self) -> str:
        """A statement of PostgreSQL that creates a table which fits."""
        columns = [f"{quoted(column.name)} {_declared(column.type)}" for column in self.schema.columns]
        key = ", ".join(map(quoted, self.schema.primary_key))
        return f"CREATE TABLE {qualified(self.target)} ({', '.join(columns)}, PRIMARY KEY ({key}))"


def _declared(type_: pa.DataType) -> str:
    if pa.types.is_decimal128(type_):
        return f"numeric({type_.precision},{type_.scale})"
    return sink_types(type_)[0]


@dataclass(frozen=True)
class FoundColumn:
    """A column of the table in the database.

    Attributes:
        type: the name of its type in ``pg_type``; for a domain that of the type below it.
        is_enum: whether the type is one of the user's own words.
        digits: precision and scale of a ``numeric`` that has them.
        is_needed: whether a row must give it a value.
        is_computed: whether no row may.
    """

    name: str
    type: str
    is_enum: bool = False
    digits: tuple[int, int] | None = None
    is_needed: bool = False
    is_computed: bool = False


@dataclass(frozen=True)
class FoundTable:
    """The table in the database: the name of its schema, its columns, and each set that is unique.

    ``is_view`` is whether rows are only read: of a view, also a materialized one, and of a foreign table.
    """

    schema: str
    columns: tuple[FoundColumn, ...]
    unique: tuple[frozenset[str], ...]
    is_view: bool = False


def check_declared(table: PostgresTable, found: FoundTable | None) -> None:
    """Refuse what a declared table cannot stand for: a table is written, rows of a view are looked up.

    Raises:
        ConfigurationError, SchemaError: as ``check_target``; or a view lacks a column, or has it as another
            type than it can be read as.
    """
    if found is None or not found.is_view:
        check_target(table, found)
        return
    by_name = {column.name: column for column in found.columns}
    for column in table.schema.columns:
        if (there := by_name.get(column.name)) is None:
            raise SchemaError(
                f"{table.shown}: column {column.name!r} is not there; columns are {_listed(by_name)}, upper "
                "and lower case count"
            )
        if there.type not in pg_types(column.type):
            raise SchemaError(
                f"{table.shown}: column {there.name!r} is {types.sql_name(column.type)}, which is read from "
                f"{', '.join(pg_types(column.type))}, the view has {there.type}; declare another type, or "
                "let the view cast it"
            )


def check_target(table: PostgresTable, found: FoundTable | None) -> None:
    """Refuse a table of the database that rows of the declared one cannot be written into.

    Raises:
        ConfigurationError: there is no such table.
        SchemaError: a column or the key does not fit.
    """
    if found is None:
        raise ConfigurationError(f"{table.shown}: there is no such table in the database; {table.ddl}")
    if found.is_view:
        raise ConfigurationError(
            f"{table.shown}: the database has a view of this name, whose rows are only looked up; write into "
            "a table"
        )
    by_name = {column.name: column for column in found.columns}
    for column in table.schema.columns:
        there = by_name.get(column.name)
        if there is None or there.is_computed:
            why = "is computed by the database" if there is not None else "is not there"
            raise SchemaError(
                f"{table.shown}: column {column.name!r} {why}; columns are {_listed(by_name)}, upper and "
                "lower case count"
            )
        _check_type(table, column.type, there)
    needed = [column.name for column in found.columns if column.is_needed]
    if undeclared := [name for name in needed if name not in table.schema.names]:
        raise SchemaError(
            f"{table.shown}: column {undeclared[0]!r} is NOT NULL in the database and has no default; "
            "declare it, or give it one"
        )
    if set(table.schema.primary_key) not in found.unique:
        unique = "; ".join(_listed(sorted(key)) for key in found.unique) or "none"
        raise SchemaError(
            f"{table.shown}: PRIMARY KEY ({_listed(table.schema.primary_key)}) must be unique in the "
            f"database, unique there: {unique}; declare one of these, or create a unique index"
        )


def _check_type(table: PostgresTable, type_: pa.DataType, there: FoundColumn) -> None:
    taken = sink_types(type_)
    fits = there.type in taken or (there.is_enum and type_ == pa.string())
    if fits and there.digits is not None:
        precision, scale = there.digits
        whole, fraction = _digits(type_)
        fits = precision - scale >= whole and scale >= fraction
    if not fits:
        has = there.type if there.digits is None else f"{there.type}({there.digits[0]},{there.digits[1]})"
        raise SchemaError(
            f"{table.shown}: column {there.name!r} is {types.sql_name(type_)}, which goes into "
            f"{', '.join((_declared(type_), *taken[1:]))}, the database has {has}; declare another type, and "
            "CAST in the query"
        )


def _digits(type_: pa.DataType) -> tuple[int, int]:
    """Digits before and after the point that values of a number's type can have."""
    if pa.types.is_decimal128(type_):
        return type_.precision - type_.scale, type_.scale
    return len(str(2 ** (type_.bit_width - 1))), 0


def _listed(names: Collection[str]) -> str:
    return ", ".join(names)
