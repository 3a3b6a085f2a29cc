"""What all commands share: their arguments, how they print rows, and how they end.

Rows are printed as people read them, a table or records of lines, or as programs do, one JSON object a line.
A command that fails prints a sentence, and its exit code says which kind of error it was.
"""

from __future__ import annotations

import json
import math
import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import IntEnum
from typing import Annotated, Any, Final

import pyarrow as pa
import typer
from pyspark.errors import PySparkException
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markup import escape
from rich.table import Table as Grid
from rich.text import Text

from upsert import Catalog, Table
from upsert.errors import (
    DatabaseNotFoundError,
    SnapshotExpiredError,
    TableNotFoundError,
    UpsertError,
    own_error,
)
from upsert.rowkind import ROW_KIND_COLUMN

Warehouse = Annotated[
    str,
    typer.Option(
        "--warehouse",
        "-w",
        envvar="DELTAJOIN_WAREHOUSE",
        help="Folder of the catalog's tables; may be s3://bucket/folder, gs:, abfss: or hdfs:.",
        show_default=True,
    ),
]
"""``-w``; ``$DELTAJOIN_WAREHOUSE`` where it is not given."""
HERE = "warehouse"

Name = Annotated[str, typer.Argument(metavar="TABLE", help="Name of a table.", show_default=False)]

Json = Annotated[bool, typer.Option("--json", help="One JSON object a line instead of a table.")]

SnapshotId = Annotated[
    int | None, typer.Option("--snapshot", min=0, help="A snapshot's id.", show_default="the latest")
]


def table_of(warehouse: str, name: str) -> Table:
    """The managed table, or the mirror, of a name in a warehouse."""
    return Catalog(warehouse).table(name)


_NULL: Final = Text("NULL", style="dim")
_KIND_STYLES: Final = {"+I": "green", "+U": "cyan", "-U": "yellow", "-D": "red"}
_COUNTS: Final = {"rows", "records", "bytes", "deletes", "files"}
_LONGEST: Final = 200
"""Characters of a value that is shown; JSON has all of it."""
_NARROWEST: Final = 14
"""Characters to which a column's longer values may be folded; narrower they cannot be read."""
_BORDER: Final = 3
_ESCAPED: Final = {code: repr(chr(code))[1:-1] for code in (*range(32), *range(127, 160))}
"""Control characters as text: what is in a table must not command the terminal."""


