"""The nodes of a plan as frozen values, and `Plan`, the sum of them (pure).

The `ref` of a node names the node apart from its children: a rule that replaces a child keeps it, a
rule that changes the node itself drops it. The rest goes by the types of a node's fields: its inputs are of
type `Plan`, what it evaluates of type `Expr`, `Output` or `GroupBy`, or tuples of these.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from deltajoin.aggregate.spec import Measure as Computation
from deltajoin.expressions import Condition, Ref
from deltajoin.filters import Filters, Predicate
from deltajoin.latest.spec import LatestJoin
from deltajoin.tree import Inner, Leaf, Node, On, Outer, Where, visible
from planner.plan.expressions import Aggregation, Column, Expr, ref_field, without_kinds
from planner.plan.sources import KafkaTopic, ManagedTable
from upsert.lookups.options import LookupTable
from upsert.stream_keys import UpsertKey

OBSERVATION: Final = "CollectMetrics"
"""Name of the node of `DataFrame.observe`: it passes rows on and counts them there."""

LOOKUP_JOIN: Final = "a lookup join"
"""What a join of two streams with lookups is called, also as a source of upserts."""


def filters_in_words(filters: Filters | None) -> str:
    """Alternatives, one of which must hold, as text; empty for None.

    >>> filters_in_words([[("a", ">", 3), ("b", "is null", None)]])
    'a > 3 and b is null'
    """
    return " or ".join(" and ".join(map(_predicate_in_words, parts)) for parts in filters or ())


def _predicate_in_words(predicate: Predicate) -> str:
    column, operator, value = predicate
    return f"{column} {operator}" if value is None else f"{column} {operator} {value!r}"


def typed(columns: Sequence[Column]) -> str:
    """Columns with their types, as text."""
    return f"[{', '.join(f'{column}: {column.type}' for column in columns)}]"


def _listed(parts: Sequence[object]) -> str:
    return ", ".join(map(str, parts))


class _OverChild:
    """A node that has the columns of its child."""

    child: Plan

    @property
    def columns(self) -> tuple[Column, ...]:
        """The child's."""
        return self.child.columns


@dataclass(frozen=True)
class JoinTable:
    """One table of a delta join: what is read of it, and which of its rows are left out.

    `compared` are those of the columns that do not come out of the join, at their end.
    """

    table: ManagedTable
    columns: tuple[Column, ...]
    where: tuple[Predicate, ...] = ()
    compared: frozenset[Column] = frozenset()

    @property
    def emitted(self) -> tuple[Column, ...]:
        """The columns that come out of the join."""
        return tuple(column for column in self.columns if column not in self.compared)

    @property
    def filters(self) -> Filters | None:
        """Which rows of the table take part: those that the read asks for, without those left out here."""
        if self.table.where is None:
            return (self.where,) if self.where else None
        return tuple((*parts, *self.where) for parts in self.table.where)

    @property
    def filters_in_words(self) -> str:
        """The same as text; empty for all rows."""
        return filters_in_words(self.filters)

    def __str__(self) -> str:
        compared = [column for column in self.columns if column in self.compared]
        comparing = f" comparing {typed(compared)}" if compared else ""
        where = f" where {self.filters_in_words}" if self.filters_in_words else ""
        return f"{self.table.name} {typed(self.emitted)}{comparing}{where}"


@dataclass(frozen=True)
class DeltaJoin:
    """Leaf: the changes of a tree of joins of managed tables, which are numbered from 0.

    Attributes:
        present: table and flag: whether a row has a part of the table, for those where that is asked.
        keep: which rows come out; None for all.
        is_net: whether no row may come out with both signs; where signs are summed they may.
    """

    tables: tuple[JoinTable, ...]
    tree: Node
    row_kind: Column
    present: tuple[tuple[int, Column], ...] = ()
    keep: Condition | None = None
    is_net: bool = True

    @property
    def columns(self) -> tuple[Column, ...]:
        """Columns of the tables that come out, in their order, the flags, and the kind."""
        of_tables = (column for _, column in self._emitted())
        return (*of_tables, *(flag for _, flag in self.present), self.row_kind)

    @property
    def refs(self) -> dict[int, Ref]:
        """Id of each column that comes out of a table -> the table and the column."""
        return {column.id: Ref(number, column.name) for number, column in self._emitted()}

    def _emitted(self) -> Iterator[tuple[int, Column]]:
        for number in sorted(visible(self.tree)):
            yield from ((number, column) for column in self.tables[number].emitted)

    def __str__(self) -> str:
        return f"DeltaJoin {self.row_kind}{''.join(f' {flag}' for _, flag in self.present)}"

    def lines(self) -> Iterator[str]:
        """The tree, then the tables, as text."""
        keep = "" if self.keep is None else f" keeping {self.keep}"
        yield f"{tree_in_words(self.tree)}{keep}{'' if self.is_net else ' not consolidated'}"
        yield from (f"t{number} {table}" for number, table in enumerate(self.tables))


