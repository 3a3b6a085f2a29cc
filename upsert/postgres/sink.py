"""Changes into a table of PostgreSQL: each micro-batch is one transaction, which counts once.

One task writes a micro-batch. It copies the rows, folded to one of each key, into a temporary table, deletes
and upserts by it, and notes the query and the number of the micro-batch in the table ``deltajoin_progress``
beside the target, all in one transaction. A micro-batch that comes again finds its number and writes
nothing, whichever process died when: readers of the table see whole micro-batches only. One without rows is
noted too, or a checkpoint that was set back to before it would not be told from the right one.

An advisory lock of the query lets one attempt of a micro-batch wait for another one, whose process may still
run. Rows reach the task ascending by key, so that it holds some of them at a time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from upsert import types
from upsert.arrays import one_array
from upsert.errors import ConfigurationError, MissingStateError, SchemaError
from upsert.failpoints import reach
from upsert.materializer.choice import Sink
from upsert.materializer.keyed_sink import KeyedSink, as_declared, folded
from upsert.postgres.connection import Connection, run
from upsert.postgres.table import CONNECTOR, FoundColumn, FoundTable, PostgresTable, check_target
from upsert.postgres.types import qualified, quoted
from upsert.registration import register
from upsert.spark.batches import from_spark, mapped
from upsert.spark.columns import check_fits
from upsert.spark.task import query_of_micro_batch
from upsert.store.rows.merge import SortedRows

PROGRESS: Final = "deltajoin_progress"
"""Table in the target's schema: of each query the number of its last micro-batch that was written."""

POINTS: Final = ("postgres.after-copy", "postgres.before-commit", "postgres.after-commit")
"""Points of ``upsert.failpoints`` at which a test can kill a task."""

_ROWS: Final = "deltajoin_rows"
_IS_DELETED: Final = "deltajoin_is_deleted"

_LOCK: Final = "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))"
_PATIENCE: Final = (
    # an attempt that waits for a dead one must not do so for hours
    "SET LOCAL lock_timeout = '60s'; SET LOCAL tcp_keepalives_idle = 10; "
    "SET LOCAL tcp_keepalives_interval = 10; SET LOCAL tcp_keepalives_count = 3"
)
_COLUMNS: Final = """
SELECT n.nspname, a.attname, t.typname, t.typtype = 'e', a.atttypmod,
       a.attnotnull AND NOT a.atthasdef AND a.attidentity = '', a.attgenerated <> '' OR a.attidentity = 'a',
       c.relkind IN ('v', 'm', 'f')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
JOIN pg_type own ON own.oid = a.atttypid
JOIN pg_type t ON t.oid = CASE own.typtype WHEN 'd' THEN own.typbasetype ELSE own.oid END
WHERE c.oid = to_regclass($1) AND c.relkind IN ('r', 'p', 'v', 'm', 'f') ORDER BY a.attnum
"""
_UNIQUE: Final = """
SELECT array_agg(a.attname::text) FROM pg_index i
JOIN LATERAL unnest(i.indkey[0:i.indnkeyatts - 1]) AS k(n) ON true
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.n
WHERE i.indrelid = to_regclass($1) AND i.indisunique AND i.indisvalid AND i.indimmediate
  AND i.indpred IS NULL AND i.indexprs IS NULL
GROUP BY i.indexrelid
"""


def check(table: PostgresTable, fits: Callable[[PostgresTable, FoundTable | None], None]) -> None:
    """Ask the database what it has where the declared table should be, and whether that fits.

    ``fits`` is ``check_target`` for one that is written, ``check_declared`` for one that is created.

    Raises:
        SinkUnavailableError, ConfigurationError, SchemaError: it does not answer, or the table does not fit.
    """

    async def found(connection: Connection) -> FoundTable | None:
        return await _found(connection, table)

    fits(table, run(table, found))


def has_rows(table: PostgresTable) -> bool:
    """Whether the table in the database has a row."""

    async def asked(connection: Connection) -> bool:
        return bool(await connection.fetchval(f"SELECT EXISTS (SELECT 1 FROM {qualified(table.target)})"))

    return run(table, asked)


