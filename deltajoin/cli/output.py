"""Rows as people read them, and as programs do: a table, or one JSON object a line."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from upsert.rowkind import ROW_KIND_COLUMN

_NULL: Final = Text("NULL", style="dim")
_KIND_STYLES: Final = {"+I": "green", "+U": "cyan", "-U": "yellow", "-D": "red"}
_LONGEST: Final = 200
"""Characters of a value that a table shows; JSON has all of it."""


class Output:
    """Where a command prints its rows.

    Args:
        as_json: one JSON object a line, for programs; else tables.
        console: where tables go.
    """

    def __init__(self, *, as_json: bool = False, console: Console | None = None) -> None:
        self.as_json = as_json
        self.console = console or Console(soft_wrap=False)

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
        self.console.print(grid(names, rows))

    def say(self, text: str) -> None:
        """Tell a person something that is no row; a program is told nothing."""
        if not self.as_json:
            self.console.print(text, highlight=False, markup=False, soft_wrap=True)


def grid(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> Grid:
    """A table for the console; numbers stand right, row kinds have their colours."""
    values = [list(row) for row in rows]
    found = Grid(header_style="bold", highlight=False)
    for number, name in enumerate(names):
        is_number = any(isinstance(row[number], int | float | Decimal) for row in values)
        found.add_column(Text(name), justify="right" if is_number else "left", overflow="fold")
    for row in values:
        found.add_row(*(_cell(name, value) for name, value in zip(names, row, strict=True)))
    return found


def _cell(name: str, value: Any) -> Text:
    if value is None:
        return _NULL
    if name == ROW_KIND_COLUMN:
        return Text(value, style=_KIND_STYLES.get(value, ""))
    if isinstance(value, bool):
        return Text(str(value).lower())
    if isinstance(value, int):
        return Text(f"{value:,}" if name in ("rows", "bytes", "deletes", "files") else str(value))
    shown = plain(value)
    text = shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False)
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
