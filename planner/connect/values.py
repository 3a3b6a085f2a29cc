"""What expressions of a stream over Spark Connect compute: the client has names, the server their meaning.

A name in a message does not say whether it is a function of chance, whether it takes several rows, or makes
them. Spark says so of the condition of a join, which must be of one row alone, and the same for it always. So
each computed value is asked for in such a condition, which is analysed and never run. A function that makes
rows of a row can stand in no condition: it is asked for in a LATERAL join, which must give the same always.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from upsert.rowkind import ROW_KIND_COLUMN
from upsert.spark.functions import functions_of
from upsert.sql.volatile import functions_in, of_the_clock, of_the_moment, subquery_in

_KINDS: Final = frozenset(
    {
        *("literal", "unresolved_attribute", "unresolved_function", "expression_string", "unresolved_star"),
        *("alias", "cast", "unresolved_regex", "sort_order", "lambda_function", "unresolved_extract_value"),
        *("update_fields", "unresolved_named_lambda_variable", "common_inline_user_defined_function"),
        *("call_function", "named_argument_expression"),
    }
)
"""Expressions that are taken; others are windows and subqueries, and what this version of PySpark has not."""

_ASKED: Final = frozenset(
    {"unresolved_function", "expression_string", "call_function", "common_inline_user_defined_function"}
)
"""Expressions that may compute what is not of the row alone."""

_NAME: Final = r"(?:\w+|`(?:[^`]|``)+`)"
_COLUMN: Final = re.compile(rf"\s*(?:{_NAME}(?:\.{_NAME})*(?:\.\*)?|\*)\s*")
_KIND_ALONE: Final = re.compile(rf"\s*(?:[\w`]+\.)*`?{ROW_KIND_COLUMN}`?\s*", re.IGNORECASE)
_KIND_WITHIN: Final = re.compile(rf"\b{ROW_KIND_COLUMN}\b", re.IGNORECASE)

_UNKNOWN: Final = "UNRESOLVED_COLUMN"
_GENERATOR: Final = "UNSUPPORTED_GENERATOR"
"""What Spark says of one that makes rows of a row: of each change those that are to be added or removed."""


def messages(message: Any) -> Iterator[Any]:
    """A protobuf message, and all in it."""
    yield message
    for child in parts(message):
        yield from messages(child)


def parts(message: Any) -> Iterator[Any]:
    """The messages right below one."""
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if field.message_type.GetOptions().map_entry:
            yield from (one for one in value.values() if hasattr(one, "DESCRIPTOR"))
        elif hasattr(value, "DESCRIPTOR"):
            yield value
        else:
            yield from value


def volatile_in(message: Any) -> str | None:
    """What a part of a plan computes that another time is another value, as far as its names tell."""
    match message.DESCRIPTOR.name:
        case "UnresolvedFunction" | "CallFunction":
            text = f"{message.function_name}({', '.join(map(_written, message.arguments))})"
        case "ExpressionString":
            text = message.expression
            if (time := of_the_clock(text)) is not None:
                return time.what
            if (query := subquery_in(text)) is not None:
                return query.what
        case "Literal" if message.WhichOneof("literal_type") == "string":
            found = of_the_clock(f"'{message.string}'")
            return None if found is None else found.what
        case "CommonInlineUserDefinedFunction" if not message.deterministic:
            return f"the function {message.function_name!r}, which is not deterministic,"
        case _:
            return None
    found = of_the_moment(text)
    return None if found is None else found.what


def volatile_function_in(spark: SparkSession, found: Iterable[Any]) -> str | None:
    """The first function of the session in a plan that computes another value another time, by its text.

    Spark puts that into the plan, and tells the client of no clock and no query in it.
    """
    for name, said in functions_of(spark, {name for one in found for name in _called(one)}).items():
        if (what := of_the_moment(said) or of_the_clock(said) or subquery_in(said)) is not None:
            return f"the function {name!r}, which has {what.what},"
    return None


def _called(message: Any) -> Iterable[str]:
    """The names of functions in a part of a plan."""
    match message.DESCRIPTOR.name:
        case "UnresolvedFunction" | "CallFunction":
            return [message.function_name.rpartition(".")[2].strip("`").lower()]
        case "ExpressionString":
            return functions_in(message.expression)
        case _:
            return ()


def _written(argument: Any) -> str:
    """An argument as a text has it, if it is a text itself."""
    is_text = argument.WhichOneof("expr_type") == "literal" and argument.literal.HasField("string")
    return "'{}'".format(re.sub(r"(['\\])", r"\\\1", argument.literal.string)) if is_text else "…"


def unknown_in(message: Any) -> str | None:
    """The kind of an expression that is not taken, None for a known one and for what is no expression."""
    if not _is_expression(message):
        return None
    kind = message.WhichOneof("expr_type")
    return None if kind in _KINDS else str(kind)


def is_row_kind(expression: Any) -> bool:
    """Whether an expression, or an alias, is the kind of a change as it is, under its name."""
    if (alias := _alias_of(expression)) is not None:
        return _is_called_kind(alias) and is_row_kind(alias.expr)
    return bool(_KIND_ALONE.fullmatch(_name_of(expression)))


def touches_row_kind(expression: Any) -> bool:
    """Whether an expression, or an alias, computes with the kind of a change, or is called as one."""
    return any(
        (one.DESCRIPTOR.name == "Alias" and _is_called_kind(one))
        or (_is_expression(one) and _KIND_WITHIN.search(_name_of(one)) is not None)
        for one in messages(expression)
    )


def _is_expression(message: Any) -> bool:
    return bool(message.DESCRIPTOR.full_name == "spark.connect.Expression")


def _alias_of(expression: Any) -> Any:
    """The alias that a message is, or has; None for none."""
    if expression.DESCRIPTOR.name == "Alias":
        return expression
    return expression.alias if expression.WhichOneof("expr_type") == "alias" else None


def _is_called_kind(alias: Any) -> bool:
    return any(name.lower() == ROW_KIND_COLUMN for name in alias.name)


def _name_of(expression: Any) -> str:
    match expression.WhichOneof("expr_type"):
        case "unresolved_attribute":
            return str(expression.unresolved_attribute.unparsed_identifier)
        case "expression_string":
            return str(expression.expression_string.expression)
        case _:
            return ""


class Fault(NamedTuple):
    """A value that is not of its row alone.

    Attributes:
        value: it as messages show it.
        condition: that of Spark's error.
    """

    value: str
    condition: str

    @property
    def is_volatile(self) -> bool:
        """Whether it is another value another time."""
        return "NON_DETERMINISTIC" in self.condition


def fault_of(df: DataFrame, below: Any, values: Sequence[Any]) -> Fault | None:
    """The first value that Spark does not take for one of the row alone; None for none.

    Args:
        df: a DataFrame of the session.
        below: the relation over whose rows they are computed.
        values: the expressions, or aliases of some.
    """
    asked = [_value_of(one) for one in values if _is_asked(one)]
    if not asked or _condition(df, below, asked) is None:
        return None
    named = _with_names(below, values)
    if _condition(df, named, asked) is None:
        return None
    for one in asked:
        condition = _condition(df, below, [one])
        if condition is not None and condition.startswith(_UNKNOWN):
            condition = _condition(df, named, [one])
        if condition is not None and condition.startswith(_GENERATOR):
            condition = _condition_of_generator(df, below, one)
        if condition is not None:
            return Fault(in_words(one), condition)
    return None


_TIME_TYPE: Final = "spark.sql.timeType.enabled"
_CAST: Final = re.compile(r" as (?:[a-z]+<)*[^()]*timestamp", re.IGNORECASE)
_MADE: Final = re.compile(r"time\W", re.IGNORECASE)
"""What makes a TIME, as `to_time(…)`, `AS TIME)` or a literal."""


def takes_the_day(df: Any, relation: Any, below: Any) -> bool:
    """Whether a relation may make a TIMESTAMP of a TIME, whose day is that of the clock.

    Spark does so by a cast, also by one that it adds by itself. Its plan is shown without types: so each
    cast to TIMESTAMP counts, where a TIME is among the columns below, or is made.
    """
    session = df.sparkSession
    if session.conf.get(_TIME_TYPE, "false") != "true":
        return False  # then Spark has no TIME
    plan = df._plan.to_proto(session.client)
    plan.root.CopyFrom(below)
    if "time(" not in session.client.schema(plan).simpleString() and not _MADE.search(str(relation)):
        return False
    plan.root.CopyFrom(relation)
    _, _, analyzed = session.client.explain_string(plan, "extended").partition("== Analyzed Logical Plan ==")
    return _CAST.search(analyzed.partition("== Optimized Logical Plan ==")[0]) is not None


def _with_names(below: Any, values: Sequence[Any]) -> Any:
    """The relation with the values that a later one of the same list may use by their names."""
    named = type(below)()
    named.project.input.CopyFrom(below)
    named.project.expressions.add().unresolved_star.SetInParent()
    named.project.expressions.extend(
        one for one in values if _is_expression(one) and (_alias_of(one) is not None or _is_asked(one))
    )
    return named


def _is_asked(expression: Any) -> bool:
    return any(
        _is_expression(one) and one.WhichOneof("expr_type") in _ASKED and not _is_column(one)
        for one in messages(expression)
    )


def _is_column(expression: Any) -> bool:
    """Whether a text names one column, or all of a table."""
    return bool(_COLUMN.fullmatch(_name_of(expression)))


def _condition(df: DataFrame, below: Any, values: Sequence[Any]) -> str | None:
    """The condition of the error with which Spark refuses a join on these values; None if it takes them."""
    joined = type(below)()
    joined.join.left.CopyFrom(below)
    joined.join.right.project.input.range.end = 1
    joined.join.right.project.input.range.step = 1
    joined.join.join_type = joined.join.JOIN_TYPE_INNER
    condition = None
    for value in values:
        given = _call(type(value), "isnotnull", value)
        condition = given if condition is None else _call(type(value), "and", condition, given)
    joined.join.join_condition.CopyFrom(condition)
    return _refusal(df, joined)


def _condition_of_generator(df: DataFrame, below: Any, value: Any) -> str | None:
    """The same of a LATERAL join with the rows that a value makes of each row."""
    joined = type(below)()
    joined.lateral_join.left.CopyFrom(below)
    joined.lateral_join.right.project.expressions.append(value)
    joined.lateral_join.join_type = joined.join.JOIN_TYPE_INNER
    for one in messages(joined.lateral_join.right.project.expressions[0]):
        if "plan_id" in one.DESCRIPTOR.fields_by_name:  # of the outer rows columns are found by name alone
            one.ClearField("plan_id")
    return _refusal(df, joined)


def _refusal(df: Any, relation: Any) -> str | None:
    """The condition of the error with which Spark refuses a relation; None if it takes it."""
    plan = df._plan.to_proto(df.sparkSession.client)
    plan.root.CopyFrom(relation)
    try:
        df.sparkSession.client.schema(plan)
    except AnalysisException as error:
        return str(error.getCondition())
    return None


def _call(kind: Any, name: str, *arguments: Any) -> Any:
    call = kind()
    call.unresolved_function.function_name = name
    call.unresolved_function.arguments.extend(arguments)
    return call


def _value_of(expression: Any) -> Any:
    alias = _alias_of(expression)
    return expression if alias is None else alias.expr


def in_words(expression: Any) -> str:
    """An expression, or an alias, as messages show it: a text as it is, a call by its name."""
    expression = _value_of(expression)
    match expression.WhichOneof("expr_type"):
        case "cast":
            return in_words(expression.cast.expr)
        case "unresolved_function" | "call_function" | "common_inline_user_defined_function" as kind:
            return f"{getattr(expression, kind).function_name}(…)"
        case kind:
            return _name_of(expression) or str(kind)
