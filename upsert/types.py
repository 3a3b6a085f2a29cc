"""Column types: Arrow types, their names in Spark SQL, and their JSON form in a table's files (pure).

The JSON form is the one Spark itself uses for schemas: a word for a scalar type, an object for
an array, map or struct.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import date, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from upsert.errors import CorruptTableError, SchemaError

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
TIMESTAMP_NTZ: Final = pa.timestamp("us")
INTERVAL: Final = pa.duration("us")
"""An interval of days, hours, minutes and seconds, or of some of them."""

VARIANT: Final = pa.struct([("variant_value", pa.binary()), ("variant_metadata", pa.binary())])
"""A value of any type, in Spark's binary form; the names tell it from a STRUCT that a table may have.

Its fields are NULL only where all of it is, which Parquet takes for no NOT NULL.
"""

_SPARK_VARIANT: Final = pa.struct(
    [
        pa.field("value", pa.binary(), nullable=False),
        pa.field("metadata", pa.binary(), nullable=False, metadata={b"variant": b"true"}),
    ]
)

SCALARS: Final[dict[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": TIMESTAMP,
    "timestamp_ntz": TIMESTAMP_NTZ,
    "time(0)": pa.time32("s"),
    "time(3)": pa.time32("ms"),
    "time(6)": pa.time64("us"),
    "time(9)": pa.time64("ns"),
    "interval day to second": INTERVAL,
}
"""Spark's JSON word for a scalar type -> the Arrow type that stores it."""

_WORDS: Final = {arrow: word for word, arrow in SCALARS.items()}
_SQL_NAMES: Final = {"byte": "TINYINT", "short": "SMALLINT", "integer": "INT", "long": "BIGINT"}
_MAX_LEVELS: Final = 200
"""More than any format of files takes, and few enough to go down one by one."""
_DECIMAL: Final = re.compile(r"decimal\(([0-9]{1,9}),(-?[0-9]{1,9})\)")
_SECOND: Final = 1_000_000
_LAST_FIELDS: Final = {"day": 86_400 * _SECOND, "hour": 3_600 * _SECOND, "minute": 60 * _SECOND, "second": 1}
INTERVALS: Final = {
    (first if first == last else f"{first} to {last}"): micros
    for number, first in enumerate(_LAST_FIELDS)
    for last, micros in list(_LAST_FIELDS.items())[number:]
}
"""Fields of an interval, from the first to the last, -> microseconds of which its values are multiples."""

WHOLE_INTERVAL: Final = "day to second"
_TIME: Final = re.compile(r"time\(([0-9])\)")
MAX_DECIMAL_PRECISION: Final = 38
MAX_TIME_PRECISION: Final = 9
_TIME_DIGITS: Final = (0, 3, 6, 9)


def time_of(precision: int) -> pa.DataType:
    """The type of a time of day with so many digits of a second, or with the next more that there are.

    >>> time_of(3), time_of(4)
    (Time32Type(time32[ms]), Time64Type(time64[us]))
    """
    return SCALARS[f"time({next(digits for digits in _TIME_DIGITS if digits >= precision)})"]


NANOS: Final[dict[pa.DataType, int]] = {time_of(digits): 10 ** (9 - digits) for digits in _TIME_DIGITS}
"""Type of a time of day -> how many nanoseconds its unit has; Spark counts all of them in nanoseconds."""


def time_digits(type_: pa.DataType) -> int:
    """Digits of a second of a time of day: 0, 3, 6 or 9.

    >>> time_digits(pa.time64("us"))
    6
    """
    return 10 - len(str(NANOS[type_]))


def units_of_day(type_: pa.DataType) -> int:
    """How many units of a time of day a day has; as many as values that are one.

    >>> units_of_day(pa.time32("s"))
    86400
    """
    return 86_400 * 10**9 // NANOS[type_]


_CLOCK: Final = r"[0-2][0-9]:[0-5][0-9](?::[0-5][0-9](?:\.[0-9]{1,9})?)?"


