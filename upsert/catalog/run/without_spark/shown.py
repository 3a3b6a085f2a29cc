"""What comes out of the rows that a query reads: these, or groups of them, in its order and its columns."""

from __future__ import annotations

import sys

import pyarrow as pa

from upsert import types
from upsert.catalog.run.without_spark.rows import Rows, in_memory
from upsert.catalog.run.without_spark.select import PlainSelect
from upsert.catalog.run.without_spark.settings import MOST_BYTES
from upsert.conditions.expressions import Condition, Field, Ref
from upsert.store.rows.computed import Filtered, First, InArrow, Input, NotInArrowError, Step
from upsert.store.rows.grouped import RunningGroups


def shown_rows(plain: PlainSelect, rows: Rows) -> pa.Table:
    """The rows.

    Raises:
        NotInArrowError: Spark has to find them, or they are too many for one process.
    """
    by = [column for column, _ in plain.orders]
    if not all(types.is_scalar(rows.types[column]) for column in by):
        raise NotInArrowError("an order by what is no scalar")
    most = sys.maxsize if plain.limit is None or plain.orders else plain.limit + plain.offset
    names = [*dict.fromkeys([*(column for _, column in plain.outputs), *by])]
    return _shown(plain, in_memory(rows, names, most=most), None)


def shown_groups(plain: PlainSelect, rows: Rows, groups: RunningGroups, kept: Condition | None) -> pa.Table:
    """The groups of the rows for which a condition is true.

    Raises:
        NotInArrowError: Spark has to find them, or rows or groups are too many for one process.
    """
    names = [] if plain.groups is None else plain.groups.columns
    for piece in rows.pieces([*dict.fromkeys(names)] or [*rows.types][:1], {}, ends_soon=False):
        groups.add(piece)
        _check_few(groups)
    found = groups.rows()
    _check_few(groups)
    return _shown(plain, found, kept)


def _check_few(groups: RunningGroups) -> None:
    if groups.nbytes > MOST_BYTES:
        raise NotInArrowError("more groups than one process keeps")


def _shown(plain: PlainSelect, rows: pa.Table, kept: Condition | None) -> pa.Table:
    """What comes out of rows: those for which a condition is true, in their order, under their names."""
    names = (*rows.column_names,)
    given: Step = Input(0, tuple((field.name, field.name, field.type) for field in rows.schema))
    given = given if kept is None else Filtered(given, kept, names)
    orders = tuple((Field(Ref(0, column)), *how) for column, how in plain.orders)
    most = None if plain.limit is None else plain.limit + plain.offset
    schema = pa.schema([(name, rows.schema.field(column).type) for name, column in plain.outputs])
    columns = tuple(column for _, column in plain.outputs)
    return InArrow(First(given, orders, most, names), columns, schema).rows([rows]).slice(plain.offset)
