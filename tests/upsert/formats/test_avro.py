"""Avro messages of one schema: what Flink and fastavro write is read, and what is no datum is told."""

import io
import json
import pickle
import random
import re
from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.upsert.formats import random_columns
from upsert import types
from upsert.errors import ConfigurationError, SchemaError
from upsert.formats import avro_reader
from upsert.formats.avro import FORMAT, AvroCodec
from upsert.formats.avro_schema import derived, parse
from upsert.formats.avro_wire import Messages
from upsert.formats.base import BadMessage, Decoded, FormatContext, format_named
from upsert.formats.binary_columns import Spans, padded
from upsert.options import parse as parse_options

USERS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])


def context(fields: pa.Schema, metadata: tuple[str, ...] = (), **options: str) -> FormatContext:
    found = FormatContext(fields, parse_options("avro", FORMAT.options, options), metadata=metadata)
    FORMAT.check(found)
    return found


def encoded(rows: pa.Table, **options: str) -> pa.Array:
    return FORMAT.encoder(context(rows.schema, **options)).encode(rows)


def decoded(fields: pa.Schema, messages: list[bytes | None] | pa.Array, **options: str) -> Decoded:
    return FORMAT.decoder(context(fields, **options)).decode(pa.array(messages, pa.binary()))


def one(type_: pa.DataType, nullable: bool = False) -> pa.Schema:
    return pa.schema([pa.field("v", type_, nullable=nullable)])


def record(*fields: tuple[str, Any], name: str = "r") -> str:
    return json.dumps({"type": "record", "name": name, "fields": [{"name": n, "type": t} for n, t in fields]})


INT_RECORD = record(("v", "int"))


def datum(schema: str, value: Any) -> bytes:
    """What fastavro writes, which is another implementation than the one under test."""
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(json.loads(schema)), value)
    return stream.getvalue()


# schema


def test_schema_of_a_table_is_the_one_that_flink_derives() -> None:
    address = pa.struct([("city", pa.string()), pa.field("zip", pa.int32(), nullable=False)])
    fields = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            ("small", pa.int8()),
            ("price", pa.decimal128(10, 2)),
            ("day", pa.date32()),
            ("at", types.TIMESTAMP),
            ("wall", types.TIMESTAMP_NTZ),
            ("address", address),
            ("tags", pa.map_(pa.string(), pa.field("value", pa.float64(), nullable=False))),
        ]
    )
    expected = (
        '{"type":"record","name":"record","namespace":"org.apache.flink.avro.generated","fields":['
        '{"name":"id","type":"long"},'
        '{"name":"small","type":["null","int"],"default":null},'
        '{"name":"price","type":["null",{"type":"bytes","logicalType":"decimal","precision":10,"scale":2}],'
        '"default":null},'
        '{"name":"day","type":["null",{"type":"int","logicalType":"date"}],"default":null},'
        '{"name":"at","type":["null",{"type":"long","logicalType":"timestamp-micros"}],"default":null},'
        '{"name":"wall","type":["null",{"type":"long","logicalType":"local-timestamp-micros"}],"default":null},'
        '{"name":"address","type":["null",{"type":"record","name":"record_address","fields":['
        '{"name":"city","type":["null","string"],"default":null},{"name":"zip","type":"int"}]}],"default":null},'
        '{"name":"tags","type":["null",{"type":"map","values":"double"}],"default":null}]}'
    )
    assert derived(fields) == expected
    assert '"timestamp-millis"' in derived(fields, legacy_times=True)
    assert "micros" not in derived(fields, legacy_times=True)


def test_bytes_are_those_of_the_specification() -> None:
    rows = pa.table([pa.array([3, -1]), pa.array(["foo", None])], schema=USERS)
    assert encoded(rows).to_pylist() == [b"\x06\x02\x06foo", b"\x01\x00"]


def test_schema_is_offered_as_metadata() -> None:
    (key,) = FORMAT.metadata
    assert (key.key, key.type, key.is_writable) == ("schema", pa.string(), False)
    found = FORMAT.decoder(context(USERS, metadata=("schema",))).decode(pa.array([b"\x06\x00", None]))
    assert found.rows.to_pylist() == [{"id": 3, "name": None, "schema": derived(USERS)}]


# round trips

AVRO_NAMES = st.sampled_from(["id", "word", "ts", "data", "_x", "Amount"])


def schemas() -> st.SearchStrategy[pa.Schema]:
    types_ = random_columns.nested(random_columns.SCALARS.filter(lambda type_: type_ != types.time_of(9)))
    field = st.builds(pa.field, AVRO_NAMES, types_, nullable=st.booleans())
    return st.lists(field, min_size=1, max_size=4, unique_by=lambda f: f.name).map(pa.schema)


@given(random_columns.tables(schemas()))
def test_what_is_written_is_read_back(rows: pa.Table) -> None:
    found = decoded(rows.schema, encoded(rows))
    assert (found.bad, found.positions, found.kinds) == ((), None, None)
    assert found.rows.schema.equals(rows.schema)
    assert random_columns.plain(found.rows) == random_columns.plain(rows)


@given(random_columns.tables(schemas()), st.integers(0, 3), st.integers(0, 3))
def test_slice_of_rows_is_written_as_the_rows_alone(rows: pa.Table, start: int, length: int) -> None:
    part = rows.slice(start, length)
    assert encoded(part).to_pylist() == encoded(rows).to_pylist()[start : start + length]


def has_lowest_decimal(value: Any) -> bool:
    """Whether a decimal is the lowest of its bytes, as -128 is: fastavro writes it in one byte more."""
    if isinstance(value, Decimal):
        number = int("".join(map(str, value.as_tuple().digits)))
        return value < 0 and number.bit_count() == 1 and number.bit_length() % 8 == 0
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(map(has_lowest_decimal, inner))


