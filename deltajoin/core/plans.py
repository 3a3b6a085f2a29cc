"""How the changes of one table become changes of the join: what is looked up, by what, in which order (pure).

One path for each table of the tree. Within a region of INNER joins the next child is always one that some
index can find by what is already bound; of several the one with fewest expected rows. What is bound only
grows, so this finds an order if one exists. Outer joins leave no choice for a change: their other
side is looked up by their keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, assert_never

from deltajoin.expressions import Condition, Ref, conjunction, conjuncts, refs_of
from deltajoin.tree import (
    Inner,
    Leaf,
    Node,
    On,
    Outer,
    Where,
    columns_of,
    equivalence_classes,
    leaves,
    visible,
)
from upsert.errors import SchemaError


@dataclass(frozen=True)
class UnreachableLookup:
    """A lookup that a path needs and no index serves: table, columns, and whose changes need it."""

    table: int
    name: str
    by: tuple[str, ...]
    driver: int
    driver_name: str

    def __str__(self) -> str:
        where = f"table {self.name!r} (t{self.table})"
        if not self.by:
            return (
                f"{where}: changes of {self.driver_name!r} (t{self.driver}) must find its rows by an "
                "equality, there is none; add a condition t.column = other.column to the join"
            )
        columns = ", ".join(self.by)
        return (
            f"{where}: a PRIMARY KEY, a prefix of it or an INDEX must lie within the join columns "
            f"({columns}) by which changes of {self.driver_name!r} (t{self.driver}) find its rows, there is "
            f"none; declare INDEX ({columns}) in its CREATE TABLE"
        )


class NoLookupError(SchemaError):
    """A path needs a lookup that no index serves: ``lookup`` says which."""

    def __init__(self, lookup: UnreachableLookup) -> None:
        super().__init__(str(lookup))
        self.lookup = lookup


Source = Ref | int
"""Where the value of a key comes from: a column of the rows found so far, or the n-th value of a probe."""

Equal = tuple[tuple[Source, Source], ...]
"""Values that must be equal as join keys are: NULL equals nothing."""


@dataclass(frozen=True)
class Attach:
    """Rows of one more node for each existing row.

    ``sources`` are the values by which the node is looked up, one for each of ``lookup.by``. A row matches
    where ``equal`` and ``where`` hold as well.
    """

    lookup: Lookup
    sources: tuple[Source, ...]
    equal: Equal = ()
    where: Condition | None = None


@dataclass(frozen=True)
class LeafLookup:
    """Rows of a table by an index, with the columns to bring and how many rows a key is expected to have."""

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
    def rows(self) -> float:
        """Expected rows of a key."""
        return self.child.rows


@dataclass(frozen=True)
class InnerLookup:
    """Rows of an INNER join: its children one after the other, from the probe on."""

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
    """Rows of an `Outer` one of whose sides, the own one, moves; the other one is attached to its changes.

    Args:
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


class TableFacts(Protocol):
    """What is known of the tables of a tree, by number."""

    def name(self, table: int) -> str:
        """Its name, for people."""

    def index_for(self, table: int, columns: Sequence[str]) -> str | None:
        """What serves a lookup by these columns: a primary key, a prefix of it, an index; None if nothing."""

    def rows_per_key(self, table: int, columns: Sequence[str]) -> float:
        """How many rows a lookup of one value of these columns is expected to bring."""

    def select(self, table: int) -> tuple[str, ...]:
        """Columns that come out of the join, those that the tree uses among them."""


def moving_order(tree: Node) -> tuple[int, ...]:
    """Tables in the order in which they move from old to new while the later ones are still old.

    Those that supply matches to an outer join go before those whose rows they match: a row that comes
    together with its match is then never padded first.
    """
    return tuple(sorted(leaves(tree), key=lambda table: (-_depth(tree, table), table)))


def _depth(node: Node, table: int) -> int:
    """How many outer joins the table supplies matches to."""
    match node:
        case Outer(_, left, right):
            if table in leaves(right):
                return 1 + _depth(right, table)
            return _depth(left, table)
        case Inner(children):
            return max(_depth(child, table) for child in children if table in leaves(child))
        case Where(child):
            return _depth(child, table)
        case Leaf():
            return 0


def delta_of(tree: Node, table: int, facts: TableFacts) -> Delta:
    """The plan by which changes of a table become changes of the join of a flattened tree."""
    return _Planner(tree, table, facts).delta(tree)


