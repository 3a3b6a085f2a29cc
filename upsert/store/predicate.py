"""``where`` of a scan, lookup or delete: checked, evaluated on rows, used to skip files and find keys (pure).

The form is pyarrow's: ``[("c", ">", 3), ("d", "in", [1, 2])]`` means AND, a list of such lists means OR of
ANDs. Operators: ``=``, ``==``, ``!=``, ``<``, ``<=``, ``>``, ``>=``, ``in``, ``not in``, and ``is null`` and
``is not null`` with the value None. A comparison with a NULL in the data is not true, as in SQL, nor is its
opposite. Floats compare as Arrow compares them: NaN is neither equal to, below nor above anything.

As text, for options, it is JSON of the same form. What JSON has no values for is written as text that the
column's type reads: days, times, decimals, binaries as hexadecimal digits, and intervals as microseconds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from functools import reduce
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from upsert import types
from upsert.arrays import Mask, min_max
from upsert.errors import SchemaError
from upsert.schema import Column, TableSchema
from upsert.store.metadata.file_entry import FileEntry
from upsert.store.metadata.partition_order import DAY, NUMBER, TEXT, Ends, any_between, kind_of
from upsert.store.paths import Partition
from upsert.store.rows.conform import equal_values
from upsert.store.rows.layout import Layout, LookupIndex
from upsert.store.rows.partitions import partition_codes, partition_values

Where = Sequence[Any]
"""Predicates ``(column, operator, value)``, or lists of them of which one must hold."""

_COMPARISONS: Final[dict[str, Callable[..., Any]]] = {
    "=": pc.equal,
    "==": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}

_LISTS: Final = ("in", "not in")
_NULL_TESTS: Final = ("is null", "is not null")
OPERATORS: Final = (*_COMPARISONS, *_LISTS, *_NULL_TESTS)


@dataclass(frozen=True)
class Predicate:
    """One comparison of a column with a literal.

    ``value`` is an Arrow scalar, for the list operators an Arrow array of the column's type, else None.
    """

    column: str
    operator: str
    value: Any

    def holds(self, values: pa.ChunkedArray) -> pa.ChunkedArray:
        """Where the predicate is true of the column's values; never NULL."""
        if self.operator == "is null":
            return pc.is_null(values)
        if self.operator == "is not null":
            return pc.is_valid(values)
        if self.operator == "in":
            return _is_in(values, self.value)
        if self.operator == "not in":
            return pc.and_(pc.is_valid(values), pc.invert(_is_in(values, self.value)))
        return pc.fill_null(_COMPARISONS[self.operator](values, self.value), False)

    def may_hold(self, low: pa.Array, high: pa.Array) -> pa.Array:
        """Where it may be true of a file whose column lies between two bounds; NULL is not known."""
        match self.operator:
            case "=" | "==":
                possible = _within(low, high, self.value, self.value)
            case "<" | "<=":
                possible = _COMPARISONS[self.operator](low, self.value)
            case ">" | ">=":
                possible = _COMPARISONS[self.operator](high, self.value)
            case "in" if len(self.value):
                possible = _within(low, high, *min_max(self.value))
            case "in":
                possible = pa.array([False] * len(low), pa.bool_())
            case "!=" if not pa.types.is_floating(low.type):  # bounds know nothing of NaN, which differs
                is_constant = pc.and_(pc.equal(low, self.value), pc.equal(high, self.value))
                possible = pc.invert(is_constant)
            case _:
                possible = pa.array([True] * len(low), pa.bool_())
        return pc.fill_null(possible, True)


