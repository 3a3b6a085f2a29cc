"""Functions of groups of rows that come a piece at a time (pure).

Of a group one row is kept: its key, and for each function what makes it of parts of the group, as a sum and a
number of values for an average. So the memory that is taken grows with the groups, not with the rows; of a
function of DISTINCT values it grows with these. See docs/decisions/0132.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Final

import numpy as np
import pyarrow as pa

from upsert import types
from upsert.arrays import Ints, is_null, min_max, of_numbers, one_array
from upsert.store.rows.codes import codes_of_keys, first_of_each, numbers_of_keys
from upsert.store.rows.computed import NotInArrowError, computing
from upsert.store.rows.keys import as_key
from upsert.store.rows.measures import averages, measured, result_type

_AT_ONCE: Final = 16 << 20
"""So many bytes of rows are put aside before they are grouped with those before them."""

_DIGITS: Final = 38
_EXACTLY: Final = Context(prec=2 * _DIGITS)
"""Python's own has fewer digits than a decimal."""

_MORE_DIGITS: Final = 10
"""A sum of decimals has as many digits more than they, which no number of rows fills."""


@dataclass(frozen=True)
class GroupFunction:
    """A function of each group: "count", "sum", "avg", "min" or "max" of columns.

    "count" is of rows in which all of them are known, with ``is_distinct`` of different ones.
    """

    function: str
    columns: tuple[str, ...] = ()
    is_distinct: bool = False

    def type(self, given: Mapping[str, pa.DataType]) -> pa.DataType:
        """Of its results, for columns of these types; `SchemaError` where it has none here."""
        if self.function == "count" and not self.is_distinct:
            return pa.int64()
        return result_type(self.function, [given[name] for name in self.columns])


@dataclass(frozen=True)
class _Part:
    """What is kept of each group: the "sum", "min" or "max" of a value of its rows.

    The value is a column's, in ``type``; with ``counts`` it is 1 where all of ``columns`` are known.
    """

    by: str
    columns: tuple[str, ...]
    type: pa.DataType
    counts: bool = False

    def of(self, rows: pa.Table) -> pa.Array:
        """The value of each of some rows."""
        if not self.counts:
            return one_array(rows.column(self.columns[0])).cast(self.type, safe=False)
        known = np.ones(rows.num_rows, np.int64)
        for name in self.columns:
            known[is_null(one_array(rows.column(name)))] = 0
        return of_numbers(known, pa.int64())


def _parts(function: GroupFunction, given: Mapping[str, pa.DataType]) -> tuple[_Part, ...]:
    """What a function is made of; the parts of "avg" are a sum and a count."""
    count = _Part("sum", function.columns, pa.int64(), counts=True)
    if function.function == "count":
        return (count,)
    if function.function != "avg":
        return (_Part(function.function, function.columns, function.type(given)),)
    (name,) = function.columns
    is_decimal = pa.types.is_decimal(given[name])
    return (_Part("sum", (name,), result_type("sum", [given[name]]) if is_decimal else pa.float64()), count)


class _Kept:
    """Rows of which those with equal keys become one; the first columns are the keys."""

    def __init__(self, keys: int, parts: Sequence[_Part], types_of_keys: Sequence[pa.DataType]) -> None:
        self._keys, self._parts = keys, parts
        found = (*types_of_keys, *(part.type for part in parts))
        self._waiting = [pa.schema([(str(at), type_) for at, type_ in enumerate(found)]).empty_table()]
        self._is_put_together = False

    def add(self, columns: Sequence[pa.Array]) -> None:
        """More rows."""
        self._waiting.append(pa.Table.from_arrays(list(columns), schema=self._waiting[0].schema))
        self._is_put_together = False
        if sum(rows.nbytes for rows in self._waiting[1:]) > max(_AT_ONCE, self.nbytes):
            self.rows()

    @property
    def nbytes(self) -> int:
        """Of what was kept when rows were put together last."""
        return int(self._waiting[0].nbytes)

    def rows(self) -> pa.Table:
        """A row of each key, and one where there are no keys."""
        if self._is_put_together:
            return self._waiting[0]
        given = pa.concat_tables(self._waiting)
        columns = [one_array(column) for column in given.columns]
        groups, count, found = np.zeros(given.num_rows, np.int64), 1, list[pa.Array]()
        if self._keys:
            groups = numbers_of_keys(columns[: self._keys])
            first = first_of_each(groups)
            count, found = len(first), [key.take(pa.array(first)) for key in columns[: self._keys]]
        for part, values in zip(self._parts, columns[self._keys :], strict=True):
            found.append(measured(part.by, [values], groups, count, keeps_order=True).cast(part.type))
        self._waiting = [pa.Table.from_arrays(found, schema=given.schema)]
        self._is_put_together = True
        return self._waiting[0]


def name_of_key(number: int) -> str:
    """What a key of groups is called in their rows."""
    return f"group_{number}"


def name_of_result(number: int) -> str:
    """What the results of a function are called there."""
    return f"result_{number}"


