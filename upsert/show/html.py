"""Pieces of HTML for notebooks (pure); all text is escaped where it becomes HTML, and there is no script.

A name, a value or a path may be anything; the classes of the outer element also keep MathJax from reading
``$…$`` in it as a formula.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from html import escape
from typing import Any, Final

from upsert.show.values import text_of

MAX_ROWS: Final = 20
MAX_COLUMNS: Final = 50
MAX_WIDTH: Final = 80
"""Of a grid, unless it is told another number of rows; a notebook keeps what it shows in its file."""

_LINE: Final = "\n"
_CELL: Final = "text-align:left;vertical-align:top"


def page(title: str, *parts: str) -> str:
    """What a notebook shows for one thing; the parts come from the other functions.

    >>> page("<orders>")
    '<div class="deltajoin tex2jax_ignore mathjax_ignore"><strong>&lt;orders&gt;</strong></div>'
    """
    inner = f"<strong>{escape(title)}</strong>{''.join(parts)}"
    return f'<div class="deltajoin tex2jax_ignore mathjax_ignore">{inner}</div>'


def block(text: str) -> str:
    """Text with its own lines.

    >>> block("a < b")
    '<pre style="text-align:left;white-space:pre-wrap">a &lt; b</pre>'
    """
    return f'<pre style="text-align:left;white-space:pre-wrap">{escape(text)}</pre>'


def lines(texts: Iterable[str], warned: Container[int] = ()) -> str:
    """Text with its own lines, of which some are a warning.

    >>> lines(["a < b", "c"], {0})
    '<pre style="..."><strong class="deltajoin-warning" style="color:#c33">a &lt; b</strong>...c</pre>'
    """
    red = '<strong class="deltajoin-warning" style="color:#c33">'
    found = (
        f"{red}{escape(text)}</strong>" if number in warned else escape(text)
        for number, text in enumerate(texts)
    )
    return f'<pre style="text-align:left;white-space:pre-wrap">{_LINE.join(found)}</pre>'


def facts(named: Mapping[str, object]) -> str:
    """Names with a value each, which is shown whole.

    >>> facts({"rows": 3})
    '<table><tr><th style="text-align:left;vertical-align:top">rows</th><td ...>3</td></tr></table>'
    """
    lines = (
        f'<tr><th style="{_CELL}">{escape(name)}</th><td style="{_CELL}">{escape(str(value))}</td></tr>'
        for name, value in named.items()
    )
    return f"<table>{''.join(lines)}</table>"


def grid(
    names: Sequence[str],
    rows: Iterable[Sequence[Any]],
    total: int,
    what: str = "rows",
    *,
    most: int = MAX_ROWS,
) -> str:
    """The first rows and columns of a table that has ``total`` rows, or of ``what`` else has a row here.

    NULL is set apart from the text NULL.

    >>> grid(["name"], [["<tea>"], [None]], 9).count("<tr>"), "7 more rows" in grid(["a"], [[1], [2]], 9)
    (3, True)
    """
    head = "".join(f'<th style="{_CELL}">{escape(_short(name))}</th>' for name in names[:MAX_COLUMNS])
    body, shown = [], 0
    for row in rows:
        if shown == most:
            break
        shown += 1
        body.append(f"<tr>{''.join(map(_cell, row[:MAX_COLUMNS]))}</tr>")
    notes = [] if total else [f"no {what}"]
    left = ((total - shown, what), (len(names) - MAX_COLUMNS, "columns"))
    notes += [f"{count} more {kind}" for count, kind in left if count > 0]
    note = f"<p>({', '.join(notes)})</p>" if notes else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>{note}"


def _cell(value: object) -> str:
    inner = "<i>NULL</i>" if value is None else escape(_short(text_of(value)))
    return f'<td style="{_CELL}">{inner}</td>'


def _short(text: str) -> str:
    return text if len(text) <= MAX_WIDTH else f"{text[: MAX_WIDTH - 1]}…"