def sink_of(table: PostgresTable, state: str) -> KeyedSink:
    """The table as a sink of streams; the rows of keys that do not tell rows apart lie in ``state``."""
    name = f"table {table.name!r}"
    sink = Sink(name, table.schema.primary_key, table.materialize)
    write = WriteMicroBatch(table)
    return KeyedSink(sink, table.schema, state, lambda _: _prepare(table), write)


def write(df: DataFrame, table: PostgresTable) -> None:
    """Upsert the rows of a batch DataFrame, or apply its changes, in one transaction."""
    check_fits(df.schema, table.schema, of=f"table {table.name!r}")
    check(table, check_target)
    WriteMicroBatch(table).write(df, None)


def _prepare(table: PostgresTable) -> None:
    """Check the table in the database, and create the one that notes micro-batches where it is missing."""

    async def prepared(connection: Connection) -> FoundTable | None:
        if (found := await _found(connection, table)) is not None:
            progress = qualified((found.schema, PROGRESS))
            if await connection.fetchval("SELECT to_regclass($1)", progress) is None:
                async with connection.transaction():
                    await connection.execute(_LOCK, progress)  # two queries may begin at once
                    await connection.execute(
                        f"CREATE TABLE IF NOT EXISTS {progress} (query text PRIMARY KEY, "
                        "batch bigint NOT NULL, written_at timestamptz NOT NULL DEFAULT now())"
                    )
        return found

    check_target(table, run(table, prepared))


async def _found(connection: Connection, table: PostgresTable) -> FoundTable | None:
    name = qualified(table.target)
    rows = await connection.fetch(_COLUMNS, name)
    if not rows:
        return None
    unique = await connection.fetch(_UNIQUE, name)
    columns = tuple(
        FoundColumn(column, type_, is_enum, _precision(type_, modifier), is_needed, is_computed)
        for _, column, type_, is_enum, modifier, is_needed, is_computed, _ in rows
    )
    return FoundTable(rows[0][0], columns, tuple(frozenset(names) for (names,) in unique), rows[0][-1])


def _precision(type_: str, modifier: int) -> tuple[int, int] | None:
    """Precision and scale of a numeric column, as its catalog row packs them; None for any."""
    return ((modifier - 4) >> 16, (modifier - 4) & 0x7FF) if type_ == "numeric" and modifier >= 4 else None


@dataclass(frozen=True)
class WriteMicroBatch:
    """Writes one micro-batch; Spark calls it in the driver, for the same one again after a failure."""

    table: PostgresTable

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """Write the rows of a micro-batch, unless an earlier call has."""
        query = query_of_micro_batch(rows, f"table {self.table.name!r}: micro-batches of {CONNECTOR!r}")
        self.write(rows, (query, batch))

    def write(self, rows: DataFrame, micro_batch: tuple[str, int] | None) -> None:
        """Write rows in one task; of a micro-batch only where it was not written before."""
        register(rows.sparkSession)
        together = as_declared(rows, self.table.schema).repartition(1)
        in_order = together.sortWithinPartitions(*map(types.quoted, self.table.schema.primary_key))
        if not mapped(in_order, _Task(self.table, micro_batch), "written BIGINT").collect():
            # Spark starts no task where it sees that there are no rows
            write_rows(self.table, micro_batch, ())


@dataclass(frozen=True)
class _Task:
    """Writes what a task is given, which is all."""

    table: PostgresTable
    micro_batch: tuple[str, int] | None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        written = write_rows(self.table, self.micro_batch, from_spark(batches))
        yield pa.record_batch({"written": pa.array([written])})


