"""The open end of a ``PostgresLookup``; the only file that uses ``asyncpg``.

Of the async drivers, asyncpg speaks PostgreSQL's binary protocol itself: statements are prepared once for
each connection, arrays go over as they are, no libpq has to be installed beside it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import asyncpg
import numpy as np
import pyarrow as pa

from deltajoin.errors import LookupFailedError, LookupUnavailableError
from deltajoin.lookup.postgres_types import are_possible, from_values, lookup_statement, to_parameter
from deltajoin.lookup.protocol import Answer, RequestLimits
from upsert.arrays import one_array
from upsert.postgres.types import pg_types

_AWAY: Final = (
    OSError,  # also TimeoutError
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InsufficientResourcesError,
    asyncpg.OperatorInterventionError,
    asyncpg.TransactionRollbackError,
)
"""What may be over when the next attempt comes: lost connections, restarts, too many clients, deadlocks."""

_COUNTED: Final = ("date", "timestamp", "timestamptz")
_IDLE_S: Final = 300.0
_CLOSE_TIMEOUT_S: Final = 5.0


class PostgresClient:
    """A pool of connections to one database; must be used on one event loop only."""

    def __init__(
        self,
        dsn: str,
        table: tuple[str, ...],
        schema: pa.Schema,
        keys: Sequence[str],
        limits: RequestLimits,
        *,
        user: str | None,
        password: str | None,
        shown: str,
    ) -> None:
        self._dsn = dsn
        self._user = user
        self._password = password
        self._schema = schema
        self._limits = limits
        self._shown = shown
        self._statement = lookup_statement(table, schema, keys)
        self._opening = asyncio.Lock()
        self._pool: asyncpg.Pool | None = None
        self._has_fitting_types = False

    async def lookup(self, keys: pa.Table) -> Answer:
        """One execution of the statement, about all of these keys."""
        masks = [are_possible(one_array(column)) for column in keys.columns]
        possible = pa.array(np.flatnonzero(np.logical_and.reduce(masks)))
        parameters = [to_parameter(one_array(keys.column(name).take(possible))) for name in keys.column_names]
        try:
            records = await self._fetch(parameters)
        except (asyncpg.InvalidPasswordError, asyncpg.InvalidAuthorizationSpecificationError) as cause:
            raise LookupFailedError(f"{self._shown}: the server refused the credentials ({cause})") from cause
        except ValueError as cause:  # the driver's own: it has not sent anything
            raise LookupFailedError(
                f"{self._shown}: the driver must take dsn and keys, it did not ({self._masked(cause)})"
            ) from None
        except _AWAY as cause:
            raise LookupUnavailableError(
                f"{self._shown}: the server must answer within {self._limits.timeout_s} s, it did not "
                f"({type(cause).__name__}: {cause}); check that it runs and takes more connections"
            ) from cause
        except asyncpg.PostgresError as cause:
            raise LookupFailedError(
                f"{self._shown}: the server must take the statement, it did not ({type(cause).__name__}: "
                f"{cause}); compare the schema with the table"
            ) from cause
        return self._answer(records, possible)

    async def _fetch(self, parameters: list[list[Any]]) -> list[asyncpg.Record]:
        pool = await self._opened()
        async with pool.acquire() as connection:
            if not self._has_fitting_types:
                self._check_types(await connection.prepare(self._statement))
                self._has_fitting_types = True
            records: list[asyncpg.Record] = await connection.fetch(self._statement, *parameters)
            return records

    async def _opened(self) -> asyncpg.Pool:
        async with self._opening:
            if self._pool is None:
                self._pool = await asyncpg.create_pool(
                    str(self._dsn),  # the driver's own parser wants a plain text
                    user=self._user,
                    password=self._password,
                    min_size=0,
                    max_size=self._limits.requests,
                    max_inactive_connection_lifetime=_IDLE_S,
                    timeout=self._limits.timeout_s,
                    command_timeout=self._limits.timeout_s,
                    server_settings={"application_name": "deltajoin"},
                    init=_count_times,
                )
            return self._pool

    def _check_types(self, statement: Any) -> None:
        """Refuse a column whose values could not be read exactly, or whose equality is another one."""
        found = [attribute.type.name for attribute in statement.get_attributes()[1:]]
        for field, name in zip(self._schema, found, strict=True):
            if name not in pg_types(field.type):
                raise LookupFailedError(
                    f"{self._shown}: column {field.name!r} must have one of the types "
                    f"{', '.join(pg_types(field.type))} to be read as {field.type}, it has {name}; "
                    "correct the schema, or let a view cast it"
                )

    def _answer(self, records: list[asyncpg.Record], possible: pa.Array) -> Answer:
        schema = self._schema
        columns: list[Any] = list(zip(*records, strict=True)) if records else [()] * (1 + len(schema))
        numbers = np.array(columns[0], dtype=np.int64)
        arrays = [from_values(column, field) for column, field in zip(columns[1:], schema, strict=True)]
        return Answer(possible.to_numpy()[numbers - 1], pa.Table.from_arrays(arrays, schema=schema))

    def _masked(self, cause: Exception) -> str:
        """An error of the driver, which may quote the dsn, without the password."""
        text = f"{type(cause).__name__}: {cause}"
        for password in (urlsplit(str(self._dsn)).password, self._password):
            text = text.replace(password, "***") if password else text
        return text

    async def close(self) -> None:
        """Close all connections; a running statement has some seconds to end."""
        pool, self._pool = self._pool, None
        if pool is not None:
            try:
                async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                    await pool.close()
            except TimeoutError:
                pool.terminate()


async def _count_times(connection: asyncpg.Connection) -> None:
    """Let dates and times be the integers that they are on the wire, infinite ones too."""
    for name in _COUNTED:
        await connection.set_type_codec(
            name,
            schema="pg_catalog",
            format="tuple",
            encoder=lambda count: (count,),
            decoder=lambda counts: counts[0],
        )
