"""Rows as terminals show them: a table, or records where that is too wide (pure)."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from decimal import Decimal
from typing import Any, Final

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table as Grid
from rich.text import Text

from upsert.rowkind import ROW_KIND_COLUMN
from upsert.show.values import text_of, visible

_NULL: Final = Text("NULL", style="dim")
_KIND_STYLES: Final = {"+I": "green", "+U": "cyan", "-U": "yellow", "-D": "red"}
_LONGEST: Final = 200
"""Characters of a value that is shown; JSON has all of it."""
_NARROWEST: Final = 14
"""Characters to which a column's longer values may be folded; narrower they cannot be read."""
_BORDER: Final = 3
_WIDEST_ROW: Final = 120
"""Characters that a single row may take as a table, also in a pipe, where lines have no end."""


class RowGrid:
    """Rows as a table; as records where its columns would be folded too much, or where one wide row is all.

    Row kinds have colours. Numbers of the columns that are called ``counts`` have their digits in groups.
    """

    def __init__(
        self, names: Sequence[str], rows: Iterable[Sequence[Any]], *, counts: Container[str] = ()
    ) -> None:
        self._titles = [Text(visible(name)) for name in names]
        self._rows = [list(row) for row in rows]
        self._cells = [
            [
                Text(f"{value:,}") if name in counts and isinstance(value, int) else _cell(name, value)
                for name, value in zip(names, row, strict=True)
            ]
            for row in self._rows
        ]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        is_wide = len(self._rows) == 1 and self._width(_LONGEST) > _WIDEST_ROW
        if is_wide or (self._rows and self._width(_NARROWEST) > options.max_width):
            yield from self._records()
        else:
            yield self._table()

    def _width(self, widest: int) -> int:
        """Characters of a line of the table whose columns are folded to so many."""
        columns = zip(self._titles, *self._cells, strict=True)
        longest: list[int] = [max(cell.cell_len for cell in column) for column in columns]
        return 1 + sum(_BORDER + min(widest, length) for length in longest)

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
    if name == ROW_KIND_COLUMN and isinstance(value, str) and value in _KIND_STYLES:
        return Text(value, style=_KIND_STYLES[value])
    text = visible(text_of(value))
    return Text(text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…")