def tree_in_words(node: Node) -> str:
    """A join tree in one line.

    >>> from deltajoin.expressions import Ref
    >>> tree_in_words(Outer("left", Leaf(0), Leaf(1), ((Ref(0, "a"), Ref(1, "b")),)))
    'left(t0, t1: t0.a = t1.b)'
    """
    match node:
        case Leaf(table):
            return f"t{table}"
        case Inner(children, on, where):
            return f"inner({', '.join(map(tree_in_words, children))}{_match(on, where)})"
        case Outer(kind, left, right, on, where):
            return f"{kind}({tree_in_words(left)}, {tree_in_words(right)}{_match(on, where)})"
        case Where(child, condition):
            return f"where({tree_in_words(child)}: {condition})"


def _match(on: On, where: Condition | None) -> str:
    parts = [f"{one} = {other}" for one, other in on] + ([] if where is None else [str(where)])
    return f": {' and '.join(parts)}" if parts else ""


@dataclass(frozen=True)
class TableRows:
    """What a query that reads rows of a managed table reads: the newest ones, or those of one snapshot."""

    table: ManagedTable
    snapshot: int | None = None

    def __str__(self) -> str:
        pinned = "" if self.snapshot is None else f" at snapshot {self.snapshot}"
        where = filters_in_words(self.table.where)
        return f"table {self.table.name}{pinned}{f' where {where}' if where else ''}"


@dataclass(frozen=True)
class LookupRows:
    """What a query that joins with a table whose rows are only looked up reads: the rows of keys."""

    table: LookupTable

    def __str__(self) -> str:
        return f"lookup table {self.table.name} ({self.table.connector})"


@dataclass(frozen=True)
class VersionRows:
    """Versions of a table's rows, of which each row of a stream is joined with the one that was valid then.

    Attributes:
        time: name of the stream's column that says when a row is; `at` is that column once it is found.
        valid_from: the table's column that says from when on a version is valid.
        has_deletes: whether a deletion says by that column when it was.
        changes: where the plan's own node is that gives the table's changes.
    """

    name: str
    key: tuple[str, ...]
    time: str
    valid_from: str
    has_deletes: bool
    changes: int | None = field(default=None, compare=False, repr=False)
    at: Column | None = None

    def __str__(self) -> str:
        return f"versions of {self.name} by {self.valid_from} as of {self.at or self.time}"


@dataclass(frozen=True)
class Enriched:
    """The rows of a stream, which are only added, with a table's rows that match when they are processed.

    Attributes:
        added: the table's columns, under the ids that they have in the query.
        keys: pairs of a column of the stream and the name of the table's column that must equal it.
        how: "inner" or "left".
    """

    child: Plan
    rows: TableRows | LookupRows | VersionRows
    added: tuple[Column, ...]
    keys: tuple[tuple[Column, str], ...]
    how: str

    @property
    def columns(self) -> tuple[Column, ...]:
        """The stream's, then the table's."""
        return (*self.child.columns, *self.added)

    def __str__(self) -> str:
        on = ", ".join(f"{column} = {name}" for column, name in self.keys)
        return f"Enriched {self.how} by {self.rows} {typed(self.added)} on ({on})"


