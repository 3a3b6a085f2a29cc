"""Leaves of a plan: streams of changes and where they come from, and rows that are no changes (pure)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from deltajoin.latest.spec import LatestJoin
from planner.delta_join import typed
from planner.enriched import TableRows
from planner.expressions import Column, ref_field
from planner.sources import KafkaTopic, ManagedTable
from upsert.stream_keys import UpsertKey

if TYPE_CHECKING:
    from planner.nodes import Plan


@dataclass(frozen=True)
class Normalized:
    """Changes that `upsert.normalize` makes whole.

    Attributes:
        key: the columns by which it knows rows.
        input: what it is given.
        order: the columns by which it knows which row is newer.
        refs: the operator's nodes from the top down to the one above its input.
    """

    key: tuple[str, ...]
    input: Plan
    order: tuple[str, ...] = field(default=(), compare=False)
    refs: tuple[int, ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True)
class Upserts:
    """Upserts of groups that `optimize` made of an aggregate, and the columns by which they do."""

    key: UpsertKey


@dataclass(frozen=True)
class LookupStream(Upserts):
    """Upserts of a stream whose rows can be looked up elsewhere; `mark` names the side in this process."""

    mark: str


@dataclass(frozen=True)
class LookupJoined(Upserts):
    """Upserts of a join by lookups of two such streams."""

    left: Changelog
    right: Changelog
    join: LatestJoin


@dataclass(frozen=True)
class LookupChanges:
    """Every kind of change of a join by lookups of two streams, and why its upserts are not enough."""

    joined: LookupJoined
    because: str = field(compare=False)

    @classmethod
    def of(cls, joined: LookupJoined, because: str) -> LookupChanges:
        """Those of a join that gives upserts."""
        settings = replace(joined.join.settings, changelog="all")
        return cls(replace(joined, join=replace(joined.join, settings=settings)), because)


@dataclass(frozen=True)
class Changelog:
    """Leaf: a stream of changes, with `_row_kind` among its columns unless the reader left it out.

    `origin` says where they come from; None where they are already the result of a delta join. The changes of
    `Upserts` have no `-U`.
    """

    name: str
    columns: tuple[Column, ...]
    origin: ManagedTable | KafkaTopic | Normalized | Upserts | LookupChanges | None
    ref: int | None = ref_field()

    def __str__(self) -> str:
        return f"Changelog {self._described()} {typed(self.columns)}"

    def _described(self) -> str:
        match self.origin:
            case KafkaTopic():
                return str(self.origin)
            case Normalized(key):
                return f"{self.name} by ({', '.join(key)})"
            case LookupJoined(left=left, right=right, join=join):
                return f"{self.name} ({join.kind}) of {left.name} with {right.name}"
            case LookupChanges(LookupJoined(left=left, right=right, join=join)):
                return f"{self.name} ({join.kind}) of {left.name} with {right.name}, with -U"
            case Upserts(UpsertKey(keys=keys)):
                return f"{self.name} by ({', '.join('|'.join(names) for names in keys)})"
            case ManagedTable(scan_mode=mode) if mode != "full":
                return f"{mode} {self.name}"
            case _:
                return self.name


@dataclass(frozen=True)
class Relation:
    """Leaf: rows that are no changes, streaming or not.

    `topic` where they are the records of one, `rows` where they are those of a managed table, read at once.
    """

    name: str
    columns: tuple[Column, ...]
    is_streaming: bool = False
    topic: KafkaTopic | None = None
    rows: TableRows | None = None
    ref: int | None = ref_field()

    def __str__(self) -> str:
        what = str(self.topic or self.rows or self.name)
        return f"{'Stream' if self.is_streaming else 'Relation'} {what} {typed(self.columns)}"
