"""Plans over few rows, computed in Arrow as Spark computes them, or not at all (pure).

Most of what a refresh computes of few changed rows is a filter, a product and sums by group. Spark takes ten
milliseconds to be asked for that. Here it takes one, where each expression is a condition of
`upsert.conditions.evaluate`, and each aggregate function one of `upsert.store.rows.measures`: they give
what Spark gives. Whatever else a plan has is refused when it is read. What is an error, above all an
overflow, is refused when it is met, and Spark says then what kind of error it is. See docs/decisions/0092.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Final, Protocol, assert_never

import pyarrow as pa

from deltajoin import expressions as inside
from deltajoin.aggregate.spec import Measure
from deltajoin.expressions import Condition, Field, Ref
from planner.plan.arrow_steps import Appended, Grouped, Joined
from planner.plan.expressions import (
    Aggregation,
    Call,
    Cast,
    Column,
    Expr,
    Literal,
    columns_of,
    conjunction,
    conjuncts,
)
from planner.plan.nodes import (
    OBSERVATION,
    Aggregate,
    Filter,
    Join,
    Opaque,
    Output,
    Plan,
    Project,
    Relation,
    Union,
    Wrapper,
)
from planner.plan.translate import (
    GIVEN,
    OF_COMPUTED_ROWS,
    TEXT,
    NotTranslatableError,
    arrow_type,
    translated,
)
from planner.plan.trees import aggregations, equalities
from upsert.conditions.evaluate import MOST_NEGATED_DIGITS, type_of
from upsert.errors import ConfigurationError, SchemaError
from upsert.store.rows.computed import (
    Figure,
    Filtered,
    First,
    Hash,
    InArrow,
    Input,
    NotInArrowError,
    Observation,
    Observed,
    Projected,
    Step,
)
from upsert.store.rows.measures import result_type

_FUNCTIONS: Final[Mapping[str, str]] = {
    "Average": "avg",
    "Count": "count",
    "Max": "max",
    "Min": "min",
    "Sum": "sum",
}
"""Catalyst class -> function of `upsert.store.rows.measures`."""


_ZERO: Final = inside.Const(Decimal(0), pa.decimal128(1, 0))

_ARITHMETIC: Final = frozenset({"+", "-", "*", "neg", "abs"})
"""Operators that overflow, of integers."""


@dataclass(frozen=True)
class Given:
    """Rows that a plan reads: which of its inputs, and their columns as the plan has them."""

    number: int
    schema: pa.Schema


@dataclass(frozen=True)
class Order:
    """One of the expressions by which rows are ordered."""

    by: Expr
    is_ascending: bool
    are_nulls_first: bool


class Asked(Protocol):
    """What orders, limits and observations are of, whose nodes do not say it."""

    def orders(self, node: Opaque) -> Sequence[Order]:
        """By what a Sort orders rows."""

    def limit(self, node: Opaque) -> int | None:
        """How many rows a limit lets through; None if that is computed."""

    def observed(self, node: Wrapper) -> Sequence[Output]:
        """What is told of observed rows."""


def in_arrow(plan: Plan, given: Mapping[int, Given], asked: Asked, schema: pa.Schema) -> InArrow:
    """Read a plan; its leaves are given by their ``ref``, and what its nodes do not say is asked for.

    Raises:
        NotInArrowError: Spark has to compute it.
    """
    reading = _Reading(given, asked)
    try:
        step, _ = reading.step(plan, frozenset(column.id for column in plan.columns))
    except (NotTranslatableError, ConfigurationError, SchemaError) as cause:
        raise NotInArrowError(str(cause)) from cause
    names = tuple(_name(column.id) for column in plan.columns)
    return InArrow(step, names, schema, tuple(reading.observations))


def _name(id: int) -> str:
    return str(id)


_Types = Mapping[str, pa.DataType]
"""The columns that expressions may use, and their types."""


class _Reading:
    """Reads one plan; equal expressions become one object, whose value is remembered."""

    def __init__(self, given: Mapping[int, Given], asked: Asked) -> None:
        self._given = given
        self._orders, self._limit, self._observed = asked.orders, asked.limit, asked.observed
        self.observations: list[Observation] = []
        self._conditions: dict[tuple[object, ...], Condition] = {}
        self._figures = 0

    def step(self, plan: Plan, needed: frozenset[int]) -> tuple[Step, _Types]:
        """A node with those of its columns that are needed, and what of them expressions may use."""
        match plan:
            case Relation(ref=int(ref)) if ref in self._given:
                return self._input(plan, self._given[ref], needed)
            case Wrapper(child, name) if name == OBSERVATION:
                return self._observation(plan, child, needed)
            case Wrapper(child):
                return self.step(child, needed)
            case Filter(child, condition):
                below, types = self.step(child, needed | columns_of(condition))
                names = tuple(_name(column.id) for column in child.columns if column.id in needed)
                return Filtered(below, self._condition(condition, types), names), types
            case Project(child, outputs):
                wanted = [output for output in outputs if output.column.id in needed]
                used = columns_of(*(output.value for output in wanted))
                below, types = self.step(child, used)
                computed = [(output.column, output.value) for output in wanted]
                found, of = self._outputs(computed, types)
                return Projected(below, found), of
            case Aggregate():
                return self._aggregate(plan, needed)
            case Join():
                return self._join(plan, needed)
            case Opaque(name="Sort" | "GlobalLimit" | "LocalLimit", inputs=(child,)):
                return self._first(plan, child, needed)
            case Union(inputs):
                return self._union(plan, inputs, needed)
        raise NotInArrowError(f"{type(plan).__name__} {getattr(plan, 'name', '')}".strip())

    def _input(self, plan: Relation, given: Given, needed: frozenset[int]) -> tuple[Step, _Types]:
        pairs = [
            (column, one)
            for column, one in zip(plan.columns, given.schema, strict=True)
            if column.id in needed
        ]
        # others go through as they are: texts with a collation compare in another way, arrays not at all
        types = {_name(column.id): one.type for column, one in pairs if arrow_type(column.type) == one.type}
        columns = tuple((_name(column.id), one.name, one.type) for column, one in pairs)
        return Input(given.number, columns), types

    def _union(self, plan: Union, inputs: Sequence[Plan], needed: frozenset[int]) -> tuple[Step, _Types]:
        at = [number for number, column in enumerate(plan.columns) if column.id in needed]
        children = []
        found: list[list[pa.DataType | None]] = []
        for one in inputs:
            ids = [one.columns[number].id for number in at]
            below, types = self.step(one, frozenset(ids))
            children.append((below, tuple(map(_name, ids))))
            found.append([types.get(_name(id)) for id in ids])
        if any(of != found[0] or None in of for of in found):
            raise NotInArrowError("UNION ALL of columns of other types")
        names = tuple(_name(plan.columns[number].id) for number in at)
        return Appended(tuple(children), names), dict(zip(names, found[0], strict=True))

    def _join(self, plan: Join, needed: frozenset[int]) -> tuple[Step, _Types]:
        if plan.kind not in ("inner", "cross", "left outer", "left semi", "left anti"):
            raise NotInArrowError(f"a {plan.kind} join")
        sides = [frozenset(column.id for column in side.columns) for side in (plan.left, plan.right)]
        equal = {id(part): pair for part, *pair in equalities(plan)}
        pairs = [*equal.values()]
        rest = [part for part in conjuncts(plan.condition) if id(part) not in equal]
        wanted = needed | columns_of(*rest)
        of_keys = [columns_of(*side) for side in zip(*pairs, strict=True)] or [frozenset[int]()] * 2
        (left, types), (right, of_right) = (
            self.step(side, (wanted & ids) | used)
            for side, ids, used in zip((plan.left, plan.right), sides, of_keys, strict=True)
        )
        keys = [(self._condition(one, types), self._condition(other, of_right)) for one, other in pairs]
        for one, other in keys:
            found = self._type(one, types)
            if found != self._type(other, of_right) or pa.types.is_floating(found):
                raise NotInArrowError("a join by values of other types, or by floating-point numbers")
        both = {**types, **of_right}
        held = conjunction(rest)
        condition = None if held is None else self._condition(held, both)
        names, of_condition = (
            [
                tuple(_name(column.id) for column in side.columns if column.id in ids)
                for side in (plan.left, plan.right)
            ]
            for ids in (needed, columns_of(*rest))
        )
        kind = "inner" if plan.kind == "cross" else plan.kind
        return Joined(
            left, right, kind, tuple(keys), condition, (of_condition[0], of_condition[1]), *names
        ), both

    def _first(self, plan: Opaque, child: Plan, needed: frozenset[int]) -> tuple[Step, _Types]:
        names = tuple(_name(column.id) for column in plan.columns if column.id in needed)
        if plan.name != "Sort":
            below, types = self.step(child, needed)
            count = self._limit(plan)
            if count is None:
                raise NotInArrowError("a LIMIT that is computed")
            return First(below, (), count, names), types
        orders = self._orders(plan)
        below, types = self.step(child, needed | columns_of(*(order.by for order in orders)))
        found = tuple(
            (self._condition(order.by, types), order.is_ascending, order.are_nulls_first) for order in orders
        )
        return First(below, found, None, names), types

    def _aggregate(self, plan: Aggregate, needed: frozenset[int]) -> tuple[Step, _Types]:
        wanted = [output for output in plan.outputs if output.column.id in needed]
        outputs = [replace(output, value=_with_plain_sums(output.value)) for output in wanted]
        groups = list(dict.fromkeys(group.value for group in plan.groups))
        functions = aggregations(outputs)
        below, types = self.step(plan.child, columns_of(*groups, *functions))
        known: dict[Expr, Column] = {}
        of_groups: dict[str, pa.DataType] = {}
        keys, values, measures = [], dict[str, Condition](), []
        for number, group in enumerate(groups):
            column = known[group] = Column(-1 - number, "group", "")
            condition = self._condition(group, types)
            found = of_groups[_name(column.id)] = self._type(condition, types)
            if pa.types.is_floating(found):
                raise NotInArrowError("groups by floating-point numbers")
            keys.append((_name(column.id), condition))
        for number, function in enumerate(functions, len(groups)):
            column = known[function] = Column(-1 - number, "function", "")
            measure, given = self._measure(function, types)
            measures.append((_name(column.id), measure))
            values |= given
            of_values = tuple(self._type(given[name], types) for name in measure.columns)
            if measure.function in ("avg", "sum") and pa.types.is_floating(of_values[0]):
                raise NotInArrowError("sums of floating-point numbers depend on the order of the rows")
            if measure.function == "avg" and not pa.types.is_decimal(of_values[0]):
                raise NotInArrowError("averages of whole numbers are those of floating-point numbers")
            if measure.function in ("max", "min") and pa.types.is_floating(of_values[0]):
                raise NotInArrowError("of 0.0 and -0.0 the least is the first one")
            of_groups[_name(column.id)] = result_type(measure.function, of_values)
        over = [(output.column, _replaced(output.value, known)) for output in outputs]
        made, of = self._outputs(over, of_groups)
        return Grouped(below, tuple(keys), tuple(values.items()), tuple(measures), made), of

    def _observation(self, plan: Wrapper, child: Plan, needed: frozenset[int]) -> tuple[Step, _Types]:
        outputs = self._observed(plan)
        functions = aggregations(outputs)
        number = len(self.observations)
        self.observations.append(Observation((), (), pa.schema([])))  # those below follow it
        below, types = self.step(child, needed | columns_of(*functions))
        known: dict[Expr, Column] = {}
        figures, of = [], dict[str, pa.DataType]()
        for function in functions:
            column = known[function] = Column(-1 - self._figures, "figure", "")
            self._figures += 1
            figure, of[_name(column.id)] = self._figure(function, types)
            figures.append((_name(column.id), figure))
            if figure.function == "sum":
                figures.append((f"{_name(column.id)} at most", replace(figure, function="sum at most")))
        made, _ = self._outputs([(one.column, _replaced(one.value, known)) for one in outputs], of)
        fields = [pa.field(one.column.name, arrow_type(one.column.type)) for one in outputs]
        self.observations[number] = Observation(tuple(figures), made, pa.schema(fields))
        return Observed(below, tuple(figures)), types

    def _figure(self, function: Aggregation, types: _Types) -> tuple[Figure, pa.DataType]:
        """A function as a figure that is the same for rows in any order, and its type."""
        measure, given = self._measure(function, types)
        values = tuple(given[name] for name in measure.columns)
        of_values = tuple(self._type(value, types) for value in values)
        is_whole = len(of_values) == 1 and pa.types.is_integer(of_values[0])
        is_exact = {
            "count": True,
            "sum": is_whole,
            "min": not any(map(pa.types.is_floating, of_values)),
            "max": not any(map(pa.types.is_floating, of_values)),
        }
        is_of_all = not measure.is_distinct and measure.where is None
        if not is_of_all or not is_exact.get(measure.function, False):
            raise NotInArrowError(f"{function} of observed rows")
        return Figure(measure.function, values), result_type(measure.function, of_values)

    def _measure(self, function: Aggregation, types: _Types) -> tuple[Measure, dict[str, Condition]]:
        """A function over values that are computed first."""
        name, given = _FUNCTIONS.get(function.name), list(function.values)
        if name is None or any("TRY" in value for _, value in function.detail):
            raise NotInArrowError(f"{function.name}(…)")
        if name == "count":
            given = [one for one in given if not isinstance(one, Literal) or one.value is None]
        conditions = [self._condition(one, types) for one in given]
        values = {f"value_{id(condition)}": condition for condition in conditions}
        where = None
        if function.condition is not None:
            condition = self._condition(function.condition, types)
            values[f"value_{id(condition)}"] = condition
            where = Field(Ref(0, f"value_{id(condition)}"))
        columns = tuple(f"value_{id(condition)}" for condition in conditions)
        return Measure(name, columns, function.is_distinct, where), values

    def _outputs(
        self, outputs: Sequence[tuple[Column, Expr]], types: _Types
    ) -> tuple[tuple[tuple[str, Condition | Hash], ...], _Types]:
        found: list[tuple[str, Condition | Hash]] = []
        of: dict[str, pa.DataType] = {}
        for column, expr in outputs:
            name = _name(column.id)
            if isinstance(expr, Column):  # also one of a type that no expression may use
                found.append((name, self._shared(Field(Ref(0, _name(expr.id))))))
                if (type_ := types.get(_name(expr.id))) is not None:
                    if type_ != arrow_type(column.type):
                        raise NotInArrowError(f"{column.name} is {column.type} to Spark")
                    of[name] = type_
                continue
            if isinstance(expr, Call) and expr.name == "XxHash64":
                found.append((name, Hash(tuple(self._condition(arg, types) for arg in expr.args))))
                of[name] = pa.int64()
                continue
            condition = self._condition(expr, types)
            of[name] = self._type(condition, types)
            if of[name] != arrow_type(column.type):
                raise NotInArrowError(f"{expr} is {column.type} to Spark")
            found.append((name, condition))
        return tuple(found), of

    def _condition(self, expr: Expr, types: _Types) -> Condition:
        """An expression as a condition, which its type is known of."""
        refs = {int(name): Ref(0, name) for name in types}
        found = self._with_casts(translated(_with_errors(expr), refs, OF_COMPUTED_ROWS), types)
        self._type(found, types)
        return self._shared(self._exact(found, types))

    def _type(self, condition: Condition, types: _Types) -> pa.DataType:
        return type_of(condition, lambda ref: types[ref.column])

    def _with_casts(self, condition: Condition, types: _Types) -> Condition:
        """The condition with casts of decimals to fewer digits as sums with 0, which are rounded to these."""
        match condition:
            case inside.Call(op, args):
                return inside.Call(op, tuple(self._with_casts(arg, types) for arg in args))
            case inside.Cast(inner, type_):
                value = self._with_casts(inner, types)
                if pa.types.is_decimal(type_) and pa.types.is_decimal(self._type(value, types)):
                    with suppress(ConfigurationError):
                        self._type(inside.Cast(value, type_), types)
                        return inside.Cast(value, type_)
                    return inside.Call("rounded +", (value, _ZERO, inside.Const(None, type_)))
                return inside.Cast(value, type_)
            case _:
                return condition

    def _exact(self, condition: Condition, types: _Types) -> Condition:
        """The condition, with arithmetic of decimals that keeps all digits as one that never overflows."""
        match condition:
            case inside.Call(op, args):
                args = tuple(self._exact(arg, types) for arg in args)
                if op.startswith("rounded "):
                    plain = inside.Call(f"wrapping {op.removeprefix('rounded ')}", args[:2])
                    with suppress(ConfigurationError):  # it may have too many digits
                        if self._type(plain, types) == self._type(args[2], types):
                            return plain
                    return inside.Call(op, args)
                is_exact = op in _ARITHMETIC and pa.types.is_decimal(self._type(args[0], types))
                found = inside.Call(f"wrapping {op}" if is_exact else op, args)
                return self._turned(found, types) if found.op in ("wrapping neg", "wrapping abs") else found
            case inside.Cast(inner):
                return replace(condition, value=self._exact(inner, types))
            case _:
                return condition

    def _turned(self, condition: inside.Call, types: _Types) -> Condition:
        """The condition where Spark does not round values whose sign it turns; an error for longer ones."""
        (value,), type_ = condition.args, self._type(condition, types)
        if not pa.types.is_decimal(type_) or type_.precision <= MOST_NEGATED_DIGITS:
            return condition
        most = Decimal(10) ** (MOST_NEGATED_DIGITS - type_.scale)
        beyond = (
            inside.Call(">=", (value, inside.Const(most, type_))),
            inside.Call("<=", (value, inside.Const(-most, type_))),
        )
        error = inside.Call("given", (inside.Const(None, type_),))
        return inside.Call("if", (inside.Call("or", beyond), error, condition))

    def _shared(self, condition: Condition) -> Condition:
        """The one object for all equal conditions."""
        match condition:
            case inside.Call(op, args):
                args = tuple(map(self._shared, args))
                key: tuple[object, ...] = op, *map(id, args)
                condition = inside.Call(op, args)
            case inside.Cast(inner, type_):
                inner = self._shared(inner)
                key = "cast", id(inner), type_
                condition = inside.Cast(inner, type_)
            case inside.Const(constant, type_):
                key = "constant", repr(constant), type_  # -0.0 equals 0.0
            case inside.Field(ref):
                key = "column", ref
            case _:
                assert_never(condition)
        return self._conditions.setdefault(key, condition)


def _of_parts(expr: Expr, change: Callable[[Expr], Expr]) -> Expr:
    """The expression with each of its parts changed."""
    match expr:
        case Cast(inner):
            return replace(expr, value=change(inner), ref=None)
        case Call(_, args):
            return replace(expr, args=tuple(map(change, args)), ref=None)
        case _:
            return expr


def _replaced(expr: Expr, known: Mapping[Expr, Column]) -> Expr:
    """The expression with some parts as columns."""
    return known[expr] if expr in known else _of_parts(expr, lambda part: _replaced(part, known))


def _with_errors(expr: Expr) -> Expr:
    """The expression with errors that it raises as such, and casts to texts as calls."""
    match expr:
        case Cast(Call("RaiseError"), type_):
            return Call(GIVEN, (Literal(None, type_),))
        case Cast(inner, "string"):
            return Call(TEXT, (_with_errors(inner),))
        case Call("DecimalDivideWithOverflowCheck", (total, count, Literal(None, type_))):
            # without a sum it is an error: of an average without values it is not asked
            return Call(
                "Divide", (Call(GIVEN, (_with_errors(total),)), _with_errors(count), Literal(None, type_))
            )
        case _:
            return _of_parts(expr, _with_errors)


def _with_plain_sums(expr: Expr) -> Expr:
    """The expression with sums of decimals as such, which Spark's optimizer makes sums of whole numbers."""
    match expr:
        case Call("MakeDecimal", (Aggregation("Sum", (Call("UnscaledValue", (inner,)),)) as total,)):
            return replace(total, values=(inner,), ref=None)
        case _:
            return _of_parts(expr, _with_plain_sums)
