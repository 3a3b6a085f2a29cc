"""How the changes of one table become changes of the join: what is looked up, by what, in which order (pure).

A plan is made once for each table of the tree by `deltajoin.lookup_order`, and run by `deltajoin.deltas`. A
`Lookup` answers keys with rows of a node; a `Delta` brings signed rows of a node when one table below moves.
"""

from __future__ import annotations

from dataclasses import dataclass

from deltajoin.expressions import Condition, Ref

Source = Ref | int
"""Where the value of a key comes from: a column of the rows that are there, or the n-th value of a probe."""

Equal = tuple[tuple[Source, Source], ...]
"""Values that must be equal as join keys are: NULL equals nothing."""


@dataclass(frozen=True)
class Attach:
    """Rows of one more node for each row that is there.

    ``sources`` are the values by which the node is looked up, one for each of ``lookup.by``. A row matches
    where ``equal`` and ``where`` hold as well.
    """

    lookup: Lookup
    sources: tuple[Source, ...]
    equal: Equal = ()
    where: Condition | None = None


@dataclass(frozen=True)
class LeafLookup:
    """Rows of a table by an index.

    ``select`` are the columns to bring, ``rows`` how many a key is expected to have.
    """

    table: int
    by: tuple[Ref, ...]
    index: str
    rows: float
    select: tuple[str, ...]


@dataclass(frozen=True)
class WhereLookup:
    """Rows of another lookup for which a condition is true."""

    child: Lookup
    condition: Condition

    @property
    def by(self) -> tuple[Ref, ...]:
        """What the child is looked up by."""
        return self.child.by

    @property
    def rows(self) -> float:
        """Expected rows of a key."""
        return self.child.rows


@dataclass(frozen=True)
class InnerLookup:
    """Rows of an INNER join: its children one after the other, from the probe on."""

    by: tuple[Ref, ...]
    steps: tuple[Attach, ...]

    @property
    def rows(self) -> float:
        """Expected rows of a key."""
        return expected(self.steps)


@dataclass(frozen=True)
class OuterLookup:
    """Rows of an `Outer`: of one side from the probe on, then what the other side makes of them.

    ``own`` says what becomes of a row without a match: ``pad``, ``semi`` or ``anti``, None drops it;
    ``equal`` are keys of the other side, which must hold in the end.
    """

    by: tuple[Ref, ...]
    start: Attach
    other: Attach
    own: str | None
    pads: frozenset[int]
    equal: Equal

    @property
    def rows(self) -> float:
        """Expected rows of a key."""
        return expected((self.start,) if self.own in ("semi", "anti") else (self.start, self.other))


Lookup = LeafLookup | WhereLookup | InnerLookup | OuterLookup


def expected(steps: tuple[Attach, ...]) -> float:
    """Rows that one row is expected to become."""
    rows = 1.0
    for step in steps:
        rows *= step.lookup.rows
    return rows


@dataclass(frozen=True)
class LeafDelta:
    """The changes of the table that moves."""

    table: int


@dataclass(frozen=True)
class WhereDelta:
    """Those rows of another delta for which a condition is true."""

    child: Delta
    condition: Condition


@dataclass(frozen=True)
class InnerDelta:
    """Rows of the child that moves for which ``equal`` and ``where`` hold, the other children attached."""

    child: Delta
    equal: Equal
    where: Condition | None
    steps: tuple[Attach, ...]


@dataclass(frozen=True)
class OuterDelta:
    """Rows of an `Outer` one of whose sides, the own one, moves.

    Args:
        child: changes of the own side.
        other: the other side, attached to them.
        has_pairs: whether pairs come out.
        own: what comes out of an own row for its match or lack of one: ``pad``, ``semi``, ``anti``, None.
        back: the own side attached to rows of the other one, to count the matches that they had before.
        turned: what comes out of the other side's rows when their first match comes or their last one goes.
        own_tables: visible tables of the own side, to be padded in the other one's rows.
        other_tables: the other way round.
    """

    child: Delta
    other: Attach
    has_pairs: bool
    own: str | None
    back: Attach | None
    turned: str | None
    own_tables: frozenset[int]
    other_tables: frozenset[int]


Delta = LeafDelta | WhereDelta | InnerDelta | OuterDelta
