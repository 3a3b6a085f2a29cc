"""Literals as values that a column gets, and lists of them (pure)."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
from sqlglot import exp

from upsert import types
from upsert.catalog.run.assignments import default_text
from upsert.catalog.run.without_spark.words import is_plain_list, words_of
from upsert.schema import Column
from upsert.sql.checks import digits_of, literal
from upsert.sql.dialect import expression_tree
from upsert.sql.predicates import value_in
from upsert.sql.query import QueryText

_TIMES: Final = {
    pa.date32(): re.compile(r"\d{4}-\d\d-\d\d"),
    types.TIMESTAMP: re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:\d\d)?"),
}
"""How days and times are written that all readers of texts read alike."""

_TYPES_OF_TIMES: Final = {
    exp.DType.DATE: pa.date32(),
    exp.DType.TIMESTAMP: types.TIMESTAMP,
    exp.DType.TIMESTAMPTZ: types.TIMESTAMP,  # what sqlglot makes of Spark's TIMESTAMP
    exp.DType.TIMESTAMPLTZ: types.TIMESTAMP,
}

_DIGITS: Final = 18
"""Signs of a number that is a BIGINT, or a DECIMAL with no more digits before the point than one."""

_DIGITS_OF_BIGINT: Final = 20
"""Spark's DECIMAL for whole numbers that stand in a column with others has as many."""


def listed_rows(query: QueryText, columns: Sequence[Column], zone: str | None) -> list[list[Any]] | None:
    """The values of each column of ``VALUES (…), (…)``; None for a list that only Spark reads.

    All are literals that a column has as they are written, so that it does not matter in which type they meet
    in the list. ``zone`` is the session's, None if it is not known.

    >>> column = Column("id", pa.int32())
    >>> listed_rows(QueryText.of("VALUES (1), (-2)"), [column], "UTC")
    [[1, -2]]
    >>> listed_rows(QueryText.of("VALUES (1), (2.5)"), [column], "UTC")
    """
    tree = query.tree
    if not isinstance(tree, exp.Values) or {part for part, given in tree.args.items() if given} != {
        "expressions"
    }:
        return None
    if (words := words_of(query)) is None or not is_plain_list(words):
        return None
    rows = [one.expressions if isinstance(one, exp.Tuple) else [one] for one in tree.expressions]
    if any(len(row) != len(columns) for row in rows):
        return None
    found = [literals([row[at].unnest() for row in rows], column, zone) for at, column in enumerate(columns)]
    return None if any(values is None for values in found) else [values or [] for values in found]


def literals(nodes: Sequence[exp.Expr], column: Column, zone: str | None) -> list[Any] | None:
    """What literals are in a column that gets all of them; None where Spark would convert one."""
    values = [None if isinstance(one, exp.Null) else _literal(one, column.type, zone) for one in nodes]
    are_known = (
        value is not None or isinstance(one, exp.Null) for one, value in zip(nodes, values, strict=True)
    )
    if not all(are_known) or (None in values and not column.nullable):
        return None
    if not pa.types.is_integer(column.type) and not _meet_unchanged(nodes):
        return None
    try:
        pa.array(values, column.type)
    except (pa.ArrowException, OverflowError):
        return None  # one does not fit, of which Spark tells the column
    return values


def literal_rows(
    rows: Sequence[Sequence[exp.Expr]], names: Sequence[str], zone: str | None
) -> pa.Table | None:
    """Rows of literals in the types that Spark gives their columns; None for what only Spark reads.

    A column without a value has Arrow's type of nothing.

    >>> import sqlglot
    >>> literal_rows([[sqlglot.parse_one("1"), sqlglot.parse_one("NULL")]], ["a", "b"], "UTC").schema.types
    [DataType(int32), DataType(null)]
    """
    if any(len(row) != len(names) for row in rows):
        return None
    columns = []
    for column in zip(*rows, strict=True):
        nodes = [node.unnest() for node in column]
        if (type_ := _common_type(nodes)) is None:
            return None
        values = [None] * len(nodes) if pa.types.is_null(type_) else literals(nodes, Column("", type_), zone)
        if values is None:
            return None
        columns.append(pa.array(values, type_))
    return pa.table(columns, names=list(names))


def _common_type(nodes: Sequence[exp.Expr]) -> pa.DataType | None:
    """The type in which literals meet in a list; None where it is not known here."""
    found = {_type(node) for node in nodes if not isinstance(node, exp.Null)}
    if len(found) < 2:
        return found.pop() if found else pa.null()
    known = [one for one in found if one is not None]
    if all(map(pa.types.is_integer, known)) and len(known) == len(found):
        return pa.int64()
    if not all(pa.types.is_integer(one) or pa.types.is_decimal(one) for one in known) or None in found:
        return None
    whole, scale = (max(digits) for digits in zip(*map(digits_of, known), strict=True))
    return pa.decimal128(whole + scale, scale) if whole + scale <= types.MAX_DECIMAL_PRECISION else None


def _type(node: exp.Expr) -> pa.DataType | None:
    """The type that Spark gives a literal; None for what is no plain one."""
    match node:
        case exp.Cast(this=exp.Literal(is_string=True)) if not node.to.expressions:
            return _TYPES_OF_TIMES.get(node.to.this)
        case exp.Literal() | exp.Boolean() | exp.Neg(this=exp.Literal(is_string=False)):
            return literal(node).type
    return None


def _literal(node: exp.Expr, type_: pa.DataType, zone: str | None) -> Any:
    """A literal's value, if a column of the type has it as it is written."""
    if isinstance(node, exp.Cast):
        is_time = _type(node) == type_ and _TIMES[type_].fullmatch(node.this.name) is not None
        return value_in(node, type_, zone) if is_time else None
    if isinstance(node, exp.Literal | exp.Boolean) or (
        isinstance(node, exp.Neg) and isinstance(node.this, exp.Literal) and not node.this.is_string
    ):
        text = node.this.name if isinstance(node, exp.Neg) else node.name
        if type_ == pa.float32() and not re.fullmatch("[0-9]{1,7}", text):
            return None  # Python would round it twice
        value = value_in(node, type_, zone)
        has_sign = not isinstance(value, float) or "e" in text.lower()
        return value if has_sign else value + 0.0  # -0.0 is a DECIMAL, whose zero has none
    return None


def _meet_unchanged(nodes: Sequence[exp.Expr]) -> bool:
    """Whether numbers have room in the types in which Spark lets them meet."""
    texts = [
        literal.name for node in nodes for literal in node.find_all(exp.Literal) if not literal.is_string
    ]
    exact = [text for text in texts if "e" not in text.lower()]
    if any(math.isinf(float(text)) for text in texts) or any(len(text) > _DIGITS for text in exact):
        return False
    scale = max((len(text.partition(".")[2]) for text in exact), default=0)
    return _DIGITS_OF_BIGINT + scale <= types.MAX_DECIMAL_PRECISION


def default_tree(column: Column, subject: str) -> exp.Expr | None:
    """The DEFAULT of a column, NULL for none; None where two readers may differ in what its text escapes."""
    text = default_text(column)
    return None if "\\" in text else expression_tree(text, subject).unnest()
