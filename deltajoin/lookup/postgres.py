"""Lookups in a table of PostgreSQL, or in a view."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import pyarrow as pa

from deltajoin.lookup.postgres_types import check_column_types
from deltajoin.lookup.protocol import LookupClient, RequestLimits, check_columns
from upsert.errors import ConfigurationError, optional_package
from upsert.options import Secret


@dataclass(frozen=True, repr=False)
class PostgresLookup:
    """Rows of a table of PostgreSQL 13 or later, by columns that have an index there.

    All keys of a request are arrays in one prepared statement, so a request costs one round trip. Each worker
    process opens at most ``limits.requests`` connections, when it needs them.

    Args:
        dsn: ``postgresql://user:password@host:port/database``, with options such as ``?sslmode=verify-full``;
            its password is masked.
        table: name of the table, or ``(schema, name)``; upper and lower case matter.
        schema: columns to read and their types, all scalar. A column may be wider here than there (INT as
            BIGINT, REAL as DOUBLE); CHAR(n), UUID, JSON and the like need a view that casts them to text.
        keys: the columns to look up by.
        limits: keys a request, requests at a time, seconds a request, attempts.
        user: the user, if the dsn has none; None: that of the dsn.
        password: the password, likewise.

    Raises:
        ConfigurationError, SchemaError: an argument is wrong; nothing was connected to.

    >>> schema = pa.schema({"id": pa.int64(), "name": pa.string()})
    >>> PostgresLookup("postgresql://app:secret@db.example.com/shop", ("public", "users"), schema, ["id"])
    PostgresLookup('db.example.com/shop', table=('public', 'users'), keys=('id',))
    """

    dsn: str
    table: str | tuple[str, ...]
    schema: pa.Schema
    keys: Sequence[str]
    limits: RequestLimits = field(default_factory=lambda: RequestLimits(keys_per_request=1_000, requests=4))
    user: str | None = None
    password: str | None = None

    def __post_init__(self) -> None:
        check_columns(self.schema, self.keys, "PostgresLookup")
        check_column_types(self.schema)
        parts = (self.table,) if isinstance(self.table, str) else tuple(self.table)
        if not 1 <= len(parts) <= 2 or not all(parts):
            raise ConfigurationError(
                f"PostgresLookup: table must be a name, or a schema and a name, got {self.table!r}"
            )
        for name in (*parts, *self.schema.names):
            if "\0" in name:
                raise ConfigurationError(
                    f"PostgresLookup: names must not have the character NUL, got {name!r}"
                )
        if urlsplit(self.dsn).scheme not in ("postgresql", "postgres"):
            raise ConfigurationError(
                "PostgresLookup: dsn must be like 'postgresql://user:password@host/database', it is not"
            )
        object.__setattr__(self, "dsn", Secret(self.dsn))
        object.__setattr__(self, "table", parts)
        if self.password is not None:
            object.__setattr__(self, "password", Secret(self.password))
        object.__setattr__(self, "keys", tuple(self.keys))

    def __repr__(self) -> str:
        return f"PostgresLookup({self.shown_dsn!r}, table={self.table!r}, keys={self.keys!r})"

    @property
    def shown_dsn(self) -> str:
        """Host and database."""
        parts = urlsplit(str(self.dsn))
        return parts.netloc.rpartition("@")[2] + parts.path

    def open(self) -> LookupClient:
        """A client with a pool of connections, none of which is open yet.

        Raises:
            ConfigurationError: ``asyncpg`` is not installed.
        """
        with optional_package("asyncpg", "postgres", "PostgresLookup"):
            from deltajoin.lookup.postgres_client import PostgresClient
        shown = f"PostgresLookup {self.shown_dsn} {'.'.join(self.table)}"
        return PostgresClient(
            str(self.dsn),
            tuple(self.table),
            self.schema,
            self.keys,
            self.limits,
            user=self.user,
            password=None if self.password is None else str(self.password),
            shown=shown,
        )
