"""The parts of a table's schema: its columns, and its secondary indexes (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import pyarrow as pa

from upsert import types


@dataclass(frozen=True)
class Column:
    """One column: its name, its Arrow type, whether it may hold NULL, and a comment.

    Attributes:
        metadata: the metadata key that the column holds (FLIP-107), None for a physical column.
        virtual: whether a metadata column is only read, never written.
        id: tells the column from all others that its table had or will have, whatever their names; 0 until
            it is in a ``TableSchema``. Not compared.
    """

    name: str
    type: pa.DataType
    nullable: bool = True
    comment: str | None = None
    metadata: str | None = None
    virtual: bool = False
    id: int = field(default=0, compare=False)

    def to_json(self) -> dict[str, Any]:
        """JSON values of which ``from_json`` makes the column again."""
        value = {
            "name": self.name,
            "type": types.to_json(self.type),
            "nullable": self.nullable,
            "comment": self.comment,
            "id": self.id,
        }
        if self.metadata is not None:
            value |= {"metadata": self.metadata, "virtual": self.virtual}
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """The column of its JSON form.

        Raises:
            KeyError: a value is missing.
            TypeError: one is not of the type that it should have.
            SchemaError: its type is unknown.
        """
        expected = {
            "name": str,
            "nullable": bool,
            "comment": str | None,
            "metadata": str | None,
            "virtual": bool,
        }
        for key, type_ in expected.items():
            if key in value and not isinstance(value[key], type_):
                raise TypeError(f"{key} of a column is {value[key]!r}")
        if "id" in value and (type(value["id"]) is not int or value["id"] < 0):
            raise TypeError(f"id of a column is {value['id']!r}")
        return cls(
            value["name"],
            types.from_json(value["type"]),
            value["nullable"],
            value["comment"],
            value.get("metadata"),
            value.get("virtual", False),
            value.get("id", 0),
        )


@dataclass(frozen=True)
class Index:
    """A secondary index: a promise that rows can be looked up by these columns (FLIP-486).

    Where it is ``unique``, no two rows of the table are equal in these columns, unless one of them is NULL; a
    write that breaks this is refused.
    """

    name: str
    columns: tuple[str, ...]
    unique: bool = False

    @classmethod
    def over(cls, columns: Iterable[str], *, unique: bool = False) -> Self:
        """The index of these columns, named ``INDEX_col1_col2`` as FLIP-486 does.

        >>> str(Index.over(["email"], unique=True))
        'UNIQUE INDEX INDEX_email (email)'
        """
        names = tuple(columns)
        return cls("_".join(("INDEX", *names)), names, unique)

    def __str__(self) -> str:
        return f"{'UNIQUE ' if self.unique else ''}INDEX {self.name} ({', '.join(self.columns)})"

    def to_json(self) -> dict[str, Any]:
        """JSON values of which ``from_json`` makes the index again."""
        value = {"name": self.name, "columns": list(self.columns)}
        return value | {"unique": True} if self.unique else value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """The index of its JSON form.

        Raises:
            KeyError: a value is missing.
            TypeError: one is not of the type that it should have.
        """
        unique = value.get("unique", False)
        if not isinstance(value["name"], str) or not isinstance(unique, bool):
            raise TypeError(f"an index is {value!r}")
        return cls(value["name"], tuple(value["columns"]), unique)
