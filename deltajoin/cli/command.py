"""What all commands share: their arguments, how they print rows, and how they end.

Rows are printed as people read them, a table or records of lines, or as programs do, one JSON object a line.
A command that fails prints a sentence, and its exit code says which kind of error it was.
"""

from __future__ import annotations

import codecs
import errno
import json
import re
import sys
import traceback
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import IntEnum
from typing import Annotated, Any, Final, TypeGuard

import pyarrow as pa
import typer
from pyspark.errors import PySparkException
from rich.console import Console
from rich.markup import escape
from rich.segment import Segment, Segments
from rich.style import Style

from upsert import Catalog, Table
from upsert.errors import (
    DatabaseNotFoundError,
    SnapshotExpiredError,
    TableNotFoundError,
    UpsertError,
    own_error,
    raised_in_java,
    raised_in_python,
    told_by_java,
)
from upsert.show.terminal import RowGrid
from upsert.show.values import plain, rows_of, visible
from upsert.store.storage.base import NO_ROOM

EXECUTE: Final = "SQL, streaming jobs, materialized views"
LOOK: Final = "Look at tables and queries"
MAINTAIN: Final = "Maintain tables"
"""Headings of the list of commands."""

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


def has_terminal() -> bool:
    """Whether someone can type: standard input may be a file or a pipe, or closed, as some services do."""
    return sys.stdin is not None and sys.stdin.isatty()


_ENDLESS: Final = 100_000
"""Characters of a line in a file or a pipe: what reads them can cut them itself."""

_ESCAPED: Final = {code: f"\\u{code:04x}" for code in {*range(32), *range(127, 160)} - {ord("\t")}}
"""Control characters, but for tabs, as they may be written in a text of SQL."""

_COUNTS: Final = {"rows", "records", "added", "bytes", "deletes", "files", "before", "after"}
"""Columns of what the commands list themselves, whose numbers are long; a user's may be codes."""

_JSON: Final = json.JSONEncoder(ensure_ascii=False)
"""One for all values: ``json.dumps`` makes another one for each."""


class _Pipe(Console):
    """Where a reader that has gone is an error as of any other file, see `errors_printed`."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print; what the output cannot have is thrown away, or it would come again with all that follows."""
        try:
            super().print(*objects, **options)
        except UnicodeEncodeError:
            self.begin_capture()
            self.end_capture()
            raise

    def on_broken_pipe(self) -> None:
        """Rich would end the command as a failed one."""
        raise


class Output:
    """Where a command prints its rows: as JSON one object a line, for programs; else as tables."""

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json
        is_terminal = sys.stdout is not None and sys.stdout.isatty()
        self.console = _Pipe(width=None if is_terminal else _ENDLESS, emoji=False)

    def rows(self, rows: Sequence[Mapping[str, Any]], *, title: str | None = None, empty: str = "") -> None:
        """Print rows with the same keys; ``empty`` is said instead of a table without rows."""
        if rows:
            self._print([*rows[0]], [[*row.values()] for row in rows], title, counts=_COUNTS)
        elif empty and not self.as_json:
            self.console.print(empty, style="dim", highlight=False)

    def table(self, rows: pa.Table, *, title: str | None = None) -> None:
        """Print the rows of an Arrow table, its columns also if there are no rows."""
        self._print(rows.column_names, rows_of(rows), title)
        if not (rows.num_rows or self.as_json):
            self.console.print("no rows", style="dim")

    def _print(
        self,
        names: Sequence[str],
        rows: Sequence[Sequence[Any]],
        title: str | None,
        *,
        counts: Container[str] = (),
    ) -> None:
        if self.as_json:
            for row in rows:
                print(as_object(names, row))
            return
        if title is not None:
            self.console.print(visible(title), style="bold", highlight=False, markup=False)
        self.console.print(RowGrid(names, rows, counts=counts))

    def plan(self, lines: Sequence[str], warned: Container[int]) -> None:
        """Print a text, such as how a statement is executed; lines that warn are red on a terminal.

        Control characters are shown as SQL writes them in a text, and tabs, which may also stand between its
        words, stay, where rich makes blanks of them: a definition that is printed reads back.
        """
        for number, line in enumerate(lines):
            style = Style(bold=True, color="red") if number in warned else None
            shown = Segments([Segment(line.translate(_ESCAPED), style), Segment.line()])
            self.console.print(shown, soft_wrap=True)

    def say(self, text: str) -> None:
        """Print a note for people; as JSON nothing is printed."""
        if not self.as_json:
            shown = visible(text, has_lines=True)
            self.console.print(shown, highlight=False, markup=False, soft_wrap=True)


def as_object(names: Sequence[str], values: Sequence[Any]) -> str:
    """A row as an object of JSON, in which a name may stand twice, as it may in a query.

    >>> as_object(["id", "price", "id"], [1, None, 2])
    '{"id": 1, "price": null, "id": 2}'
    """
    texts = (map(_JSON.encode, given) for given in (names, map(plain, values)))
    return f"{{{', '.join(map(': '.join, zip(*texts, strict=True)))}}}"


