"""A Spark plan as frozen values: its nodes, and how each prints (pure).

The `ref` of a node stands for the node apart from its children: a rule that replaces a child keeps it, a
rule that changes the node itself drops it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from planner.aggregate_nodes import Aggregate, LookupAggregate, SignedAggregate
from planner.changelogs import Changelog, Relation
from planner.delta_join import DeltaJoin, typed
from planner.enriched import Enriched
from planner.expressions import Column, Expr, ref_field


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

    def __str__(self) -> str:
        return f"Project [{', '.join(str(output) for output in self.outputs)}]"


@dataclass(frozen=True)
class Filter:
    """The child's rows for which the condition is true."""

    child: Plan
    condition: Expr
    ref: int | None = ref_field()

    @property
    def columns(self) -> tuple[Column, ...]:
        """The child's."""
        return self.child.columns

    def __str__(self) -> str:
        return f"Filter {self.condition}"


@dataclass(frozen=True)
class Watermark:
    """The child's rows, with one column declared as event time."""

    child: Plan
    column: Column
    ref: int | None = ref_field()

    @property
    def columns(self) -> tuple[Column, ...]:
        """The child's."""
        return self.child.columns

    def __str__(self) -> str:
        return f"Watermark {self.column}"


@dataclass(frozen=True)
class Wrapper:
    """A node that leaves rows and columns as they are: a name, a hint, another distribution."""

    child: Plan
    name: str
    ref: int | None = ref_field()

    @property
    def columns(self) -> tuple[Column, ...]:
        """The child's."""
        return self.child.columns

    def __str__(self) -> str:
        return self.name


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
    """The child's rows, each as often as a generator like `explode` makes rows of it, with these added."""

    child: Plan
    generator: Expr
    made: tuple[Column, ...]
    ref: int | None = ref_field()

    @property
    def columns(self) -> tuple[Column, ...]:
        """The child's, and those that the generator makes."""
        return (*self.child.columns, *self.made)

    def __str__(self) -> str:
        return f"Generate {self.generator} AS {typed(self.made)}"


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
        return f"SlidingWindows {self.made} of {', '.join(map(str, self.values))}"


@dataclass(frozen=True)
class Distinct:
    """One of the child's rows that are equal in the `keys`: `dropDuplicates`; with all columns: DISTINCT."""

    child: Plan
    keys: tuple[Column, ...]
    ref: int | None = ref_field()

    @property
    def columns(self) -> tuple[Column, ...]:
        """The child's."""
        return self.child.columns

    @property
    def is_of_whole_rows(self) -> bool:
        """Whether rows must be equal in all columns, their kind aside."""
        keys = {key.id for key in self.keys}
        return all(column.id in keys or column.is_row_kind for column in self.columns)

    def __str__(self) -> str:
        return f"Distinct [{', '.join(map(str, self.keys))}]"


@dataclass(frozen=True)
class RegularJoin:
    """The net changes of Spark's own inner join of two inputs: its rows, with the product of their signs.

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
        both = (*self.left.columns, *self.right.columns)
        return (*(column for column in both if not column.is_row_kind), self.row_kind)

    def __str__(self) -> str:
        return f"RegularJoin {self.row_kind} ON {self.condition}"


@dataclass(frozen=True)
class Opaque:
    """A node that the planner does not look into; it is never rewritten, nor what lies below it."""

    name: str
    inputs: tuple[Plan, ...]
    columns: tuple[Column, ...]
    ref: int | None = ref_field()

    def __str__(self) -> str:
        return f"Opaque {self.name} [{', '.join(str(column) for column in self.columns)}]"


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
    | Opaque
)
