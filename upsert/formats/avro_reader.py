"""Avro's binary form to columns: all messages of a batch at once, a field at a time (pure).

A datum does not say where its fields are: each begins where the one before it ends. So all messages are
stepped through side by side, and a step, the next field of all of them, is some numpy operations. What is
found, numbers and where bytes lie, is kept for each type of the schema that a column wants, and becomes Arrow
arrays when all is read. Elements of arrays and maps come likewise, the first ones of all messages, then the
second ones. Where few messages are left that have more, numpy would take longer: they are read one by one.
Numbers of an array are read all at once, for it is seen where each ends.

A message that is no datum, or does not fit its columns, is refused. Its place in each column is kept, so that
they stay as long as each other, and who asks leaves its row out.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from upsert import types
from upsert.arrays import Ints, Mask, Positions, indices, of_numbers, rescaled, stable_order
from upsert.errors import SchemaError
from upsert.formats.avro_schema import TEXTS_BY_NAME, AvroType, UnfitError, ticks, ticks_of_day, to_scale
from upsert.formats.avro_wire import TOO_EARLY, Messages, no_index
from upsert.formats.binary_columns import Spans, binaries, gathered, padded
from upsert.formats.text_values import TimestampStandard, example, read_column, shown

_FEW: Final = 16
"""So many messages are read one by one; numpy would take longer."""

_INTEGERS: Final = ("int", "long")
_SIZES: Final = {"boolean": 1, "float": 4, "double": 8}
_TIMES: Final = (types.TIMESTAMP, types.TIMESTAMP_NTZ)
_MICROS: Final = 1_000_000
_NANOS: Final = 1_000_000_000
_MAX_LONG: Final = 2**63 - 1
_WITH_OFFSET: Final = TimestampStandard.ISO_WITH_OFFSET


class _Pieces:
    """Numbers that come many at a time, or one by one."""

    def __init__(self, dtype: Any = np.int64) -> None:
        self._dtype = dtype
        self._arrays: list[npt.NDArray[Any]] = []
        self.single: list[Any] = []

    def add(self, values: npt.NDArray[Any]) -> None:
        """Add some."""
        self._close()
        self._arrays.append(values)

    def all(self) -> npt.NDArray[Any]:
        """All of them, in their order."""
        self._close()
        if len(self._arrays) != 1:
            self._arrays = [np.concatenate([np.empty(0, self._dtype), *self._arrays])]
        return self._arrays[0]

    def _close(self) -> None:
        if self.single:
            self._arrays.append(np.array(self.single, self._dtype))
            self.single = []


class _Reader(Protocol):
    """Reads the values of one type of a schema, and keeps them where a column wants them."""

    def many(self, rows: Positions) -> None:
        """Read the next value of each of these messages."""

    def one(self) -> None:
        """Read the next value of the message that is read by itself."""

    def array(self) -> pa.Array:
        """All values in the order in which they were read; refuses messages of which one does not fit."""


def _reader(messages: Messages, avro: AvroType, column: pa.Field | None) -> _Reader:
    """What reads values of a type into a column; None: past them."""
    if column is not None:
        return _new_reader(messages, avro, column)
    if id(avro) not in messages.past:
        messages.past[id(avro)] = avro, _new_reader(messages, avro, None)
    found: _Reader = messages.past[id(avro)][1]
    return found


def _new_reader(messages: Messages, avro: AvroType, column: pa.Field | None) -> _Reader:
    if avro.nullable:
        return _Optional(messages, avro, column)
    if avro.kind == "union":
        return _Union(messages, avro, column)
    if avro.kind == "record":
        if column is not None and column.type == TEXTS_BY_NAME:
            return _TextsByName(messages, avro)
        return _Record(messages, avro, column)
    if avro.inner is not None:
        return _Repeated(messages, avro, avro.inner, column)
    if avro.kind in (*_INTEGERS, "enum"):
        return _Numbers(messages, avro, column)
    return _Bytes(messages, avro, column)


class _Optional:
    """Values in a union with null."""

    def __init__(self, messages: Messages, avro: AvroType, column: pa.Field | None) -> None:
        self._messages = messages
        self._null = int(not avro.null_is_first)
        self._column = column
        self._inner = _reader(messages, avro.without_null, column)
        self._is_null, self._rows = _Pieces(np.bool_), _Pieces()

    def many(self, rows: Positions) -> None:
        index = self._messages.numbers(rows)
        is_there = index == 1 - self._null
        _check_indexes(self._messages, rows, index, 2, "type")
        if self._column is not None:
            self._is_null.add(~is_there)
            self._rows.add(rows)
        if is_there.all():
            self._inner.many(rows)
        elif is_there.any():
            self._inner.many(rows[is_there])

    def one(self) -> None:
        index = self._messages.number()
        is_there = index == 1 - self._null
        if not 0 <= index < 2:
            self._messages.refuse_one(no_index("type", index))
        if self._column is not None:
            self._is_null.single.append(not is_there)
            self._rows.single.append(self._messages.row)
        if is_there:
            self._inner.one()

    def run(self, rows: Positions, counts: Ints) -> bool:
        """Read so many values of each of these messages at once; False if one is null, or there are less."""
        if not isinstance(self._inner, _Numbers | _Bytes):
            return False
        if not self._inner.run(rows, counts, 1 - self._null):
            return False
        if self._column is not None:
            self._is_null.add(np.zeros(int(counts.sum()), np.bool_))
            self._rows.add(np.repeat(rows, counts))
        return True

    def array(self) -> pa.Array:
        values, is_null = self._inner.array(), self._is_null.all()
        if not is_null.any():
            return values
        if self._column is not None and not self._column.nullable:
            reason = f"field {self._column.name!r} must not be null"
            self._messages.refuse(self._rows.all()[is_null], reason)
        return values.take(pa.array(np.cumsum(~is_null) - 1, pa.int64(), mask=is_null))


def _check_indexes(messages: Messages, rows: Positions, index: Ints, count: int, what: str) -> None:
    """Refuse messages whose index is none of so many."""
    if (is_odd := (index < 0) | (index >= count)).any():
        for row, given in zip(rows[is_odd], index[is_odd].tolist(), strict=True):
            messages.refuse(row[None], no_index(what, given))


class _Union:
    """Values of several types, which no column wants; or of one, which a column may want."""

    def __init__(self, messages: Messages, avro: AvroType, column: pa.Field | None) -> None:
        self._messages = messages
        self._is_wanted = column is not None
        self._branches = [None if one is None else _reader(messages, one, column) for one in avro.branches]

    def many(self, rows: Positions) -> None:
        index = self._messages.numbers(rows)
        _check_indexes(self._messages, rows, index, len(self._branches), "type")
        for number, branch in enumerate(self._branches):
            if branch is not None and len(own := rows if self._is_wanted else rows[index == number]):
                branch.many(own)

    def one(self) -> None:
        index = self._messages.number()
        if not 0 <= index < len(self._branches):
            self._messages.refuse_one(no_index("type", index))
            index = 0
        if (self._is_wanted or not self._messages.is_refused) and (branch := self._branches[index]):
            branch.one()

    def array(self) -> pa.Array:
        (only,) = self._branches
        assert only is not None
        return only.array()


class _Record:
    """Records, which become STRUCTs; of what no column wants, nothing is read of bad messages."""

    def __init__(self, messages: Messages, avro: AvroType, column: pa.Field | None) -> None:
        self._messages = messages
        self._type = None if column is None else column.type
        self._wanted = {} if column is None else {field.name: field for field in column.type}
        self._fields = {name: _reader(messages, inner, self._wanted.get(name)) for name, inner in avro.fields}
        self._absent = {name: (inner, datum) for name, inner, datum in avro.absent}
        self._count = 0

    def many(self, rows: Positions) -> None:
        self._count += len(rows)
        for name, field in self._fields.items():
            if name in self._wanted or not self._messages.reasons:
                field.many(rows)
            elif len(good := rows[~self._messages.is_bad[rows]]):
                field.many(good)

    def one(self) -> None:
        self._count += 1
        for name, field in self._fields.items():
            if name in self._wanted or not self._messages.is_refused:
                field.one()

    def array(self) -> pa.Array:
        assert self._type is not None
        children = [
            self._fields[field.name].array() if field.name in self._fields else self._of_absent(field)
            for field in self._type
        ]
        return pa.Array.from_buffers(self._type, self._count, [None], children=children)

    def _of_absent(self, field: pa.Field) -> pa.Array:
        """The values of a field that messages do not have."""
        if field.name not in self._absent:
            return pa.nulls(self._count, field.type)
        avro, datum = self._absent[field.name]
        message = Spans(padded(np.frombuffer(datum, np.uint8)), np.zeros(1, np.int64), np.array([len(datum)]))
        record = AvroType("record", fields=((field.name, avro),))
        (column,), reasons = columns_of(message, record, [field])
        for reason in reasons.values():
            raise SchemaError(f"the default of a field that messages lack must fit its column: {reason}")
        return column.take(indices(np.zeros(self._count, np.int64)))


class _TextsByName:
    """Records as maps of each field's name to its value as text, as JSON has it."""

    def __init__(self, messages: Messages, avro: AvroType) -> None:
        self._names = [name for name, _ in avro.fields]
        fields = [pa.field(name, _natural(inner)) for name, inner in avro.fields]
        self._record = _Record(messages, avro, pa.field("", pa.struct(fields)))

    def many(self, rows: Positions) -> None:
        self._record.many(rows)

    def one(self) -> None:
        self._record.one()

    def array(self) -> pa.Array:
        found = self._record.array()
        columns = [_json_texts(column) for column in found.flatten()]
        place = np.arange(len(found))[:, None] + np.arange(len(columns)) * len(found)
        items = pa.concat_arrays(columns).take(indices(place.ravel()))
        names = pa.array(self._names * len(found), pa.string())
        offsets = pa.array(np.arange(len(found) + 1) * len(columns), pa.int32())
        return pa.MapArray.from_arrays(offsets, names, items, type=TEXTS_BY_NAME)