EXPECTED_ERRORS = (UpsertError, PySparkException, OSError)
"""What is a message for the user: errors of ours, of Spark about a query, of a disk or a server."""

_NOISE: Final = re.compile(r"\s*SQLSTATE: \w+\s*(?:\(no cause message\))?\s*$")
_SAYS_NOTHING: Final = re.compile(
    r"JVM stacktrace:|(?:.* terminated with exception: ?)?(?:Writing job failed\.)?"
)
"""What is said of an exception of Java that has no message, or no more than that something has failed."""


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
    except KeyboardInterrupt:
        raise typer.Exit(Exit.INTERRUPTED) from None
    except Exception as error:
        if not is_expected(error):
            raise
        print_error(error, as_json=as_json, trace=trace)
        own = own_error(error) or error
        is_missing = isinstance(own, TableNotFoundError | DatabaseNotFoundError | SnapshotExpiredError)
        raise typer.Exit(Exit.NOT_FOUND if is_missing else Exit.FAILED) from error


def is_expected(error: BaseException) -> bool:
    """Whether an error is a message for the user, and not a defect, which needs its traceback."""
    is_known = isinstance(error, EXPECTED_ERRORS) or _is_of_java(error) or _is_of_an_ended_jvm(error)
    return is_known or _is_of_output(error)


def _is_of_output(error: BaseException) -> TypeGuard[UnicodeEncodeError]:
    """Whether the output cannot have a letter, as where a locale is not of UTF-8."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    if not isinstance(error, UnicodeEncodeError) or codecs.lookup(encoding).name == "utf-8":
        return False
    return not error.object[error.start].encode(encoding, "ignore")  # else it is of a file, or a request


def _is_of_java(error: BaseException) -> bool:
    """Whether it is an exception of Java, such as that of a disk without room where Spark shuffles rows."""
    return type(error).__module__ == "py4j.protocol" and type(error).__name__ == "Py4JJavaError"


def _is_of_an_ended_jvm(error: BaseException) -> bool:
    is_of_client = _comes_from_its_client(error) or type(error).__module__.startswith("py4j.")
    if not is_of_client or _is_of_java(error):  # what Java raised, it has told
        return False
    from upsert.spark.jvm import ends

    return ends()


def _comes_from_its_client(error: BaseException) -> bool:
    """Whether a connection to the JVM has failed, and not one of a table's store, say."""
    if not isinstance(error, ConnectionError):
        return False
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_globals.get("__name__", "").startswith(("py4j.", "pyspark.")) for frame, _ in frames)


def print_error(error: BaseException, *, as_json: bool = False, trace: bool = False) -> None:
    """Print an error to the standard error stream: one line, and its traces if they are asked for."""
    text = reason_of(error)
    if as_json:
        shown = {"error": type(own_error(error) or error).__name__, "message": text}
        if trace:
            shown["trace"] = "".join(traceback.format_exception(error))
        print(json.dumps(shown), file=sys.stderr)
        return
    Console(stderr=True, soft_wrap=True, emoji=False).print(
        f"[bold red]error:[/] {escape(visible(text, has_lines=True))}", highlight=False
    )
    if trace:
        print(visible("".join(traceback.format_exception(error)), has_lines=True), end="", file=sys.stderr)


def reason_of(error: BaseException) -> str:
    """What an error says: this project's sentence that it is about, else Python's line, or Spark's first."""
    if (own := own_error(error)) is not None:
        return str(own).strip()
    if _is_of_an_ended_jvm(error):
        return (
            "Spark's JVM must run while it is needed, it has ended; look why (the system's log tells of one "
            "that had no memory left), and run this again"
        )
    if isinstance(error, PySparkException) or _is_of_java(error):
        notes = getattr(error, "__notes__", ())  # which view, and which of its hidden tables
        return "; ".join([_told_by_spark(error), *notes])
    if isinstance(error, OSError) and error.filename is not None:
        what = f"{error.filename!r}: {error.strerror}"
        return f"{what}; see that it can be reached, may be used and has room, and run this again"
    if isinstance(error, OSError) and error.errno in (*NO_ROOM, errno.EFBIG):
        # Python names no file where it writes the output that a command was started with
        return (
            f"the output: must be written where there is room, got {error.strerror!r}; make room or write it "
            "to another file, and run this again"
        )
    if _is_of_output(error):
        letter = f"U+{ord(error.object[error.start]):04X}"
        return (
            f"the output: must be in an encoding that has the letter {letter}, got {sys.stdout.encoding!r}; "
            "set PYTHONIOENCODING=utf-8, and run this again"
        )
    return str(error).strip() or type(error).__name__


def _told_by_spark(error: BaseException) -> str:
    if not isinstance(error, PySparkException):
        return told_by_java(str(error).partition("\n: ")[2])
    message = (error.getMessage() or str(error)).strip()
    message = raised_in_python(message) or message
    first = _NOISE.sub("", message.partition("\n")[0])
    return (raised_in_java(error) or first) if _SAYS_NOTHING.fullmatch(first) else first
