"""Aggregates over changes as sums of signs, in Spark SQL (pure).

`+I` and `+U` weigh +1, `-U` and `-D` weigh -1. A sum over rows that come and go is the sum of their signed
values, a count the sum of their signs; both only ever add to what was there, which is what Spark's own
streaming aggregation keeps. Everything else is made of such sums: the average is a sum by a count, and
whether a sum is NULL is a count, too.

Sums of integers are exact: those of BIGINT are kept as decimals, since a sum of signed values may leave the
type's range half-way, though its result does not. Sums of FLOAT and DOUBLE are exact, too, see
`exact_floats`: rounding would stay in the sum when the values that caused it are long gone. NaN and
the infinities are counted apart, for they would never leave a sum again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from planner.aggregates.exact_floats import FIXED_POINTS
from planner.plan.expressions import Literal
from planner.plan.nodes import Measure
from upsert.rowkind import ROW_KIND_COLUMN

SIGNED: Final = ("Average", "BoolAnd", "BoolOr", "Count", "CountIf", "Sum")
"""Aggregate functions that signed sums can answer, as Catalyst calls them."""

_NARROW: Final = ("tinyint", "smallint", "int")

_FLOATING: Final = ("float", "double")

_CAME: Final = f"{ROW_KIND_COLUMN} IN ('+I', '+U')"

_SIGN: Final = f"CASE WHEN {_CAME} THEN 1L ELSE -1L END"


@dataclass
class Sums:
    """The sums that a query keeps by group, each once: its Spark SQL, and the name that it gets.

    Attributes:
        names: of the sums, by their Spark SQL over a row's columns and parts.
        parts: names of values that sums take from a row, by their Spark SQL; one may use those before it.
        derived: names of values that results take from a group's sums, in the same way.
    """

    names: dict[str, str] = field(default_factory=dict)
    parts: dict[str, str] = field(default_factory=dict)
    derived: dict[str, str] = field(default_factory=dict)

    def part(self, sql: str) -> str:
        """Name of the column that holds a value of each row."""
        return self.parts.setdefault(sql, f"part_{len(self.parts)}")

    def derive(self, sql: str) -> str:
        """Name of the column that holds a value of each group."""
        return self.derived.setdefault(sql, f"derived_{len(self.derived)}")

    def keep(self, sql: str) -> str:
        """Name of the column that holds a sum."""
        return self.names.setdefault(sql, f"sum_{len(self.names)}")

    def count(self, *conditions: str | None) -> str:
        """The number of rows for which all conditions are true."""
        return f"coalesce({self.keep(f'sum({_SIGN}){_where(*conditions)}')}, 0L)"


@dataclass(frozen=True)
class Result:
    """What a measure is made of by group: Spark SQL over the sums; of an average its sum and its count."""

    value: str
    count: str | None = None


def is_floating(type_name: str) -> bool:
    """Whether values of a type may be NaN or infinite."""
    return type_name in _FLOATING


def is_summable(type_name: str) -> bool:
    """Whether signed values of a type can be added up."""
    return type_name in (*_NARROW, "bigint", *_FLOATING) or type_name.startswith("decimal")


def result_of(measure: Measure, sums: Sums) -> Result:
    """The result of a measure; what it needs is added to the sums.

    >>> from planner.plan.expressions import Aggregation, Column
    >>> amount, sums = Column(-1, "value_0", "int"), Sums()
    >>> result_of(Measure(Aggregation("Count", (amount,), ("int",)), (amount,)), sums)
    Result(value='coalesce(sum_0, 0L)', count=None)
    >>> list(sums.names)[0].partition(" FILTER ")[2]
    '(WHERE value_0 IS NOT NULL)'
    """
    condition = None if measure.condition is None else measure.condition.name
    names = [column.name for column in measure.values]
    detail = dict(measure.function.detail)
    match measure.function.name:
        case "Count":
            known = zip(names, measure.function.values, strict=True)
            given = [name for name, value in known if not isinstance(value, Literal) or value.value is None]
            return Result(sums.count(condition, *(f"{name} IS NOT NULL" for name in given)))
        case "CountIf":
            return Result(sums.count(condition, names[0]))
        case "BoolAnd" | "BoolOr" as name:
            return Result(_truth(name, names[0], condition, sums))
        case "Sum":
            wide = measure.function.types[0] == "bigint"
            total = _total(names[0], measure.function.types[0], condition, sums)
            cast = "try_cast" if detail.get("evalContext", "").count("TRY") else "cast"
            return Result(f"{cast}({total} AS BIGINT)" if wide else total)
        case "Average":
            type_ = measure.function.types[0]
            total = _total(names[0], type_, condition, sums)
            total = total if type_.startswith("decimal") else f"cast({total} AS DOUBLE)"
            return Result(total, sums.count(condition, f"{names[0]} IS NOT NULL"))
        case other:
            raise AssertionError(f"the conditions of signed sums promise {SIGNED}, got {other}")


def kind_of(sums: Sums, *, has_groups: bool) -> str:
    """The kind of a group's new row; all rows together are one group that stays when it is empty."""
    rows = sums.count()
    negative = (
        "raise_error('an aggregate was told to take away more rows of a group than there were; read its "
        "input from the beginning, in a new checkpoint')"
    )
    kinds: Mapping[str, str] = (
        {f"{rows} > 0": "'+U'", f"{rows} = 0": "'-D'"} if has_groups else {f"{rows} >= 0": "'+U'"}
    )
    whens = " ".join(f"WHEN {condition} THEN {kind}" for condition, kind in kinds.items())
    return f"CASE {whens} ELSE {negative} END"


