"""What comes out of the rows that a query reads: these, or groups of them, in its order and its columns."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from upsert import types
from upsert.catalog.run.without_spark.rows import Rows, Stored, in_memory, schema_of
from upsert.catalog.run.without_spark.select import PlainSelect
from upsert.catalog.run.without_spark.settings import MOST_BYTES
from upsert.conditions.expressions import Condition, Field, Ref
from upsert.store.rows.computed import Filtered, First, InArrow, Input, NotInArrowError, Step
from upsert.store.rows.grouped import RunningGroups

_AT_ONCE: Final = 16 << 20
"""So many bytes of rows are put aside before the first ones among them are kept."""


def shown_rows(plain: PlainSelect, rows: Rows, most_bytes: int) -> pa.Table:
    """The rows, which take no more than so many bytes.

    Raises:
        NotInArrowError: Spark has to find them, or they are too many for one process.
    """
    by = [column for column, _ in plain.orders]
    if not all(types.is_scalar(rows.types[column]) for column in by):
        raise NotInArrowError("an order by what is no scalar")
    names = [*dict.fromkeys([*(column for _, column in plain.outputs), *by])]
    if plain.orders and plain.limit is not None:
        return _shown(plain, _firsts(plain, rows, names), None)
    most = sys.maxsize if plain.limit is None else plain.limit + plain.offset
    found = in_memory(rows, names, most_bytes, most=most)
    if plain.orders or plain.limit is not None:
        found = found.combine_chunks()  # the pieces go before the rows are copied in their order
    return _shown(plain, found, None)


def _firsts(plain: PlainSelect, rows: Rows, names: Sequence[str]) -> pa.Table:
    """The rows that may be among the first ones, of which few are kept at any time."""
    schema = schema_of(rows, names)
    step = InArrow(_first(plain, schema), (*names,), schema)
    kept, waiting, size = schema.empty_table(), list[pa.Table](), 0
    for piece in rows.pieces(names, {}, ends_soon=False):
        waiting.append(piece)
        size += piece.nbytes
        if size > max(_AT_ONCE, kept.nbytes):
            kept = step.rows([pa.concat_tables([kept, *waiting])])
            if kept.nbytes > MOST_BYTES:
                raise NotInArrowError("more first rows than one process keeps")
            waiting, size = [], 0
    return pa.concat_tables([kept, *waiting])


def _first(plain: PlainSelect, schema: pa.Schema, kept: Condition | None = None) -> First:
    """Those of some rows for which a condition is true, in their order, as many as are asked for."""
    names = (*schema.names,)
    given: Step = Input(0, tuple((field.name, field.name, field.type) for field in schema))
    given = given if kept is None else Filtered(given, kept, names)
    orders = tuple((Field(Ref(0, column)), *how) for column, how in plain.orders)
    return First(given, orders, None if plain.limit is None else plain.limit + plain.offset, names)


def shown_groups(plain: PlainSelect, rows: Rows, groups: RunningGroups, kept: Condition | None) -> pa.Table:
    """The groups of the rows for which a condition is true.

    Raises:
        NotInArrowError: Spark has to find them, or rows or groups are too many for one process.
    """
    names = [] if plain.groups is None else plain.groups.columns
    if not names and isinstance(rows, Stored) and (count := rows.counted()) is not None:
        groups.add_count(count)
    else:
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
    schema = pa.schema([(name, rows.schema.field(column).type) for name, column in plain.outputs])
    columns = tuple(column for _, column in plain.outputs)
    if kept is None and not plain.orders and plain.limit is None:  # all of them: none is copied
        return pa.Table.from_arrays(list(map(rows.column, columns)), schema=schema).slice(plain.offset)
    return InArrow(_first(plain, rows.schema, kept), columns, schema).rows([rows]).slice(plain.offset)
