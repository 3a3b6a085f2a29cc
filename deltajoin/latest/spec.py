"""What a join that looks up what is newest consists of: two sides, their keys, kinds of change (pure)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from deltajoin.expressions import Condition
from deltajoin.lookup.protocol import LookupSource
from deltajoin.settings import JoinSettings
from upsert.errors import ConfigurationError
from upsert.rowkind import ROW_KIND_COLUMN, RowKind

SIDES: Final = ("left", "right")
KINDS: Final = ("inner", "left", "right", "full")
"""Kinds of join that FLIP-486 allows."""

INSERTS: Final = (RowKind.INSERT.value,)
UPSERTS: Final = (RowKind.INSERT.value, RowKind.UPDATE_AFTER.value)
ALL_BUT_BEFORE: Final = (*UPSERTS, RowKind.DELETE.value)


@dataclass(frozen=True)
class LookupSide:
    """A stream of changes whose rows can be looked up elsewhere.

    Attributes:
        columns: of a row, without ``_row_kind``.
        source: where its rows are; it gives at least these columns, in these types.
        upsert_key: the columns by which a later row replaces an earlier one.
        kinds: which kinds of change the stream may carry.
        order_by: which of two rows of one upsert key is newer; () for the order of arrival within a task.
        immutable: columns that an upsert key has the same values of for ever.
    """

    columns: pa.Schema
    source: LookupSource
    upsert_key: tuple[str, ...]
    kinds: tuple[str, ...] = INSERTS
    order_by: tuple[str, ...] = ()
    immutable: tuple[str, ...] = ()

    @property
    def can_update(self) -> bool:
        """Whether a row may be replaced by another."""
        return RowKind.UPDATE_AFTER.value in self.kinds

    @property
    def can_delete(self) -> bool:
        """Whether a row may go away."""
        return RowKind.DELETE.value in self.kinds

    @property
    def fixed(self) -> frozenset[str]:
        """Columns that no change of a row gives another value."""
        everything = () if self.can_update or self.can_delete else self.columns.names
        return frozenset((*self.upsert_key, *self.immutable, *everything))


@dataclass(frozen=True)
class LatestJoin:
    """Two sides that look each other's newest rows up.

    Attributes:
        left: one side.
        right: the other.
        on: pairs of columns that must be equal, of the left and of the right side.
        kind: one of ``KINDS``.
        where: what a pair must meet besides; the left side is table 0, the right one table 1.
        settings: sizes and limits; no part of what is joined.
    """

    left: LookupSide
    right: LookupSide
    on: tuple[tuple[str, str], ...]
    kind: str = "inner"
    where: Condition | None = None
    settings: JoinSettings = field(default_factory=JoinSettings, compare=False)

    def __post_init__(self) -> None:
        """Check the parts against each other."""
        if self.kind not in KINDS:
            raise ConfigurationError(f"a lookup join must be one of {', '.join(KINDS)}, got {self.kind!r}")
        if not self.on:
            raise ConfigurationError("a lookup join needs a pair of columns that must be equal, got none")
        for number, side in enumerate(self.sides):
            for name in self.keys(number):
                if name not in side.columns.names:
                    raise ConfigurationError(
                        f"a lookup join's {SIDES[number]} side has no column {name!r}, only "
                        f"{', '.join(side.columns.names)}"
                    )

    @property
    def sides(self) -> tuple[LookupSide, LookupSide]:
        """Left and right."""
        return self.left, self.right

    def keys(self, side: int) -> tuple[str, ...]:
        """The join columns of a side."""
        return tuple(pair[side] for pair in self.on)

    def keeps(self, side: int) -> bool:
        """Whether a row of this side without a match comes out, padded with NULLs."""
        return self.kind in (SIDES[side], "full")

    def is_unique(self, side: int) -> bool:
        """Whether a join key has at most one row of this side."""
        return set(self.sides[side].upsert_key) <= set(self.keys(side))

    @property
    def upsert_key(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The columns by which a row of the result replaces another: those of the left, those of the right.

        A side of which a join key has at most one row needs none, unless it is kept without the other.
        """
        left, right = self.left.upsert_key, self.right.upsert_key
        if self.is_unique(1) and not self.keeps(1):
            return left, ()
        if self.is_unique(0) and not self.keeps(0):
            return (), right
        return left, right

    @property
    def pads_are_keys(self) -> bool:
        """Whether a padded row has another key than the pair that takes its place, so must be deleted."""
        return self.kind != "inner" and all(self.upsert_key)

    @property
    def is_whole(self) -> bool:
        """Whether the result has every kind of change, `-U` among them; else it is an upsert stream."""
        return self.settings.changelog == "all"

    @property
    def output(self) -> pa.Schema:
        """Columns of the result: ``left_…``, ``right_…``, ``_row_kind``."""
        fields = [
            pa.field(f"{SIDES[number]}_{column.name}", column.type)
            for number, side in enumerate(self.sides)
            for column in side.columns
        ]
        return pa.schema([*fields, pa.field(ROW_KIND_COLUMN, pa.string(), nullable=False)])

    @property
    def output_key(self) -> tuple[str, ...]:
        """``upsert_key`` in the names of the result."""
        return tuple(f"{SIDES[n]}_{name}" for n, names in enumerate(self.upsert_key) for name in names)