def _total(name: str, type_: str, condition: str | None, sums: Sums) -> str:
    """The sum of a column; NULL where it has no value."""
    number = sums.count(condition, f"{name} IS NOT NULL")
    if is_floating(type_):
        return _floating_total(name, type_, condition, number, sums)
    value = f"cast({name} AS DECIMAL(19, 0))" if type_ == "bigint" else name
    value = f"cast({name} AS BIGINT)" if type_ in _NARROW else value
    total = sums.keep(f"sum({_signed(value)}){_where(condition)}")
    return f"CASE WHEN {number} > 0 THEN {total} END"


def _floating_total(name: str, type_: str, condition: str | None, number: str, sums: Sums) -> str:
    value, fixed = f"cast({name} AS DOUBLE)", FIXED_POINTS[type_]
    plus, minus, nan = (f"{value} = double('{text}')" for text in ("Infinity", "-Infinity", "NaN"))
    parts = fixed.parts(_signed(value), condition, sums.part)
    total = fixed.total([sums.keep(sql) for sql in fixed.limbs(parts)], sums.derive)
    nans, pluses, minuses = (sums.count(condition, odd) for odd in (nan, plus, minus))
    return (
        f"CASE WHEN {number} = 0 THEN NULL "
        f"WHEN {nans} > 0 OR ({pluses} > 0 AND {minuses} > 0) THEN double('NaN') "
        f"WHEN {pluses} > 0 THEN double('Infinity') WHEN {minuses} > 0 THEN double('-Infinity') "
        f"ELSE {total} END"
    )


def _truth(name: str, column: str, condition: str | None, sums: Sums) -> str:
    known = sums.count(condition, f"{column} IS NOT NULL")
    found = sums.count(condition, f"NOT {column}" if name == "BoolAnd" else column)
    verdict = f"{found} = 0" if name == "BoolAnd" else f"{found} > 0"
    return f"CASE WHEN {known} > 0 THEN {verdict} END"


def _signed(value: str) -> str:
    return f"CASE WHEN {_CAME} THEN {value} ELSE -({value}) END"


def _where(*conditions: str | None) -> str:
    given = [condition for condition in conditions if condition is not None]
    return f" FILTER (WHERE {' AND '.join(given)})" if given else ""
