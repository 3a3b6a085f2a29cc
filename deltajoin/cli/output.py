"""Rows as people read them, and as programs do: a table, or one JSON object a line."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from rich.console import Console

from deltajoin.cli.grids import RowGrid, plain

_ENDLESS: Final = 100_000
"""Characters of a line in a file or a pipe: what reads them can cut them itself."""


class Output:
    """Where a command prints its rows.

    Args:
        as_json: one JSON object a line, for programs; else tables.
        console: where tables go.
    """

    def __init__(self, *, as_json: bool = False, console: Console | None = None) -> None:
        self.as_json = as_json
        self.console = console or Console(width=None if sys.stdout.isatty() else _ENDLESS)

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
        """Tell a person something that is no row; a program is told nothing."""
        if not self.as_json:
            self.console.print(text, highlight=False, markup=False, soft_wrap=True)
