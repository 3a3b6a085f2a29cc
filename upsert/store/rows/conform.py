"""Whether rows fit a table, and the form in which they are stored (pure).

Types may differ in width only: a smaller integer, ``large_string``, another time unit or zone. A value that
would not survive the change is an error, and so is everything else: a wrong type is never guessed at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from upsert import types
from upsert.arrays import Mask, decimal_steps, one_array
from upsert.conditions.evaluate import mask
from upsert.conditions.expressions import Call
from upsert.errors import CheckViolatedError, SchemaError
from upsert.rowkind import ROW_KIND_COLUMN, signs
from upsert.schema import Column, Length, TableSchema, plainly
from upsert.store.files.formats.base import retyped
from upsert.store.rows.hashing import child_values, row_hashes
from upsert.store.rows.keys import as_key, has_floats
from upsert.store.rows.layout import ROW_HASH_COLUMN, Layout

Signs = npt.NDArray[np.int8]


@runtime_checkable
class ArrowStream(Protocol):
    """What gives its rows as Arrow does: a DataFrame of pandas or Polars, a relation of DuckDB."""

    def __arrow_c_stream__(self, requested_schema: object | None = None, /) -> object:
        """A capsule of Arrow's C stream interface."""


def read_stream(given: ArrowStream) -> pa.RecordBatchReader:
    """What another library has, as a stream of Arrow.

    Raises:
        SchemaError: it is a single column, or has one whose values are of several types, or none of Arrow's.
    """
    try:
        return pa.RecordBatchReader.from_stream(given)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as cause:
        raise SchemaError(
            f"rows: must be columns that have one type each, got {type(given).__name__}: {cause}; give a "
            "table of such columns"
        ) from cause


def conform(layout: Layout, rows: pa.Table, owner: str = "rows") -> tuple[pa.Table, Signs | None]:
    """The rows in the table's column order, types and lengths, and +1 or -1 for each.

    The latter is None without ``_row_kind``. The rows have exactly the table's columns, in any order, and
    perhaps ``_row_kind``, which is gone then. Float keys are normalised (-0.0 becomes 0.0), and all floats of
    a table without primary key, of which whole rows are the key; it gets ``_row_hash`` as last column.
    ``owner`` is what the rows belong to, for messages.

    Raises:
        SchemaError: the rows are no Arrow table, or a column is missing, unknown, repeated, of another type
            or NULL where it must not be. Only the key is checked in rows of sign -1: deletions often carry
            nothing else.
        ChangelogError: a row kind is none of the four.
        CheckViolatedError: a CHECK constraint is false of a row. Where the rows of a key are combined, it is
            asked of what becomes of them, by `check_rows`.
    """
    check_is_table(rows, f"{owner}: rows")
    _check_names(layout, rows, owner)
    weights = None
    if ROW_KIND_COLUMN in rows.column_names:
        weights = signs(_cast(rows.column(ROW_KIND_COLUMN), Column(ROW_KIND_COLUMN, pa.string()), owner))
    columns = [_stored(layout, rows, column, weights, owner) for column in layout.schema.columns]
    names = list(layout.schema.names)
    if layout.is_counted:
        columns.append(row_hashes(columns, rows.num_rows))
        names.append(ROW_HASH_COLUMN)
    stored = pa.table(columns, schema=pa.schema([layout.stored.field(name) for name in names]))
    if not layout.merge.needs_present_rows:
        check_rows(layout.schema, stored, None if weights is None else weights > 0, owner)
    return stored, weights


def check_rows(schema: TableSchema, rows: pa.Table, of: Mask | None, owner: str) -> None:
    """Refuse rows of which a CHECK constraint is false, all of them or those of a mask.

    Raises:
        CheckViolatedError: there is one; the message has its key and the columns that the constraint names.
        SchemaError: a constraint cannot be evaluated: an integer overflows.
    """
    for check in schema.checks:
        try:
            violated = mask(
                Call("not", (check.condition,)), lambda ref: one_array(rows.column(ref.column)), len(rows)
            )
        except SchemaError as cause:
            raise SchemaError(f"{owner}: {check}: {plainly(cause)}") from cause
        if of is not None:
            violated &= of
        if violated.any():
            shown = dict.fromkeys((*schema.primary_key, *check.columns))
            (row,) = rows.slice(int(np.argmax(violated)), 1).select(list(shown)).to_pylist()
            values = ", ".join(f"{name} = {cut(repr(value))}" for name, value in row.items())
            raise CheckViolatedError(
                f"{owner}: {check} must not be false of a row, got {int(violated.sum())} such, one with "
                f"{values}; correct the rows, nothing was committed"
            )