@given(random_columns.tables(schemas()))
def test_bytes_are_those_that_fastavro_writes(rows: pa.Table) -> None:
    """Row by row, from values of Python and the schema with its logical types."""
    values = rows.to_pylist(maps_as_pydicts="strict")
    assume(not has_lowest_decimal(values))
    assert encoded(rows).to_pylist() == [datum(derived(rows.schema), row) for row in values]


@given(random_columns.tables(schemas()))
def test_fastavro_reads_what_is_written(rows: pa.Table) -> None:
    """The whole schema with its logical types, against the codec that sees none of them."""
    schema = fastavro.parse_schema(json.loads(derived(rows.schema)))
    found = [fastavro.schemaless_reader(io.BytesIO(message), schema) for message in encoded(rows).to_pylist()]
    expected = rows.to_pylist(maps_as_pydicts="strict")
    assert [_plain(list(row.values())) for row in found] == [_plain(list(row.values())) for row in expected]


def _plain(value: Any) -> Any:
    match value:
        case float():
            return repr(value)
        case Decimal():
            return str(value)
        case list() | tuple():
            return [_plain(item) for item in value]
        case dict():
            return {name: _plain(item) for name, item in value.items()}
    return value


# schemas that are given


@pytest.mark.parametrize(
    ("avro", "value", "type_", "expected"),
    [
        ("int", 5, pa.int64(), 5),
        ("long", 5, pa.int8(), 5),
        ("int", 5, pa.float64(), 5.0),
        ("float", 0.5, pa.float64(), 0.5),
        ("string", "é", pa.binary(), "é".encode()),
        ("bytes", b"abc", pa.string(), "abc"),
        ({"type": "string", "logicalType": "uuid"}, "a", pa.string(), "a"),
        ({"type": "enum", "name": "e", "symbols": ["A", "B"]}, "B", pa.string(), "B"),
        ({"type": "fixed", "name": "f", "size": 2}, b"ab", pa.binary(), b"ab"),
        ({"type": "int", "logicalType": "date"}, date(2020, 3, 8), pa.date32(), date(2020, 3, 8)),
        ("int", 1, pa.date32(), date(1970, 1, 2)),
        ({"type": "long", "logicalType": "timestamp-millis"}, 1500, types.TIMESTAMP_NTZ, "1.5"),
        ({"type": "long", "logicalType": "timestamp-millis"}, -1, types.TIMESTAMP, "-0.001"),
        ({"type": "long", "logicalType": "local-timestamp-millis"}, 1500, types.TIMESTAMP, "1.5"),
        ({"type": "long", "logicalType": "timestamp-micros"}, -1, types.TIMESTAMP_NTZ, "-0.000001"),
        ({"type": "long", "logicalType": "timestamp-nanos"}, -1, types.TIMESTAMP, "-0.000001"),
        ({"type": "long", "logicalType": "timestamp-millis"}, 1500, pa.int64(), 1500),
        ({"type": "long", "logicalType": "unheard-of"}, 1500, pa.int64(), 1500),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 1},
            Decimal("12.5"),
            pa.decimal128(10, 2),
            Decimal("12.50"),
        ),
        (
            {"type": "fixed", "name": "f", "size": 9, "logicalType": "decimal", "precision": 4, "scale": 2},
            Decimal("-1.50"),
            pa.decimal128(3, 1),
            Decimal("-1.5"),
        ),
        ([{"type": "array", "items": "int"}, "null"], [1, 2], pa.list_(pa.int16()), [1, 2]),
        (["int"], 5, pa.int64(), 5),
        ({"type": "array", "items": ["string"]}, ["a", "b"], pa.list_(pa.string()), ["a", "b"]),
        (
            {"type": "map", "values": ["null", "int"]},
            {"a": None},
            pa.map_(pa.string(), pa.int32()),
            [("a", None)],
        ),
    ],
)
def test_value_of_another_writer_becomes_one_of_the_column(
    avro: Any, value: Any, type_: pa.DataType, expected: Any
) -> None:
    schema = record(("other", "int"), ("v", avro))
    if isinstance(expected, str) and pa.types.is_timestamp(type_):
        seconds = timedelta(seconds=float(expected))
        expected = datetime(1970, 1, 1, tzinfo=UTC if type_.tz else None) + seconds
        bare = record(("other", "int"), ("v", "long"))
        messages = [datum(bare, {"other": 1, "v": value})]
    else:
        messages = [datum(schema, {"other": 1, "v": value})]
    found = decoded(one(type_), messages, schema=schema)
    assert (found.bad, found.rows["v"].to_pylist()) == ((), [expected])


@pytest.mark.parametrize(
    ("avro", "message", "type_", "expected"),
    [
        ({"type": "string", "precision": 4, "scale": 1}, b"\x02a", pa.string(), "a"),
        ({"type": "int", "precision": 4, "scale": 1}, b"\x0a", pa.int32(), 5),
        ({"type": "bytes"}, b"\x02a", pa.binary(), b"a"),
        ({"type": "bytes", "precision": 10**9, "scale": 10**9}, b"\x02a", pa.binary(), b"a"),
        (
            {"type": "bytes", "precision": 2, "scale": 5},
            b"\x02\xf4",
            pa.decimal128(9, 6),
            Decimal("-0.000120"),
        ),
        ({"type": "bytes", "precision": 9, "scale": -2}, b"\x02\x0c", pa.decimal128(9, 1), Decimal("1200.0")),
    ],
)
def test_decimals_that_avro_does_not_know_leave_a_topic_readable(
    avro: dict[str, Any], message: bytes, type_: pa.DataType, expected: Any
) -> None:
    """What is none by Avro's rules is read as the type that it has; those of Oracle have a meaning."""
    schema = record(("v", avro | {"logicalType": "decimal"}), ("w", "int"))
    fields = pa.schema([("v", type_), ("w", pa.int32())])
    for columns in (fields, fields.remove(0)):
        found = decoded(columns, [message + b"\x02"], schema=schema)
        assert (found.bad, found.rows["w"].to_pylist()) == ((), [1])
    assert decoded(fields, [message + b"\x02"], schema=schema).rows["v"].to_pylist() == [expected]


