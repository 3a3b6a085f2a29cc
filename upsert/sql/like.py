"""``CREATE TABLE … LIKE``: what a new table takes over from another one (pure).

Follows Flink's LIKE clause, and has INDEXES beside its features::

    LIKE source [( { INCLUDING | EXCLUDING } { ALL | CONSTRAINTS | INDEXES | PARTITIONS }
                 | { INCLUDING | EXCLUDING | OVERWRITING }
                   { ALL | GENERATED | METADATA | OPTIONS | WATERMARKS } … )]

Without the list: INCLUDING ALL OVERWRITING OPTIONS. Stored columns are always taken over; columns and indexes
of the statement come after them, its comment is the table's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from upsert.errors import SchemaError
from upsert.schema import Column, ComputedColumn, Index, TableSchema, Watermark
from upsert.sql.tokens import Cursor


class Merging(StrEnum):
    """What becomes of a feature of the source."""

    INCLUDING = "INCLUDING"
    EXCLUDING = "EXCLUDING"
    OVERWRITING = "OVERWRITING"


_ONCE: Final = ("CONSTRAINTS", "INDEXES", "PARTITIONS")
"""Features that nothing overwrites; of keys and partitions there is the source's or the statement's."""

_MERGED: Final = ("GENERATED", "METADATA", "OPTIONS", "WATERMARKS")
_DEFAULT: Final = {**dict.fromkeys((*_ONCE, *_MERGED), Merging.INCLUDING), "OPTIONS": Merging.OVERWRITING}


@dataclass(frozen=True)
class Declared:
    """What the statement itself says of the new table, see ``TableSchema``."""

    columns: tuple[Column, ...] = ()
    primary_key: tuple[str, ...] = ()
    indexes: tuple[Index, ...] = ()
    partitioned_by: tuple[str, ...] = ()
    comment: str | None = None
    computed: tuple[ComputedColumn, ...] = ()
    watermark: Watermark | None = None
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def schema(self, of: str) -> TableSchema:
        """The table's schema.

        Raises:
            SchemaError: what is declared contradicts itself.
        """
        try:
            return TableSchema(
                self.columns,
                self.primary_key,
                self.indexes,
                self.partitioned_by,
                self.comment,
                self.computed,
                self.watermark,
            )
        except SchemaError as cause:
            raise SchemaError(f"{of}: {cause}") from None


@dataclass(frozen=True)
class Like:
    """The clause.

    Attributes:
        source: name of the table.
        features: what becomes of each feature of it.
    """

    source: str
    features: Mapping[str, Merging] = field(default_factory=lambda: dict(_DEFAULT))

    def merged(
        self, own: Declared, schema: TableSchema, options: Mapping[str, str], of: str
    ) -> tuple[TableSchema, dict[str, str]]:
        """Schema and options of the new table.

        Raises:
            SchemaError: both say the same thing, or the result contradicts itself.
        """
        columns, computed = self._columns(own, schema, of)
        found = Declared(
            columns,
            self._one("CONSTRAINTS", own.primary_key, schema.primary_key, "PRIMARY KEY", of),
            (*(schema.indexes if self._has("INDEXES") else ()), *own.indexes),
            self._one("PARTITIONS", own.partitioned_by, schema.partitioned_by, "PARTITIONED BY", of),
            own.comment,
            computed,
            self._watermark(own, schema, of),
        )
        return found.schema(of), self._options(own.options, options, of)

    def _has(self, feature: str) -> bool:
        return self.features.get(feature) is not Merging.EXCLUDING

    def _one(
        self, feature: str, own: tuple[str, ...], theirs: tuple[str, ...], clause: str, of: str
    ) -> tuple[str, ...]:
        if own and theirs and self._has(feature):
            raise self._twice(feature, clause, of)
        return theirs if theirs and self._has(feature) else own

    def _watermark(self, own: Declared, schema: TableSchema, of: str) -> Watermark | None:
        if not self._has("WATERMARKS") or schema.watermark is None:
            return own.watermark
        if own.watermark is None:
            return schema.watermark
        if self.features["WATERMARKS"] is not Merging.OVERWRITING:
            raise self._twice("WATERMARKS", "WATERMARK", of)
        return own.watermark

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
                replaces = self.features.get(feature) is Merging.OVERWRITING and _feature(new) == feature
                if not replaces:
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
        elif feature in _ONCE:
            remedy = f"leave it out, or write EXCLUDING {feature}"
        else:
            remedy = f"leave it out, or write EXCLUDING or OVERWRITING {feature}"
        return SchemaError(f"{of}: {what} is declared here and in {self.source!r}; {remedy}")


_STORED: Final = "stored columns"


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


def read_like(cursor: Cursor, source: str) -> Like:
    """Read what follows ``LIKE source``, which may be nothing.

    Raises:
        SchemaError: it is no list of features, or one is named twice; the message has the position.

    >>> read_like(Cursor("(INCLUDING ALL EXCLUDING OPTIONS)"), "t").features["OPTIONS"].value
    'EXCLUDING'
    """
    if not cursor.skip("("):
        return Like(source)
    given: dict[str, Merging] = {}
    everything: Merging | None = None
    while not cursor.skip(")"):
        merging = next((merging for merging in Merging if cursor.skip(merging.value)), None)
        if merging is None:
            raise cursor.refusal("expected INCLUDING, EXCLUDING or OVERWRITING, and a feature")
        known = _MERGED if merging is Merging.OVERWRITING else (*_ONCE, *_MERGED)
        feature = cursor.word(0)
        if feature == "ALL" and everything is None and not given:
            everything = merging
        elif feature in known and feature not in given:
            given[feature] = merging
        else:
            raise cursor.refusal(f"expected ALL before all others, or one of {', '.join(known)}, each once")
        cursor.expect(feature)
    features = {name: _all(name, everything) for name in _DEFAULT} if everything else dict(_DEFAULT)
    return Like(source, {**features, **given})


def _all(feature: str, merging: Merging) -> Merging:
    """What ``INCLUDING ALL``, say, means for a feature."""
    return Merging.INCLUDING if merging is Merging.OVERWRITING and feature in _ONCE else merging
