"""Executes SQL statements one after the other, and shows the result of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from rich.console import Group
from rich.live import Live as LiveView
from rich.text import Text

from deltajoin.cli.output import Output, RowGrid
from deltajoin.cli.session import Session
from upsert.catalog.results import Done, Frame, Live, Result, Rows, Running
from upsert.catalog.script import split_statements
from upsert.errors import own_errors_first
from upsert.sql.parser import parse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

SHOWN_ROWS: Final = 1_000
"""Rows of a batch that a table shows; with --json all are printed."""
_REFRESH_S: Final = 0.5


class Statements:
    """Executes statements in a session.

    Attributes:
        started: the queries that streaming statements have started, in their order.
    """

    def __init__(self, session: Session, output: Output, *, rows: int = SHOWN_ROWS) -> None:
        self._session = session
        self._output = output
        self._rows = rows
        self._shown: list[StreamingQuery] = []
        self._is_cancelled = False
        self.started: list[StreamingQuery] = []

    def run_script(self, text: str) -> None:
        """Execute all statements of a text; stops at the first error."""
        self._is_cancelled = False
        for statement in split_statements(text):
            self._go_on()
            self.run(statement.text)

    def plan_script(self, text: str) -> list[Callable[[], Result]]:
        """Execute all statements of a text but its INSERTs; returns what runs those, in their order.

        So no query starts before all of them are known to be possible.
        """
        texts = [statement.text for statement in split_statements(text)]
        for one in texts:
            parse(one)  # each must be a statement before any is executed
        found: list[Callable[[], Result]] = []
        for one in texts:
            self._go_on()
            planned = self._session.planned(one)
            if isinstance(planned, Result):
                self.show(planned)
            else:
                found.append(planned)
        return found

    def run_planned(self, planned: Sequence[Callable[[], Result]]) -> None:
        """Run what `plan_script` gave."""
        for start in planned:
            self._go_on()
            with own_errors_first():
                result = start()
            self.show(result)

    def _go_on(self) -> None:
        if self._is_cancelled:
            raise KeyboardInterrupt

    def cancel(self) -> None:
        """End what another thread executes: a statement's jobs, the stream that it shows, what follows."""
        self._is_cancelled = True
        for query in [*self._shown]:
            query.stop()
        self._session.cancel()

    def run(self, text: str) -> None:
        """Execute one statement and show what it gives; a stream is shown until `cancel` stops it."""
        self.show(self._session.sql(text))

    def show(self, result: Result) -> None:
        """Show what a statement gave."""
        with own_errors_first():
            self._show(result)

    def _show(self, result: Result) -> None:
        match result:
            case Done():
                self._output.say(f"{result.statement}: {result.note}")
            case Rows():
                self._output.table(result.rows)
            case Running(query=query) if query is not None:
                self.started.append(query)
                self._output.say(f"{result.statement}: runs, checkpoint {result.checkpoint}")
            case Live():
                self._show_live(result)
            case Frame(df=df) if df is not None and df.isStreaming:
                self._show_changes(df)
            case Frame(df=df) if df is not None:
                self._show_batch(df)

    def _show_batch(self, df: DataFrame) -> None:
        if self._output.as_json:
            for row in df.toLocalIterator(prefetchPartitions=True):
                self._go_on()
                self._output.rows([row.asDict(recursive=True)])
            return
        found = df.limit(self._rows + 1).toArrow()
        self._output.table(found.slice(0, self._rows))
        if found.num_rows > self._rows:
            self._output.say(f"only the first {self._rows} rows are shown; add LIMIT, or use --json")

    def _show_changes(self, df: DataFrame) -> None:
        def show(rows: DataFrame, batch: int) -> None:  # noqa: ARG001 - Spark gives the number too
            found = rows.toArrow()
            if found.num_rows:
                self._output.table(found)

        query = df.writeStream.outputMode("update").foreachBatch(show).start()
        with self._showing(query):
            query.awaitTermination()

    def _show_live(self, result: Live) -> None:
        query = result.query
        if query is None:
            return
        with self._showing(query):
            if self._output.as_json:
                query.awaitTermination()
                self._output.table(result.rows)
                return
            with LiveView(console=self._output.console, auto_refresh=False, vertical_overflow="crop") as view:
                while query.isActive:
                    view.update(picture(result.rows), refresh=True)
                    time.sleep(_REFRESH_S)
                view.update(picture(result.rows), refresh=True)
        _raise_failure(query)

    @contextmanager
    def _showing(self, query: StreamingQuery) -> Iterator[None]:
        """While a query is shown, `cancel` stops it."""
        self._shown.append(query)
        try:
            yield
        finally:
            query.stop()
            self._shown.remove(query)


def picture(rows: pa.Table) -> Group:
    """The rows of a result as they are now, in a fixed order."""
    found: list[dict[str, Any]] = sorted(rows.to_pylist(), key=lambda row: repr(list(row.values())))
    return Group(
        RowGrid(rows.column_names, (list(row.values()) for row in found)),
        Text(f"{rows.num_rows} rows; Ctrl-C ends", style="dim"),
    )


def _raise_failure(query: StreamingQuery) -> None:
    if (failure := query.exception()) is not None:
        raise failure