def times_of(texts: pa.Array, type_: pa.DataType) -> pa.Array:
    """Times of day of texts, ``hh:mm[:ss[.fraction]]``, NULL of NULL.

    Raises:
        pa.ArrowInvalid: a text is no time, or has more digits than the type.

    >>> times_of(pa.array(["10:00", "23:59:59.5"]), pa.time32("ms")).to_pylist()
    [datetime.time(10, 0), datetime.time(23, 59, 59, 500000)]
    """
    if not pc.all(pc.match_substring_regex(texts, f"^{_CLOCK}$")).as_py() and texts.null_count < len(texts):
        raise pa.ArrowInvalid("a time of day must be written hh:mm:ss.fraction")
    days = pc.binary_join_element_wise("1970-01-01", texts, " ").cast(pa.timestamp(type_.unit))
    numbers = days.cast(pa.int64())
    return numbers.cast(pa.int32() if type_.bit_width == 32 else pa.int64()).cast(type_)


_DAY: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_OF_ZONE: Final = r"Z|[+-]\d\d(:?\d\d(:?\d\d)?)?"
_MOMENT: Final = re.compile(_DAY.pattern + rf"([ T]\d\d(:\d\d(:\d\d(\.\d+)?({_OF_ZONE})?)?)?)?", re.ASCII)
_FARTHEST_ZONE: Final = timedelta(hours=18)


def day_of(text: str) -> date:
    """The day that a text of SQL says, ``yyyy-mm-dd``.

    Raises:
        ValueError: it says none, or in a form that only Python reads, as ``2020-W40-4``.

    >>> day_of("2020-10-01")
    datetime.date(2020, 10, 1)
    """
    if _DAY.fullmatch(text.strip(" ")) is None:
        raise ValueError("it is no day, as 2020-10-01 is")
    return date.fromisoformat(text.strip(" "))


def moment_of(text: str) -> datetime:
    """The time that a text of SQL says, ``yyyy-mm-dd[ hh[:mm[:ss[.fraction][zone]]]]``.

    Raises:
        ValueError: it says none, or in a form that only Python reads, as ``20201001 08:00``.

    >>> moment_of("2020-10-01 08:00:00.5Z")
    datetime.datetime(2020, 10, 1, 8, 0, 0, 500000, tzinfo=datetime.timezone.utc)
    """
    try:
        found = datetime.fromisoformat(text.strip(" "))
    except ValueError:
        found = None
    if found is None or _MOMENT.fullmatch(text.strip(" ")) is None:
        raise ValueError("it is no date and time, as 2020-10-01 08:00:00 is")
    offset = found.utcoffset()
    if offset is not None and abs(offset) > _FARTHEST_ZONE:
        raise ValueError("a zone is at most 18 hours from UTC")
    return found


def instant_texts(instants: pa.Array) -> pa.Array:
    """TIMESTAMPs as texts, NULL of NULL; one that Arrow has no text of is told, which is no time to a reader.

    Arrow's own text of a TIMESTAMP behind the year 32767 is one of another year.

    >>> instant_texts(pa.array([0, 2**63 - 1]).cast(TIMESTAMP)).to_pylist()
    ['1970-01-01 00:00:00.000000Z', '<value out of range: 9223372036854775807>Z']
    """
    without_zone = instants.cast(pa.int64()).cast(TIMESTAMP_NTZ).cast(pa.string())
    return pc.binary_join_element_wise(without_zone, "Z", "")


def in_spark(type_: pa.DataType) -> pa.DataType:
    """The Arrow type in which Spark takes and gives values of a column's type.

    Times of day are in nanoseconds, and a field of a VARIANT says that it is one.

    >>> in_spark(pa.list_(pa.time32("s")))
    ListType(list<item: time64[ns]>)
    """
    if type_ == VARIANT:
        return _SPARK_VARIANT
    return pa.time64("ns") if pa.types.is_time(type_) else with_inner(type_, in_spark)


