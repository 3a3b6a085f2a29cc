"""What a table declares beside its columns: columns computed when it is read, and a watermark (pure).

Follows FLIP-188's DDL. Neither is stored: rows are written without them, and every read has them anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import pyarrow as pa

from upsert import types


@dataclass(frozen=True)
class ComputedColumn:
    """``name AS expression``, or ``name type METADATA [FROM 'key']`` of a managed table.

    Attributes:
        name: of the column.
        expression: as it was written, in Spark's SQL with a few words of Flink's; of a METADATA column the
            cast of the key's values, which stand under the column's name.
        uses: the table's columns that the expression names.
        place: how many columns of either kind stand before it.
        comment: of the column.
        metadata: the key whose values a METADATA column has; None for others.
        type: of a METADATA column; None for others, whose expression says it.
    """

    name: str
    expression: str
    uses: tuple[str, ...]
    place: int
    comment: str | None = None
    metadata: str | None = None
    type: pa.DataType | None = None

    def to_json(self) -> dict[str, Any]:
        """JSON values of the column, for the table's own files."""
        value = {
            "name": self.name,
            "expression": self.expression,
            "uses": list(self.uses),
            "place": self.place,
            "comment": self.comment,
        }
        if self.type is not None:
            value |= {"metadata": self.metadata, "type": types.to_json(self.type)}
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """The inverse of ``to_json``.

        Raises:
            KeyError: a part is missing.
            TypeError: a part is of another type.
        """
        found = cls(
            value["name"],
            value["expression"],
            tuple(value["uses"]),
            value["place"],
            value["comment"],
            value.get("metadata"),
            types.from_json(value["type"]) if "type" in value else None,
        )
        texts = (found.name, found.expression, *found.uses, found.metadata or "")
        if not all(isinstance(text, str) for text in texts) or type(found.place) is not int:
            raise TypeError(f"a computed column is {value!r}")
        return found


@dataclass(frozen=True)
class Watermark:
    """``WATERMARK FOR column AS column - INTERVAL …``: how late rows of a stream may come.

    Attributes:
        column: holds the time of each row.
        delay_ms: milliseconds by which a row may be older than the newest one.
    """

    column: str
    delay_ms: int = 0

    def to_json(self) -> dict[str, Any]:
        """JSON values of the watermark, for the table's own files."""
        return {"column": self.column, "delay_ms": self.delay_ms}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """The inverse of ``to_json``.

        Raises:
            KeyError: a part is missing.
            TypeError: a part is of another type.
        """
        found = cls(value["column"], value["delay_ms"])
        if not isinstance(found.column, str) or type(found.delay_ms) is not int:
            raise TypeError(f"a watermark is {value!r}")
        return found