@pytest.mark.parametrize(
    ("avro", "number", "digits", "expected"),
    [
        ({"type": "int", "logicalType": "time-millis"}, 3_723_004, 3, time(1, 2, 3, 4_000)),
        ({"type": "int", "logicalType": "time-millis"}, 3_723_004, 0, time(1, 2, 3)),
        ({"type": "int", "logicalType": "time-millis"}, 3_723_004, 6, time(1, 2, 3, 4_000)),
        ({"type": "long", "logicalType": "time-micros"}, 86_399_999_999, 6, time(23, 59, 59, 999_999)),
        ({"type": "long", "connect.name": "io.debezium.time.NanoTime"}, 1_999, 6, time(0, 0, 0, 1)),
        ({"type": "int", "logicalType": "time-millis"}, 86_400_000, 3, None),
        ({"type": "int", "logicalType": "time-millis"}, -1, 3, None),
        ({"type": "long", "logicalType": "time-micros"}, 2**63 - 1, 9, None),
    ],
)
def test_time_of_day_has_the_digits_of_its_column(
    avro: dict[str, Any], number: int, digits: int, expected: time | None
) -> None:
    message = datum(record(("v", avro["type"])), {"v": number})
    found = decoded(one(types.time_of(digits)), [message], schema=record(("v", avro)))
    assert found.rows["v"].to_pylist() == ([] if expected is None else [expected])
    assert [bad.reason.startswith("field 'v' does not fit TIME") for bad in found.bad] == [True] * (
        not expected
    )


def test_time_is_written_where_the_schema_has_its_digits() -> None:
    rows = pa.table([[time(0, 0, 1)]], schema=one(types.time_of(0)))
    assert encoded(rows).to_pylist() == [b"\xd0\x0f"]
    millis = record(("v", {"type": "int", "logicalType": "time-millis"}))
    with pytest.raises(SchemaError, match="must hold every row that is written"):
        encoded(pa.table([[time(0, 0, 1)]], schema=one(types.time_of(6))), schema=millis)
    with pytest.raises(SchemaError, match=r"of a type that Avro has, got TIME\(9\)"):
        context(one(types.time_of(9)))