def write_rows(
    table: PostgresTable, micro_batch: tuple[str, int] | None, batches: Iterable[pa.RecordBatch]
) -> int:
    """Apply rows that ascend by key in one transaction; how many keys were written or deleted.

    Args:
        table: where to.
        micro_batch: id of the query and number of the micro-batch, which is written once; None for a batch.
        batches: the columns of the table, and perhaps ``_row_kind``. Rows without it are upserts.

    Raises:
        ChangelogError: two different rows of one key are left; nothing was written.
    """
    folded = _folded(table, batches)
    first = next(folded, None)
    if first is None and micro_batch is None:
        return 0
    chunks = None if first is None else chain([first], folded)
    transaction = _Transaction(table, micro_batch, chunks)
    written = run(table, transaction.done)
    reach("postgres.after-commit")
    return written


def _folded(table: PostgresTable, batches: Iterable[pa.RecordBatch]) -> Iterator[SortedRows]:
    """Of each key what its rows do to it, some keys at a time."""
    owner = f"table {table.name!r}"
    for found in folded(table.schema, owner, batches):
        _check_texts(found.rows, owner)
        yield found


def _check_texts(rows: pa.Table, owner: str) -> None:
    """Refuse what PostgreSQL would, without saying where."""
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        if pa.types.is_string(column.type) and pc.any(pc.match_substring(column, "\0")).as_py():
            raise SchemaError(
                f"{owner}: column {name!r} must be without the character NUL, which no text of PostgreSQL "
                "can have; nothing of the micro-batch was written; replace it in the query"
            )


class _Transaction:
    """All that happens to the database for one micro-batch."""

    def __init__(
        self, table: PostgresTable, micro_batch: tuple[str, int] | None, chunks: Iterator[SortedRows] | None
    ) -> None:
        """Of rows in chunks; None: there are none, and only the micro-batch is noted."""
        self._table = table
        self._micro_batch = micro_batch
        self._chunks = chunks
        self._target = qualified(table.target)
        self._names = [quoted(name) for name in table.schema.names]
        self._key = [quoted(name) for name in table.schema.primary_key]
        self._written = self._deleted = 0

    async def done(self, connection: Connection) -> int:
        """The number of keys, when it is committed; 0 if it was before."""
        async with connection.transaction():
            await connection.execute(_PATIENCE)
            progress = await self._progress(connection)
            if await self._is_written(connection, progress):
                return 0
            if self._chunks is not None:
                await self._copy(connection, self._chunks)
            reach("postgres.after-copy")
            if self._deleted:
                await connection.execute(self._deletion)
            if self._written > self._deleted:
                await connection.execute(self._upsert)
            if self._micro_batch is not None:
                await connection.execute(
                    f"INSERT INTO {progress} (query, batch) VALUES ($1, $2) ON CONFLICT (query) "
                    "DO UPDATE SET batch = excluded.batch, written_at = now()",
                    *self._micro_batch,
                )
            reach("postgres.before-commit")
        return self._written

    async def _progress(self, connection: Connection) -> str:
        schema = await connection.fetchval(
            "SELECT relnamespace::regnamespace::text FROM pg_class WHERE oid = to_regclass($1)", self._target
        )
        if schema is None:
            raise ConfigurationError(
                f"{self._table.shown}: there is no such table in the database any more; {self._table.ddl}"
            )
        return f"{schema}.{quoted(PROGRESS)}"  # regnamespace has quoted it

    async def _is_written(self, connection: Connection, progress: str) -> bool:
        if self._micro_batch is None:
            return False
        query, batch = self._micro_batch
        await connection.execute(_LOCK, query)
        last = await connection.fetchval(f"SELECT batch FROM {progress} WHERE query = $1", query)
        if last is not None and last > batch:
            raise MissingStateError(
                f"{self._table.shown} and query {query}: micro-batch {batch} must follow the last one that "
                f"the table has, that is {last}: the checkpoint is older than the table; restore both as of "
                "one time, or start the query with a new checkpoint and an empty table"
            )
        return bool(last == batch)

    async def _copy(self, connection: Connection, chunks: Iterator[SortedRows]) -> None:
        columns = ", ".join(self._names)
        await connection.execute(
            f"CREATE TEMPORARY TABLE {_ROWS} ON COMMIT DROP AS "
            f"SELECT {columns}, false AS {_IS_DELETED} FROM {self._target} WITH NO DATA"
        )
        names = [*self._table.schema.names, _IS_DELETED]
        await connection.copy_to_table(_ROWS, source=self._texts(chunks), columns=names, format="text")

    async def _texts(self, chunks: Iterator[SortedRows]) -> AsyncIterator[bytes]:
        for chunk in chunks:
            is_deleted = ~chunk.is_there
            self._written += len(is_deleted)
            self._deleted += int(np.count_nonzero(is_deleted))
            yield copy_text([*chunk.rows.columns, pa.array(is_deleted)])

    @property
    def _deletion(self) -> str:
        equal = " AND ".join(f"t.{name} = r.{name}" for name in self._key)
        return f"DELETE FROM {self._target} t USING {_ROWS} r WHERE r.{_IS_DELETED} AND {equal}"

    @property
    def _upsert(self) -> str:
        columns, key = ", ".join(self._names), ", ".join(self._key)
        others = [name for name in self._names if name not in self._key]
        new = ", ".join(f"{name} = excluded.{name}" for name in others)
        action = f"DO UPDATE SET {new}" if new else "DO NOTHING"
        return (
            f"INSERT INTO {self._target} ({columns}) SELECT {columns} FROM {_ROWS} WHERE NOT {_IS_DELETED} "
            f"ON CONFLICT ({key}) {action}"
        )