@dataclass(frozen=True)
class EnrichedUpserts:
    """Upserts of changes: of each key the newest row, with what a table holds for it when it is processed.

    Attributes:
        added: the table's columns, under the ids that they have in the query.
        keys: pairs of a column of the changes and the name of the table's column that must equal it.
        how: "inner" or "left".
        key: columns of the changes by which rows replace each other.
    """

    child: Plan
    rows: LookupRows
    added: tuple[Column, ...]
    keys: tuple[tuple[Column, str], ...]
    how: str
    key: tuple[Column, ...]
    row_kind: Column

    @property
    def columns(self) -> tuple[Column, ...]:
        """Those of the changes without their kind, the table's, and the kind."""
        return (*without_kinds(self.child.columns), *self.added, self.row_kind)

    def __str__(self) -> str:
        on = ", ".join(f"{column} = {name}" for column, name in self.keys)
        what = f"{self.how} by {self.rows} {typed(self.added)} on ({on})"
        return f"EnrichedUpserts {what} of each ({_listed(self.key)}) in {self.row_kind}"


@dataclass(frozen=True)
class Normalized:
    """Changes that `upsert.normalize` makes whole, of rows known by `key`; of these `order` tells the newer.

    `refs` are the operator's nodes from the top down to the one above its input.
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
            case LookupChanges(LookupJoined() as joined):
                return f"{replace(self, origin=joined)._described()}, with -U"
            case Upserts(UpsertKey(keys=keys)):
                return f"{self.name} by ({', '.join('|'.join(names) for names in keys)})"
            case ManagedTable(scan_mode=mode) if mode != "full":
                return f"{mode} {self.name}"
            case _:
                return self.name


@dataclass(frozen=True)
class Relation:
    """Leaf: rows that are no changes, streaming or not.

    `topic` where they are the records of one, `rows` where they are those of a managed table, read at once,
    `lookups` where they are those of a table that is only looked up, or its versions.
    """

    name: str
    columns: tuple[Column, ...]
    is_streaming: bool = False
    topic: KafkaTopic | None = None
    rows: TableRows | None = None
    lookups: LookupRows | VersionRows | None = None
    ref: int | None = ref_field()

    def __str__(self) -> str:
        what = str(self.topic or self.rows or self.lookups or self.name)
        return f"{'Stream' if self.is_streaming else 'Relation'} {what} {typed(self.columns)}"


class WindowKind(StrEnum):
    """What `window(…)` or `session_window(…)` made a column."""

    TIME = "window"
    SESSION = "session_window"


@dataclass(frozen=True)
class GroupBy:
    """One expression of a GROUP BY; `window` where it is a window of time."""

    value: Expr
    window: WindowKind | None = None

    def __str__(self) -> str:
        return str(self.value) if self.window is None else f"{self.window} {self.value}"


@dataclass(frozen=True)
class Aggregate:
    """An aggregate as the user wrote it; without `groups` it is of all rows."""

    child: Plan
    groups: tuple[GroupBy, ...]
    outputs: tuple[Output, ...]
    ref: int | None = ref_field()

    @property
    def columns(self) -> tuple[Column, ...]:
        """The computed columns, in order."""
        return tuple(output.column for output in self.outputs)

    def __str__(self) -> str:
        return f"Aggregate by ({_listed(self.groups)}) [{_listed(self.outputs)}]"


@dataclass(frozen=True)
class Group:
    """A GROUP BY expression, and the column of the input that holds it."""

    by: GroupBy
    column: Column

    def __str__(self) -> str:
        return f"{self.by} in {self.column}"


@dataclass(frozen=True)
class Measure:
    """An aggregate function, and the columns of the input that hold its values and its condition."""

    function: Aggregation
    values: tuple[Column, ...]
    condition: Column | None = None

    def __str__(self) -> str:
        where = "" if self.condition is None else f" where {self.condition}"
        return f"{self.function.name}({_listed(self.values)}){where}"


@dataclass(frozen=True)
class Computed:
    """An aggregate function, how it is computed from a table's rows, and the column that holds the result."""

    function: Aggregation
    by: Computation
    column: Column

    def __str__(self) -> str:
        return f"{self.function} in {self.column}"


