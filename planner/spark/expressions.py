"""Expressions of a Spark plan as the planner's own. What is unknown becomes a Call, never an error."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from planner.plan.expressions import (
    SUBQUERY,
    TIMES,
    Aggregation,
    Call,
    Cast,
    Column,
    Expr,
    Literal,
    columns_of,
    is_clock_word,
    walk_expression,
)
from planner.plan.nodes import GroupBy, Output, WindowKind
from planner.spark.catalyst import Catalyst, JavaObject

_WINDOW_MARKS: Final = {"spark.timeWindow": WindowKind.TIME, "spark.sessionWindow": WindowKind.SESSION}
"""What Catalyst attaches to a column that it made of a window."""

_PARAMETERS: Final = {
    "Average": ("evalMode",),
    "CollectList": ("ignoreNulls",),
    "CollectSet": ("ignoreNulls",),
    "First": ("ignoreNulls",),
    "Last": ("ignoreNulls",),
    "Sum": ("evalContext",),
}
"""Parameters of aggregate functions beyond their values."""

_JAVA_CALLS: Final = frozenset({"Invoke", "StaticInvoke"})
"""Calls of a Java method, which the class of the expression that they replace tells better."""

_DEFAULTS: Final = {
    **dict.fromkeys(("Add", "Subtract", "Multiply"), ("evalMode", "ANSI")),
    **dict.fromkeys(("Divide", "IntegralDivide", "Remainder"), ("evalMode", "ANSI")),
    **dict.fromkeys(("UnaryMinus", "Abs"), ("failOnError", "True")),
    "Like": ("escapeChar", "\\"),
}
"""What makes expressions mean something else: a parameter, and its value by default."""


class ExpressionReader:
    """Reads columns and expressions of one plan."""

    def __init__(self, catalyst: Catalyst) -> None:
        """Of the plan that ``catalyst`` looks into."""
        self.catalyst = catalyst

    def output(self, node: JavaObject) -> tuple[Column, ...]:
        """The columns that a node puts out."""
        return tuple(self.column(attribute) for attribute in self.catalyst.output(node))

    def column(self, attribute: JavaObject) -> Column:
        """An attribute."""
        number, name, type_name = self.catalyst.attribute(attribute)
        return Column(number, name, type_name, ref=self.catalyst.keep(attribute))

    def named(self, expr: JavaObject) -> Output:
        """A column of a Project or an Aggregate, and what computes it."""
        value = self.expr(expr)
        if isinstance(value, Column):
            return Output(value, value)
        number, name, type_name = self.catalyst.attribute(expr)
        ref = self.catalyst.keep(expr)
        computed = value.args[0] if isinstance(value, Call) and value.name == "Alias" else value
        return Output(Column(number, name, type_name), computed, ref=ref)

    def group(self, expr: JavaObject) -> GroupBy:
        """An expression of a GROUP BY."""
        is_column = self.catalyst.class_name(expr) == "AttributeReference"
        kinds = self.window_kinds(expr) if is_column else []
        return GroupBy(self.expr(expr), next(iter(kinds), None))

    def aggregation(self, expr: JavaObject, ref: int) -> Aggregation:
        """An aggregate function, with its FILTER."""
        function, condition, is_distinct = self.catalyst.aggregation(expr)
        name, values = self.catalyst.class_name(function), self.catalyst.children(function)
        return Aggregation(
            name,
            tuple(self.expr(value) for value in values),
            tuple(self.catalyst.type_name(value) for value in values),
            None if condition is None else self.expr(condition),
            is_distinct,
            self.catalyst.parameters(function, _PARAMETERS.get(name, ())),
            ref=ref,
        )

    def expr(self, expr: JavaObject) -> Expr:
        """Any expression."""
        name, ref = self.catalyst.class_name(expr), self.catalyst.keep(expr)
        match name:
            case "AttributeReference":
                return self.column(expr)
            case "Literal":
                return self.constant(expr, ref)
            case "Cast":
                return self.cast(expr, ref)
            case "AggregateExpression":
                return self.aggregation(expr, ref)
            case "With":
                return self.expr(self.catalyst.inlined(expr))
        parts = self.catalyst.children(expr)
        if (replacement := self.catalyst.replacement(expr)) is not None:
            if self.catalyst.class_name(replacement) not in _JAVA_CALLS:
                return self.replaced(replacement, ref)
            if parts and parts[0].equals(replacement):
                parts = self.catalyst.children(replacement)
        args = tuple(self.expr(part) for part in parts)
        if self.catalyst.has_plan(expr):
            return Call(SUBQUERY, args, ref=ref)
        if self.catalyst.is_filled_in(expr):
            return Call(name, args, is_filled_in=True, ref=ref)
        is_deterministic = self.catalyst.is_deterministic(expr) or any(map(_is_unstable, args))
        return Call(self.variant(name, expr), args, is_deterministic, ref=ref)

    def replaced(self, replacement: JavaObject, ref: int) -> Expr:
        """What Spark computes in place of an expression; the plan that is built keeps what the user wrote."""
        value = self.expr(replacement)
        return value if isinstance(value, Column) else replace(value, ref=ref)

    def variant(self, name: str, expr: JavaObject) -> str:
        """The name of an expression, another one where it does not do what it does by default.

        Arithmetic that gives NULL or wraps on overflow, and LIKE with an escape character of its own.
        """
        parameter, default = _DEFAULTS.get(name, ("", ""))
        if not parameter:
            return name
        ((_, value),) = self.catalyst.parameters(expr, [parameter])
        return name if value == default else f"{value}{name}"

    def constant(self, expr: JavaObject, ref: int) -> Expr:
        """A Literal."""
        try:
            return Literal(self.catalyst.literal(expr), self.catalyst.type_name(expr), ref=ref)
        except ValueError:  # a constant that no rule looks into: binary, interval, array, the year 10000
            return Call(self.catalyst.text(expr), (), ref=ref)

    def cast(self, expr: JavaObject, ref: int) -> Expr:
        """A Cast; that of a constant is the constant that it gives, unless it is one of the clock.

        Spark reads texts like 'now' as a time when it optimizes a micro-batch, also those that it has to
        compute first, and completes a time of day by the day that it is.
        """
        (child,) = self.catalyst.children(expr)
        value, type_name = self.expr(child), self.catalyst.type_name(expr)
        if type_name in TIMES and self.catalyst.type_name(child).startswith("time("):
            return Call("Cast", (value,), is_filled_in=True, ref=ref)
        if type_name in TIMES and (text := self.text_of(child, value)) is not None:
            value = text
        if isinstance(value, Literal) and not is_clock_word(value.value):
            try:
                return Literal(self.catalyst.folded(expr), type_name, ref=ref)
            except (
                ValueError
            ):  # Spark may say so when the query runs; for the planner it is just an expression
                pass
        return Cast(value, type_name, ref=ref)

    def text_of(self, child: JavaObject, value: Expr) -> Literal | None:
        """The text that an expression without columns gives, if it is one."""
        if isinstance(value, Literal) or columns_of(value) or not self.catalyst.is_text_type(child):
            return None
        try:
            return Literal(self.catalyst.folded(self.catalyst.computed(child)), "string")
        except ValueError:
            return None

    def window_kinds(self, attribute: JavaObject) -> list[WindowKind]:
        """What Catalyst has made an attribute of, if that is a window."""
        marks = self.catalyst.metadata(attribute)
        return [kind for mark, kind in _WINDOW_MARKS.items() if mark in marks]


def _is_unstable(expr: Expr) -> bool:
    """Whether a part of the expression explains why the whole is not deterministic."""
    return any(
        isinstance(part, Aggregation) or (isinstance(part, Call) and not part.is_deterministic)
        for part in walk_expression(expr)
    )