def test_decimals_that_other_readers_do_not_know_are_not_written() -> None:
    schema = record(("v", {"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 5}))
    with pytest.raises(SchemaError, match="must hold every row that is written"):
        encoded(pa.table([[Decimal("0.00120")]], schema=one(pa.decimal128(9, 5))), schema=schema)


@given(st.lists(st.binary(max_size=18), max_size=30), st.integers(0, 38), st.integers(1, 38), st.data())
def test_decimals_of_all_sizes_are_as_python_computes_them(
    numbers: list[bytes], scale: int, precision: int, data: st.DataObject
) -> None:
    type_ = pa.decimal128(precision, data.draw(st.integers(0, precision)))
    schema = record(("v", {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": scale}))
    messages = [bytes([2 * len(number)]) + number for number in numbers]
    exact = Context(prec=100)
    values = [
        Decimal(int.from_bytes(number, "big", signed=True)).scaleb(-scale, exact).normalize(exact)
        for number in numbers
    ]
    fitting = [
        value
        for value in values
        if -value.as_tuple().exponent <= type_.scale and abs(value) < 10 ** (precision - type_.scale)
    ]
    found = decoded(one(type_), messages, schema=schema)
    assert found.rows["v"].to_pylist() == fitting
    assert len(found.bad) == len(numbers) - len(fitting)


def test_decimal_with_too_many_digits_before_the_point_is_bad() -> None:
    """As DECIMAL(38, 18), Arrow makes 717633079061536536.6… of it."""
    schema = record(("v", {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 0}))
    found = decoded(one(pa.decimal128(38, 18)), [datum(schema, {"v": Decimal(341 * 10**18)})], schema=schema)
    (bad,) = found.bad
    assert bad.reason == "a decimal has more digits than DECIMAL(38,18)"


def test_nan_of_any_bits_is_one() -> None:
    """Numpy warned of some, also where they were bytes behind a message that ends too early."""
    found = decoded(
        one(pa.float64()), [b"\x01\x00\x80\x7f", b"", b"\x01\x00\x80\xff"], schema=record(("v", "float"))
    )
    assert [str(value) for value in found.rows["v"].to_pylist()] == ["nan", "nan"]


def test_record_is_read_by_the_names_of_its_fields() -> None:
    inner = {
        "type": "record",
        "name": "i",
        "fields": [{"name": "x", "type": "int"}, {"name": "y", "type": "int"}],
    }
    schema = record(("p", ["null", inner]), ("q", "i"))
    type_ = pa.struct([("y", pa.int32()), ("z", pa.string())])
    fields = pa.schema([("q", type_), ("missing", pa.string()), ("p", type_)])
    message = datum(schema, {"p": None, "q": {"x": 1, "y": 2}})
    found = decoded(fields, [message], schema=schema)
    assert found.rows.to_pylist() == [{"q": {"y": 2, "z": None}, "missing": None, "p": None}]


def test_one_column_may_be_a_value_without_a_record() -> None:
    fields = one(pa.string())
    assert decoded(fields, [b"\x06foo"], schema='"string"').rows["v"].to_pylist() == ["foo"]
    assert encoded(pa.table([["foo"]], schema=fields), schema='"string"').to_pylist() == [b"\x06foo"]
    with pytest.raises(SchemaError, match=r"the schema is of one string, not of a record"):
        context(USERS, schema='"string"')


def test_times_of_flink_are_read_in_its_legacy_mapping() -> None:
    fields = one(types.TIMESTAMP_NTZ)
    at = datetime(2020, 3, 8, 13, 12, 11, 123_000)
    rows = pa.table([[at]], schema=fields)
    (message,) = encoded(rows, **{"timestamp_mapping.legacy": "true"}).to_pylist()
    assert message == datum(record(("v", "long")), {"v": 1583673131123})
    assert decoded(fields, [message], **{"timestamp_mapping.legacy": "true"}).rows.equals(rows)


def test_given_schema_is_written_with() -> None:
    schema = record(
        ("extra", ["string", "null"]),
        ("at", {"type": "long", "logicalType": "timestamp-millis"}),
        (
            "price",
            {"type": "fixed", "name": "f", "size": 4, "logicalType": "decimal", "precision": 8, "scale": 3},
        ),
        ("color", {"type": "enum", "name": "e", "symbols": ["RED", "BLUE"]}),
    )
    fields = pa.schema(
        [
            pa.field("color", pa.string(), nullable=False),
            pa.field("at", types.TIMESTAMP, nullable=False),
            pa.field("price", pa.decimal128(6, 2), nullable=False),
        ]
    )
    at = datetime(1969, 12, 31, 23, 59, 59, 999_500, tzinfo=UTC)
    rows = pa.table([["BLUE"], [at], [Decimal("-1.25")]], schema=fields)
    (message,) = encoded(rows, schema=schema).to_pylist()
    read = fastavro.schemaless_reader(io.BytesIO(message), fastavro.parse_schema(json.loads(schema)))
    assert read == {
        "extra": None,
        "at": datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC),
        "price": Decimal("-1.250"),
        "color": "BLUE",
    }
    with pytest.raises(SchemaError, match="avro: a row does not fit the schema"):
        encoded(pa.table([["GREEN"], [at], [Decimal(1)]], schema=fields), schema=schema)


def test_records_in_a_union_are_written_as_such() -> None:
    schema = json.dumps(["null", json.loads(INT_RECORD)])
    assert encoded(pa.table([[3]], schema=one(pa.int32())), schema=schema).to_pylist() == [b"\x02\x06"]


@pytest.mark.parametrize(
    ("type_", "value", "reason"),
    [
        ({"type": "fixed", "name": "f", "size": 4}, b"abc", "'f' has 4 bytes"),
        ({"type": "enum", "name": "e", "symbols": ["RED"]}, "GREEN", "'GREEN' is no symbol of 'e'"),
        ("string", None, "a value of type string must not be null"),
    ],
)
def test_value_that_the_schema_does_not_have_is_refused(type_: Any, value: Any, reason: str) -> None:
    column = pa.array([value], pa.binary() if isinstance(value, bytes) else pa.string())
    with pytest.raises(SchemaError, match=f"avro: a row does not fit the schema: {reason}"):
        encoded(pa.table([column], schema=one(column.type)), schema=record(("v", type_)))


# refusals


@pytest.mark.parametrize(
    ("schema", "fields", "message"),
    [
        (record(("v", "string")), one(pa.int32()), "'v' is INT, the schema says string"),
        (record(("v", "double")), one(pa.float32()), "'v' is FLOAT, the schema says double"),
        (record(("v", "long")), one(types.TIMESTAMP), "'v' is TIMESTAMP, the schema says long"),
        (record(("w", "long")), one(pa.int64()), "the schema has no field 'v'"),
        (
            record(("v", {"type": "array", "items": "string"})),
            one(pa.list_(pa.field("element", pa.int32()))),
            "'element' is INT, the schema says string",
        ),
        (
            record(("v", {"type": "map", "values": "int"})),
            one(pa.map_(pa.int32(), pa.int32())),
            "'v' is MAP<INT,INT>, the schema says map",
        ),
    ],
)
def test_schema_that_does_not_fit_the_columns_is_refused(
    schema: str, fields: pa.Schema, message: str
) -> None:
    with pytest.raises(SchemaError) as error:
        context(fields, schema=schema)
    assert str(error.value) == f"avro: option 'schema' must fit the columns: {message}"


@pytest.mark.parametrize(
    ("schema", "fields", "message"),
    [
        (record(("v", "int")), one(pa.int64()), "'v' is BIGINT, the schema says int"),
        (
            record(("v", "int")),
            one(pa.int32(), nullable=True),
            "'v' may be NULL, the schema says int without null",
        ),
        (record(("v", "int"), ("w", "int")), one(pa.int32()), "field 'w' has no column and must not be null"),
        (record(("w", ["null", "int"])), one(pa.int32(), nullable=True), "the schema has no field 'v'"),
        (record(("v", "bytes")), one(pa.string()), "'v' is STRING, the schema says bytes"),
    ],
)
def test_schema_that_cannot_hold_every_row_is_refused_by_the_sink(
    schema: str, fields: pa.Schema, message: str
) -> None:
    with pytest.raises(SchemaError) as error:
        FORMAT.encoder(context(fields, schema=schema))
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (pa.schema([("a b", pa.int32())]), "letters, digits and _, the first no digit, got 'a b'"),
        (pa.schema([("1st", pa.int32())]), "the first no digit, got '1st'; rename the column"),
        (one(pa.struct([("é", pa.int32())])), "got 'é'"),
        (one(pa.map_(pa.int32(), pa.int32())), "got MAP<INT,INT>; keys of maps must be STRING"),
    ],
)
def test_columns_that_avro_does_not_have_are_refused(fields: pa.Schema, message: str) -> None:
    with pytest.raises(SchemaError) as error:
        context(fields)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("schema", "{", "must be an Avro schema as JSON (avro schema cannot be read: "),
        ("schema", '"lang"', "'lang' is no type"),
        ("schema", '{"type": "record", "name": "r"}', "'fields' is missing"),
        ("schema", '{"type": "record", "name": "r", "fields": 5}', "avro schema cannot be read"),
        ("codec", "snappy", "must be left out: it compresses files, and records have no codec of their own"),
        ("encoding", "json", "must be one of binary"),
        ("timestamp_mapping.legacy", "maybe", "must be true or false"),
    ],
)
def test_wrong_option_is_refused(key: str, value: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        context(USERS, **{key: value})
    assert message in str(error.value)


def test_encoding_may_be_named() -> None:
    assert encoded(pa.table([[3], ["foo"]], schema=USERS), encoding="BINARY").to_pylist() == [
        b"\x06\x02\x06foo"
    ]


def test_given_schema_has_no_legacy_times() -> None:
    with pytest.raises(ConfigurationError, match="is for a derived schema, got 'schema' too; give one"):
        context(USERS, schema=derived(USERS), **{"timestamp_mapping.legacy": "true"})


# bad messages


def test_bytes_that_are_no_datum_are_bad_and_the_others_are_read() -> None:
    messages = [
        b"\x06\x00",
        b"",
        b"\x06",
        None,
        b"\x06\x00\x00",
        b"\x06\x04",
        b"\x06\x02\x02\xff",
        b"\x08\x00",
    ]
    found = decoded(USERS, messages)
    assert found.rows["id"].to_pylist() == [3, 4]
    assert found.positions is not None
    assert found.positions.tolist() == [0, 7]
    assert found.bad == (
        BadMessage(1, "no datum of the schema: it ends too early"),
        BadMessage(2, "no datum of the schema: it ends too early"),
        BadMessage(4, "1 bytes follow the datum"),
        BadMessage(5, "no datum of the schema: there is no type 2"),
        BadMessage(6, "field 'name' does not fit STRING: not valid UTF-8"),
    )


@pytest.mark.parametrize(
    ("avro", "value", "fields", "reason"),
    [
        ("long", 2**31, one(pa.int32()), "field 'v' does not fit INT: "),
        (["null", "int"], None, one(pa.int32()), "field 'v' must not be null"),
        ("bytes", b"\xff", one(pa.string()), "field 'v' does not fit STRING: "),
        ("int", 2**31 - 1, one(pa.int16()), "field 'v' does not fit SMALLINT: "),
        (
            {"type": "array", "items": ["null", "int"]},
            [1, None],
            one(pa.list_(pa.field("element", pa.int32(), nullable=False))),
            "field 'element' must not be null",
        ),
    ],
)
def test_value_that_does_not_fit_makes_its_message_bad(
    avro: Any, value: Any, fields: pa.Schema, reason: str
) -> None:
    schema = record(("v", avro))
    good = {"int": 1, "long": 1, "bytes": b"a"}.get(str(avro), [1] if isinstance(avro, dict) else 1)
    messages = [datum(schema, {"v": v}) for v in (good, good, value, good, value)]
    found = decoded(fields, messages, schema=schema)
    assert len(found.rows) == 3
    assert found.positions is not None
    assert found.positions.tolist() == [0, 1, 3]
    assert [bad.position for bad in found.bad] == [2, 4]
    assert found.bad[0].reason.startswith(reason)


@pytest.mark.parametrize(
    ("value", "type_", "reason"),
    [
        (Decimal("123.45"), pa.decimal128(10, 1), "more digits after the point than its column"),
        (Decimal("123.45"), pa.decimal128(4, 2), "more digits than DECIMAL(4,2)"),
    ],
)
def test_decimal_is_never_rounded(value: Decimal, type_: pa.DataType, reason: str) -> None:
    schema = record(("v", {"type": "bytes", "logicalType": "decimal", "precision": 8, "scale": 2}))
    (bad,) = decoded(one(type_), [datum(schema, {"v": value})], schema=schema).bad
    assert reason in bad.reason


def test_time_out_of_range_is_bad() -> None:
    schema = record(("v", {"type": "long", "logicalType": "timestamp-millis"}))
    message = datum(record(("v", "long")), {"v": 2**62})
    (bad,) = decoded(one(types.TIMESTAMP), [message], schema=schema).bad
    assert bad.reason.startswith("field 'v' does not fit TIMESTAMP")


def test_unions_of_several_types_are_passed_over_where_no_column_is_declared_for_them() -> None:
    inner = {"type": "record", "name": "i", "fields": [{"name": "x", "type": ["string", "long"]}]}
    schema = record(("id", ["null", "string", "long"]), ("v", "int"), ("more", [inner, "int"]))
    values: list[Any] = [
        {"id": "a", "v": 1, "more": {"x": 5}},
        {"id": 2, "v": 2, "more": 7},
        {"id": None, "v": 3, "more": {"x": "b"}},
    ]
    messages = [datum(schema, value) for value in values]
    own = json.loads(schema)
    for field, default in zip(own["fields"], ("a", 1, {"x": 7}), strict=True):
        field["default"] = default
    for text in (schema, json.dumps(own)):
        found = decoded(one(pa.int32()), messages, schema=text)
        assert found.rows.to_pylist() == [{"v": n} for n in (1, 2, 3)]
    with pytest.raises(SchemaError, match="'id' is BIGINT, the schema says a union of null, string, long"):
        decoded(pa.schema([("id", pa.int64())]), messages, schema=schema)


def test_a_field_that_takes_no_bytes_is_as_none() -> None:
    """Types in types over and over of it cost nothing; in a union with null it takes a byte."""
    named: list[tuple[str, Any]] = [("f0", EMPTY_RECORD)]
    for number in range(1, 60):
        inner = [{"name": name, "type": "e" if number == 1 else f"t{number - 1}"} for name in "xyz"]
        named.append((f"f{number}", {"type": "record", "name": f"t{number}", "fields": inner}))
    optional = ("o", [{"type": "null"}, EMPTY_RECORD])
    schema = record(("n", "null"), *named, ("o", [{"type": "null"}, "e"]), ("v", [{"type": "null"}, "int"]))
    fields = pa.schema(
        [("n", pa.string()), ("f1", pa.struct([("x", pa.int32())])), ("o", pa.struct([])), ("v", pa.int32())]
    )
    message = datum(record(optional, ("v", ["null", "int"])), {"o": {}, "v": 7})
    assert message == b"\x02\x02\x0e"
    row = {"n": None, "f1": None, "o": {}, "v": 7}
    for count in (1, 20):
        assert decoded(fields, [message] * count, schema=schema).rows.to_pylist() == [row] * count
    assert encoded(pa.table({"v": pa.array([7], pa.int32())}), schema=schema).to_pylist() == [b"\x00\x02\x0e"]


def test_lengths_that_lie_cost_nothing() -> None:
    huge = b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"  # 2**63 - 1
    fields = {
        "bytes": pa.binary(),
        "string": pa.string(),
        "array": pa.list_(pa.int32()),
        "map": pa.map_(pa.string(), pa.int32()),
    }
    for type_ in fields.values():
        for message in (huge, huge + b"aa", b"\x01" + huge, b"\x01\x01aa"):
            found = decoded(one(type_), [message])
            assert (len(found.rows), len(found.bad)) == (0, 1)


EMPTY_RECORD = {"type": "record", "name": "e", "fields": []}


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (record(("v", "null")), "its values take no bytes"),
        (record(("v", {"type": "array", "items": "null"})), "'items': 'null'} takes no bytes"),
        (record(("v", {"type": "map", "values": {"type": "null"}})), "'null'}} takes no bytes"),
        (record(("v", {"type": "array", "items": EMPTY_RECORD})), "'fields': []}} takes no bytes"),
        (record(("v", {"type": "fixed", "name": "f", "size": 0})), "size of a fixed must be 1 to 2147483647"),
        (record(("v", {"type": "fixed", "name": "f", "size": 2**63})), "got 9223372036854775808"),
        (record(("v", ["null", "r"])), "type 'r' is recursive"),
        (record(("v", {"type": "array", "items": "r"})), "type 'r' is recursive"),
        (record(("v", [])), "a union must be of some type, got []"),
        (record(("v", ["int", ["null", "string"]])), "a union must not be in a union"),
        (
            record(("v", ["null", "int", {"type": "array", "items": "null"}])),
            "'items': 'null'} takes no bytes",
        ),
        (record(("v", "int"), ("v", "int")), "record 'r' must have each field once"),
        ("[" * 100_000, "nested too deeply"),
        ('{"type":' * 5_000 + '"int"' + "}" * 5_000, "nested too deeply"),
    ],
)
def test_schema_that_could_exhaust_a_reader_is_refused(schema: str, reason: str) -> None:
    with pytest.raises(SchemaError) as error:
        parse(schema)
    assert reason in str(error.value)