def with_stored_variants(type_: pa.DataType) -> pa.DataType:
    """The type with each VARIANT in it as tables have it, where it is as Spark has it.

    >>> with_stored_variants(in_spark(VARIANT)) == VARIANT
    True
    """
    return VARIANT if _is_variant_in_spark(type_) else with_inner(type_, with_stored_variants)


def with_numbers(type_: pa.DataType) -> pa.DataType:
    """The type with numbers for times and intervals, of which Python does not have all.

    >>> with_numbers(pa.list_(pa.time64("ns"))), with_numbers(pa.date32())
    (ListType(list<item: int64>), DataType(int32))
    """
    if pa.types.is_temporal(type_):
        return pa.int32() if type_.bit_width == 32 else pa.int64()
    return with_inner(type_, with_numbers)


def _is_variant_in_spark(type_: pa.DataType) -> bool:
    is_alike = pa.types.is_struct(type_) and type_ == _SPARK_VARIANT
    return is_alike and b"variant" in (type_.field("metadata").metadata or {})


def within(type_: pa.DataType) -> list[pa.DataType]:
    """A type and all types within it; the entries of a map are its keys and its values.

    >>> within(pa.map_(pa.string(), pa.list_(pa.int8())))[1:]
    [DataType(string), ListType(list<item: int8>), DataType(int8)]
    """
    if pa.types.is_map(type_):
        inner = [type_.key_type, type_.item_type]
    else:
        inner = [type_.field(number).type for number in range(type_.num_fields)]
    return [type_, *(found for each in inner for found in within(each))]