def _natural(avro: AvroType) -> pa.DataType:
    if avro.kind in _INTEGERS:
        return pa.int64()
    if avro.kind == "boolean":
        return pa.bool_()
    return pa.float64() if avro.kind in ("float", "double") else pa.string()


def _json_texts(column: pa.Array) -> pa.Array:
    if not pa.types.is_floating(column.type):
        return column.cast(pa.string())
    texts = [None if value is None else json.dumps(value) for value in column.to_pylist()]
    return pa.array(texts, pa.string())


class _Repeated:
    """Arrays and maps: blocks, of a count and so many elements, up to one without any.

    A count below zero says the same as the one above it, and that the block's number of bytes follows.
    """

    def __init__(self, messages: Messages, avro: AvroType, inner: AvroType, column: pa.Field | None) -> None:
        self._messages = messages
        self._type = type_ = None if column is None else column.type
        self._keys: _Reader | None = None
        if avro.kind == "map":
            key = None if type_ is None else pa.field("key", pa.string(), nullable=False)
            self._keys = _reader(messages, AvroType("string"), key)
        is_map = type_ is not None and pa.types.is_map(type_)
        item = None if type_ is None else type_.item_field if is_map else type_.value_field
        self._items = _reader(messages, inner, item)
        self._count = 0
        self._owners = _Pieces()

    def many(self, rows: Positions) -> None:
        owners = self._count + np.arange(len(rows))
        self._count += len(rows)
        while len(rows) > _FEW:
            left = self._counts(rows)
            goes_on = left > 0
            rows, owners, left = rows[goes_on], owners[goes_on], left[goes_on]
            now, of_now = rows, owners
            if len(rows) > _FEW and self._run(rows, owners, left):
                continue
            while len(now) > _FEW:
                self._elements(now, of_now)
                left = left - 1
                has_more = (left > 0) & ~self._messages.is_bad[now]
                now, of_now, left = now[has_more], of_now[has_more], left[has_more]
            for row, owner, count in zip(now.tolist(), of_now.tolist(), left.tolist(), strict=True):
                self._messages.begin_alone(row)
                self._block(owner, count)
                self._messages.end_alone()
            is_good = ~self._messages.is_bad[rows]
            rows, owners = rows[is_good], owners[is_good]
        for row, owner in zip(rows.tolist(), owners.tolist(), strict=True):
            self._messages.begin_alone(row)
            self._blocks(owner)
            self._messages.end_alone()

    def one(self) -> None:
        self._count += 1
        self._blocks(self._count - 1)

    def _counts(self, rows: Positions) -> Ints:
        """How many elements the next block of each message has."""
        counts = self._messages.numbers(rows)
        if (has_size := counts < 0).any():
            self._messages.numbers(rows[has_size])
            counts = np.abs(counts)  # of the lowest number there is none: it stays below zero
        left = self._messages.end[rows] - self._messages.at[rows]
        is_odd = (counts < 0) | (counts > left)
        self._messages.refuse(rows[is_odd], TOO_EARLY)
        counts[is_odd] = 0
        return counts

    def _elements(self, rows: Positions, owners: Positions) -> None:
        if self._type is not None:
            self._owners.add(owners)
        if self._keys is not None:
            self._keys.many(rows)
        self._items.many(rows)

    def _run(self, rows: Positions, owners: Positions, counts: Ints) -> bool:
        """Read so many elements of each message at once, where it is known where they lie; else nothing."""
        if self._keys is not None or not isinstance(self._items, _Numbers | _Bytes | _Optional):
            return False
        if not self._items.run(rows, counts):
            return False
        if self._type is not None:
            self._owners.add(np.repeat(owners, counts))
        return True

    def _blocks(self, owner: int) -> None:
        """Read all blocks of the message that is read by itself."""
        while not self._messages.is_refused and (count := self._messages.number()):
            if count < 0:
                self._messages.number()
            if abs(count) > self._messages.left:
                self._messages.refuse_one(TOO_EARLY)
            self._block(owner, abs(count))

    def _block(self, owner: int, count: int) -> None:
        """Read so many elements of it."""
        if count > _FEW and not self._messages.is_refused:
            row = self._messages.row
            self._messages.end_alone()
            if self._run(np.array([row]), np.array([owner]), np.array([count])):
                count = 0
            self._messages.begin_alone(row)
        while count and not self._messages.is_refused:
            if self._type is not None:
                self._owners.single.append(owner)
            if self._keys is not None:
                self._keys.one()
            self._items.one()
            count -= 1

    def array(self) -> pa.Array:
        owners, items = self._owners.all(), self._items.array()
        order = None if (np.diff(owners) >= 0).all() else stable_order(owners)
        if order is not None:
            owners, items = owners[order], items.take(indices(order))
        if self._keys is None:
            return pa.ListArray.from_arrays(self._offsets(owners), items, type=self._type)
        keys = self._keys.array()
        if order is not None:
            keys = keys.take(indices(order))
        kept = _last_of_keys(owners, keys)
        if len(kept) < len(owners):
            owners, keys, items = owners[kept], keys.take(indices(kept)), items.take(indices(kept))
        return pa.MapArray.from_arrays(self._offsets(owners), keys, items, type=self._type)

    def _offsets(self, owners: Positions) -> pa.Array:
        lengths = np.bincount(owners, minlength=self._count)
        return pa.array(np.concatenate(([0], np.cumsum(lengths))), pa.int32())