def test_types_may_be_nested_only_so_deep() -> None:
    """Each type refers to the one before it, so that the JSON text itself is flat."""
    fields: list[tuple[str, Any]] = [("f0", {"type": "array", "items": "int"})]
    for number in range(1, 5_000):
        before = "int" if number == 1 else f"t{number - 1}"
        inner = {"type": "record", "name": f"t{number}", "fields": [{"name": "x", "type": before}]}
        fields.append((f"f{number}", inner))
    with pytest.raises(SchemaError, match="types must be nested at most 64 deep"):
        parse(record(*fields))


def test_schema_that_names_types_in_types_over_and_over_costs_what_it_is_long() -> None:
    """Its last field has 3^27 others within."""
    inner = {"type": "record", "name": "t0", "fields": [{"name": "x", "type": ["null", "int"]}]}
    fields: list[tuple[str, Any]] = [("v", "int"), ("f0", inner)]
    for number in range(1, 28):
        before = f"t{number - 1}"
        places = [before, ["null", before], {"type": "array", "items": before}]
        parts = [{"name": f"p{place}", "type": type_} for place, type_ in enumerate(places)]
        fields.append((f"f{number}", {"type": "record", "name": f"t{number}", "fields": parts}))
    schema = record(*fields, name="r")
    for count in (1, 50):
        for message in (b"\x02" * 60, b"\x02" + bytes(300)):
            found = decoded(one(pa.int32()), [message] * count, schema=schema)
            assert {bad.reason for bad in found.bad} == {"no datum of the schema: it ends too early"}
            assert len(found.bad) == count


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["int", "record", "array", "null", "a", ""]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "name", "fields", "items", "size", "logicalType"]), inner)
    ),
)


