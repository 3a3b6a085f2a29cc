"""The values of Debezium's JSON: times that are numbers, decimals that are bytes, ISO's texts (pure).

A number does not say what it counts, nor do bytes say their scale. The schema of a message does
(`of_schema`); without one the modes of the connector do, and the type that is declared (`Modes.encoding`).
What a column then holds is read as another type (`wire_type`), and becomes its values here (`read`).
"""

from __future__ import annotations

import binascii
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any, Final, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from upsert import options, types
from upsert.arrays import Mask
from upsert.formats.text_values import TimestampStandard, read_column, shown
from upsert.options import Option

_MILLIS: Final = 10**6
_MICROS: Final = 10**3
_DAY: Final = 86_400 * 10**9

_COUNTED: Final = {
    "adaptive": (None, _MICROS),
    "adaptive_time_microseconds": (_MICROS, _MICROS),
    "connect": (_MILLIS, _MILLIS),
    "microseconds": (_MICROS, _MICROS),
    "nanoseconds": (1, 1),
    "isostring": (None, None),
}
"""Mode -> how many nanoseconds a number of a time of day counts, and one of a time; None: see `Modes`."""

_NAMED: Final = {
    "io.debezium.time.Time": _MILLIS,
    "io.debezium.time.MicroTime": _MICROS,
    "io.debezium.time.NanoTime": 1,
    "io.debezium.time.Timestamp": _MILLIS,
    "io.debezium.time.MicroTimestamp": _MICROS,
    "io.debezium.time.NanoTimestamp": 1,
    "org.apache.kafka.connect.data.Time": _MILLIS,
    "org.apache.kafka.connect.data.Timestamp": _MILLIS,
}
"""The same of the names of a schema."""

OPTIONS: Final = (
    Option(
        "time.precision.mode",
        options.one_of(*_COUNTED),
        "of Debezium's connector, where no schema says what numbers of times count",
        None,
    ),
    Option(
        "decimal.handling.mode",
        options.one_of("precise", "string", "double"),
        "of Debezium's connector: precise writes base64; default: as schemas say, else string",
        None,
    ),
)


class Encoding(NamedTuple):
    """How the values of a column are written.

    Attributes:
        nanos: how many nanoseconds a number of a time counts, None where nothing says it.
        scale: that of a decimal's bytes, None where they are no bytes.
        is_variable: whether a decimal is bytes of the column's scale, or an object that has scale and bytes.
    """

    nanos: int | None = None
    scale: int | None = None
    is_variable: bool = False

    @property
    def is_base64(self) -> bool:
        """Whether decimals are bytes."""
        return self.is_variable or self.scale is not None


@dataclass(frozen=True)
class Modes:
    """What is known of the connector: the values of the two options."""

    times: str | None = None
    decimals: str | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """The modes that the options of a format name."""
        return cls(given.get("time.precision.mode"), given.get("decimal.handling.mode"))

    def encoding(self, type_: pa.DataType) -> Encoding:
        """How a column of this type is written, where messages have no schema."""
        type_ = _innermost(type_)
        if pa.types.is_decimal(type_):
            return Encoding(is_variable=self.decimals == "precise")
        of_day, of_time = _COUNTED.get(self.times or "", (None, None))
        if not pa.types.is_time(type_):
            return Encoding(of_time)
        if self.times == "adaptive":
            return Encoding(_MILLIS if types.time_digits(type_) <= 3 else _MICROS)
        return Encoding(of_day)

    def of_schema(self, schema: Mapping[str, Any], declared: Encoding) -> Encoding:
        """How a field of this schema of Kafka Connect is written; as declared where it is no such schema."""
        try:
            return self._of_schema(schema)
        except MALFORMED:
            return declared

    def _of_schema(self, schema: Mapping[str, Any]) -> Encoding:
        if schema.get("type") == "array":
            return self._of_schema(schema["items"])
        name = schema.get("name")
        if self.decimals in (None, "precise"):
            if name == "org.apache.kafka.connect.data.Decimal":
                return Encoding(scale=int(schema["parameters"]["scale"]))
            if name == "io.debezium.data.VariableScaleDecimal":
                return Encoding(is_variable=True)
        return Encoding(_NAMED.get(name or ""))