@dataclass(frozen=True)
class Filter:
    """A checked ``where``: true if all predicates of one alternative are. No alternative: true."""

    alternatives: tuple[tuple[Predicate, ...], ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that the predicates name, each once."""
        return tuple(dict.fromkeys(p.column for alternative in self.alternatives for p in alternative))

    def apply(self, rows: pa.Table) -> pa.Table:
        """The rows of which the filter is true; they must have the filter's columns."""
        return rows.filter(self.mask(rows)) if self.alternatives else rows

    def mask(self, rows: pa.Table) -> pa.ChunkedArray:
        """Where the filter is true of the rows; it must have an alternative."""
        alternatives = ([p.holds(rows.column(p.column)) for p in each] for each in self.alternatives)
        return reduce(pc.or_, (reduce(pc.and_, masks) for masks in alternatives))

    def keep(self, entries: Sequence[FileEntry], columns: Collection[str], schema: TableSchema) -> Mask:
        """Which files may hold a row of which the filter is true, judged by the bounds of ``columns``."""
        bounds = {name: _bounds(entries, schema.column(name)) for name in self.columns if name in columns}
        return self.possible(bounds, len(entries))

    def possible(self, bounds: Mapping[str, tuple[pa.Array, pa.Array]], count: int) -> Mask:
        """Which of ``count`` pieces may hold a row of which the filter is true.

        ``bounds`` has, of some columns, a smallest and a largest value for each piece; NULL is not known.
        """
        if not self.alternatives:
            return np.ones(count, dtype=np.bool_)
        kept = np.zeros(count, dtype=np.bool_)
        for alternative in self.alternatives:
            possible = np.ones(count, dtype=np.bool_)
            for predicate in alternative:
                if predicate.column in bounds:
                    found = predicate.may_hold(*bounds[predicate.column])
                    possible &= found.to_numpy(zero_copy_only=False)
            kept |= possible
        return kept


def parse_where(where: Where | None, schema: TableSchema) -> Filter:
    """The filter that ``where`` says.

    Raises:
        SchemaError: it is malformed, names an unknown column or operator, or compares what does not compare.
    """
    if where is None or (isinstance(where, list | tuple) and not where):
        return Filter(())
    if not isinstance(where, list | tuple) or not all(isinstance(p, list | tuple) and len(p) for p in where):
        raise SchemaError(
            f"where: must list (column, operator, value), or be a list of such lists, got {where!r}; write "
            "[('id', '>', 7)], for example"
        )
    alternatives = [where] if isinstance(where[0][0], str) else where
    return Filter(tuple(tuple(_predicate(part, schema) for part in each) for each in alternatives))


def _predicate(part: Any, schema: TableSchema) -> Predicate:
    if not isinstance(part, list | tuple) or len(part) != 3 or not isinstance(part[0], str):
        raise SchemaError(f"where: a predicate must be (column, operator, value), got {part!r}")
    column, operator, value = part
    type_ = schema.type_of(column, "where")
    if operator not in OPERATORS:
        raise SchemaError(f"where: operator must be one of {', '.join(OPERATORS)}, got {operator!r}")
    if operator in _NULL_TESTS:
        if value is not None:
            raise SchemaError(f"where: {column!r} {operator} takes the value None, got {value!r}")
        return Predicate(column, operator, None)
    if operator in _LISTS:
        return Predicate(column, operator, _value_set(column, type_, operator, value))
    return Predicate(column, operator, _literal(column, type_, operator, value))


def _literal(column: str, type_: pa.DataType, operator: str, value: Any) -> pa.Scalar:
    """The value as an Arrow scalar that compares with the column."""
    if value is None:
        raise SchemaError(f"where: {column!r} {operator} NULL is never true, got None; use 'is null'")
    try:
        literal = pa.scalar(value)
        _COMPARISONS.get(operator, pc.equal)(pa.nulls(1, type_), literal)
    except (pa.ArrowException, TypeError, OverflowError) as cause:
        raise SchemaError(
            f"where: column {column!r} of type {types.sql_name(type_)} must be compared by {operator!r} with "
            f"a value of its type, got {value!r}"
        ) from cause
    return literal


_ALIKE: Final = (bool, int, float, str, bytes, date, datetime, time, timedelta, Decimal)
"""Of values of one of these types, and of times those that all name a zone, what one compares with all do."""


def _value_set(column: str, type_: pa.DataType, operator: str, values: Any) -> pa.Array:
    if isinstance(values, str | bytes) or not isinstance(values, Collection):
        raise SchemaError(f"where: {column!r} {operator} needs a list of values, got {values!r}")
    alike: dict[tuple[type, bool], list[Any]] = {}
    for value in values:
        has_zone = isinstance(value, datetime | time) and value.tzinfo is not None
        alike.setdefault((type(value), has_zone), []).append(value)
    found = [pa.array([], type_)]
    for (kind, _), group in alike.items():
        found += _value_sets(column, type_, operator, group, are_alike=kind in _ALIKE)
    return pa.concat_arrays(found)


def _value_sets(
    column: str, type_: pa.DataType, operator: str, values: Sequence[Any], *, are_alike: bool
) -> Iterator[pa.Array]:
    """The values of one kind in the column's type, at once if that is possible."""
    if are_alike:
        _literal(column, type_, operator, values[0])
        with suppress(pa.ArrowException, OverflowError):  # one of them does not fit: find out which
            yield _fitting(pa.array(values), type_)
            return
    for value in values:
        literal = _literal(column, type_, operator, value)
        with suppress(pa.ArrowInvalid):  # not in the range of the column's type: it equals no value of it
            yield _fitting(pa.array([value], literal.type), type_)


def _fitting(given: pa.Array, type_: pa.DataType) -> pa.Array:
    """Values in the type of a column, without those that equal none: 0.1 is no FLOAT, noon no DATE."""
    if pa.types.is_decimal(type_) and pa.types.is_integer(given.type):
        given = given.cast(_ANY_INTEGER)  # Arrow makes no decimal of fewer digits of an integer
    elif pa.types.is_integer(type_) and pa.types.is_decimal(given.type):
        given = equal_values(given, _ANY_INTEGER).drop_null()
        given = given.filter(pc.equal(given.cast(pa.int64(), safe=False), given)).cast(pa.int64())
    if any(is_kind(given.type) and is_kind(type_) for is_kind in _EXACT):
        return equal_values(given, type_).drop_null()
    fits = given.cast(type_)
    return fits.filter(pc.equal(fits, given))


_ANY_INTEGER: Final = pa.decimal128(20, 0)
_EXACT: Final = (pa.types.is_integer, pa.types.is_decimal)
"""Kinds of types of which a value has an equal in another one of its kind, or none."""


def _is_in(values: pa.ChunkedArray, value_set: pa.Array) -> pa.ChunkedArray:
    if pa.types.is_floating(value_set.type):
        # a hash of -0.0 is not that of 0.0, and of -0.0 this makes 0.0
        values, value_set = pc.add(values, 0), pc.add(value_set, 0)
    return pc.is_in(values, value_set=value_set)


def _within(low: pa.Array, high: pa.Array, smallest: pa.Scalar, largest: pa.Scalar) -> pa.Array:
    """Whether [low, high] meets [smallest, largest], as far as known: unknown AND false is false."""
    return pc.and_kleene(pc.less_equal(low, largest), pc.greater_equal(high, smallest))


def _bounds(entries: Sequence[FileEntry], column: Column) -> tuple[pa.Array, pa.Array]:
    low = pa.array([entry.min.get(column.id) for entry in entries], column.type)
    return low, pa.array([entry.max.get(column.id) for entry in entries], column.type)


EVERY_ROW: Final = Filter(())
"""What is left of a filter that a whole partition meets."""


def remaining(where: Filter, partitions: Iterable[Partition], schema: TableSchema) -> dict[Partition, Filter]:
    """For each partition that may have a row of which a filter is true, what is left to ask of its rows.

    ``EVERY_ROW`` where the filter is true of the whole partition; partitions without such a row are missing.
    """
    distinct = list(dict.fromkeys(partitions))
    if not where.alternatives or not schema.partitioned_by or not distinct:
        return dict.fromkeys(distinct, where)
    columns = [
        partition_values([partition[position][1] for partition in distinct], schema.type_of(name))
        for position, name in enumerate(schema.partitioned_by)
    ]
    values = pa.table(columns, names=list(schema.partitioned_by))
    left: list[list[tuple[Any, ...]]] = [[] for _ in distinct]
    for alternative in where.alternatives:
        known = tuple(p for p in alternative if p.column in schema.partitioned_by)
        rest = tuple(p for p in alternative if p.column not in schema.partitioned_by)
        may_hold = Filter((known,)).mask(values).to_numpy() if known else np.ones(len(distinct), np.bool_)
        for number in np.flatnonzero(may_hold).tolist():
            left[number].append(rest)
    return {
        partition: EVERY_ROW if () in rests else Filter(tuple(rests))
        for partition, rests in zip(distinct, left, strict=True)
        if rests
    }


def may_hold_between(where: Filter, ends: Sequence[Ends], schema: TableSchema) -> Mask:
    """For each two ends, whether a partition between them may have a row of which a filter is true."""
    names = schema.partitioned_by
    if not where.alternatives or not names:
        return np.ones(len(ends), np.bool_)
    bounds = {name: _ends_of_column(at, ends, schema.type_of(name)) for at, name in enumerate(names)}
    found = np.zeros(len(ends), np.bool_)
    for alternative in where.alternatives:
        possible = Filter((alternative,)).possible(bounds, len(ends))
        for predicate in alternative:
            if predicate.column == names[0] and (values := equal_to(predicate, schema)) is not None:
                _, texts = partition_codes(values)
                possible &= np.array(any_between([(text,) for text in texts], ends), np.bool_)
        found |= possible
    return found


def equal_to(predicate: Predicate, schema: TableSchema) -> pa.Array | None:
    """The values of the column of which a predicate is true, if these are a few that are known."""
    if predicate.operator == "in":
        return predicate.value
    if predicate.operator not in ("=", "=="):
        return None
    value, type_ = predicate.value, schema.type_of(predicate.column)
    if value.type == type_:
        return pa.array([value.as_py()], type_)
    if not (pa.types.is_integer(value.type) and pa.types.is_integer(type_)):
        return None
    try:
        return pa.array([value.as_py()], type_)
    except (pa.ArrowInvalid, OverflowError):  # beyond the range of the column's type
        return pa.array([], type_)


def _ends_of_column(at: int, ends: Sequence[Ends], type_: pa.DataType) -> tuple[pa.Array, pa.Array]:
    """The least and the greatest value of a partition column between two ends; NULL is not known."""
    spans = [
        _span(first[at], last[at], type_) if first[:at] == last[:at] else (None, None) for first, last in ends
    ]
    low, high = ([span[side] for span in spans] for side in (0, 1))
    return partition_values(low, type_), partition_values(high, type_)


def _span(first: str | None, last: str | None, type_: pa.DataType) -> tuple[str | None, str | None]:
    """The texts of the least and the greatest value between two, where the order is that of the values."""
    kinds = {kind_of(text) for text in (first, last) if text is not None}
    if first == last:
        return first, last
    if pa.types.is_integer(type_):
        return (first, last) if kinds == {NUMBER} else (None, None)
    if pa.types.is_date(type_):
        return (first, last) if kinds == {DAY} else (None, None)
    if pa.types.is_string(type_) and first is not None and last is not None:
        is_by_text = kinds == {DAY} or kinds == {TEXT}
        is_as_long = kinds == {NUMBER} and len(first) == len(last) and "-" not in first
        if is_by_text or is_as_long:
            return first, last
    return None, None


def where_to_json(where: Where) -> str:
    """The text of a ``where``.

    >>> where_to_json([("day", "=", date(2013, 1, 1)), ("n", "in", [1, 2])])
    '[["day", "=", "2013-01-01"], ["n", "in", [1, 2]]]'
    """
    return json.dumps(where, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime) and value.tzinfo is not None:
        return _in_utc(value).isoformat()
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return str(value // timedelta(microseconds=1))
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, set | frozenset):
        return list(value)
    raise SchemaError(f"where: a value must be a number, text, day, time or bytes, got {value!r}")


def _in_utc(value: datetime) -> datetime:
    """A time in UTC: Arrow reads no offset with seconds, as places had before they had zones."""
    try:
        return value.astimezone(UTC)
    except OverflowError as cause:
        raise SchemaError(
            f"where: a time must be within the years 1 to 9999 of UTC, got {str(value)!r}; leave it out"
        ) from cause


def where_from_json(text: str, schema: TableSchema) -> Where:
    """The ``where`` that a text says, its values of the columns' types; ``parse_where`` checks the rest.

    >>> schema = TableSchema.of({"day": pa.date32(), "n": pa.int32()})
    >>> where_from_json('[["day", "=", "2013-01-01"], ["n", ">", 1]]', schema)
    [('day', '=', datetime.date(2013, 1, 1)), ('n', '>', 1)]
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as cause:
        raise SchemaError(f"where: must be JSON, got {text!r}: {cause}") from cause
    if not isinstance(value, list):
        raise SchemaError(f"where: must be a JSON list, got {text!r}")
    return [_typed(part, schema) for part in value]


def _typed(part: Any, schema: TableSchema) -> Any:
    """A predicate, or a list of them, with values of the columns' types; anything else as it is."""
    if not isinstance(part, list) or not part:
        return part
    if not isinstance(part[0], str):
        return [_typed(each, schema) for each in part]
    if len(part) != 3:
        return part
    column, operator, value = part
    type_ = schema.type_of(column, "where")
    if isinstance(value, list):
        return column, operator, _typed_values(column, type_, value)
    return column, operator, _typed_values(column, type_, [value])[0]


def _typed_values(column: str, type_: pa.DataType, values: list[Any]) -> list[Any]:
    """Values as JSON has them, those that are texts of the column's type."""
    if pa.types.is_string(type_) or not types.is_scalar(type_):
        return values
    if all(isinstance(value, str) for value in values):
        with suppress(pa.ArrowException, ValueError, ArithmeticError):  # one of them is none: find out which
            return _read(type_, values)
    return [_typed_value(column, type_, value) for value in values]


def _typed_value(column: str, type_: pa.DataType, value: Any) -> Any:
    try:
        return _read(type_, [value])[0] if isinstance(value, str) else value
    except (pa.ArrowException, ValueError, ArithmeticError) as cause:
        raise SchemaError(
            f"where: column {column!r} must be compared with a value of {types.sql_name(type_)}, got "
            f"{value!r}"
        ) from cause


def _read(type_: pa.DataType, texts: Sequence[str]) -> list[Any]:
    """The values that texts say."""
    if pa.types.is_duration(type_):
        return [timedelta(microseconds=int(text)) for text in texts]
    if pa.types.is_decimal(type_):
        return [*map(Decimal, texts)]  # it may be compared with one of more digits
    # a time of day is compared with one of another precision; Python's have microseconds
    found = partition_values(texts, pa.time64("us") if pa.types.is_time(type_) else type_)
    values: list[Any] = found.to_pylist()
    return values


_MOST_OF_BUCKETS: Final = 100_000
"""Of more keys it is not asked which buckets they are in: they are in most."""


@dataclass(frozen=True)
class NamedKeys:
    """Values of an index's columns: each row of which the filter is true has one of these."""

    index: LookupIndex
    values: pa.Table


def named_keys(where: Filter, layout: Layout, most: int) -> NamedKeys | None:
    """The keys, of an index of the table, that a filter names; None if it names none, or more than ``most``.

    >>> schema = TableSchema.of({"a": pa.int32(), "b": pa.string()}, primary_key=["a"])
    >>> where = parse_where([("a", "in", [7, 3, 7]), ("b", ">", "x")], schema)
    >>> named_keys(where, Layout.of(schema), 10).values.to_pydict()
    {'a': [7, 3]}
    >>> named_keys(where, Layout.of(schema), 1) is None
    True
    """
    values = _values(where, layout.schema)
    index = layout.best_index(values)
    if index is None or (found := _combined(index.columns, values, most)) is None:
        return None
    return NamedKeys(index, found)


def named_buckets(where: Filter, layout: Layout) -> frozenset[int] | None:
    """The buckets of a partition in which rows are of which a filter is true; None if it does not say.

    >>> schema = TableSchema.of({"a": pa.int32(), "b": pa.string()}, primary_key=["a"])
    >>> len(named_buckets(parse_where([("a", "=", 7)], schema), Layout.of(schema, 16)))
    1
    """
    if layout.buckets == 1 or not layout.bucket_key:
        return None
    found = _combined(layout.bucket_key, _values(where, layout.schema), _MOST_OF_BUCKETS)
    return None if found is None else frozenset(layout.buckets_of(found).tolist())


def _values(where: Filter, schema: TableSchema) -> Mapping[str, pa.Array]:
    """Of each column that a filter says so of, the values of which it has one."""
    if len(where.alternatives) != 1:
        return {}
    found: dict[str, pa.Array] = {}
    for predicate in where.alternatives[0]:
        values = equal_to(predicate, schema)
        if values is not None and len(values) <= len(found.get(predicate.column, values)):
            found[predicate.column] = values
    return found


def _combined(columns: Sequence[str], values: Mapping[str, pa.Array], most: int) -> pa.Table | None:
    """Each value of a column with each of the others; None for more rows than ``most``."""
    if not set(columns) <= values.keys():
        return None
    each = [pc.unique(values[name]) for name in columns]
    count = math.prod(map(len, each))
    if count > most:
        return None
    places = np.unravel_index(np.arange(count), [max(1, len(one)) for one in each])
    arrays = [one.take(pa.array(place)) for one, place in zip(each, places, strict=True)]
    return pa.table(arrays, names=list(columns))