class RunningGroups:
    """Groups of rows by some columns, and functions of each; of rows that are added a piece at a time.

    Floating-point numbers are added in the order of the rows, as Spark adds them within a task.

    Raises:
        NotInArrowError: a function has no result for the types of its columns, or keys of one are no scalars.

    >>> groups = RunningGroups(["k"], [GroupFunction("sum", ("v",))], {"k": pa.string(), "v": pa.int32()})
    >>> for values in ([1, 2], [4, 8]):
    ...     groups.add(pa.table({"k": ["a", "b"], "v": pa.array(values, pa.int32())}))
    >>> groups.rows().to_pylist()
    [{'group_0': 'a', 'result_0': 5}, {'group_0': 'b', 'result_0': 10}]
    """

    def __init__(
        self, keys: Sequence[str], functions: Sequence[GroupFunction], given: Mapping[str, pa.DataType]
    ) -> None:
        self._keys, self._functions, self._given = keys, functions, given
        if not all(types.is_scalar(given[name]) for name in keys):
            raise NotInArrowError("groups by what is no scalar")
        with computing():
            self._types = [function.type(given) for function in functions]
        of_keys = [given[name] for name in keys]
        plain = [function for function in functions if not function.is_distinct]
        self._parts = list(dict.fromkeys(part for one in plain for part in _parts(one, given)))
        self._kept = _Kept(len(keys), self._parts, of_keys)
        distinct = dict.fromkeys(one.columns for one in functions if one.is_distinct)
        self._distinct = {
            columns: _Kept(len(keys) + len(columns), (), [*of_keys, *(given[name] for name in columns)])
            for columns in distinct
        }
        self._most = dict.fromkeys(self._parts, 0)

    @property
    def nbytes(self) -> int:
        """Of what is kept."""
        return self._kept.nbytes + sum(kept.nbytes for kept in self._distinct.values())

    @property
    def schema(self) -> pa.Schema:
        """Of the rows."""
        keys = [(name_of_key(at), self._given[name]) for at, name in enumerate(self._keys)]
        return pa.schema([*keys, *((name_of_result(at), type_) for at, type_ in enumerate(self._types))])

    def add(self, rows: pa.Table) -> None:
        """More rows, with all columns that keys and functions need.

        Raises:
            NotInArrowError: a result depends on the order in which Spark comes to the rows.
        """
        with computing():
            self._add(rows)

    def add_count(self, count: int) -> None:
        """So many rows more, where only their number is asked: there are no keys, and rows are counted."""
        self._kept.add([pa.array([count], part.type) for part in self._parts])

    def _add(self, rows: pa.Table) -> None:
        self._check(rows)
        keys = [as_key(one_array(rows.column(name))) for name in self._keys]
        self._kept.add([*keys, *(part.of(rows) for part in self._parts)])
        for columns, kept in self._distinct.items():
            values = [as_key(one_array(rows.column(name))) for name in columns]
            known = pa.array(np.logical_and.reduce([~is_null(value) for value in values]))
            kept.add([column.filter(known) for column in (*keys, *values)])

    def rows(self) -> pa.Table:
        """A row of each group, and one where there are no keys; a group's key is 0.0 for -0.0.

        Raises:
            NotInArrowError: a result does not fit its type.
        """
        with computing():
            return self._rows()

    def _rows(self) -> pa.Table:
        kept = self._kept.rows()
        count = kept.num_rows if self._keys else 1
        keys = [one_array(kept.column(at)) for at in range(len(self._keys))]
        results = [
            self._result(function, type_, kept, keys, count)
            for function, type_ in zip(self._functions, self._types, strict=True)
        ]
        return pa.Table.from_arrays([*keys, *results], schema=self.schema)

    def _result(
        self,
        function: GroupFunction,
        type_: pa.DataType,
        kept: pa.Table,
        keys: Sequence[pa.Array],
        count: int,
    ) -> pa.Array:
        if function.is_distinct:
            return pa.array(_counts(keys, self._distinct[function.columns].rows(), count))
        at = [len(keys) + self._parts.index(part) for part in _parts(function, self._given)]
        parts = [one_array(kept.column(number)) for number in at]
        if function.function == "count":
            return parts[0].fill_null(0)
        if function.function == "avg":
            return averages(parts[0], parts[1].fill_null(0).to_numpy(), type_)
        return parts[0]

    def _check(self, rows: pa.Table) -> None:
        """Refuse what is another result if Spark comes to the rows in another order."""
        for part in self._parts:
            if part.counts or not rows.num_rows:
                continue
            column = one_array(rows.column(part.columns[0]))
            if pa.types.is_floating(part.type):
                if part.by != "sum" and _has_negative_zero(column):
                    raise NotInArrowError("of 0.0 and -0.0 the least is the first one")
            elif part.by == "sum":
                self._most[part] += _most(column) * rows.num_rows
                if self._most[part] >= _bound(part.type, self._given[part.columns[0]]):
                    raise NotInArrowError("a sum that may overflow on the way")


def _counts(keys: Sequence[pa.Array], values: pa.Table, count: int) -> Ints:
    """How many rows of values there are of each key; the first columns of these are keys as well."""
    if not keys:
        return np.array([values.num_rows])
    both = [pa.concat_arrays([key, one_array(values.column(at))]) for at, key in enumerate(keys)]
    return np.bincount(codes_of_keys(both)[count:], minlength=count)


def _has_negative_zero(column: pa.Array) -> bool:
    numbers = column.drop_null().to_numpy()
    return bool(np.signbit(numbers[numbers == 0]).any())


def _most(column: pa.Array) -> int:
    """The greatest of the absolute values, of decimals without their point."""
    ends = [end.as_py() for end in min_max(column) if end.is_valid]
    scale = column.type.scale if pa.types.is_decimal(column.type) else 0
    return max((abs(int(Decimal(end).scaleb(scale, _EXACTLY))) for end in ends), default=0)


def _bound(type_: pa.DataType, given: pa.DataType) -> float:
    """What a sum must stay below wherever it begins."""
    if not pa.types.is_decimal(type_):
        return 1 << 63
    has_room = given.precision + _MORE_DIGITS <= _DIGITS
    return float("inf") if has_room else 10**_DIGITS