class RowGrid:
    """Rows as a table; as records where its columns would be folded too much. Row kinds have colours."""

    def __init__(self, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        self._titles = [Text(name.translate(_ESCAPED)) for name in names]
        self._rows = [list(row) for row in rows]
        self._cells = [[_cell(*named) for named in zip(names, row, strict=True)] for row in self._rows]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self._rows and self._least_width() > options.max_width:
            yield from self._records()
        else:
            yield self._table()

    def _least_width(self) -> int:
        columns = zip(self._titles, *self._cells, strict=True)
        longest: list[int] = [max(cell.cell_len for cell in column) for column in columns]
        return 1 + sum(_BORDER + min(_NARROWEST, length) for length in longest)

    def _table(self) -> Grid:
        found = Grid(header_style="bold", highlight=False)
        for number, title in enumerate(self._titles):
            is_number = any(isinstance(row[number], int | float | Decimal) for row in self._rows)
            found.add_column(title, justify="right" if is_number else "left", overflow="fold")
        for cells in self._cells:
            found.add_row(*cells)
        return found

    def _records(self) -> Iterable[Grid | Text]:
        for number, cells in enumerate(self._cells, 1):
            if len(self._cells) > 1:
                yield Text(f"row {number}", style="dim")
            found = Grid.grid(padding=(0, 2, 0, 0))
            found.add_column(style="bold")
            found.add_column(overflow="fold")
            for title, cell in zip(self._titles, cells, strict=True):
                found.add_row(title, cell)
            yield found


def _cell(name: str, value: Any) -> Text:
    if value is None:
        return _NULL
    if name == ROW_KIND_COLUMN:
        return Text(value, style=_KIND_STYLES.get(value, ""))
    if isinstance(value, bool):
        return Text(str(value).lower())
    if isinstance(value, int):
        return Text(f"{value:,}" if name in _COUNTS else str(value))
    if isinstance(value, datetime):
        return Text(value.isoformat(" ", "microseconds" if value.microsecond % 1000 else "milliseconds"))
    shown = plain(value)
    text = shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False)
    text = text.translate(_ESCAPED)
    return Text(text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…")


def plain(value: Any) -> Any:
    """A value as JSON can say it without loss: times in ISO 8601, decimals and NaN as text, bytes in hex.

    >>> plain({"at": date(2013, 1, 31), "price": Decimal("1.50"), "raw": b"a"})
    {'at': '2013-01-31', 'price': '1.50', 'raw': '61'}
    """
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal | timedelta):
        return str(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return value


_ENDLESS: Final = 100_000
"""Characters of a line in a file or a pipe: what reads them can cut them itself."""


class Output:
    """Where a command prints its rows: as JSON one object a line, for programs; else as tables."""

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json
        is_terminal = sys.stdout is not None and sys.stdout.isatty()
        self.console = Console(width=None if is_terminal else _ENDLESS)

    def rows(self, rows: Sequence[Mapping[str, Any]], *, title: str | None = None, empty: str = "") -> None:
        """Print rows with the same keys; ``empty`` is said instead of a table without rows."""
        if self.as_json:
            for row in rows:
                print(json.dumps({name: plain(value) for name, value in row.items()}, ensure_ascii=False))
        elif rows:
            self._grid(list(rows[0]), [list(row.values()) for row in rows], title)
        elif empty:
            self.console.print(empty, style="dim", highlight=False)

    def table(self, rows: pa.Table, *, title: str | None = None) -> None:
        """Print the rows of an Arrow table, its columns also if there are no rows."""
        found = rows.to_pylist()
        if self.as_json or found:
            self.rows(found, title=title)
        else:
            self._grid(rows.column_names, (), title)
            self.console.print("no rows", style="dim")

    def _grid(self, names: Sequence[str], rows: Iterable[Sequence[Any]], title: str | None) -> None:
        if title is not None:
            self.console.print(title, style="bold", highlight=False, markup=False)
        self.console.print(RowGrid(names, rows))

    def say(self, text: str) -> None:
        """Print a note for people; as JSON nothing is printed."""
        if not self.as_json:
            self.console.print(text, highlight=False, markup=False, soft_wrap=True)


EXPECTED_ERRORS = (UpsertError, PySparkException, OSError)
"""What is a message for the user: errors of ours, of Spark about a query, of a disk or a server."""

_NOISE: Final = re.compile(r"\s*SQLSTATE: \w+\s*$")


class Exit(IntEnum):
    """Exit codes."""

    DONE = 0
    FAILED = 1
    WRONG_COMMAND = 2
    DAMAGED = 3
    NOT_FOUND = 4
    INTERRUPTED = 130


@contextmanager
def errors_printed(*, as_json: bool = False, trace: bool = False) -> Iterator[Output]:
    """Run a command, with where it prints its rows; an expected error becomes one message.

    As JSON the message is an object ``{"error": …, "message": …}``; ``trace`` adds the traces of Python and
    Java. An error that is not expected is a defect and keeps its traceback.
    """
    try:
        yield Output(as_json=as_json)
    except BrokenPipeError:
        # the reader of a pipe, like `head`, has gone: no reader is left
        sys.stdout = None
        raise typer.Exit(Exit.DONE) from None
    except EXPECTED_ERRORS as error:
        print_error(error, as_json=as_json, trace=trace)
        own = own_error(error) or error
        is_missing = isinstance(own, TableNotFoundError | DatabaseNotFoundError | SnapshotExpiredError)
        raise typer.Exit(Exit.NOT_FOUND if is_missing else Exit.FAILED) from error
    except KeyboardInterrupt:
        raise typer.Exit(Exit.INTERRUPTED) from None


def print_error(error: BaseException, *, as_json: bool = False, trace: bool = False) -> None:
    """Print an error to the standard error stream: one line, and its traces if they are asked for."""
    text = reason_of(error)
    if as_json:
        shown = {"error": type(own_error(error) or error).__name__, "message": text}
        if trace:
            shown["trace"] = "".join(traceback.format_exception(error))
        print(json.dumps(shown), file=sys.stderr)
        return
    Console(stderr=True, soft_wrap=True).print(f"[bold red]error:[/] {escape(text)}", highlight=False)
    if trace:
        traceback.print_exception(error)


def reason_of(error: BaseException) -> str:
    """What an error says: the sentence of this project's that it is about, or the first line of Spark's."""
    if (own := own_error(error)) is not None:
        return str(own).strip()
    if isinstance(error, PySparkException):
        message = (error.getMessage() or str(error)).strip()
        notes = getattr(error, "__notes__", ())  # which view, and which of its hidden tables
        return "; ".join([_NOISE.sub("", message.partition("\n")[0]), *notes])
    if isinstance(error, OSError) and error.filename is not None:
        what = f"{error.filename!r}: {error.strerror}"
        return f"{what}; see that it can be reached, may be used and has room, and run this again"
    return str(error).strip()