_NULL: Final = "\\N"
_ESCAPES: Final = (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r"))
_HEX: Final = np.frombuffer("".join(f"{byte:02x}" for byte in range(256)).encode(), np.uint16)
"""The two digits of each byte, as one number."""


def copy_text(columns: Sequence[pa.ChunkedArray | pa.Array]) -> bytes:
    r"""The rows of these columns, which are scalar and as long as each other, in the text format of COPY.

    Columns are separated by tabs, rows end with a line feed, NULL is ``\N``, and a backslash escapes what
    would be taken for one of these. All rows are made at once, by Arrow's kernels.

    >>> copy_text([pa.array([1, None]), pa.array(["a\tb", ""])])
    b'1\ta\\tb\n\\N\t\n'
    """
    *texts, last = (_texts(one_array(column)).fill_null(_NULL) for column in columns)
    joined = _joined(*texts, _joined(last, "\n", by=""), by="\t")
    offsets = np.frombuffer(joined.buffers()[1], np.int64)
    start, end = offsets[joined.offset], offsets[joined.offset + len(joined)]
    data = joined.buffers()[2]
    return b"" if data is None else data[start:end].to_pybytes()


def _joined(*parts: pa.Array | str, by: str) -> pa.Array:
    texts = (*parts, by)
    return pc.binary_join_element_wise(
        *(pa.scalar(text, pa.large_string()) if isinstance(text, str) else text for text in texts)
    )


def _texts(column: pa.Array) -> pa.Array:
    """Each value as a text, escaped; NULL stays."""
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        return _hexadecimal(column.cast(pa.large_binary()))
    texts = types.instant_texts(column) if column.type == types.TIMESTAMP else column
    texts = texts.cast(pa.large_string())
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        for char, escape in _ESCAPES:
            texts = pc.replace_substring(texts, char, escape)
    return texts


def _hexadecimal(column: pa.Array) -> pa.Array:
    r"""Bytes as PostgreSQL reads them: ``\x``, then two digits a byte, the backslash escaped."""
    offsets = np.frombuffer(column.buffers()[1], np.int64)[column.offset : column.offset + len(column) + 1]
    data = column.buffers()[2]
    given = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    digits = _HEX[given[offsets[0] : offsets[-1]]]
    buffers = [None, pa.py_buffer((offsets - offsets[0]) * 2), pa.py_buffer(digits)]
    texts = pa.Array.from_buffers(pa.large_string(), len(column), buffers)
    return pc.if_else(column.is_valid(), _joined("\\\\x", texts, by=""), pa.scalar(None, pa.large_string()))