@dataclass(frozen=True)
class LookupAggregate:
    """Leaf: the changes of an aggregate of one table, each group computed from all of its rows.

    Attributes:
        groups: a column of the table for each GROUP BY expression.
        keys: names of these columns.
        index: by what the rows of a group are found.
        where: which rows count; None for all.
        outputs: the columns of the user's aggregate.
    """

    table: ManagedTable
    groups: tuple[Group, ...]
    keys: tuple[str, ...]
    index: str
    measures: tuple[Computed, ...]
    where: Condition | None
    outputs: tuple[Output, ...]
    row_kind: Column

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of the user's aggregate, and the kind."""
        return (*(output.column for output in self.outputs), self.row_kind)

    def __str__(self) -> str:
        conditions = (filters_in_words(self.table.where), "" if self.where is None else str(self.where))
        where = "".join(f" where {condition}" for condition in conditions if condition)
        by = f"({', '.join(self.keys)}) by {self.index}"
        return f"LookupAggregate {self.table.name} {by}{where} [{_listed((*self.outputs, self.row_kind))}]"


@dataclass(frozen=True)
class SignedAggregate:
    """Upserts of groups: of each that changes its new row, `+U`, or `-D` where no row of it is left.

    The input has nothing but the columns that groups and measures name, and the kind. An aggregate of all
    rows has one group, which is never deleted.
    """

    child: Plan
    groups: tuple[Group, ...]
    measures: tuple[Measure, ...]
    outputs: tuple[Output, ...]
    row_kind: Column

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of the user's aggregate, and the kind."""
        return (*(output.column for output in self.outputs), self.row_kind)

    def __str__(self) -> str:
        groups, measures = _listed(self.groups), _listed(self.measures)
        outputs = _listed((*self.outputs, self.row_kind))
        return f"SignedAggregate by ({groups}) of ({measures}) [{outputs}]"


@dataclass(frozen=True)
class Output:
    """One column of a Project and the expression it is computed by."""

    column: Column
    value: Expr
    ref: int | None = ref_field()

    @classmethod
    def of(cls, column: Column) -> Output:
        """The column passed on as it is."""
        bare = replace(column, ref=None)
        return cls(bare, bare)

    @property
    def is_passed_on(self) -> bool:
        """Whether the column comes from below under its own id."""
        return self.value == self.column

    def __str__(self) -> str:
        return str(self.column) if self.is_passed_on else f"{self.value} AS {self.column}"


@dataclass(frozen=True)
class Project:
    """Columns computed from those of the child.

    `known_keys` are unique keys of its rows that an earlier `optimize` has found, by their names.
    """

    child: Plan
    outputs: tuple[Output, ...]
    known_keys: tuple[tuple[tuple[str, ...], ...], ...] = field(default=(), compare=False, repr=False)
    ref: int | None = ref_field()

    @property
    def columns(self) -> tuple[Column, ...]:
        """The computed columns, in order."""
        return tuple(output.column for output in self.outputs)

    @property
    def is_columns_alone(self) -> bool:
        """Whether it only names and chooses columns, so that NULLs pass through it."""
        return all(isinstance(output.value, Column) for output in self.outputs)

    def __str__(self) -> str:
        return f"Project [{_listed(self.outputs)}]"


@dataclass(frozen=True)
class Filter(_OverChild):
    """The child's rows for which the condition is true."""

    child: Plan
    condition: Expr
    ref: int | None = ref_field()

    def __str__(self) -> str:
        return f"Filter {self.condition}"


@dataclass(frozen=True)
class Watermark(_OverChild):
    """The child's rows, with one column declared as event time."""

    child: Plan
    column: Expr
    ref: int | None = ref_field()

    def __str__(self) -> str:
        return f"Watermark {self.column}"


@dataclass(frozen=True)
class Wrapper(_OverChild):
    """A node that leaves rows and columns as they are: a name, a hint, another distribution.

    `uses` are the columns by which it distributes rows, or that it observes.
    """

    child: Plan
    name: str
    uses: tuple[Expr, ...] = ()
    ref: int | None = ref_field()

    def __str__(self) -> str:
        return f"{self.name} [{_listed(self.uses)}]" if self.uses else self.name