def with_inner(type_: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """The type with the types directly within it changed."""

    def inner(field: pa.Field) -> pa.Field:
        return field.with_type(change(field.type))

    if pa.types.is_list(type_):
        return pa.list_(inner(type_.value_field))
    if pa.types.is_map(type_):
        return pa.map_(inner(type_.key_field), inner(type_.item_field))
    if pa.types.is_struct(type_):
        return pa.struct([inner(field) for field in type_])
    return type_


def is_later(type_: pa.DataType) -> bool:
    """Whether a type is, or has within it, one that tables have had only since they could be of TIME.

    >>> is_later(pa.list_(pa.time64("us"))), is_later(pa.int64())
    (True, False)
    """
    found = within(type_)
    return any(pa.types.is_time(one) or pa.types.is_duration(one) or one == VARIANT for one in found)


def is_variant(type_: pa.DataType) -> bool:
    """Whether a type is VARIANT, as tables have it or as Spark does."""
    return type_ == VARIANT or _is_variant_in_spark(type_)


def has_variant(type_: pa.DataType) -> bool:
    """Whether a type is VARIANT, or has it within it."""
    return VARIANT in within(type_)


def is_scalar(type_: pa.DataType) -> bool:
    """Whether the type is one of a single value: no array, map or struct.

    >>> is_scalar(pa.int64()), is_scalar(pa.list_(pa.int64()))
    (True, False)
    """
    return type_ in _WORDS or pa.types.is_decimal128(type_)


def sql_name(type_: pa.DataType) -> str:
    """Name of a type in Spark SQL, for messages and DDL.

    >>> sql_name(pa.list_(pa.int64()))
    'ARRAY<BIGINT>'
    """
    if type_ in _WORDS:
        word = _WORDS[type_]
        return _SQL_NAMES.get(word, word.upper())
    if pa.types.is_decimal128(type_):
        return f"DECIMAL({type_.precision},{type_.scale})"
    if type_ == VARIANT:
        return "VARIANT"
    if pa.types.is_list(type_):
        return f"ARRAY<{sql_name(type_.value_type)}>"
    if pa.types.is_map(type_):
        return f"MAP<{sql_name(type_.key_type)},{sql_name(type_.item_type)}>"
    if pa.types.is_struct(type_):
        return f"STRUCT<{','.join(f'{field.name}: {sql_name(field.type)}' for field in type_)}>"
    return str(type_)


def first_repeated(names: Iterable[str]) -> str | None:
    """The first of the names that is there more than once; None if there is none."""
    return next((name for name, times in Counter(names).items() if times > 1), None)


def differ_in_case(names: Iterable[str]) -> tuple[str, str] | None:
    """Two of the names that differ in case alone, which Spark takes for one; None if there are none.

    >>> differ_in_case(["id", "name", "ID"])
    ('id', 'ID')
    """
    seen: dict[str, str] = {}
    for name in names:
        if seen.setdefault(name.lower(), name) != name:
            return seen[name.lower()], name
    return None


def any_case(declared: Iterable[str]) -> Callable[[str], str]:
    """What makes of a name the declared one that it means where case does not count.

    It stays as it is where none is alike, or several differ in case alone.

    >>> list(map(any_case(["id", "v", "V"]), ["ID", "v", "nix"]))
    ['id', 'v', 'nix']
    """
    alike: dict[str, list[str]] = {}
    for name in declared:
        alike.setdefault(name.lower(), []).append(name)

    def own(name: str) -> str:
        found = alike.get(name.lower(), [])
        return found[0] if len(found) == 1 else name

    return own


def fields_that_differ_in_case(type_: pa.DataType) -> tuple[str, str] | None:
    """Two fields of one struct in a type that differ in case alone; None if there are none."""
    inner = [type_.field(number) for number in range(type_.num_fields)]
    found = differ_in_case([field.name for field in inner]) if pa.types.is_struct(type_) else None
    deeper = (fields_that_differ_in_case(field.type) for field in inner)
    return found or next((both for both in deeper if both), None)


def quoted(name: str) -> str:
    """A name in backquotes, as Spark SQL takes any name.

    >>> print(quoted("a`b"))
    `a``b`
    """
    return f"`{name.replace('`', '``')}`"


def widens(old: pa.DataType, new: pa.DataType) -> bool:
    """Whether every value of one scalar type is, exactly, a value of the other, wider one.

    Wider integers, ``FLOAT`` to ``DOUBLE``, and decimals with more digits on either side of the point.

    >>> widens(pa.int32(), pa.int64()), widens(pa.int64(), pa.float64()), widens(pa.date32(), TIMESTAMP)
    (True, False, False)
    """
    if pa.types.is_integer(old) and pa.types.is_integer(new):
        return bool(old.bit_width < new.bit_width)
    if pa.types.is_decimal128(old) and pa.types.is_decimal128(new):
        whole = new.precision - new.scale >= old.precision - old.scale
        return bool(old != new and new.scale >= old.scale and whole)
    return bool(pa.types.is_float32(old) and pa.types.is_float64(new))


def canonical(type_: pa.DataType, of: str, levels: int = _MAX_LEVELS) -> pa.DataType:
    """The Arrow type in which a column of ``type_`` is stored: large and view variants become plain ones.

    Raises:
        SchemaError: Spark has no type that equals it, or it is nested too deeply.

    >>> canonical(pa.large_string(), "column 'name'")
    DataType(string)
    """
    if not isinstance(type_, pa.DataType):
        raise SchemaError(f"{of}: its type must be Arrow's, got {type_!r}; write pa.int64(), for example")
    if pa.types.is_decimal128(type_) and not 0 <= type_.scale <= type_.precision:
        digits, scale, most = type_.precision, type_.scale, MAX_DECIMAL_PRECISION
        fit = pa.decimal128(min(max(digits - scale, scale), most), min(max(scale, 0), most))
        raise SchemaError(
            f"{of}: a decimal must have a scale from 0 to its precision, as in Spark, got {sql_name(type_)}; "
            f"make it {sql_name(fit)}"
        )
    if is_scalar(type_):
        return type_
    if not levels:
        raise SchemaError(
            f"{of}: a type must be nested at most {_MAX_LEVELS} levels deep; make its parts columns"
        )
    levels -= 1
    if pa.types.is_large_string(type_) or pa.types.is_string_view(type_):
        return pa.string()
    if pa.types.is_large_binary(type_) or pa.types.is_binary_view(type_):
        return pa.binary()
    if pa.types.is_fixed_size_binary(type_):
        return pa.binary()
    if pa.types.is_dictionary(type_):
        return canonical(type_.value_type, of, levels)
    if pa.types.is_timestamp(type_):
        return TIMESTAMP if type_.tz else TIMESTAMP_NTZ
    if pa.types.is_duration(type_):
        return INTERVAL
    if _is_variant_in_spark(type_):
        return VARIANT
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return pa.list_(_plain_field("element", type_.value_field, of, levels))
    if pa.types.is_map(type_):
        key, item = canonical(type_.key_type, of, levels), _plain_field("value", type_.item_field, of, levels)
        if has_variant(key):
            raise SchemaError(f"{of}: a key of a MAP must be comparable, got VARIANT; make it a STRING")
        return pa.map_(key, item)
    if pa.types.is_struct(type_):
        return pa.struct([_plain_field(field.name, field, of, levels) for field in type_])
    raise SchemaError(f"{of}: Spark has no type that equals Arrow's {type_}")


def _plain_field(name: str, field: pa.Field, of: str, levels: int) -> pa.Field:
    return pa.field(name, canonical(field.type, of, levels), nullable=field.nullable)


def to_json(type_: pa.DataType) -> Any:
    """JSON form of a canonical Arrow type.

    >>> to_json(pa.list_(pa.int64()))
    {'type': 'array', 'elementType': 'long', 'containsNull': True}
    """
    if type_ in _WORDS:
        return _WORDS[type_]
    if pa.types.is_decimal128(type_):
        return f"decimal({type_.precision},{type_.scale})"
    if type_ == VARIANT:
        return "variant"
    if pa.types.is_list(type_):
        return {
            "type": "array",
            "elementType": to_json(type_.value_type),
            "containsNull": type_.value_field.nullable,
        }
    if pa.types.is_map(type_):
        return {
            "type": "map",
            "keyType": to_json(type_.key_type),
            "valueType": to_json(type_.item_type),
            "valueContainsNull": type_.item_field.nullable,
        }
    if pa.types.is_struct(type_):
        fields = [{"name": f.name, "type": to_json(f.type), "nullable": f.nullable} for f in type_]
        return {"type": "struct", "fields": fields}
    raise SchemaError(f"Spark has no type that equals Arrow's {type_}")


def from_json(value: Any) -> pa.DataType:
    """The Arrow type of its JSON form.

    Raises:
        CorruptTableError: the value is no type.

    >>> from_json("decimal(10,2)")
    Decimal128Type(decimal128(10, 2))
    """
    if isinstance(value, str):
        if value in SCALARS:
            return SCALARS[value]
        if value == "variant":
            return VARIANT
        if (match := _DECIMAL.fullmatch(value)) and 1 <= int(match[1]) <= MAX_DECIMAL_PRECISION:
            return pa.decimal128(int(match[1]), int(match[2]))
        if match := _TIME.fullmatch(value):
            return time_of(int(match[1]))
        if value.removeprefix("interval ") in INTERVALS:
            return INTERVAL
    if isinstance(value, dict):
        try:
            match value["type"]:
                case "array":
                    element = from_json(value["elementType"])
                    return pa.list_(pa.field("element", element, nullable=value["containsNull"]))
                case "map":
                    item = from_json(value["valueType"])
                    nullable = value["valueContainsNull"]
                    return pa.map_(from_json(value["keyType"]), pa.field("value", item, nullable=nullable))
                case "struct":
                    parts = ((f["name"], from_json(f["type"]), f["nullable"]) for f in value["fields"])
                    return pa.struct([pa.field(*part) for part in parts])
                case other:
                    raise CorruptTableError(f"a nested type must be array, map or struct, got {other!r}")
        except KeyError as missing:
            raise CorruptTableError(f"a type must have {missing}, got {value!r}") from None
    raise CorruptTableError(f"a type must be one of {', '.join(SCALARS)} or nested, got {value!r}")
