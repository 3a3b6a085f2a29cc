"""Connections to PostgreSQL for tables that are written: opened, and their failures told.

The only file of this package that uses ``asyncpg``, which speaks PostgreSQL's own protocol: no libpq has to
be installed beside it. A connection belongs to the call that opens it, and so to one process.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from upsert.errors import (
    ConfigurationError,
    SchemaError,
    SinkUnavailableError,
    UpsertError,
    optional_package,
)
from upsert.options import masked_text
from upsert.retry import retried

if TYPE_CHECKING:
    import asyncpg

    from upsert.postgres.table import PostgresTable

T = TypeVar("T")
Connection: TypeAlias = "asyncpg.Connection"

_PATIENCE_S: Final = 10.0
_CONNECT_S: Final = 5.0


def run(table: PostgresTable, call: Callable[[Connection], Coroutine[Any, Any, T]]) -> T:
    """What a call gives that uses a connection, which is open for the call only.

    While the server is away, opening is tried again for ten seconds. What the call has not committed is
    rolled back.

    Raises:
        SinkUnavailableError: the server does not answer, or ended the call; calling again may succeed.
        ConfigurationError: it refuses the user, the table or the statement; ``asyncpg`` is not installed.
        SchemaError: it refuses the rows.
    """
    with optional_package("asyncpg", "postgres", table.shown):
        import asyncpg  # noqa: F401

    def called() -> T:
        with asyncio.Runner() as runner:
            connection = _opened(table, runner)
            try:
                with _failures_of(table):
                    return runner.run(call(connection))
            finally:
                connection.terminate()

    # a notebook's own thread runs an event loop already
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(called).result()


def _opened(table: PostgresTable, runner: asyncio.Runner) -> Connection:
    import asyncpg

    def connect() -> Connection:
        return runner.run(
            asyncpg.connect(
                str(table.url),  # the driver's own parser wants a plain text
                user=table.user,
                password=None if table.password is None else str(table.password),
                timeout=_CONNECT_S,
                server_settings={"application_name": "deltajoin"},
                statement_cache_size=0,  # a pooler may give each transaction another session
            )
        )

    away: tuple[type[Exception], ...] = (OSError, *_away())
    try:
        return retried(
            connect,
            is_passing=lambda failure: isinstance(failure, away),
            first_pause_s=0.1,
            longest_pause_s=1.0,
            patience_s=_PATIENCE_S,
            jitter=random.uniform,
        )
    except away as cause:
        raise _unavailable(table, cause) from cause
    except (asyncpg.PostgresError, ValueError) as cause:
        # the driver's own text of a ValueError may quote the address
        raise _refused(table, cause) from None


def _away() -> tuple[type[Exception], ...]:
    """What the driver raises while the server is away, or ends what it was asked."""
    import asyncpg

    return (
        ConnectionError,
        asyncpg.PostgresConnectionError,
        asyncpg.InterfaceError,
        asyncpg.InsufficientResourcesError,
        asyncpg.OperatorInterventionError,
        asyncpg.TransactionRollbackError,
        asyncpg.LockNotAvailableError,
    )


@contextmanager
def _failures_of(table: PostgresTable) -> Iterator[None]:
    """A block that uses a connection: the driver's errors become those of this project."""
    import asyncpg

    try:
        yield
    except UpsertError:
        raise
    except _away() as cause:
        raise _unavailable(table, cause) from cause
    except (
        asyncpg.DataError,
        asyncpg.IntegrityConstraintViolationError,
        asyncpg.CardinalityViolationError,  # keys that the database takes for one
    ) as cause:
        where = getattr(cause, "context", None) or getattr(cause, "detail", None)
        at = f" ({where.splitlines()[0]})" if where else ""
        raise SchemaError(
            f"{table.shown}: the database must take the rows, it did not: {cause.args[0]}{at}; "
            "nothing of the micro-batch was written; correct the rows, or the table there"
        ) from cause
    except asyncpg.PostgresError as cause:
        raise _refused(table, cause) from cause


def _unavailable(table: PostgresTable, cause: BaseException) -> SinkUnavailableError:
    return SinkUnavailableError(
        f"{table.shown}: the server must answer, it did not ({type(cause).__name__}: "
        f"{masked_text(str(cause))}); check that it runs and takes connections, then start the query again: "
        "what was written is not written twice"
    )


def _refused(table: PostgresTable, cause: BaseException) -> ConfigurationError:
    return ConfigurationError(
        f"{table.shown}: the server must take user and statement, it did not ({type(cause).__name__}: "
        f"{masked_text(str(cause))}); correct 'url', 'username', 'password', or the rights on the table"
    )
