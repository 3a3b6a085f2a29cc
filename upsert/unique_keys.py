"""By which columns a stream's rows are told apart, as the planner says it to the sink (pure)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from upsert.rowkind import ROW_KIND_COLUMN

KEYS_MARK: Final = "upsert.unique-keys"
"""Key of what is attached to the ``_row_kind`` of such a stream: JSON of `UniqueKeys`."""


@dataclass(frozen=True)
class UniqueKeys:
    """The unique keys of a stream's result: no two of its rows are equal in one of them at any time.

    Attributes:
        keys: for each part of each key the columns that hold it, any of which will do. No key at all: rows
            may be equal.

    >>> found = UniqueKeys(((("id", "order_id"),), (("a",), ("b",))))
    >>> str(found), found.within(["order_id", "x"]), found.within(["a"])
    ('(id) or (a, b)', True, False)
    """

    keys: tuple[tuple[tuple[str, ...], ...], ...] = ()

    @classmethod
    def of_schema(cls, schema: dict[str, Any]) -> Self | None:
        """The keys of a stream; None if nobody has looked for them.

        Args:
            schema: of the stream, as Spark has it in JSON.
        """
        kinds = [field for field in schema["fields"] if field["name"] == ROW_KIND_COLUMN]
        mark = kinds[-1]["metadata"].get(KEYS_MARK) if kinds else None
        return None if mark is None else cls.from_text(mark)

    @classmethod
    def from_text(cls, text: str) -> Self:
        """The inverse of `to_text`."""
        return cls(tuple(tuple(tuple(names) for names in key) for key in json.loads(text)))

    def to_text(self) -> str:
        """JSON of the keys."""
        return json.dumps(self.keys)

    def within(self, columns: Sequence[str]) -> bool:
        """Whether these columns tell the rows apart."""
        return any(all(set(names) & set(columns) for names in key) for key in self.keys)

    def __str__(self) -> str:
        texts = [f"({', '.join(names[0] for names in key)})" for key in self.keys]
        return " or ".join(texts) or "no columns"
