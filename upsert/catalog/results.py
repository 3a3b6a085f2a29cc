"""What statements return: values whose class tells what they hold."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from upsert.errors import ConfigurationError, own_errors_first
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.show import html
from upsert.show.values import rows_of, text_of, values_of, visible
from upsert.spark.connect import check_runs, needs_classic
from upsert.spark.queries import is_running
from upsert.stream_keys import UpsertKey
from upsert.types import with_numbers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery


class Materialized:
    """A streaming query and the rows that are in its result now, for people to look at.

    All rows are in this process, so this is for results of moderate size; its checkpoint is a temporary one.

    Args:
        changes: rows, or changes with ``_row_kind``.
        trigger: of the query, as ``DataStreamWriter.trigger`` takes it; empty for Spark's own.

    Attributes:
        query: the running query.
    """

    def __init__(self, changes: DataFrame, trigger: Mapping[str, Any]) -> None:
        needs_classic(
            changes,
            "SELECT in 'execution.result-mode' = 'table'",
            "its rows would be kept in the server's process: INSERT them INTO a table",
        )
        from upsert.spark.batches import arrow_of, with_texts
        from upsert.spark.query_writer import QueryWriter, triggered

        upserts = UpsertKey.of_schema(changes.schema.jsonValue())
        names = [name for name in changes.columns if name != ROW_KIND_COLUMN]
        keys = None if upserts is None else {names.index(name) for key in upserts.keys for name in key}
        empty = changes.sparkSession.createDataFrame([], changes.drop(ROW_KIND_COLUMN).schema)
        self._kept = kept = _Rows(with_texts(empty).toArrow().schema, None if keys is None else sorted(keys))
        # of what has the query the function may know nothing, see `QueryWriter.foreachBatch`
        writer = QueryWriter(changes).foreachBatch(lambda rows, _: kept.apply(arrow_of(with_texts(rows))))
        writer.outputMode("append" if upserts is None or upserts.is_append else "update")
        self.query = triggered(writer, trigger).start()

    def __repr__(self) -> str:
        return f"{many(self.rows().num_rows)}, {'running' if self.query.isActive else 'stopped'}"

    def rows(self) -> pa.Table:
        """The rows that are in the result now."""
        return self._kept.rows()


class _Rows:
    """Rows that result from changes; those of a ``key`` replace each other, without one they are counted."""

    def __init__(self, schema: pa.Schema, key: Sequence[int] | None) -> None:
        self._schema = schema
        self._key = key
        self._rows: dict[str, tuple[tuple[Any, ...], int]] = {}
        self._lock = threading.Lock()

    def rows(self) -> pa.Table:
        """Those that are there now."""
        with self._lock:
            values = [row for row, count in self._rows.values() for _ in range(count)]
        columns = list(zip(*values, strict=True)) or [()] * len(self._schema)
        return pa.table(
            [
                pa.array(column, with_numbers(type_)).cast(type_)
                for column, type_ in zip(columns, self._schema.types, strict=True)
            ],
            schema=self._schema,
        )

    def apply(self, changes: pa.Table) -> None:
        """Apply the changes of one micro-batch, of which there may be any number for a row."""
        has_kinds = ROW_KIND_COLUMN in changes.column_names
        kinds = changes.column(ROW_KIND_COLUMN).to_pylist() if has_kinds else ["+I"] * changes.num_rows
        columns = [
            column.cast(with_numbers(column.type)).to_pylist()
            for name, column in zip(changes.column_names, changes.columns, strict=True)
            if name != ROW_KIND_COLUMN
        ]
        with self._lock:
            for kind, row in zip(kinds, zip(*columns, strict=True), strict=True):
                self._count(row, -1 if kind in ("-U", "-D") else 1)

    def _count(self, row: tuple[Any, ...], sign: int) -> None:
        # values of nested types have no hash, their text does
        identity = repr(row if self._key is None else tuple(row[number] for number in self._key))
        count = sign if self._key is not None else self._rows.get(identity, (row, 0))[1] + sign
        if count == 0 or (count < 0 and self._key is not None):
            self._rows.pop(identity, None)
        else:
            self._rows[identity] = (row, count)


_ASKED_EVERY_S = 0.1
_SHOWN_ROWS = 20
_SHOWN_WIDTH = 40


@dataclass(frozen=True, repr=False)
class Result:
    """What ``Catalog.sql`` returns: ``Done``, ``Rows``, ``Frame``, ``Running``, ``RunningSet`` or ``Live``.

    Attributes:
        statement: what was executed, such as ``CREATE TABLE orders``.
    """

    statement: str

    def __repr__(self) -> str:
        return f"<{self.statement}>"

    def _repr_html_(self) -> str:
        """For notebooks; nothing is executed for it."""
        return html.block(repr(self))

    def __getattr__(self, name: str) -> Any:
        """What another kind of result has: ``catalog.sql(…).rows`` needs no cast, and says what is wrong."""
        if name.startswith("_"):
            raise AttributeError(name)
        has = ", ".join(sorted(name for name in object.__dir__(self) if not name.startswith("_")))
        raise AttributeError(
            f"{self.statement}: returns {type(self).__name__}, which has {has}, no {name!r}; docs/sql.md "
            "says what each statement returns"
        )


@dataclass(frozen=True, repr=False)
class Done(Result):
    """A statement that changed something, or had nothing to do.

    Attributes:
        note: the outcome in words.
        affected_rows: how many rows it has given the table, updated or deleted; None if not known, as over
            Spark Connect or where large files are deleted whole, and of other statements.
    """

    note: str = "done"
    affected_rows: int | None = None

    def __repr__(self) -> str:
        return f"<{self.statement}: {self.note}>"


def done_in_snapshot(statement: str, done: str, snapshot: str, rows: int | None) -> Done:
    """A statement that has changed rows of a table.

    >>> done_in_snapshot("DELETE FROM t", "deleted", "snapshot 4", 1)
    <DELETE FROM t: deleted, snapshot 4: 1 row>
    """
    counted = "" if rows is None else f": {many(rows)}"
    return Done(statement, f"{done}, {snapshot}{counted}", rows)


def many(rows: int) -> str:
    """A number of rows in words.

    >>> many(1), many(3)
    ('1 row', '3 rows')
    """
    return "1 row" if rows == 1 else f"{rows} rows"


@dataclass(frozen=True, repr=False)
class Rows(Result):
    """Rows at hand, such as those of ``SHOW TABLES``; its text is a table of them."""

    rows: pa.Table

    @classmethod
    def listed(
        cls, statement: str, columns: Mapping[str, pa.DataType], rows: Iterable[Mapping[str, Any]]
    ) -> Self:
        """Rows with these columns, NULL where one has no value."""
        return cls(statement, pa.Table.from_pylist(list(rows), pa.schema(list(columns.items()))))

    def __repr__(self) -> str:
        return as_text(self.rows)

    def _repr_html_(self) -> str:
        """For notebooks: the first rows."""
        return _as_html(self.statement, self.rows)


@dataclass(frozen=True, repr=False)
class Found(Rows):
    """The rows of a query that needed no Spark, as ``Frame.rows`` would give them."""


@dataclass(frozen=True, repr=False)
class PlanText(Rows):
    """How a statement is executed, from ``EXPLAIN``: a row for each line; its text is all of them.

    Attributes:
        warned: numbers of the lines about a join whose state grows, or about a refusal; notebooks and the
            prompt show them red.
    """

    warned: frozenset[int] = frozenset()

    @classmethod
    def of(cls, statement: str, lines: Sequence[str], warned: frozenset[int] = frozenset()) -> Self:
        """Lines as rows of one column, ``plan``."""
        return cls(statement, pa.table({"plan": pa.array(lines, pa.string())}), warned)

    @property
    def lines(self) -> list[str]:
        """The lines."""
        return [str(line) for line in self.rows.column(0).to_pylist()]

    def __repr__(self) -> str:
        return "\n".join(self.lines)

    def _repr_html_(self) -> str:
        """For notebooks: all lines."""
        return html.page(self.statement, html.lines(self.lines, self.warned))


@dataclass(frozen=True, repr=False)
class Frame(Result):
    """A query that has not run: a batch DataFrame, or a streaming one with ``_row_kind`` where it changes.

    It has the DataFrame's methods too: ``catalog.sql("SELECT …", spark).show()`` works as with ``spark.sql``.
    ``_without_spark`` finds the rows that the DataFrame has; None where Spark is needed.
    """

    df: DataFrame
    _without_spark: Callable[[], pa.Table | None] = field(default=lambda: None, compare=False)

    def __getattr__(self, name: str) -> Any:
        """What the DataFrame has."""
        if name.startswith("_") or name == "df" or not hasattr(type(self.df), name):
            return super().__getattr__(name)
        return getattr(self.df, name)

    def __dir__(self) -> list[str]:
        """For completion."""
        return [*super().__dir__(), *dir(type(self.df))]

    def __repr__(self) -> str:
        return f"<{self.statement}: {self.df}>"

    def _repr_html_(self) -> str:
        """For notebooks: the columns; the query does not run."""
        kind = "a streaming query" if self.df.isStreaming else "a query; .rows executes it"
        columns = [(field.name, field.dataType.simpleString()) for field in self.df.schema.fields]
        return html.page(
            self.statement, f"<p>{kind}</p>", html.grid(("column", "type"), columns, len(columns), "columns")
        )

    @property
    def rows(self) -> pa.Table:
        """The rows of a batch, which this runs; an INTERVAL of years and months as Spark's text of it.

        A query that needs no Spark starts no job, see docs/sql.md.

        Raises:
            ConfigurationError: the query is a stream, which never ends; or Spark is needed, and was stopped.
            UpsertError: a table could not be read; Spark's own error is its cause.
        """
        if self.df.isStreaming:
            raise ConfigurationError(
                f"{self.statement}: only a batch has rows, got a streaming query; start it with "
                "df.writeStream, or SET 'execution.result-mode' = 'table'"
            )
        from upsert.spark.batches import arrow_of, nullable_as, with_texts

        with own_errors_first():
            found = self._without_spark()
            # of a table that was altered just before the DataFrame was made it may have other columns
            if found is not None and found.column_names == self.df.columns:
                return nullable_as(found, self.df.schema)
            check_runs(self.df.sparkSession)  # what Spark raises then is an AttributeError
            return arrow_of(with_texts(self.df))


def given_frame(given: Any, what: str) -> DataFrame:
    """A DataFrame that a user has given; the result of a query is none, and has one.

    Raises:
        ConfigurationError: it is something else.
    """
    if isinstance(given, Frame) or not hasattr(given, "isStreaming"):
        instead = "give its df" if isinstance(given, Frame) else "catalog.read_changes and spark.sql give one"
        raise ConfigurationError(f"{what}: needs a DataFrame, got {type(given).__name__}; {instead}")
    frame: DataFrame = given
    check_runs(frame.sparkSession)
    return frame


@dataclass(frozen=True, repr=False)
class Running(Result):
    """A streaming statement that has been started.

    Attributes:
        query: the running query.
        checkpoint: its folder, by which the same statement continues after a stop.
    """

    query: StreamingQuery
    checkpoint: str

    def __repr__(self) -> str:
        state = "running" if is_running(self.query) else "stopped"
        return f"<{self.statement}: {state}, checkpoint {self.checkpoint!r}>"

    def await_termination(self, timeout: int | None = None) -> bool:
        """Wait until the query has ended, as ``query.awaitTermination``; with this project's errors.

        Args:
            timeout: seconds to wait at most; None without an end.

        Returns:
            Whether the query has ended.

        Raises:
            UpsertError: the query has failed; Spark's own error, with its traces, is its cause.
            StreamingQueryException: it has failed in Spark's own code.
        """
        with own_errors_first():
            return self.query.awaitTermination(timeout) is not False  # None if there is no time-out


@dataclass(frozen=True, repr=False)
class RunningSet(Result):
    """The streaming statements of a statement set, which have been started together and end together.

    When one fails or is stopped, the others are stopped, unless the trigger ends them by itself.

    Attributes:
        runs: each of them, in the order of the text.
    """

    runs: tuple[Running, ...]

    def __repr__(self) -> str:
        return f"<{self.statement}: {', '.join(map(repr, self.runs))}>"

    def stop(self) -> None:
        """Stop all; the same set continues from its checkpoints."""
        for run in self.runs:
            run.query.stop()

    def await_termination(self, timeout: float | None = None) -> bool:
        """Wait until all have ended, as ``Running.await_termination``; raises the error of one that failed.

        Args:
            timeout: seconds to wait at most; None without an end.
        """
        end = float("inf") if timeout is None else time.monotonic() + timeout
        while (are_active := any(run.query.isActive for run in self.runs)) and time.monotonic() < end:
            time.sleep(_ASKED_EVERY_S)
        for run in self.runs:
            if not run.query.isActive:
                run.await_termination()
        return not are_active


@dataclass(frozen=True, repr=False)
class Live(Result):
    """The result of a streaming query as it is now: ``SET 'execution.result-mode' = 'table'``.

    Attributes:
        table: keeps the rows; ``table.rows()`` returns them. Stop ``table.query`` in the end.
    """

    table: Materialized

    def __repr__(self) -> str:
        return f"<{self.statement}: {self.table}>"

    def _repr_html_(self) -> str:
        """For notebooks: the first of the rows that are in the result now."""
        return _as_html(f"{self.statement}: {self.table}", self.rows)

    @property
    def query(self) -> StreamingQuery:
        """The running query."""
        return self.table.query

    @property
    def rows(self) -> pa.Table:
        """The rows that are in the result now."""
        return self.table.rows()


def as_text(rows: pa.Table) -> str:
    """The first rows in columns.

    >>> print(as_text(pa.table({"name": ["tea", None], "price": [2, 10]})))
    name | price
    -----+------
    tea  | 2
    NULL | 10
    """
    if not rows.num_columns:
        return "(no columns)"
    shown = rows.slice(0, _SHOWN_ROWS)
    if (text := only_text(rows)) is not None:
        return visible(text, has_lines=True)
    columns = [
        [visible(name), *map(_cell, values_of(column))]
        for name, column in zip(shown.column_names, shown.columns, strict=True)
    ]
    widths = [max(map(len, column)) for column in columns]
    lines = [
        " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in zip(*columns, strict=True)
    ]
    lines.insert(1, "-+-".join("-" * width for width in widths))
    if rows.num_rows > _SHOWN_ROWS:
        lines.append(f"({rows.num_rows - _SHOWN_ROWS} more rows)")
    elif not rows.num_rows:
        lines.append("(no rows)")
    return "\n".join(lines)


def _as_html(title: str, rows: pa.Table) -> str:
    """The first rows as HTML; one text of several lines, such as an explanation, as it is."""
    if (text := only_text(rows)) is not None:
        return html.page(title, html.block(text))
    shown = rows.slice(0, html.MAX_ROWS)
    return html.page(title, html.grid(rows.column_names, rows_of(shown), rows.num_rows))


def only_text(rows: pa.Table) -> str | None:
    """The one value of a table, if it has several lines."""
    if not rows.num_rows == rows.num_columns == 1:
        return None
    text = str(values_of(rows.column(0))[0])
    return text if "\n" in text else None


def _cell(value: Any) -> str:
    text = "NULL" if value is None else visible(text_of(value))
    return text if len(text) <= _SHOWN_WIDTH else f"{text[: _SHOWN_WIDTH - 1]}…"