@dataclass(frozen=True)
class Join:
    """A join as the user wrote it; `kind` in lower case, as in "left outer"."""

    left: Plan
    right: Plan
    kind: str
    condition: Expr | None
    columns: tuple[Column, ...]
    ref: int | None = ref_field()

    def __str__(self) -> str:
        return f"Join {self.kind}" + (f" ON {self.condition}" if self.condition is not None else "")


@dataclass(frozen=True)
class Union:
    """The rows of all inputs, aligned by position; columns have the names and ids of the first input's."""

    inputs: tuple[Plan, ...]
    ref: int | None = ref_field()

    @property
    def columns(self) -> tuple[Column, ...]:
        """The first input's."""
        return self.inputs[0].columns

    def __str__(self) -> str:
        return "Union"


@dataclass(frozen=True)
class Generate:
    """The child's rows, each as often as a generator like `explode` makes rows of it, with these added.

    Where it makes none, there is a row with NULL if it `is_outer`.
    """

    child: Plan
    generator: Expr
    made: tuple[Column, ...]
    is_outer: bool = False
    ref: int | None = ref_field()

    @property
    def columns(self) -> tuple[Column, ...]:
        """The child's, and those that the generator makes."""
        return (*self.child.columns, *self.made)

    def __str__(self) -> str:
        return f"Generate {'outer ' * self.is_outer}{self.generator} AS {typed(self.made)}"


@dataclass(frozen=True)
class SlidingWindows:
    """The child's rows, each in as many windows of time as may hold it: `made`, the first column, is which.

    `values` are what the windows are computed by. A filter above leaves out windows that do not hold the row.
    """

    child: Plan
    made: Column
    values: tuple[Expr, ...]
    ref: int | None = ref_field()

    @property
    def columns(self) -> tuple[Column, ...]:
        """The window, and the child's."""
        return (self.made, *self.child.columns)

    def __str__(self) -> str:
        return f"SlidingWindows {self.made} of {_listed(self.values)}"


@dataclass(frozen=True)
class Distinct(_OverChild):
    """One of the child's rows that are equal in the `keys`: `dropDuplicates`; with all columns: DISTINCT."""

    child: Plan
    keys: tuple[Column, ...]
    ref: int | None = ref_field()

    @property
    def is_of_whole_rows(self) -> bool:
        """Whether rows must be equal in all columns, their kind aside."""
        keys = {key.id for key in self.keys}
        return all(column.id in keys or column.is_row_kind for column in self.columns)

    def __str__(self) -> str:
        return f"Distinct [{_listed(self.keys)}]"


@dataclass(frozen=True)
class RegularJoin:
    """The consolidated changes of Spark's own inner join: its rows, with the product of both inputs' signs.

    `reason` and `remedy` say why it is no delta join, and how it becomes one.
    """

    left: Plan
    right: Plan
    condition: Expr
    row_kind: Column
    reason: str = field(compare=False)
    remedy: str = field(compare=False)
    ref: int | None = ref_field()

    @property
    def columns(self) -> tuple[Column, ...]:
        """Those of both inputs without their kinds, and the kind."""
        return (*without_kinds((*self.left.columns, *self.right.columns)), self.row_kind)

    def __str__(self) -> str:
        return f"RegularJoin {self.row_kind} ON {self.condition}"


@dataclass(frozen=True)
class Apart:
    """What a node computes for the rows of each partition apart, with no look at those of others.

    Equal values and NULLs of `by` are one partition; `used` are ids of all columns that it evaluates.
    """

    by: tuple[Column, ...]
    used: frozenset[int]


@dataclass(frozen=True)
class Opaque:
    """A node that is never rewritten, nor what lies below; `apart` is known of window functions."""

    name: str
    inputs: tuple[Plan, ...]
    columns: tuple[Column, ...]
    ref: int | None = ref_field()
    apart: Apart | None = None

    def __str__(self) -> str:
        return f"Opaque {self.name} [{_listed(self.columns)}]"


Unary = Project | Filter | Watermark | Wrapper
Aggregated = Aggregate | SignedAggregate | LookupAggregate

Plan = (
    Changelog
    | Relation
    | DeltaJoin
    | Unary
    | Aggregated
    | Join
    | Union
    | Generate
    | SlidingWindows
    | Distinct
    | RegularJoin
    | Enriched
    | EnrichedUpserts
    | Opaque
)
