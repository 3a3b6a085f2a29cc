"""Which metadata a column may hold, and how its values are cast."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from upsert import types
from upsert.errors import SchemaError
from upsert.formats.metadata_columns import MetadataColumn, MetadataKey, cast, resolve
from upsert.schema import Column, TableSchema

OFFERED = {
    "offset": MetadataKey("offset", pa.int64()),
    "timestamp": MetadataKey("timestamp", types.TIMESTAMP, is_writable=True),
    "headers": MetadataKey("headers", pa.map_(pa.string(), pa.binary()), is_writable=True),
    "value.source.table": MetadataKey("value.source.table", pa.string()),
}


def resolved(column: Column, *, writing: bool = False) -> MetadataColumn:
    aliases = {"debezium-json.source.table": "value.source.table"}
    (found,) = resolve([column], OFFERED, aliases, of="table 't'", writing=writing)
    return found


def refusal(column: Column, *, writing: bool = False) -> str:
    with pytest.raises(SchemaError) as error:
        resolved(column, writing=writing)
    return str(error.value)


def test_time_as_whole_number_is_milliseconds_rounded_down_also_before_1970() -> None:
    micros = pa.array([1_999, 0, -1, -1_000, None], types.TIMESTAMP)
    assert cast(micros, pa.int64(), "ts").to_pylist() == [1, 0, -1, -1, None]


def test_milliseconds_become_a_time() -> None:
    column = MetadataColumn(Column("ts", pa.int64(), metadata="timestamp"), OFFERED["timestamp"])
    assert column.write(pa.array([1_583_673_131_123])).to_pylist() == [
        datetime(2020, 3, 8, 13, 12, 11, 123_000, UTC)
    ]


def test_time_without_zone_is_utc() -> None:
    ntz = cast(pa.array([datetime(2020, 3, 8, 1, tzinfo=UTC)], types.TIMESTAMP), types.TIMESTAMP_NTZ, "ts")
    assert ntz.to_pylist() == [datetime(2020, 3, 8, 1)]


def test_text_of_a_time_far_away_is_none_of_another_year() -> None:
    """Microseconds, where Kafka has milliseconds, are a time of the year 52969."""
    far = cast(pa.array([1_609_372_800_123_456]), types.TIMESTAMP, "t")
    texts = cast(pa.concat_arrays([pa.array([0, None]).cast(types.TIMESTAMP), far]), pa.string(), "t")
    assert texts.to_pylist()[:2] == ["1970-01-01 00:00:00.000000Z", None]
    assert texts[2].as_py().startswith("<value out of range: 1609372800123456000>")


def test_value_that_does_not_fit_the_declared_type_is_refused() -> None:
    with pytest.raises(SchemaError, match="column 'o' must fit INT"):
        MetadataColumn(Column("o", pa.int32(), metadata="offset"), OFFERED["offset"]).read(pa.array([2**40]))


def test_both_spellings_of_a_format_key_mean_the_same() -> None:
    spellings = ("debezium-json.source.table", "value.source.table")
    keys = {resolved(Column("t", pa.string(), metadata=spelling)).key.key for spelling in spellings}
    assert keys == {"value.source.table"}


def test_unknown_key_lists_the_valid_ones_and_names_the_right_side() -> None:
    message = refusal(Column("t", pa.string(), metadata="key.source.table"))
    assert "did you mean 'value.source.table'?; keys are offset, timestamp, headers" in message


def test_type_that_cannot_be_cast_is_refused() -> None:
    message = refusal(Column("h", pa.int64(), metadata="headers"))
    assert message == (
        "table 't': column 'h' holds the metadata 'headers' of type MAP<STRING,BINARY>, which cannot be cast "
        "to BIGINT; declare it as MAP<STRING,BINARY>"
    )


def test_read_only_key_must_be_virtual_where_rows_are_written() -> None:
    assert "declare it as METADATA FROM 'offset' VIRTUAL" in refusal(
        Column("o", pa.int64(), metadata="offset"), writing=True
    )
    virtual = Column("o", pa.int64(), metadata="offset", virtual=True)
    assert resolve([virtual], OFFERED, {}, of="t", writing=True) == ()


def test_schema_with_metadata_survives_json() -> None:
    columns = (Column("id", pa.int64()), Column("o", pa.int32(), metadata="offset", virtual=True))
    schema = TableSchema(columns, ("id",))
    assert TableSchema.from_json(schema.to_json()) == schema
    assert [c.name for c in schema.physical] == ["id"]


def test_key_column_must_be_physical() -> None:
    with pytest.raises(SchemaError, match="PRIMARY KEY: column 'o' must be a physical column"):
        TableSchema((Column("id", pa.int64()), Column("o", pa.int64(), metadata="offset")), ("o",))
