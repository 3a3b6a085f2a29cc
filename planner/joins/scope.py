"""The tables of a tree of joins while it is read, and what conditions say of their columns (pure).

Each table has ids of its own for its raw columns, so an expression over these means the same wherever it
stands.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import count
from typing import Final

import pyarrow as pa

from deltajoin.core.conditions import check_is_condition
from deltajoin.expressions import Condition, Ref
from deltajoin.filters import Predicate
from planner.joins.stack import Raw
from planner.plan.expressions import (
    Call,
    Column,
    Expr,
    are_joinable,
    columns_of,
    substituted,
    without_kinds,
    without_widening,
)
from planner.plan.nodes import Changelog, Relation
from planner.plan.null_tolerance import Outcome, Value, in_deletes
from planner.plan.sources import ManagedTable
from planner.plan.translate import NotTranslatableError, predicates_of, translated
from planner.refusals import Refused
from upsert.errors import ConfigurationError, SchemaError

_COMPUTE: Final = "compute it when the rows are written, as a column of the table"


@dataclass
class Scope:
    """What was found of a tree so far.

    Attributes:
        tables: the tables by number.
        raw: their columns.
        refs: id of each raw column -> the table and the column.
        flags: table -> the column that says whether a row has a part of it, where that is asked.
        where: table -> filters that its rows must pass.
        faults: why there is no delta join.
        computed: id of a column of the query -> what it is computed from, for messages.
        fresh: column ids that are not in use.
    """

    tables: list[Changelog] = field(default_factory=list)
    raw: list[Raw] = field(default_factory=list)
    refs: dict[int, Ref] = field(default_factory=dict)
    flags: dict[int, Column] = field(default_factory=dict)
    where: dict[int, list[Predicate]] = field(default_factory=dict)
    faults: list[Refused] = field(default_factory=list)
    computed: dict[int, Expr] = field(default_factory=dict)
    fresh: Iterator[int] = field(default_factory=lambda: count(-1, -1))

    def add(self, leaf: Changelog) -> Raw:
        """One more table."""
        number = len(self.tables)
        own = tuple(replace(column, ref=None) for column in without_kinds(leaf.columns))
        hidden = tuple(replace(column, id=next(self.fresh)) for column in own)
        raw = Raw(number, own, hidden)
        self.tables.append(leaf)
        self.raw.append(raw)
        self.refs |= {column.id: Ref(number, column.name) for column in hidden}
        return raw

    def pair(self, condition: Expr, columns: Mapping[int, Expr]) -> tuple[Ref, Ref] | None:
        """The columns of tables that a condition equates, if it does just that.

        `columns` says what the columns of the condition are computed from.
        """
        match condition:
            case Call("EqualTo", (a, b)):
                one, other = (without_widening(substituted(side, columns)) for side in (a, b))
                if isinstance(one, Column) and isinstance(other, Column) and are_joinable(one, other):
                    refs = self.refs.get(one.id), self.refs.get(other.id)
                    return None if refs[0] is None or refs[1] is None else (refs[0], refs[1])
        return None

    def condition(self, condition: Expr, columns: Mapping[int, Expr], what: str) -> Condition | None:
        """The condition for the tree; None if it cannot be there, which is a fault. `what` is it in words."""
        try:
            found = translated(substituted(condition, columns), self.refs)
            check_is_condition(found, self.type_of)
        except NotTranslatableError as cause:
            reason = f"{what} must hold inside the delta join, which cannot evaluate {cause}"
        except (ConfigurationError, SchemaError) as cause:
            reason = f"{what} must hold inside the delta join: {cause}"
        else:
            return found
        self.faults.append(Refused(reason, _COMPUTE))
        return None

    def type_of(self, ref: Ref) -> pa.DataType:
        """The type of a column."""
        return table_of(self.tables[ref.table]).schema.type_of(ref.column)

    def push(self, conditions: Sequence[Expr], columns: Mapping[int, Expr], tables: frozenset[int]) -> None:
        """Let the store leave out the rows of these tables that fail a condition."""
        raw = Relation("raw", tuple(column for part in self.raw for column in part.hidden))
        for condition in conditions:
            for column, predicate in predicates_of(substituted(condition, columns), raw):
                number = self.refs[column.id].table
                if number in tables:
                    self.where.setdefault(number, []).append(predicate)

    def null_if_missing(self, expr: Expr, witnesses: Sequence[int], keys: Sequence[Ref] = ()) -> Expr:
        """The expression, or NULL where a row is not there, which has a part of one of these tables.

        For conditions inside the join, which know no flags. `keys` are columns that have a value wherever the
        row is there: it would match nothing otherwise.
        """
        outcome = in_deletes(expr, dict.fromkeys(columns_of(expr), Outcome(Value.NULL)))
        if outcome is not None and outcome.value is Value.NULL:
            return expr
        if keys:
            return Call("CaseWhen", (Call("IsNotNull", (self.column(keys[0]),)), expr))
        never_null = [self.never_null(number) for number in witnesses]
        there = [Call("IsNotNull", (column,)) for column in never_null if column is not None]
        if len(there) < len(witnesses):
            return Call("Missing", (expr,))  # nothing tells a missing row of such a table from NULLs
        return Call("CaseWhen", (_any_of(there), expr))

    def column(self, ref: Ref) -> Column:
        """The raw column."""
        return next(column for column in self.raw[ref.table].hidden if column.name == ref.column)

    def never_null(self, number: int) -> Column | None:
        """A column of a table that no row has NULL in."""
        schema = table_of(self.tables[number]).schema
        names = {column.name for column in schema.columns if not column.nullable} | set(schema.primary_key)
        return next((column for column in self.raw[number].hidden if column.name in names), None)

    def is_there(self, witnesses: Sequence[int]) -> Expr:
        """True where a row exists that has a part of one of these tables, by flags of the delta join."""
        for number in witnesses:
            if number not in self.flags:
                self.flags[number] = Column(next(self.fresh), f"present_{number}", "boolean")
        return _any_of([self.flags[number] for number in witnesses])

    def no_keys(self, left: frozenset[int], right: frozenset[int], conditions: Sequence[Expr]) -> Refused:
        """That no condition equates columns of these tables, and what the conditions do instead."""
        for condition in conditions:
            match condition:
                case Call("EqualTo", (a, b)) if columns_of(a) and columns_of(b):
                    return self.computed_keys(condition, a, b)
        if any(isinstance(part, Call) and part.name == "EqualNullSafe" for part in conditions):
            return Refused("no equality between columns of both tables; <=> also matches NULL", "join on =")
        return Refused(
            f"no equality between a column of {self.names(left)} and one of {self.names(right)}",
            "join on equal columns; any other condition may come in addition",
        )

    def computed_keys(self, condition: Expr, *sides: Expr) -> Refused:
        """That a condition equates what is computed; a full outer join makes one key of two."""
        values = (substituted(side, self.computed) for side in sides)
        if any(isinstance(value, Call) and value.name == "Coalesce" for value in values):
            return Refused(
                f"{condition} compares a key that is computed of several columns by coalesce, as a full "
                "outer join USING does, and no index has it",
                "join on a column of one table, or write the full outer join into a managed table with an "
                "INDEX of that key and join its changes",
            )
        return Refused(
            f"no equality between plain columns of both tables, {condition} compares computed values",
            "add the computed value as a column of the table, with an INDEX",
        )

    def names(self, numbers: frozenset[int]) -> str:
        """Tables by their names."""
        return " or ".join(dict.fromkeys(repr(self.tables[number].name) for number in sorted(numbers)))


def _any_of(parts: Sequence[Expr]) -> Expr:
    return reduce(lambda whole, part: Call("Or", (whole, part)), parts)


def table_of(leaf: Changelog) -> ManagedTable:
    """The table of a changelog that fulfils the conditions of a delta join."""
    if not isinstance(leaf.origin, ManagedTable):
        raise AssertionError(f"the conditions of a delta join promise managed tables, got {leaf}")
    return leaf.origin
