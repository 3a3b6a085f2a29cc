"""A table as people look at it: in numbers for notebooks, and its first rows again whenever they change.

`watch` shows pictures in place in a notebook and in a terminal, else one after the other. It looks for a new
snapshot now and then, as any reader may, so it shows the commits of all processes.
"""

from __future__ import annotations

import io
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from upsert.errors import ConfigurationError, SnapshotExpiredError, TableNotFoundError
from upsert.show import html
from upsert.show.values import rows_of, visible
from upsert.store.predicate import Where
from upsert.store.read.snapshot import Snapshot


@dataclass(frozen=True)
class Shown:
    """What is asked for.

    Attributes:
        rows: how many rows are shown.
        columns: which, in this order; None for all.
        where: of which rows; None for all.
        seconds: when it ends; None for never.
        every_s: between two looks.
    """

    rows: int
    columns: Sequence[str] | None
    where: Where | None
    seconds: float | None
    every_s: float

    def __post_init__(self) -> None:
        if self.rows < 1 or self.every_s <= 0:
            raise ConfigurationError(
                f"watch: rows and every must be positive, got rows={self.rows!r}, every={self.every_s!r}"
            )

    def of(self, snapshot: Snapshot) -> tuple[pa.Table, int]:
        """The first rows of a snapshot, and about how many there are; with ``where`` all rows are read."""
        found, count, pieces = [], 0, snapshot.pieces(self.columns, self.where)
        for piece in pieces:
            found.append(piece.slice(0, max(0, self.rows - count)))
            count += piece.num_rows
            if count >= self.rows and self.where is None:
                break
        rows = pa.concat_tables(found) if found else snapshot.scan(self.columns, self.where)
        return rows, count if self.where is not None else max(count, snapshot.row_count)


@dataclass(frozen=True)
class Picture:
    """A table at one moment.

    Attributes:
        title: what is shown.
        facts: what is known of it, each under its name.
        rows: its first rows.
        total: about how many it has.
    """

    title: str
    facts: Mapping[str, str]
    rows: pa.Table
    total: int

    def __rich__(self) -> Any:
        from rich.console import Group
        from rich.text import Text

        from upsert.show.terminal import RowGrid

        said = "; ".join(f"{name} {value}" for name, value in self.facts.items())
        parts: list[Any] = [Text(visible(self.title), style="bold"), Text(visible(said), style="dim")]
        parts.append(RowGrid(self.rows.column_names, self._values()))
        if (left := self.total - self.rows.num_rows) > 0:
            parts.append(Text(f"({left:,} more rows)", style="dim"))
        return Group(*parts)

    def __repr__(self) -> str:
        from rich.console import Console

        out = io.StringIO()
        Console(file=out, width=200, color_system=None, force_jupyter=False).print(self)
        return out.getvalue()

    def _repr_html_(self) -> str:
        """For notebooks."""
        grid = html.grid(self.rows.column_names, self._values(), self.total, most=self.rows.num_rows)
        return html.page(self.title, html.facts(self.facts), grid)

    def _values(self) -> list[tuple[Any, ...]]:
        return rows_of(self.rows)


def page_of(title: str, snapshot: Snapshot) -> str:
    """For notebooks: a snapshot in numbers, and the columns; no row is read."""
    schema = snapshot.layout.schema
    facts = {"snapshot": snapshot.id, "rows": f"about {snapshot.row_count:,}"}
    if schema.primary_key:
        facts["primary key"] = ", ".join(schema.primary_key)
    if schema.partitioned_by:
        facts["partitioned by"] = ", ".join(schema.partitioned_by)
    if schema.indexes:
        facts["indexes"] = ", ".join(map(str, schema.indexes))
    columns = [
        (column.name, column.sql_type, "" if column.nullable else "NOT NULL", column.comment or "")
        for column in schema.columns
    ]
    names = ("column", "type", "", "comment")
    return html.page(title, html.facts(facts), html.grid(names, columns, len(columns), "columns"))


def watch(title: str, look: Callable[[], tuple[Snapshot, Mapping[str, str]]], asked: Shown) -> None:
    """Show what ``look`` finds whenever that is another snapshot, or what is said of it is another.

    It ends after ``seconds``, when the table is dropped, and when the user interrupts it.
    """
    end = float("inf") if asked.seconds is None else time.monotonic() + asked.seconds
    seen: tuple[int, Mapping[str, str]] | None = None
    rows, total = pa.table({}), 0
    with _interruptible(), _screen() as show, suppress(KeyboardInterrupt):
        while True:
            try:
                snapshot, facts = look()
                if seen != (snapshot.id, facts):
                    rows, total = asked.of(snapshot)
                    show(Picture(title, {**_when(snapshot), **facts}, rows, total))
                    seen = snapshot.id, facts
            except SnapshotExpiredError:
                pass  # while it was read: a newer one is there
            except TableNotFoundError:
                show(Picture(title, {"state": "dropped"}, rows, total))
                return
            if (left := end - time.monotonic()) <= 0:
                return
            time.sleep(min(asked.every_s, left))


def _when(snapshot: Snapshot) -> dict[str, str]:
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(snapshot.info.time_ms / 1000))
    return {"snapshot": f"{snapshot.id} of {at}" if snapshot.id else "none yet"}


class _Show(Protocol):
    def __call__(self, picture: Picture) -> None: ...


@contextmanager
def _screen() -> Iterator[_Show]:
    """What shows pictures where this process has its output."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if getattr(shell, "kernel", None) is not None:
        yield _in_notebook()
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(force_jupyter=False)
    if not console.is_terminal:
        yield lambda picture: print(repr(picture), end="", flush=True)
        return
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        yield lambda picture: live.update(picture, refresh=True)


def _in_notebook() -> _Show:
    from IPython.display import display

    handle: Any = None

    def show(picture: Picture) -> None:
        nonlocal handle
        if handle is None:
            handle = display(picture, display_id=True)  # type: ignore[no-untyped-call]
        else:
            handle.update(picture)

    return show


@contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C as Python has it: PySpark's own handler would end the streams that run beside this."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