def _innermost(type_: pa.DataType) -> pa.DataType:
    return _innermost(type_.value_type) if pa.types.is_list(type_) else type_


def wire_type(type_: pa.DataType, encoding: Encoding) -> pa.DataType:
    """The type as which JSON's values of a column are read."""
    if pa.types.is_list(type_):
        return pa.list_(type_.value_field.with_type(wire_type(type_.value_type, encoding)))
    if pa.types.is_decimal(type_) and encoding.scale is not None:
        return pa.binary()
    is_text = encoding.is_variable if pa.types.is_decimal(type_) else _is_time(type_)
    return pa.string() if is_text else type_


def _is_time(type_: pa.DataType) -> bool:
    return bool(pa.types.is_temporal(type_) and not pa.types.is_duration(type_))


def read(
    found: pa.Array, type_: pa.DataType, encoding: Encoding, standard: TimestampStandard
) -> tuple[pa.Array, Mask]:
    """The values of a column as its ``wire_type`` has them; which of them are none of the type, and NULL.

    >>> micros, sql = Encoding(nanos=1000), TimestampStandard.SQL
    >>> given = pa.array(["1500000", "1970-01-01T00:00:02Z", "soon", None])
    >>> values, is_bad = read(given, types.TIMESTAMP_NTZ, micros, sql)
    >>> values.cast(pa.string()).to_pylist(), is_bad.tolist()
    (['1970-01-01 00:00:01.500000', '1970-01-01 00:00:02.000000', None, None], [False, False, True, False])
    """
    if pa.types.is_list(type_):
        return _read_lists(found, type_, encoding, standard)
    if pa.types.is_decimal(type_):
        scale = type_.scale if encoding.scale is None else encoding.scale
        return _each(found, type_, _decimal_reader(type_, scale))
    is_number = pc.match_substring_regex(found, _NUMBER).fill_null(False)
    where = np.flatnonzero(is_number.to_numpy(zero_copy_only=False))
    texts = pc.if_else(is_number, pa.scalar(None, pa.string()), found) if len(where) else found
    values, is_bad = _read_texts(texts, type_, standard)
    if len(where):
        numbers = found.take(pa.array(where)).cast(pa.int64()).to_numpy()
        counted, fits = _counted(numbers, type_, encoding.nanos)
        is_bad[where] = ~fits
        values = pc.replace_with_mask(values, is_number, pa.array(counted, mask=~fits).cast(type_))
    return values, is_bad


def reason(value: str | bytes, type_: pa.DataType, encoding: Encoding) -> str:
    """Why a value is none of the type.

    >>> reason("1609330394123", types.TIMESTAMP, Encoding())
    "1609330394123 is no TIMESTAMP unless it is known what it counts; set 'time.precision.mode' to what..."
    """
    inner = _innermost(type_)
    name = types.sql_name(inner)
    if pa.types.is_decimal(type_):
        return f"{shown(value)} has too many digits for {name}, or is no decimal in base64; {_NUMBERS}"
    if (
        encoding.nanos is None
        and inner != pa.date32()
        and isinstance(value, str)
        and re.fullmatch(_NUMBER, value)
    ):
        return f"{value} is no {name} unless it is known what it counts; {_COUNTS}"
    return f"{shown(value)} is no {name} within the years 0001 to 9999"


_NUMBERS: Final = "where the connector writes numbers, set 'decimal.handling.mode' to string"
_COUNTS: Final = (
    "set 'time.precision.mode' to what the connector has, or let messages carry their schema, "
    "and set schema-include"
)
BASE64: Final = (
    "; if it is base64, which the connector writes by default, set 'decimal.handling.mode' to "
    "precise, or its own decimal.handling.mode to string"
)
"""What to do where a text is no DECIMAL."""

_NUMBER: Final = "^-?(?:[0-9]{1,18}|[1-8][0-9]{18})$"
"""Those that surely have 64 bits."""


