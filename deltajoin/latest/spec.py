"""A join that looks up what is newest: its sides, and when it is right in the end by FLIP-486 (pure).

The result is an upsert stream: each of its rows is the newest for its key, and nothing is ever taken back
but by a delete of that key. So whatever decides *whether* two rows meet may not change while they live: the
join keys, and the columns of the rest of the condition. And a delete must find what it takes away by looking
it up, so only one side may delete, and never the one that can be missing (its last match goes away
unnoticed). Flink refuses all outer joins and all deletes; FLIP-486 and this module allow those that come out
right.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from deltajoin.errors import Refused
from deltajoin.expressions import Condition, refs_of
from deltajoin.lookup.protocol import LookupSource
from deltajoin.settings import JoinSettings
from upsert import types
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
    def columns(self) -> pa.Schema:
        """Columns of the result without its kind: ``left_…``, ``right_…``."""
        return pa.schema(
            [
                pa.field(f"{SIDES[number]}_{column.name}", column.type)
                for number, side in enumerate(self.sides)
                for column in side.columns
            ]
        )

    @property
    def output(self) -> pa.Schema:
        """Columns of the result, ``_row_kind`` last."""
        return self.columns.append(pa.field(ROW_KIND_COLUMN, pa.string(), nullable=False))

    @property
    def output_key(self) -> tuple[str, ...]:
        """``upsert_key`` in the names of the result."""
        return tuple(f"{SIDES[n]}_{name}" for n, names in enumerate(self.upsert_key) for name in names)


def changes_have_no_images_before(join: LatestJoin) -> Refused | None:
    """An upsert stream has no `-U`; one among the input says that two rows of one key are under way."""
    for number, side in enumerate(join.sides):
        if RowKind.UPDATE_BEFORE.value in side.kinds:
            return Refused(
                f"the {SIDES[number]} side carries -U, and a lookup only knows what is newest",
                "leave them out below with_lookup: df.where(\"_row_kind <> '-U'\")",
            )
    return None


def keys_have_one_type(join: LatestJoin) -> Refused | None:
    """Equal keys must be equal bytes, or the two sides of a key would be joined in two shards."""
    for left, right in join.on:
        one, other = join.left.columns.field(left).type, join.right.columns.field(right).type
        if one != other or not types.is_scalar(one):
            return Refused(
                f"join columns {left!r} and {right!r} must have one scalar type, got {types.sql_name(one)} "
                f"and {types.sql_name(other)}",
                "cast one of them below with_lookup, and in what its source gives",
            )
    return None


def sources_are_asked_by_join_keys(join: LatestJoin) -> Refused | None:
    """A lookup needs a value for each column that it asks by (FLIP-486: an index within the join keys)."""
    for number, side in enumerate(join.sides):
        missing = [name for name in side.source.keys if name not in join.keys(number)]
        if missing:
            return Refused(
                f"the {SIDES[number]} side's source is asked by ({', '.join(side.source.keys)}), and the "
                f"join has no value for {', '.join(missing)}",
                "join by these columns too, or give a source that is asked by "
                f"({', '.join(join.keys(number))})",
            )
    return None


def join_keys_never_change(join: LatestJoin) -> Refused | None:
    """A row that moves to another join key would stay joined at the old one."""
    for number, side in enumerate(join.sides):
        changing = [name for name in join.keys(number) if name not in side.fixed]
        if changing:
            return Refused(
                f"join column(s) {', '.join(changing)} of the {SIDES[number]} side lie outside its upsert "
                f"key ({', '.join(side.upsert_key)}), and an update may change them",
                f"declare what never changes, with_lookup(…, immutable={changing!r}), or that rows are only "
                "added, kinds=['+I']; or join managed tables with consistency = 'snapshot'",
            )
    return None


def rest_of_condition_never_changes(join: LatestJoin) -> Refused | None:
    """A pair that an update makes fail the condition would stay in the result."""
    for ref in sorted(refs_of(join.where)):
        side = join.sides[ref.table]
        if ref.column not in side.fixed:
            return Refused(
                f"the join's condition uses {ref.column!r} of the {SIDES[ref.table]} side, which an update "
                "may change",
                f"declare with_lookup(…, immutable=[{ref.column!r}]) if it never changes; or filter the "
                "result where it is read",
            )
    return None


def deletes_come_from_one_side(join: LatestJoin) -> Refused | None:
    """A delete finds what it takes away on the other side, unless that is gone too."""
    if join.left.can_delete and join.right.can_delete:
        return Refused(
            "both sides delete rows; two deletes at a time would not find each other, and their pair would "
            "stay",
            "declare with_lookup(…, kinds=['+I', '+U']) for a side that never deletes; or join managed "
            "tables with consistency = 'snapshot'",
        )
    return None


def padded_side_never_deletes(join: LatestJoin) -> Refused | None:
    """When the last match goes, the row padded with NULLs would have to come back."""
    for number, side in enumerate(join.sides):
        if side.can_delete and join.keeps(1 - number):
            return Refused(
                f"a {join.kind} join must bring the padded row back when the last match is deleted, and the "
                f"{SIDES[number]} side deletes rows",
                "declare with_lookup(…, kinds=['+I', '+U']) if it never does; or join managed tables with "
                "consistency = 'snapshot'",
            )
    return None


def emitted_rows_are_kept(join: LatestJoin) -> Refused | None:
    """A `-U` takes back the very row that was given, also when a micro-batch is run again."""
    if join.is_whole and join.settings.state_path is None:
        return Refused(
            "changelog = 'all' must remember the rows that it has given, and no state_path says where",
            "give state_path='…', a folder on a disk that driver and executors share",
        )
    return None


CONDITIONS: Final[tuple[Callable[[LatestJoin], Refused | None], ...]] = (
    changes_have_no_images_before,
    keys_have_one_type,
    sources_are_asked_by_join_keys,
    join_keys_never_change,
    rest_of_condition_never_changes,
    deletes_come_from_one_side,
    padded_side_never_deletes,
    emitted_rows_are_kept,
)


def faults_of(join: LatestJoin) -> tuple[Refused, ...]:
    """All that is in the way of a join, in the order of ``CONDITIONS``; () if it comes out right."""
    return tuple(fault for condition in CONDITIONS if (fault := condition(join)) is not None)


def check_join(join: LatestJoin) -> None:
    """Refuse a join whose result would be wrong, for all reasons at once, each with its remedy."""
    if faults := faults_of(join):
        raise ConfigurationError(f"{join.kind} lookup join: " + " | ".join(map(str, faults)))