@given(ANY_JSON)
def test_any_other_json_is_refused_by_our_own_error(value: Any) -> None:
    try:
        codec = AvroCodec(json.dumps(value), one(pa.string(), nullable=True))
    except SchemaError:
        return
    if codec.misfit(writing=False) is None:
        rows, _, (bad,) = codec.decode(pa.array([b""], pa.binary()))
        assert (rows.num_rows, bad.reason) == (0, "no datum of the schema: it ends too early")


@given(st.data())
def test_any_bytes_give_rows_or_bad_messages(data: st.DataObject) -> None:
    fields = data.draw(schemas())
    messages = data.draw(st.lists(st.binary(max_size=12) | st.none(), max_size=8))
    found = decoded(fields, messages)
    given = [place for place, message in enumerate(messages) if message is not None]
    rows = list(range(len(messages))) if found.positions is None else found.positions.tolist()
    assert sorted([*rows, *(bad.position for bad in found.bad)]) == given
    assert found.rows.schema.equals(fields)
    found.rows.validate(full=True)


@pytest.mark.parametrize(
    ("schema", "message", "reason"),
    [
        (INT_RECORD, b"\x80\x80\x80\x80\x10", "a number has more than 32 bits"),
        (INT_RECORD, b"\x82\x80\x80\x80\x80\x00", "a number has more than 32 bits"),
        (INT_RECORD, b"\x82\x80\x80\x80\x80", "it ends too early"),
        (record(("v", "long")), b"\x82" + b"\x80" * 9 + b"\x00", "a number has more than 64 bits"),
        (record(("v", "long")), b"\xff" * 9 + b"\x02", "a number has more than 64 bits"),
        (record(("v", "long")), b"\xff" * 9, "it ends too early"),
        (record(("v", ["null", "int"])), b"\x01\x02", "there is no type -1"),
        (record(("v", ["null", "int"])), b"\x04\x02", "there is no type 2"),
        (record(("v", "int"), ("w", ["null", "int", "string"])), b"\x02\x03\x02", "there is no type -2"),
        (record(("v", ["int"])), b"\x01\x02", "there is no type -1"),
        (record(("v", {"type": "enum", "name": "e", "symbols": ["A"]})), b"\x01", "there is no symbol -1"),
        (record(("v", {"type": "enum", "name": "e", "symbols": ["A"]})), b"\x02", "there is no symbol 1"),
        (record(("v", {"type": "enum", "name": "e", "symbols": []})), b"\x00", "there is no symbol 0"),
        (record(("v", "int"), ("w", "boolean")), b"\x02", "it ends too early"),
        (record(("v", "boolean")), b"\x02", "a boolean is neither 0 nor 1"),
        (record(("v", "string")), b"\x01", "a length is -1"),
        (record(("v", "double")), bytes(7), "it ends too early"),
        (record(("v", {"type": "array", "items": "int"})), b"\x02\x02", "it ends too early"),
        (record(("v", {"type": "array", "items": "int"})), b"\x03\x02\x02", "it ends too early"),
    ],
)
def test_what_other_readers_take_for_data_is_no_datum(schema: str, message: bytes, reason: str) -> None:
    """Fastavro counts an index below zero from the end, and reads numbers of any length."""
    kind = str(json.loads(schema)["fields"][0]["type"])
    of_kind = {"string": pa.string(), "boolean": pa.bool_(), "double": pa.float64(), "long": pa.int64()}
    type_ = pa.list_(pa.int32()) if "array" in kind else pa.string() if "enum" in kind else of_kind.get(kind)
    for count in (1, 50):
        found = decoded(one(type_ or pa.int32(), nullable=True), [message] * count, schema=schema)
        assert (found.rows.num_rows, len(found.bad)) == (0, count)
        assert {bad.reason for bad in found.bad} == {f"no datum of the schema: {reason}"}