def _read_lists(
    found: pa.Array, type_: pa.DataType, encoding: Encoding, standard: TimestampStandard
) -> tuple[pa.Array, Mask]:
    items, is_bad_item = read(found.flatten(), type_.value_type, encoding, standard)
    lengths = found.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    ends = np.cumsum(lengths)
    offsets = pa.array(np.concatenate([[0], ends]), pa.int32())
    is_bad = np.zeros(len(found), np.bool_)
    is_bad[np.searchsorted(ends, np.flatnonzero(is_bad_item), side="right")] = True
    is_none = found.is_null() if type_.value_field.nullable else pc.or_(found.is_null(), pa.array(is_bad))
    return pa.ListArray.from_arrays(offsets, items, type=type_, mask=is_none), is_bad


def _counted(numbers: Any, type_: pa.DataType, nanos: int | None) -> tuple[Any, Mask]:
    """The numbers that Arrow has for a type, of those in units of some nanoseconds; and which of them fit."""
    width = f"i{type_.bit_width // 8}"
    if type_ == pa.date32():
        fits = (numbers >= _FIRST_DAY) & (numbers <= _LAST_DAY)
        return np.where(fits, numbers, 0).astype(width), fits
    if nanos is None:
        return np.zeros(len(numbers), width), np.zeros(len(numbers), np.bool_)
    is_of_day = pa.types.is_time(type_)
    first, end = (0, _DAY) if is_of_day else (_FIRST_DAY * _DAY, (_LAST_DAY + 1) * _DAY)
    fits = (numbers >= first // nanos) & (numbers <= min((end - 1) // nanos, _MAX_LONG))
    kept, own = np.where(fits, numbers, 0), types.NANOS[type_] if is_of_day else _MICROS
    counted = kept * (nanos // own) if nanos >= own else kept // (own // nanos)
    return counted.astype(width), fits


def _read_texts(texts: pa.Array, type_: pa.DataType, standard: TimestampStandard) -> tuple[pa.Array, Mask]:
    """Texts in the standard, or in ISO's with an offset; of days and times of day too, where Z is one."""
    plain = texts if pa.types.is_timestamp(type_) else pc.utf8_rtrim(texts, characters="Z")
    ways = [(texts, standard), (plain, TimestampStandard.ISO_WITH_OFFSET)]
    # a text that both take has one value, and those that a way does not take are read one by one
    if (pc.first(texts).as_py() or "").endswith("Z"):
        ways.reverse()
    is_bad = np.zeros(len(texts), np.bool_)
    values, odd = read_column(ways[0][0], type_, ways[0][1])
    if odd is None:
        return values, is_bad
    again, still_odd = read_column(ways[1][0], type_, ways[1][1])
    return pc.if_else(pa.array(odd), again, values), is_bad if still_odd is None else odd & still_odd


def _each(found: pa.Array, type_: pa.DataType, read_one: Callable[[Any], Any]) -> tuple[pa.Array, Mask]:
    is_bad = np.zeros(len(found), np.bool_)
    values: list[Any] = []
    for place, value in enumerate(found.to_pylist()):
        try:
            values.append(None if value is None else read_one(value))
        except MALFORMED:
            values.append(None)
            is_bad[place] = True
    return pa.array(values, type_), is_bad


def _decimal_reader(type_: pa.DataType, scale: int) -> Callable[[bytes | str], Decimal]:
    """What reads bytes of a scale, their base64, or the JSON of an object with a scale and bytes."""
    unit = Decimal(1).scaleb(-type_.scale)
    context = Context(prec=type_.precision, rounding=ROUND_HALF_UP)

    def read_one(value: bytes | str) -> Decimal:
        own = scale
        if isinstance(value, str) and value.startswith("{"):
            parts = json.loads(value)
            own, value = int(parts["scale"]), parts["value"]
        given = value if isinstance(value, bytes) else binascii.a2b_base64(value, strict_mode=True)
        if not given:
            raise ValueError("a number has a byte at least")
        digits = int.from_bytes(given, "big", signed=True)
        return Decimal(digits).scaleb(-own, _WIDE).quantize(unit, context=context)

    return read_one


MALFORMED: Final = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""What JSON that is not as Kafka Connect writes it may raise."""

_WIDE: Final = Context(prec=1_000)
_FIRST_DAY: Final = -719_162
_LAST_DAY: Final = 2_932_896
"""The years 0001 to 9999."""

_MAX_LONG: Final = 2**63 - 1