def _last_of_keys(owners: Positions, keys: pa.Array) -> Positions:
    """The places of the entries of maps that count: of equal keys of a map the last one."""
    codes = keys.dictionary_encode()
    both = owners * len(codes.dictionary) + codes.indices.to_numpy()
    _, from_end = np.unique(both[::-1], return_index=True)
    return np.sort(len(both) - 1 - from_end)


class _Numbers:
    """Numbers of variable length: int, long, and the indexes of enums."""

    def __init__(self, messages: Messages, avro: AvroType, column: pa.Field | None) -> None:
        self._messages = messages
        self._avro = avro
        self._column = column
        self._bits = 64 if avro.kind == "long" else 32
        self._values, self._rows = _Pieces(), _Pieces()

    def many(self, rows: Positions) -> None:
        values = self._messages.numbers(rows, self._bits)
        if self._avro.kind == "enum":
            _check_indexes(self._messages, rows, values, len(self._avro.symbols), "symbol")
        if self._column is not None:
            self._values.add(values)
            self._rows.add(rows)

    def run(self, rows: Positions, counts: Ints, branch: int | None = None) -> bool:
        """Read so many values of each of these messages at once; False if there are not as many."""
        if self._avro.kind == "enum":
            return False
        if (values := self._messages.number_runs(rows, counts, self._bits, branch)) is None:
            return False
        if self._column is not None:
            self._values.add(values)
            self._rows.add(np.repeat(rows, counts))
        return True

    def one(self) -> None:
        value = self._messages.number(self._bits)
        if self._avro.kind == "enum" and not 0 <= value < len(self._avro.symbols):
            self._messages.refuse_one(no_index("symbol", value))
        if self._column is not None:
            self._values.single.append(value)
            self._rows.single.append(self._messages.row)

    def array(self) -> pa.Array:
        assert self._column is not None
        values, type_ = self._values.all(), self._column.type
        if self._avro.kind == "enum":
            is_odd = (values < 0) | (values >= len(self._avro.symbols))
            places = pa.array(values, mask=is_odd) if is_odd.any() else indices(values)
            return pa.array(self._avro.symbols, pa.string()).take(places).cast(type_)
        if type_ in _TIMES:
            return of_numbers(self._micros(values), type_)
        if type_ == pa.date32():
            return of_numbers(values.astype(np.int32), type_)
        if pa.types.is_time(type_):
            return of_numbers(self._of_day(values, type_), type_)
        own = values.astype(type_.to_pandas_dtype())
        if pa.types.is_integer(type_):
            self._check(own == values, values)
        return of_numbers(own, type_)

    def _micros(self, values: Ints) -> Ints:
        per_second = ticks(self._avro) or _MICROS
        if per_second > _MICROS:
            return values // (per_second // _MICROS)
        factor = _MICROS // per_second
        limit = _MAX_LONG // factor
        self._check((values <= limit) & (values >= -limit), values)
        return values * factor

    def _of_day(self, values: Ints, type_: pa.DataType) -> npt.NDArray[Any]:
        """Times of day in the units of their column, what is finer left out."""
        per_second = ticks_of_day(self._avro) or 1
        fits = (values >= 0) & (values < 86_400 * per_second)
        self._check(fits, values)
        own, given = types.NANOS[type_], _NANOS // per_second
        units = np.where(fits, values, 0) * max(1, given // own) // max(1, own // given)
        return units.astype(f"i{type_.bit_width // 8}")

    def _check(self, fits: Mask, values: Ints) -> None:
        if fits.all():
            return
        column = self._column
        assert column is not None
        for row, value in zip(self._rows.all()[~fits], values[~fits].tolist(), strict=True):
            reason = f"field {column.name!r} does not fit {types.sql_name(column.type)}: {value}"
            self._messages.refuse(row[None], reason)


class _Bytes:
    """Values of which the length is known, or comes before them: texts, bytes, decimals, floats, booleans."""

    def __init__(self, messages: Messages, avro: AvroType, column: pa.Field | None) -> None:
        self._messages = messages
        self._avro = avro
        self._column = column
        self._size = avro.size if avro.kind == "fixed" else _SIZES.get(avro.kind)
        self._begin, self._end, self._rows = _Pieces(), _Pieces(), _Pieces()

    def many(self, rows: Positions) -> None:
        begin, end = self._messages.stretches(rows, self._size)
        if self._column is not None:
            self._begin.add(begin)
            self._end.add(end)
            self._rows.add(rows)

    def run(self, rows: Positions, counts: Ints, branch: int | None = None) -> bool:
        """Read so many values of each of these messages at once; False if there are not as many.

        Those of which the length comes before them are read one after the other.
        """
        if self._size is None:
            return False
        if (begin := self._messages.stretch_runs(rows, counts, self._size, branch)) is None:
            return False
        if self._column is not None:
            self._begin.add(begin)
            self._end.add(begin + self._size)
            self._rows.add(np.repeat(rows, counts))
        return True

    def one(self) -> None:
        begin, end = self._messages.stretch(self._size)
        if self._column is not None:
            self._begin.single.append(begin)
            self._end.single.append(end)
            self._rows.single.append(self._messages.row)

    def array(self) -> pa.Array:
        assert self._column is not None
        type_ = self._column.type
        found = Spans(self._messages.data, self._begin.all(), self._end.all())
        match self._avro.kind:
            case "boolean":
                values = found.data[found.begin]
                self._refuse(values > 1, "no datum of the schema: a boolean is neither 0 nor 1")
                return pa.array(values == 1)
            case "float" | "double" as kind:
                own = np.dtype("<f4" if kind == "float" else "<f8")
                # one at each byte, of which those are taken that are some
                every = np.ndarray(len(found.data) - own.itemsize + 1, own, found.data, strides=(1,))
                with np.errstate(invalid="ignore"):  # a NaN of any bits is one
                    numbers = every[found.begin].astype(type_.to_pandas_dtype(), copy=False)
                return of_numbers(numbers, type_)
        if self._avro.logical == "decimal":
            return self._decimals(found, type_)
        values = binaries(*gathered(found))
        if self._avro.kind in ("bytes", "fixed") and type_ == pa.binary():
            return values
        texts = self._texts(values)
        return self._times(texts, type_) if type_ in _TIMES else texts.cast(type_)

    def _refuse(self, is_bad: Mask, reason: str) -> None:
        self._messages.refuse(self._rows.all()[is_bad], reason)

    def _texts(self, values: pa.Array) -> pa.Array:
        try:
            return values.cast(pa.string())
        except pa.ArrowInvalid:
            pass  # find out which
        assert self._column is not None
        found = values.to_pylist()
        is_bad = np.zeros(len(found), np.bool_)
        for place, value in enumerate(found):
            try:
                value.decode()
            except UnicodeDecodeError:
                is_bad[place] = True
                found[place] = b""
        name, type_ = self._column.name, types.sql_name(self._column.type)
        self._refuse(is_bad, f"field {name!r} does not fit {type_}: not valid UTF-8")
        return pa.array(found, pa.binary()).cast(pa.string())

    def _times(self, texts: pa.Array, type_: pa.DataType) -> pa.Array:
        times, bad = read_column(texts, type_, _WITH_OFFSET)
        if bad is not None and self._column is not None:
            for row, text in zip(self._rows.all()[bad], texts.filter(pa.array(bad)).to_pylist(), strict=True):
                what = f"a text must be like {example(type_, _WITH_OFFSET)}, got {shown(text)}"
                name = types.sql_name(type_)
                self._messages.refuse(row[None], f"field {self._column.name!r} does not fit {name}: {what}")
        return times

    def _decimals(self, found: Spans, type_: pa.DataType) -> pa.Array:
        """Two's complements, the highest byte first, as decimals of the column's scale."""
        length = found.end - found.begin
        scale = self._avro.scale
        longest = int(length.max(initial=1))
        if 0 <= scale <= _DIGITS and type_.scale >= 0 and longest < _WORDS:
            place = found.end[:, None] - np.arange(1, _WORDS + 1)
            is_own = place >= found.begin[:, None]
            is_negative = (length > 0) & (found.data[found.begin] > 127)
            raw = np.where(is_own, found.data[np.maximum(place, 0)], np.where(is_negative, 255, 0)[:, None])
            digits = len(str(1 << 8 * longest - 1))
            given = of_numbers(raw.astype(np.uint8), pa.decimal128(digits, scale))
            try:
                return rescaled(given, type_)
            except pa.ArrowInvalid:
                pass  # find out which
        return self._decimals_singly(found, type_)

    def _decimals_singly(self, found: Spans, type_: pa.DataType) -> pa.Array:
        limit = 10**type_.precision
        words = []
        for row, begin, end in zip(self._rows.all(), found.begin.tolist(), found.end.tolist(), strict=True):
            given = int.from_bytes(found.data[begin:end].tobytes(), "big", signed=True)
            try:
                number = to_scale(given, type_.scale - self._avro.scale)
                if abs(number) >= limit:
                    raise UnfitError(f"a decimal has more digits than {types.sql_name(type_)}")
            except UnfitError as cause:
                self._messages.refuse(row[None], str(cause))
                number = 0
            words.append(number.to_bytes(_WORDS, "little", signed=True))
        return pa.Array.from_buffers(type_, len(words), [None, pa.py_buffer(b"".join(words))])


_DIGITS: Final = 38
_WORDS: Final = 16
"""Bytes of a decimal in Arrow; what has fewer has at most `_DIGITS` digits."""


def columns_of(
    messages: Spans, avro: AvroType, fields: Sequence[pa.Field]
) -> tuple[list[pa.Array], dict[int, str]]:
    r"""The columns of messages, each a datum of a schema that fits the fields; why some of them are refused.

    Columns have a row for each message. A schema that is of no record is of the only field.

    >>> from upsert.formats.avro_schema import parse
    >>> from upsert.formats.binary_columns import padded
    >>> data = padded(np.frombuffer(b"\x06foo\x06", np.uint8))
    >>> spans = Spans(data, np.array([0, 4]), np.array([4, 5]))
    >>> columns, reasons = columns_of(spans, parse('"string"'), [pa.field("v", pa.string())])
    >>> columns[0].to_pylist(), reasons
    (['foo', ''], {1: 'no datum of the schema: it ends too early'})
    """
    given = Messages(messages)
    is_record = avro.kind == "record"
    column = pa.field(avro.name, pa.struct(list(fields)), nullable=False) if is_record else fields[0]
    root = _reader(given, avro, column)
    count = len(messages.begin)
    if count > _FEW:
        root.many(np.arange(count))
    else:
        for row in range(count):
            given.begin_alone(row)
            root.one()
            given.end_alone()
    left = given.end - given.at
    for row in np.flatnonzero(left).tolist():
        given.refuse(np.array([row]), f"{left[row]} bytes follow the datum")
    found = root.array()
    columns = [found.field(number) for number in range(len(fields))] if is_record else [found]
    return columns, given.reasons