@pytest.mark.parametrize("few", [0, 3, 10_000])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=random_columns.tables(schemas()), changes=st.randoms(use_true_random=False))
def test_changed_bytes_mean_what_fastavro_reads_or_are_bad(
    rows: pa.Table, changes: random.Random, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many messages are read together."""
    monkeypatch.setattr(avro_reader, "_FEW", few)
    schema = fastavro.parse_schema(json.loads(without_logical_types(rows.schema)))
    plain = pa.schema([pa.field(f.name, plain_type(f.type), f.nullable) for f in rows.schema])
    messages = [changed(message, changes) for message in encoded(rows).to_pylist() * 5]
    found = decoded(plain, messages, schema=without_logical_types(rows.schema))
    good = range(len(messages)) if found.positions is None else found.positions.tolist()
    expected = [fastavro.schemaless_reader(io.BytesIO(messages[place]), schema) for place in good]
    assert [_plain(list(row.values())) for row in found.rows.to_pylist(maps_as_pydicts="strict")] == [
        _plain(list(row.values())) for row in expected
    ]
    assert decoded(rows.schema, messages).rows.num_rows <= found.rows.num_rows


def changed(message: bytes, changes: random.Random) -> bytes:
    """The bytes of a message, some of them cut off, changed or there twice; or as they are."""
    place = changes.randrange(len(message) + 1)
    match changes.randrange(6):
        case 0:
            return message[:place]
        case 1 | 2 if message:
            return message[: place - 1] + bytes([changes.choice([0, 1, 2, 3, 4, 128, 255])]) + message[place:]
        case 3:
            return message[:place] + changes.randbytes(2) + message[place:]
    return message


def without_logical_types(fields: pa.Schema) -> str:
    return re.sub(r',"logicalType":"[a-z-]*"', "", derived(fields))


def plain_type(type_: pa.DataType) -> pa.DataType:
    """What a type is to Avro where it has no logical types."""
    if pa.types.is_list(type_):
        return pa.list_(type_.value_field.with_type(plain_type(type_.value_type)))
    if pa.types.is_map(type_):
        return pa.map_(pa.string(), type_.item_field.with_type(plain_type(type_.item_type)))
    if pa.types.is_struct(type_):
        return pa.struct([field.with_type(plain_type(field.type)) for field in type_])
    if pa.types.is_decimal(type_):
        return pa.binary()
    if pa.types.is_temporal(type_):
        return pa.int32() if type_.bit_width == 32 else pa.int64()
    return pa.int32() if type_ in (pa.int8(), pa.int16()) else type_


def test_arrays_of_many_lengths_are_read_together(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = one(pa.list_(pa.list_(pa.string())))
    rng = random.Random(5)
    rows = [
        [[str(rng.random()) for _ in range(rng.choice([0, 1, 3]))] for _ in range(rng.choice([0, 1, 2, 40]))]
        for _ in range(200)
    ]
    rows[7] = [["a"]] * 20_000
    table = pa.table([pa.array(rows, fields[0].type)], schema=fields)
    for few in (0, 16):
        monkeypatch.setattr(avro_reader, "_FEW", few)
        messages = encoded(table) if few else encoded(table.slice(8))
        assert decoded(fields, messages).rows.equals(table if few else table.slice(8))


@pytest.mark.parametrize("is_nullable", [False, True])
@pytest.mark.parametrize("item", ["boolean", "int", "long", "double"])
def test_numbers_of_arrays_are_read_at_once_as_one_by_one(
    item: str, is_nullable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where one of them is none, or their array is longer than its message."""
    types_ = {"boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64()}
    fields = one(pa.list_(pa.field("element", types_.get(item, pa.float64()), nullable=is_nullable)))
    array = {"type": "array", "items": [item, "null"] if is_nullable else item}
    schema = record(("skipped", array), ("v", array), ("w", "int"))
    rng = random.Random(item)
    messages = []
    for _ in range(10):
        numbers = [rng.choice([0, 1, -1, 2**31 - 1, -(2**31)]) for _ in range(rng.choice([0, 1, 17, 300]))]
        numbers = [number == 1 if item == "boolean" else number for number in numbers]
        with_null: list[Any] = [None, *numbers] if is_nullable and rng.random() < 0.2 else numbers
        messages.append(datum(schema, {"skipped": with_null, "v": numbers[::-1], "w": 5}))
    messages += [changed(message, rng) for message in messages * 3]
    messages.append(b"\x00\x28\x82\x80\x80\x80\x80\x00" + b"\x02" * 19 + b"\x00\x0a")
    monkeypatch.setattr(avro_reader, "_FEW", 10**9)
    expected = decoded(fields, messages, schema=schema)
    assert len(expected.bad) > 4
    for few in (0, 16):
        monkeypatch.setattr(avro_reader, "_FEW", few)
        together = decoded(fields, messages, schema=schema)
        assert (together.rows, together.bad) == (expected.rows, expected.bad)
        apart = [decoded(fields, [message], schema=schema) for message in messages]
        assert pa.concat_tables([each.rows for each in apart]) == expected.rows
        reasons = [(place, bad.reason) for place, each in enumerate(apart) for bad in each.bad]
        assert reasons == [(bad.position, bad.reason) for bad in expected.bad]


def runs(messages: Sequence[bytes], counts: Sequence[int], **how: Any) -> list[int] | None:
    """So many numbers of each message, all read at once, each behind a byte that ends another one."""
    data = np.frombuffer(b"".join(b"\x06" + message for message in messages), np.uint8)
    end = np.cumsum([len(message) + 1 for message in messages])
    begin = end - [len(message) for message in messages]
    given = Messages(Spans(padded(data), begin, end))
    found = given.number_runs(np.arange(len(messages)), np.array(counts), **how)
    assert given.at.tolist() == (begin if found is None else end).tolist()
    return None if found is None else found.tolist()


def test_numbers_that_are_read_at_once_may_end_with_their_message_and_are_never_too_long() -> None:
    assert runs([b"\x02\x04", b"\x01\xfe\xff\xff\xff\x0f\x06"], [2, 3], bits=32) == [1, 2, -1, 2**31 - 1, 3]
    assert runs([b"\x02\x04\x02\x06"], [2], branch=1) == [2, 3]
    assert runs([b"\x02\x04\x00\x06"], [2], branch=1) is None
    assert runs([b"\x02\x04", b"\x06"], [3, 1]) is None
    largest, six_bytes, eleven_bytes = (
        b"\x80\x80\x80\x80\x10",
        b"\x82" + b"\x80" * 4 + b"\0",
        b"\x80" * 10 + b"\0",
    )
    for number, in_long in ((largest, 2**31), (six_bytes, 1), (eleven_bytes, None)):
        assert runs([b"\x02" + number], [2], bits=32) is None
        assert runs([b"\x02" + number], [2]) == (in_long and [1, in_long])


def test_arrays_and_maps_may_come_in_blocks_of_known_size() -> None:
    array, number = {"type": "array", "items": "int"}, {"type": "map", "values": "int"}
    schema = record(("v", array), ("m", number), ("skipped", array), ("w", "int"))
    two_blocks = b"\x03\x04\x02\x04" + b"\x02\x06" + b"\x00"
    entries = b"\x03\x06\x02a\x02\x02b\x04" + b"\x02\x02a\x06" + b"\x00"
    fields = pa.schema(
        [("v", pa.list_(pa.int32())), ("m", pa.map_(pa.string(), pa.int32())), ("w", pa.int32())]
    )
    for count in (1, 50):
        found = decoded(fields, [two_blocks + entries + two_blocks + b"\x0a"] * count, schema=schema)
        expected = {"v": [1, 2, 3], "m": [("b", 2), ("a", 3)], "w": 5}
        assert (found.bad, found.rows.to_pylist()) == ((), [expected] * count)


# the rest


def test_no_messages_give_no_rows() -> None:
    for messages in ([], [None, None]):
        found = decoded(USERS, messages)
        assert (found.rows.num_rows, found.bad) == (0, ())
        assert found.rows.schema.equals(USERS)
    assert encoded(USERS.empty_table()).to_pylist() == []


def test_format_is_found_by_its_name_and_its_context_can_be_sent() -> None:
    assert format_named("avro", "t") is FORMAT
    assert FORMAT.is_insert_only
    sent = pickle.loads(pickle.dumps(context(USERS)))
    assert FORMAT.decoder(sent).decode(pa.array([b"\x06\x00"])).rows.num_rows == 1
