"""What is said of a column that no table of a query has."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Final

from sqlglot import exp

from upsert.sql.dialect import Revision, visible_name
from upsert.sql.query import QueryText

_PATH: Final = re.compile(r"[\w`]+(?:\.[\w`]+)+")

_LISTED: Final = 5


def unknown_column(wanted: str, proposal: str, columns: Sequence[Sequence[str]], query: QueryText) -> str:
    """A name that no column has, with those that are near it; Spark proposes up to five, however far.

    ``columns`` are those of each table of the query.
    """
    near = re.findall(r"((?:`[^`]+`\.?)+)", proposal)
    before = "".join(wanted.rpartition(".")[:2])
    known = dict.fromkeys(path.replace("`", "") for path in near)
    is_alone = len(columns) == 1 and before[:-1].lower() in _tables(query)
    if not before or is_alone:  # else it is not known which table is meant
        known |= dict.fromkeys(f"{before}{name}" for names in columns for name in names)
    last = known if "." in wanted else dict.fromkeys(path.rpartition(".")[2] for path in known)
    if wanted in last:
        return (
            f"column {wanted!r} must be known at this place, found it in another part of the query, or "
            "several times; select it there, or give each a name of its own"
        )
    close = get_close_matches(wanted, list(last), n=2)
    hint = " or ".join(map(repr, close))
    are_more = len(known) > _LISTED or len(near) == _LISTED  # of which Spark left out the others
    listed = ", ".join([*map(repr, [*known][:_LISTED]), *(["…"] if are_more else [])])
    choice = f"; did you mean {hint}?" if close else f"; there are {listed}"
    return f"column {wanted!r} is in no table of the query{choice if known else ''}"


def _tables(query: QueryText) -> set[str]:
    """What the tables of a query are called in it."""
    return {visible_name(each).lower() for each in query.tree.find_all(exp.Table)}


def taken_for_a_field(text: Revision, offset: int, query: QueryText, base: str) -> str | None:
    """The name ``t.x`` at an offset, if ``t`` is a table: Spark takes a column that is called so too.

    ``base`` is the column that has no fields, as Spark tells it; in ``t.column.x`` it is right.
    """
    found = _PATH.match(text.text, offset)
    table, column, *_ = ("", "") if found is None else found[0].replace("`", "").split(".")
    is_table = table.lower() in _tables(query) and base.strip('"').lower() == table.lower() != column.lower()
    return f"{table}.{column}" if is_table else None