@dataclass(frozen=True)
class _Planner:
    """Makes the plan of one table's changes."""

    tree: Node
    driver: int
    facts: TableFacts

    def delta(self, node: Node) -> Delta:
        match node:
            case Leaf(table):
                return LeafDelta(table)
            case Where(child, condition):
                return WhereDelta(self.delta(child), condition)
            case Inner(children):
                own = next(child for child in children if self.driver in leaves(child))
                region = _Region(self, node, ())
                equal, where = region.bind(own)
                return InnerDelta(self.delta(own), equal, where, region.steps())
            case Outer():
                return self.outer_delta(node)

    def outer_delta(self, node: Outer) -> OuterDelta:
        is_left = self.driver in leaves(node.left)
        own, other = (node.left, node.right) if is_left else (node.right, node.left)
        of_own, of_other = (0, 1) if is_left else (1, 0)
        has_pairs = node.kind in ("left", "full")
        of_left = "pad" if has_pairs else node.kind
        of_right = "pad" if node.kind == "full" else None
        of_rows, turned = (of_left, of_right) if is_left else (of_right, of_left)
        back = self.attach(own, node.on, of_other, of_own, node.where, counts=True) if turned else None
        return OuterDelta(
            self.delta(own),
            self.attach(other, node.on, of_own, of_other, node.where, counts=not has_pairs and is_left),
            has_pairs,
            of_rows,
            back,
            turned,
            visible(own) & visible(node),
            visible(other) & visible(node),
        )

    def attach(
        self, node: Node, on: On, own: int, other: int, where: Condition | None, *, counts: bool
    ) -> Attach:
        """A side of an outer join for rows of the other one; ``counts`` where only its keys matter."""
        sources: dict[Ref, Source] = {}
        equal: list[tuple[Source, Source]] = []
        for pair in on:
            first = sources.setdefault(pair[other], pair[own])
            if first != pair[own]:
                equal.append((first, pair[own]))
        lookup = self.lookup(node, tuple(sources), counts=counts)
        return Attach(lookup, tuple(sources.values()), tuple(equal), where)

    def lookup(self, node: Node, by: tuple[Ref, ...], *, counts: bool) -> Lookup:
        match node:
            case Leaf(table):
                return self.leaf(table, by, counts=counts)
            case Where(child, condition):
                return WhereLookup(self.lookup(child, by, counts=counts), condition)
            case Inner():
                return InnerLookup(_Region(self, node, by, counts=counts).steps())
            case Outer():
                return self.outer_lookup(node, by, counts=counts)

    def leaf(self, table: int, by: tuple[Ref, ...], *, counts: bool) -> LeafLookup:
        columns = tuple(ref.column for ref in by)
        index = self.facts.index_for(table, columns) if columns else None
        if index is None:
            raise self.missing(table, columns)
        rows = self.facts.rows_per_key(table, columns)
        return LeafLookup(table, by, index, rows, self.selected(table, columns, counts=counts))

    def selected(self, table: int, by: tuple[str, ...], *, counts: bool) -> tuple[str, ...]:
        """Columns to bring: all where they come out, else those that the tree uses."""
        if not counts and table in visible(self.tree):
            return self.facts.select(table)
        used = {ref.column for ref in columns_of(self.tree) if ref.table == table} | set(by)
        return tuple(column for column in self.facts.select(table) if column in used)

    def outer_lookup(self, node: Outer, by: tuple[Ref, ...], *, counts: bool) -> OuterLookup:
        """By the left columns if there are any and an index serves them, else by the right ones."""
        failures = []
        for is_left in (True, False):
            own = node.left if is_left else node.right
            if not any(ref.table in visible(own) for ref in by) or (
                not is_left and node.kind in ("semi", "anti")
            ):
                continue
            try:
                return self.outer_lookup_from(node, by, counts=counts, is_left=is_left)
            except NoLookupError as missing:
                failures.append(missing)
        raise failures[0] if failures else self.missing(leaves(node)[0], ())

    def outer_lookup_from(
        self, node: Outer, by: tuple[Ref, ...], *, counts: bool, is_left: bool
    ) -> OuterLookup:
        own, other = (node.left, node.right) if is_left else (node.right, node.left)
        of_own, of_other = (0, 1) if is_left else (1, 0)
        mine = {ref: number for number, ref in enumerate(by) if ref.table in visible(own)}
        start = Attach(self.lookup(own, tuple(mine), counts=counts), tuple(mine.values()))
        only_counts = counts or node.kind in ("semi", "anti")
        attached = self.attach(other, node.on, of_own, of_other, node.where, counts=only_counts)
        rest: Equal = tuple((ref, number) for number, ref in enumerate(by) if ref not in mine)
        padded = node.kind == "full" or (node.kind == "left" and is_left)
        own_rows = node.kind if node.kind in ("semi", "anti") else "pad" if padded else None
        return OuterLookup(start, attached, own_rows, visible(other) & visible(node), rest)

    def missing(self, table: int, columns: tuple[str, ...]) -> NoLookupError:
        name, driver = self.facts.name(table), self.facts.name(self.driver)
        return NoLookupError(UnreachableLookup(table, name, columns, self.driver, driver))


