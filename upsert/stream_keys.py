"""What the schema of a stream says about its keys, as the planner tells the sink (pure).

Two marks are attached to ``_row_kind``: the unique keys of the rows (`UniqueKeys`), and the key by which rows
of a stream without ``-U`` replace each other (`UpsertKey`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from upsert.codec import Jsonable
from upsert.errors import ConfigurationError
from upsert.rowkind import ROW_KIND_COLUMN

KEYS_MARK: Final = "upsert.unique-keys"
"""Key of what is attached to the ``_row_kind`` of such a stream: JSON of `UniqueKeys`."""

VERSIONS_MARK: Final = "upsert.versions"
"""Key of what is attached to the last column of a table whose versions a join asks for by a row's time."""


def _mark(schema: dict[str, Any], key: str) -> Any:
    """What is attached to the ``_row_kind`` of a stream under a key; None if nothing is."""
    kinds = [field for field in schema["fields"] if field["name"] == ROW_KIND_COLUMN]
    return kinds[-1]["metadata"].get(key) if kinds else None


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
        """The keys of a stream, by its schema as Spark has it in JSON; None if they are not known."""
        mark = _mark(schema, KEYS_MARK)
        return None if mark is None else cls.from_text(mark)

    @classmethod
    def from_text(cls, text: str) -> Self:
        """The inverse of `to_text`."""
        return cls(tuple(tuple(tuple(names) for names in key) for key in json.loads(text)))

    def to_text(self) -> str:
        """JSON of the keys."""
        return json.dumps(self.keys)

    def renamed(self, names: Mapping[str, str]) -> Self:
        """The keys of the stream when its columns have other names."""
        return type(self)(
            tuple(tuple(tuple(names[name] for name in part) for part in key) for key in self.keys)
        )

    def within(self, columns: Sequence[str]) -> bool:
        """Whether these columns tell the rows apart."""
        return any(all(set(names) & set(columns) for names in key) for key in self.keys)

    def __str__(self) -> str:
        texts = [f"({', '.join(names[0] for names in key)})" for key in self.keys]
        return " or ".join(texts) or "no columns"


UPSERTS_MARK: Final = "upsert.upserts"
"""Key of what is attached to the ``_row_kind`` of such a stream: JSON of an `UpsertKey`."""


@dataclass(frozen=True)
class UpsertKey(Jsonable):
    """The columns by which rows of a stream of ``+U`` and ``-D`` replace each other.

    Attributes:
        keys: for each part of the key the columns that hold it; any of them will do.
        constants: columns with one value in all rows; they may be part of a key, or all of it.
        of: what gives the rows, for messages.
        is_append: whether the stream is one of output mode append all the same: each micro-batch has new
            rows only, and any sink takes them.

    >>> UpsertKey.of_schema({"fields": [{"name": "n", "metadata": {}}]}) is None
    True
    """

    keys: tuple[tuple[str, ...], ...]
    constants: tuple[str, ...] = ()
    of: str = "an aggregate"
    is_append: bool = False

    @classmethod
    def of_schema(cls, schema: dict[str, Any]) -> Self | None:
        """The key of a stream that replaces rows, by its schema as Spark has it in JSON; None for others."""
        mark = _mark(schema, UPSERTS_MARK)
        return None if mark is None else cls.from_text(mark)

    @classmethod
    def from_text(cls, text: str) -> Self:
        """The inverse of `to_text`."""
        return cls.from_json(json.loads(text))

    def to_text(self) -> str:
        """JSON of the key."""
        return json.dumps(self.to_json())

    def check_is_key(self, primary_key: Sequence[str], *, of: str) -> None:
        """Make sure that a table replaces a row exactly where the stream does.

        Raises:
            ConfigurationError: the primary key has more columns than the stream's key, or fewer.
        """
        known = {name for names in self.keys for name in names} | set(self.constants)
        is_whole = all(set(names) & set(primary_key) for names in self.keys)
        if primary_key and is_whole and known.issuperset(primary_key):
            return
        wanted = ", ".join(names[0] if names else "?" for names in self.keys) or "a constant column"
        raise ConfigurationError(
            f"{of}: rows of {self.of} replace each other by ({wanted}), the table's PRIMARY KEY is "
            f"({', '.join(primary_key)}); write them into a table with a PRIMARY KEY of these columns"
        )