def cut(text: str, most: int = 40) -> str:
    """A value in a message, where it may be long."""
    return text if len(text) <= most else f"{text[:most]}…"


def check_is_table(given: object, what: str) -> None:
    """Refuse anything but an Arrow table, before it fails somewhere inside."""
    if not isinstance(given, pa.Table):
        raise SchemaError(
            f"{what} must be a pyarrow.Table or a DataFrame, got {type(given).__name__}; make one with "
            "pa.table, pa.Table.from_pylist or pa.Table.from_pandas"
        )


def _check_names(layout: Layout, rows: pa.Table, owner: str) -> None:
    expected, times_of = layout.schema.names, Counter(rows.column_names)
    known = {*expected, ROW_KIND_COLUMN}
    unknown = [name for name in rows.column_names if name not in known]
    missing = [name for name in expected if name not in times_of]
    repeated = sorted(name for name, times in times_of.items() if times > 1)
    wrong = {"lacks": missing, "has unknown": unknown, "repeats": repeated}
    if faults := [f"{what} {', '.join(names)}" for what, names in wrong.items() if names]:
        raise SchemaError(
            f"{owner}: the columns must be {', '.join(expected)}; the input {' and '.join(faults)}"
        )


def _stored(
    layout: Layout, rows: pa.Table, column: Column, weights: Signs | None, owner: str
) -> pa.ChunkedArray:
    cast = of_column(rows.column(column.name), column, weights, owner)
    is_key = column.name in layout.schema.primary_key
    # where rows of a key are combined, NULL means that another one has the value: the commit looks
    if not column.nullable and cast.null_count and (is_key or not layout.merge.combines):
        missing = pc.is_null(cast).to_numpy()
        if is_key:
            raise SchemaError(
                f"{owner}: PRIMARY KEY column {column.name!r} must not be NULL, got NULL in row "
                f"{int(np.argmax(missing))}; filter such rows out or choose another key"
            )
        if weights is not None:
            missing = missing & (weights > 0)
        if missing.any():
            raise SchemaError(
                f"{owner}: column {column.name!r} is NOT NULL, got NULL in row {int(np.argmax(missing))}; "
                "give a value, or let the column have NULLs"
            )
    if (is_key or layout.is_counted) and has_floats(column.type):
        return pa.chunked_array([retyped(as_key(one_array(cast)), cast.type)])
    return cast


def of_column(values: pa.ChunkedArray, column: Column, weights: Signs | None, owner: str) -> pa.ChunkedArray:
    """Values in the type and the length of a column; that it is NOT NULL is not looked at.

    Raises:
        SchemaError: they are of another type, too long for it, or no interval of its fields.
    """
    cast = _cast(values, column, owner)
    if column.length is not None:
        cast = _of_length(cast, column.name, column.length, weights, owner)
    if column.interval is not None:
        _check_fields(cast, column, owner)
    return cast


def _of_length(
    texts: pa.ChunkedArray, name: str, length: Length, weights: Signs | None, owner: str
) -> pa.ChunkedArray:
    """The texts as Spark writes them: without blanks beyond the length, with blanks up to that of a CHAR."""
    most = length.characters
    is_long = pc.fill_null(pc.greater(pc.utf8_length(texts), most), False)
    if pc.any(is_long).as_py():
        beyond = pc.utf8_trim(pc.utf8_slice_codeunits(texts, most), " ")
        has_blanks = pc.fill_null(pc.equal(beyond, ""), True)
        too_long = pc.and_(is_long, pc.invert(has_blanks)).to_numpy()
        if weights is not None:
            # no row of the table has such a text, so nothing is deleted by it
            too_long = too_long & (weights > 0)
        if too_long.any():
            at = int(np.argmax(too_long))
            raise SchemaError(
                f"{owner}: column {name!r} is {length}, got {int(too_long.sum())} longer texts, the first of "
                f"{pc.utf8_length(texts[at]).as_py()} characters in row {at}; cut them, or make the column "
                "longer"
            )
        cut = pc.if_else(pc.and_(is_long, has_blanks), pc.utf8_slice_codeunits(texts, 0, most), texts)
        texts = cut if isinstance(cut, pa.ChunkedArray) else pa.chunked_array([cut])
    return pc.utf8_rpad(texts, most, " ") if length.is_padded else texts


def _check_fields(values: pa.ChunkedArray, column: Column, owner: str) -> None:
    """Refuse intervals with parts below the last field of theirs."""
    micros = types.INTERVALS[column.interval or types.WHOLE_INTERVAL]
    numbers = pc.fill_null(values.cast(pa.int64()), 0).to_numpy()
    if (odd := numbers % micros != 0).any():
        at = int(np.argmax(odd))
        raise SchemaError(
            f"{owner}: column {column.name!r} is {column.sql_type}, got {int(odd.sum())} intervals with "
            f"smaller parts, the first of {numbers[at]} microseconds in row {at}; cut them"
        )