class _Region:
    """Children of an INNER join, bound one after the other."""

    def __init__(self, planner: _Planner, node: Inner, by: tuple[Ref, ...], *, counts: bool = False) -> None:
        self._planner = planner
        self._counts = counts
        probe: list[tuple[Source, Source]] = [(number, ref) for number, ref in enumerate(by)]
        self._classes = equivalence_classes([*probe, *node.on])
        asked = [[source for source in members if isinstance(source, int)] for members in self._classes]
        self._equal: list[tuple[Source, Source]] = [
            (numbers[0], another) for numbers in asked for another in numbers[1:]
        ]
        self._left = list(node.children)
        self._tables: frozenset[int] = frozenset()
        self._conditions = list(conjuncts(node.where))

    def bind(self, child: Node) -> tuple[Equal, Condition | None]:
        """A child's rows are bound: what they must fulfil by themselves."""
        self._left.remove(child)
        before, self._tables = self._tables, self._tables | visible(child)
        equal, self._equal = self._equal, []
        for members in self._classes:
            own = [source for source in members if isinstance(source, Ref) and source.table in visible(child)]
            bound = [s for s in members if isinstance(s, int) or s.table in before]
            if own and not bound:
                equal += [(own[0], another) for another in own[1:]]
        now = [c for c in self._conditions if {ref.table for ref in refs_of(c)} <= self._tables]
        self._conditions = [c for c in self._conditions if c not in now]
        return tuple(equal), conjunction(*now)

    def steps(self) -> tuple[Attach, ...]:
        """The lookups of all children that are left, in a good order."""
        steps = []
        while self._left:
            child, lookup, sources = self._next()
            equal, where = self.bind(child)
            steps.append(Attach(lookup, sources, equal, where))
        return tuple(steps)

    def _next(self) -> tuple[Node, Lookup, tuple[Source, ...]]:
        found: list[tuple[float, Node, Lookup, tuple[Source, ...]]] = []
        failures: list[NoLookupError] = []
        for child in self._left:
            bound = self._bound(child)
            try:
                lookup = self._planner.lookup(child, tuple(bound), counts=self._counts)
            except NoLookupError as missing:
                failures.append(missing)
            else:
                found.append((lookup.rows, child, lookup, tuple(bound.values())))
        if not found:
            # a table without an index is the better hint than one that nothing leads to yet
            raise max(failures, key=lambda missing: bool(missing.lookup.by))
        _, child, lookup, sources = min(found, key=lambda one: (one[0], min(leaves(one[1]))))
        return child, lookup, sources

    def _bound(self, child: Node) -> dict[Ref, Source]:
        """Columns of a child whose values are known, and from where."""
        bound: dict[Ref, Source] = {}
        for members in self._classes:
            known = [s for s in members if isinstance(s, int) or s.table in self._tables]
            if known:
                own = (s for s in members if isinstance(s, Ref) and s.table in visible(child))
                bound.update(dict.fromkeys(own, known[0]))
        return bound


@dataclass(frozen=True)
class PathStep:
    """One lookup of a path: in which table, by which columns and index, how many rows for each it expects.

    >>> print(PathStep(0, "orders", ("id",), "PRIMARY KEY", 44.767))
    t0 orders by (id) with PRIMARY KEY, ~45 rows a key
    """

    table: int
    name: str
    by: tuple[str, ...]
    index: str
    rows: float

    def __str__(self) -> str:
        by = ", ".join(self.by)
        rows = f"{self.rows:.2g}" if self.rows < 10 else round(self.rows)
        return f"t{self.table} {self.name} by ({by}) with {self.index}, ~{rows} rows a key"


@dataclass(frozen=True)
class Path:
    """What changes of one table look up, in turn."""

    table: int
    name: str
    steps: tuple[PathStep, ...]

    def __str__(self) -> str:
        return " → ".join((f"changes of t{self.table} {self.name}", *map(str, self.steps)))


def paths_of(tree: Node, facts: TableFacts) -> tuple[Path, ...]:
    """The path of each table, in the order in which the tables move: see `moving_order`."""
    return tuple(
        Path(table, facts.name(table), tuple(_path_steps(delta_of(tree, table, facts), facts)))
        for table in moving_order(tree)
    )


def unreachable_lookups(tree: Node, facts: TableFacts) -> tuple[UnreachableLookup, ...]:
    """What stands in the way of each path, at most one for each; none when the join is eligible."""
    found: dict[tuple[int, tuple[str, ...]], UnreachableLookup] = {}
    for table in moving_order(tree):
        try:
            delta_of(tree, table, facts)
        except NoLookupError as missing:
            found.setdefault((missing.lookup.table, missing.lookup.by), missing.lookup)
    return tuple(found.values())


def _path_steps(plan: Delta | Lookup | Attach, facts: TableFacts) -> Iterator[PathStep]:
    """All lookups of a plan, in the order in which they are made."""
    if isinstance(plan, LeafLookup):
        by = tuple(ref.column for ref in plan.by)
        yield PathStep(plan.table, facts.name(plan.table), by, plan.index, plan.rows)
    for part in _parts(plan):
        yield from _path_steps(part, facts)


def _parts(plan: Delta | Lookup | Attach) -> tuple[Delta | Lookup | Attach, ...]:
    match plan:
        case LeafLookup() | LeafDelta():
            return ()
        case Attach(child) | WhereLookup(child) | WhereDelta(child):
            return (child,)
        case InnerLookup(steps):
            return steps
        case OuterLookup(start, other):
            return start, other
        case InnerDelta(child, steps=steps):
            return child, *steps
        case OuterDelta(child, other, back=back):
            return (child, other) if back is None else (child, other, back)
        case _:
            assert_never(plan)
