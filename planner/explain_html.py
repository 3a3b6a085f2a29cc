"""An explanation as HTML for notebooks; whatever a query or a table is called, it is text (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

_STYLE: Final = "text-align:left;white-space:pre-wrap;margin:0.3em 0;padding:0.5em;border-left:3px solid"
_GOOD, _BAD, _PLAN = "#2a7", "#c33", "#888"


def page(reports: Sequence[str], refusals: Sequence[tuple[str, str]], before: str, after: str | None) -> str:
    """Reports, refusals and plans, one below the other.

    Args:
        reports: on joins and topics.
        refusals: reason and remedy of each that is in no report.
        before: the plan of the query.
        after: the plan after the rules; None if they left it as it is.

    >>> page(["join of <a>"], [], "Relation a", None).count("&lt;a&gt;")
    1
    """
    parts = [_block(report, _BAD if "form: refused" in report else _GOOD) for report in reports]
    parts += [_block(f"refused: {reason}\n  remedy: {remedy}", _BAD) for reason, remedy in refusals]
    parts.append(_folded("plan before", before))
    parts.append("<p>the plan is left as it is</p>" if after is None else _folded("plan after", after))
    return f'<div class="deltajoin-explanation">{"".join(parts)}</div>'


def _block(text: str, colour: str) -> str:
    return f'<pre style="{_STYLE} {colour}">{escape(text)}</pre>'


def _folded(title: str, text: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{_block(text, _PLAN)}</details>"