def _cast(values: pa.ChunkedArray, column: Column, owner: str) -> pa.ChunkedArray:
    values = _with_stored_variants(values)
    if not is_same_but_for_width(values.type, column.type):
        raise SchemaError(
            f"{owner}: column {column.name!r} must be {types.sql_name(column.type)}, got Arrow type "
            f"{values.type}; cast it before writing"
        )
    if any(map(pa.types.is_time, types.within(column.type))):
        _check_times(one_array(values), column.name, owner)
    try:
        cast = values if values.type == column.type else cast_to(values, column.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as cause:
        raise SchemaError(
            f"{owner}: column {column.name!r} must hold values of {types.sql_name(column.type)}, "
            f"got others: {cause}"
        ) from cause
    if not types.is_scalar(column.type):
        _check_inner_nulls(one_array(cast), column.name, owner)
    return cast


def cast_to(values: pa.ChunkedArray, type_: pa.DataType) -> pa.ChunkedArray:
    """The values in another type of the same family, see ``is_same_but_for_width``; NULLs are not checked."""
    values = _with_stored_variants(values)
    given = values.type
    for number in range(3):
        values = values.cast(_step(given, type_, number))
    if types.is_scalar(type_):
        return values
    # Arrow refuses to cast a NULL struct to one with NOT NULL fields; so these are declared afterwards
    return pa.chunked_array([retyped(chunk, type_) for chunk in values.chunks], type_)


def may_look_up(given: pa.DataType, type_: pa.DataType) -> bool:
    """Whether keys of one type look values of another one up: of the same, or of one of another width.

    >>> may_look_up(pa.int32(), pa.int64()), may_look_up(pa.string(), pa.int64())
    (True, False)
    """
    are_floats = pa.types.is_floating(given) and pa.types.is_floating(type_)
    return given == type_ or is_same_but_for_width(given, type_) or are_floats


def equal_values(column: pa.ChunkedArray | pa.Array, type_: pa.DataType) -> pa.Array:
    """Values in another type of the same family, see `may_look_up`; NULL where one has no equal there.

    >>> equal_values(pa.array([1, 2**40]), pa.int32()).to_pylist()
    [1, None]
    """
    given = one_array(column)
    if given.type == type_:
        return given
    if pa.types.is_dictionary(given.type):
        return equal_values(given.cast(_without_views(given.type)).dictionary_decode(), type_)
    is_float = pa.types.is_floating(type_)
    if not is_float:
        try:
            return one_array(cast_to(pa.chunked_array([given]), type_))
        except pa.ArrowInvalid:
            pass  # some value does not fit: find out which
    loose = _loose_cast(given, type_)
    same = pc.equal(loose.cast(given.type, safe=False), given)
    if is_float:
        same = pc.or_(same, pc.is_nan(given))
    if pa.types.is_integer(type_):  # a number without a sign comes back as it was from one below 0
        is_below = pc.less(loose, pa.scalar(0, type_)), pc.less(given, pa.scalar(0, given.type))
        same = pc.and_(same, pc.equal(*is_below))
    return pc.if_else(pc.fill_null(same, False), loose, pa.scalar(None, type_))


def _loose_cast(given: pa.Array, type_: pa.DataType) -> pa.Array:
    if not pa.types.is_decimal(type_):
        return given.cast(type_, safe=False)
    whole = type_.precision - type_.scale
    if given.type.precision - given.type.scale > whole:
        fits = pc.less(pc.abs(given), pa.scalar(Decimal(10) ** whole, given.type))
        given = pc.if_else(fits, given, pa.scalar(None, given.type))
    return given.cast(type_, safe=False)


def _with_stored_variants(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """The values with each VARIANT as tables have it, where it is as Spark gives it."""
    if (wanted := types.with_stored_variants(values.type)) == values.type:
        return values
    return pa.chunked_array([retyped(chunk, wanted) for chunk in values.chunks], wanted)


def _step(given: pa.DataType, stored: pa.DataType, number: int) -> pa.DataType:
    """The type after one of three casts, see ``decimal_steps``; what may be NULL within is nullable."""
    if pa.types.is_dictionary(given):
        plain = _without_views(given)
        return plain if number == 0 and plain != given else _step(given.value_type, stored, number)
    if pa.types.is_decimal(given) and pa.types.is_decimal(stored):
        return decimal_steps(given, stored)[number]
    if pa.types.is_null(given):
        given = stored
    if pa.types.is_struct(stored):
        pairs = zip(given, stored, strict=True)
        return pa.struct([pa.field(field.name, _step(own.type, field.type, number)) for own, field in pairs])
    if pa.types.is_map(stored):
        item = pa.field(stored.item_field.name, _step(given.item_type, stored.item_type, number))
        return pa.map_(_step(given.key_type, stored.key_type, number), item)
    if pa.types.is_list(stored):
        element = _step(given.value_type, stored.value_type, number)
        return pa.list_(pa.field(stored.value_field.name, element))
    return stored


def _without_views(dictionary: pa.DictionaryType) -> pa.DictionaryType:
    """Categories of Polars are views, which Arrow cannot take out of a dictionary."""
    is_view = pa.types.is_string_view(dictionary.value_type)
    return pa.dictionary(dictionary.index_type, pa.string()) if is_view else dictionary


def is_same_but_for_width(given: pa.DataType, stored: pa.DataType) -> bool:
    """Whether values of one type are values of the other, if they fit.

    >>> is_same_but_for_width(pa.int32(), pa.int64()), is_same_but_for_width(pa.int64(), pa.float64())
    (True, False)
    """
    if pa.types.is_dictionary(given):
        return is_same_but_for_width(given.value_type, stored)
    if given == stored or pa.types.is_null(given):
        return True
    if pa.types.is_timestamp(given) and pa.types.is_timestamp(stored):
        return (given.tz is None) == (stored.tz is None)
    if pa.types.is_struct(given) and pa.types.is_struct(stored):
        return len(given) == len(stored) and all(
            one.name == other.name and is_same_but_for_width(one.type, other.type)
            for one, other in zip(given, stored, strict=True)
        )
    if pa.types.is_map(given) and pa.types.is_map(stored):
        same_keys = is_same_but_for_width(given.key_type, stored.key_type)
        return same_keys and is_same_but_for_width(given.item_type, stored.item_type)
    if _is_any(given, _LISTS) and pa.types.is_list(stored):
        return is_same_but_for_width(given.value_type, stored.value_type)
    if pa.types.is_float32(given) and pa.types.is_float64(stored):
        return True
    return any(_is_any(given, family) and _is_any(stored, family) for family in _FAMILIES)


_LISTS: Final = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
_FAMILIES: Final = (
    (pa.types.is_integer,),
    (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
    (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary),
    (pa.types.is_decimal,),
    (pa.types.is_date,),
    (pa.types.is_time,),
    (pa.types.is_duration,),
)


def _is_any(type_: pa.DataType, kinds: Iterable[Callable[[pa.DataType], bool]]) -> bool:
    return any(kind(type_) for kind in kinds)


def _check_inner_nulls(array: pa.Array, name: str, owner: str) -> None:
    """A NULL where the nested type says there is none: Arrow lets it pass, Spark would misread it."""
    for field, values in _inner(array):
        if values.null_count and not (field.nullable and array.type != types.VARIANT):
            raise SchemaError(
                f"{owner}: column {name!r}: {field.name!r} inside it must not be NULL, got NULL"
            )
        if not types.is_scalar(field.type):
            _check_inner_nulls(values, name, owner)


def _check_times(array: pa.Array, name: str, owner: str) -> None:
    """Refuse times of day below 00:00 or from 24:00 on: Arrow has such, and its casts make others of them."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_time(array.type):
        numbers = array.cast(pa.int32() if array.type.bit_width == 32 else pa.int64()).drop_null()
        is_outside = pc.or_(pc.less(numbers, 0), pc.greater_equal(numbers, types.units_of_day(array.type)))
        if outside := pc.sum(is_outside).as_py():
            first = numbers.filter(is_outside)[0].as_py()
            raise SchemaError(
                f"{owner}: column {name!r} must hold times of day, from 00:00 to before 24:00, got {outside} "
                f"others, the first of {first} {array.type.unit}; take them modulo a day"
            )
    elif pa.types.is_nested(array.type):
        for _, values in _inner(array):
            _check_times(values, name, owner)


def _inner(array: pa.Array) -> list[tuple[pa.Field, Any]]:
    """Fields and values directly below a nested array, without what lies below its own NULLs."""
    present = array.drop_null() if array.null_count else array
    if pa.types.is_struct(array.type):
        return list(zip(list(array.type), present.flatten(), strict=True))
    if pa.types.is_map(array.type):
        return [
            (array.type.key_field, child_values(present, present.keys)),
            (array.type.item_field, child_values(present, present.items)),
        ]
    return [(array.type.value_field, present.flatten())]
