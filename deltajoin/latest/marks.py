"""Which streams this process knows as sides of joins by lookups (pure).

A lookup source is a value of Python, which a plan of Spark cannot hold. So a plan holds a name, under which
the process that made the plan finds what was said of the stream.
"""

from __future__ import annotations

import uuid
from typing import Final

from deltajoin.latest.spec import LookupSide

LOOKUP_SIDE_MARK: Final = "deltajoin.lookup_side"
"""Metadata of the ``_row_kind`` of a marked stream: the name of its side."""

_sides: Final[dict[str, LookupSide]] = {}


def mark_of(side: LookupSide) -> str:
    """A new name for a side."""
    mark = uuid.uuid4().hex
    _sides[mark] = side
    return mark


def side_of_mark(mark: str) -> LookupSide | None:
    """The side of a name; None for a name that another process gave."""
    return _sides.get(mark)
