"""What CREATE TABLE declares of a table, and what its LIKE takes over from another one (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final, TypeVar

from upsert.errors import SchemaError
from upsert.schema import Column, ComputedColumn, Index, TableSchema, Watermark
from upsert.types import any_case

if TYPE_CHECKING:
    from upsert.sql.columns import WrittenCheck

T = TypeVar("T")


class Merging(StrEnum):
    """What becomes of a feature of the source."""

    INCLUDING = "INCLUDING"
    EXCLUDING = "EXCLUDING"
    OVERWRITING = "OVERWRITING"


MERGED_ONCE: Final = ("CONSTRAINTS", "INDEXES", "PARTITIONS")
"""Features that nothing overwrites; of keys and partitions there is the source's or the statement's."""

_STORED: Final = "stored columns"


@dataclass(frozen=True)
class Declared:
    """What the statement itself says of the new table, see ``TableSchema``.

    Its ``checks`` are no part of ``schema`` yet, see ``upsert.sql.checks``.
    """

    columns: tuple[Column, ...] = ()
    primary_key: tuple[str, ...] = ()
    indexes: tuple[Index, ...] = ()
    partitioned_by: tuple[str, ...] = ()
    comment: str | None = None
    computed: tuple[ComputedColumn, ...] = ()
    watermark: Watermark | None = None
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    checks: tuple[WrittenCheck, ...] = ()

    def schema(self, of: str) -> TableSchema:
        """The table's schema; a ``SchemaError`` where what is declared contradicts itself.

        Case does not count in names of columns, for a new table has no two that differ in it alone.
        """
        own = any_case([*(one.name for one in self.columns), *(one.name for one in self.computed)])
        try:
            schema = TableSchema(
                self.columns,
                tuple(map(own, self.primary_key)),
                tuple(index.named(own) for index in self.indexes),
                tuple(map(own, self.partitioned_by)),
                self.comment,
                tuple(column.named(own) for column in self.computed),
                None if self.watermark is None else self.watermark.named(own),
            )
            schema.check_new_names()
            schema.check_watermark()
        except SchemaError as cause:
            raise SchemaError(f"{of}: {cause}") from None
        return schema


@dataclass(frozen=True)
class Like:
    """``LIKE source (…)``: what becomes of each feature of the source."""

    source: str
    features: Mapping[str, Merging]

    def merged(
        self, own: Declared, schema: TableSchema, options: Mapping[str, str], of: str
    ) -> tuple[TableSchema, dict[str, str]]:
        """Schema and options of the new table; a ``SchemaError`` where both say the same thing."""
        columns, computed = self._columns(own, schema, of)
        found = Declared(
            columns,
            self._one("CONSTRAINTS", own.primary_key, schema.primary_key, "PRIMARY KEY", of),
            (*(schema.indexes if self._has("INDEXES") else ()), *own.indexes),
            self._one("PARTITIONS", own.partitioned_by, schema.partitioned_by, "PARTITIONED BY", of),
            own.comment,
            computed,
            self._one("WATERMARKS", own.watermark, schema.watermark, "WATERMARK", of),
        )
        new = found.schema(of)
        if self._has("CONSTRAINTS"):
            new = replace(new, checks=schema.checks)
        return new, self._options(own.options, options, of)

    def _has(self, feature: str) -> bool:
        return self.features.get(feature) is not Merging.EXCLUDING

    def _one(self, feature: str, own: T, theirs: T, clause: str, of: str) -> T:
        if not theirs or not self._has(feature):
            return own
        if own and self.features[feature] is not Merging.OVERWRITING:
            raise self._twice(feature, clause, of)
        return own or theirs

    def _options(self, own: Mapping[str, str], theirs: Mapping[str, str], of: str) -> dict[str, str]:
        if not self._has("OPTIONS"):
            return dict(own)
        both = sorted(own.keys() & theirs.keys())
        if both and self.features["OPTIONS"] is not Merging.OVERWRITING:
            raise self._twice("OPTIONS", f"option {both[0]!r}", of)
        return {**theirs, **own}

    def _columns(
        self, own: Declared, schema: TableSchema, of: str
    ) -> tuple[tuple[Column, ...], tuple[ComputedColumn, ...]]:
        theirs = [one for one in _in_order(schema.columns, schema.computed) if self._has(_feature(one))]
        mine = {one.name: one for one in _in_order(own.columns, own.computed)}
        for number, one in enumerate(theirs):
            if (new := mine.get(one.name)) is not None:
                feature = _feature(one)
                if self.features.get(feature) is not Merging.OVERWRITING or _feature(new) != feature:
                    raise self._twice(feature, f"column {one.name!r}", of)
                theirs[number] = mine.pop(one.name)
        everything = [*theirs, *mine.values()]
        columns = tuple(replace(one, id=0) for one in everything if isinstance(one, Column))
        computed = tuple(
            replace(one, place=place)
            for place, one in enumerate(everything)
            if isinstance(one, ComputedColumn)
        )
        return columns, computed

    def _twice(self, feature: str, what: str, of: str) -> SchemaError:
        if feature == _STORED:
            remedy = "leave it out, for stored columns are always taken over"
        elif feature in MERGED_ONCE:
            remedy = f"leave it out, or write EXCLUDING {feature}"
        else:
            remedy = f"leave it out, or write EXCLUDING or OVERWRITING {feature}"
        return SchemaError(f"{of}: {what} is declared here and in {self.source!r}; {remedy}")


def _feature(one: Column | ComputedColumn) -> str:
    if one.metadata is not None:
        return "METADATA"
    return _STORED if isinstance(one, Column) else "GENERATED"


def _in_order(columns: Sequence[Column], computed: Sequence[ComputedColumn]) -> list[Column | ComputedColumn]:
    """All columns as they were declared; METADATA columns that a managed table adds as columns again."""
    found: list[Column | ComputedColumn] = list(columns)
    for one in sorted(computed, key=lambda one: one.place):
        is_metadata = one.metadata is not None and one.type is not None
        column = Column(one.name, one.type, True, one.comment, one.metadata, True) if is_metadata else one
        found.insert(one.place, column)
    return found
