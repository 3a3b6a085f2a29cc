"""Records that Debezium 3.6.1 wrote of tables of PostgreSQL 15, in the modes of its connector.

The file has a line for each: topic, key and value, of which nothing is a tombstone. The topics `plain` are of
the connector's defaults, `conn` of `time.precision.mode` = `connect` with decimals as `string`, `iso` of
`isostring` with decimals as `double`, `schemas` of the defaults with `schemas.enable`, `unwrap` of
`ExtractNewRecordState`.
"""

from datetime import UTC, date, datetime, time
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.upsert.formats import json_changes
from tests.upsert.formats.json_changes import changes, reason
from upsert import types
from upsert.formats.base import FormatContext
from upsert.formats.debezium.json import FORMAT
from upsert.formats.json import FORMAT as JSON
from upsert.options import parse

RECORDS = Path(__file__).with_name("debezium-3.6.1.Final.tsv").read_bytes().splitlines()
PLAIN = {"time__precision__mode": "adaptive", "decimal__handling__mode": "precise"}
SCHEMAS = {"schema_include": "true"}
CONNECT = {"time__precision__mode": "connect"}
CENTS = pa.decimal128(10, 2)


def list_of(type_: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", type_))


# what PostgreSQL has in the first row, and as which column it is declared
KINDS: dict[str, tuple[Any, pa.DataType]] = {
    "id": (1, pa.int64()),
    "si": (32767, pa.int16()),
    "i": (-2147483648, pa.int32()),
    "b": (9223372036854775807, pa.int64()),
    "n102": (Decimal("12345678.90"), CENTS),
    "n385": (Decimal("123456789012345678901234567890123.12345"), pa.decimal128(38, 5)),
    "n0": (Decimal(123456), pa.decimal128(6, 0)),
    "n": (Decimal("1234.5678901"), pa.decimal128(38, 7)),
    "m": (Decimal("12.34"), pa.decimal128(19, 2)),
    "r": (1.5, pa.float32()),
    "d": (0.1, pa.float64()),
    "bo": (True, pa.bool_()),
    "c": ("ab   ", pa.string()),
    "vc": ("Ünï", pa.string()),
    "t": ('text "q" \\ ☃', pa.string()),
    "ba": (b"\x00\xff\x10", pa.binary()),
    "dt": (date(2020, 12, 30), pa.date32()),
    "ti0": (time(12, 13, 14), pa.time32("s")),
    "ti3": (time(12, 13, 14, 123000), pa.time32("ms")),
    "ti": (time(12, 13, 14, 123456), pa.time64("us")),
    "tz": (time(10, 13, 14, 500000), pa.time64("us")),
    "ts0": (datetime(2020, 12, 30, 12, 13, 14), types.TIMESTAMP_NTZ),
    "ts3": (datetime(2020, 12, 30, 12, 13, 14, 123000), types.TIMESTAMP_NTZ),
    "ts": (datetime(2020, 12, 30, 12, 13, 14, 123456), types.TIMESTAMP_NTZ),
    "tsz": (datetime(2020, 12, 30, 10, 13, 14, 123456, UTC), types.TIMESTAMP),
    "u": ("5a7f2b1e-0000-4000-8000-0123456789ab", pa.string()),
    "jb": ('{"b": null}', pa.string()),
    "ai": ([1, None, 3], list_of(pa.int32())),
    "at": (["a", "b,c"], list_of(pa.string())),
    "an": ([Decimal("1.10"), Decimal("-2.25")], list_of(CENTS)),
    "ad": ([date(2020, 12, 30), date(1969, 12, 31)], list_of(pa.date32())),
    "ats": ([datetime(2020, 12, 30, 12, 13, 14, 500000)], list_of(types.TIMESTAMP_NTZ)),
    "e": ("happy", pa.string()),
    "h": ('{"a":"1","b":null}', pa.string()),
    "ip": ("10.0.0.1/24", pa.string()),
    "p": ({"x": 1.5, "y": -2.0}, pa.struct([("x", pa.float64()), ("y", pa.float64())])),
    "bi": (b"\xaa", pa.binary()),
}
FIRST = {name: value for name, (value, _) in KINDS.items()}


def records(topic: str) -> list[bytes | None]:
    parts = (line.split(b"\t", 2) for line in RECORDS)
    return [value or None for name, _, value in parts if name.decode() == topic]


def decode(topic: str, columns: dict[str, pa.DataType], **given: str) -> Any:
    return json_changes.decode(FORMAT, pa.schema(list(columns.items())), records(topic), (), **given)


def kinds(*without: str) -> dict[str, pa.DataType]:
    return {name: type_ for name, (_, type_) in KINDS.items() if name not in without}


def first_row(topic: str, *without: str, **given: str) -> dict[str, Any]:
    row: dict[str, Any] = decode(topic, kinds(*without), **given).rows.slice(0, 1).to_pylist()[0]
    return row


def test_a_row_of_all_types_is_what_postgresql_has() -> None:
    assert first_row("schemas.public.kinds", **SCHEMAS) == FIRST
    # numbers alone do not say that timestamp(0) and timestamp(3) are in milliseconds
    of_micros = {name: value for name, value in FIRST.items() if name not in ("ts0", "ts3")}
    assert first_row("plain.public.kinds", "ts0", "ts3", **PLAIN) == of_micros
    of_millis = {"ti": time(12, 13, 14, 123000), "ts": datetime(2020, 12, 30, 12, 13, 14, 123000)}
    assert first_row("conn.public.kinds", **CONNECT) == FIRST | of_millis
    assert first_row("iso.public.kinds") == FIRST | {"n385": Decimal("123456789012345690000000000000000")}


@pytest.mark.parametrize(
    ("topic", "given"),
    [("plain", PLAIN), ("schemas", SCHEMAS), ("conn", CONNECT), ("iso", {})],
)
def test_small_and_large_values(topic: str, given: dict[str, str]) -> None:
    columns = kinds("n", "ts0", "ts3", "ti", "ts", "tsz")
    rows = decode(f"{topic}.public.kinds", columns, **given).rows.to_pylist()
    found = {row["id"]: row for row in rows[:5]}
    smallest, before_1970 = found[3], found[5]
    assert (smallest["n102"], smallest["n385"], smallest["n0"]) == (Decimal("-0.01"), Decimal("-0.00001"), 0)
    assert (smallest["dt"], smallest["ba"], smallest["ai"]) == (date(1, 1, 1), b"", [])
    assert str(smallest["d"]) == str(smallest["r"]) == "nan"
    assert (before_1970["dt"], before_1970["m"], before_1970["n102"]) == (date(1969, 12, 31), 1, 100)
    if topic != "schemas":
        money = Decimal("92233720368547760" if topic == "iso" else "92233720368547758.07")
        assert (found[4]["m"], found[4]["dt"]) == (money, date(9999, 12, 31))
        assert (found[2]["dt"], found[2]["n102"], found[2]["an"]) == (None, None, None)


def test_changes_tombstones_and_columns_that_come_and_go() -> None:
    columns = {"id": pa.int64(), "n102": CENTS, "ir": pa.string(), "extra": pa.decimal128(5, 1)}
    found = decode("plain.public.kinds", columns, decimal__handling__mode="precise")
    assert changes(found)[5:] == [
        ["-U", 1, Decimal("12345678.90"), "[1,5)", None],
        ["+U", 1, Decimal("12345679.90"), "[1,5)", None],
        ["-U", 3, Decimal("-0.01"), None, None],
        ["+U", 3, Decimal("0.99"), None, None],
        ["-D", 2, None, None, None],
        ["+I", 20, None, None, None],
        ["-D", 5, Decimal(100), None, None],
        ["+I", 6, Decimal("0.50"), None, None],
        ["-U", 1, Decimal("12345679.90"), "[1,5)", Decimal("1.5")],
        ["+U", 1, Decimal("12345679.90"), "[1,5)", Decimal("2.5")],
    ]


def test_names_with_spaces_and_a_day_in_the_key() -> None:
    columns = {"Order Id": pa.int32(), "Line": pa.int16(), "Due": pa.date32(), "Price": pa.decimal128(9, 2)}
    given = {"decimal__handling__mode": "precise"}
    fields, messages = pa.schema(list(columns.items())), records("plain.My_Shop.Order_Items")
    assert "REPLICA IDENTITY FULL" in reason(FORMAT, fields, messages[2], **given)
    found = json_changes.decode(FORMAT, fields, [one for one in messages if one != messages[2]], (), **given)
    assert changes(found) == [
        ["+I", 1, 1, date(2026, 1, 2), Decimal("9.99")],
        ["+I", 1, 2, date(2026, 1, 3), Decimal("10.00")],
        ["-D", 1, None, date(2026, 1, 3), None],
        ["+I", 1, 2, date(2027, 1, 1), Decimal("10.00")],
        ["-D", 1, None, date(2027, 1, 1), None],
    ]


def test_a_table_without_a_key() -> None:
    found = decode("plain.public.nokey", {"a": pa.int32(), "b": pa.string()})
    assert changes(found)[3:] == [["-D", 1, "x"], ["-U", 2, None], ["+U", 2, "y"]]


@pytest.mark.parametrize(
    ("columns", "given", "why"),
    [
        ({"n102": CENTS}, {}, "set 'decimal.handling.mode' to precise"),
        ({"ts": types.TIMESTAMP}, {}, "1609330394123456 is no TIMESTAMP unless it is known what it counts"),
        ({"ti3": pa.time32("ms")}, {}, "43994123 is no TIME(3) unless it is known what it counts"),
        ({"n": pa.decimal128(4, 1)}, PLAIN, "has too many digits for DECIMAL(4,1)"),
        ({"ba": pa.decimal128(9, 2)}, {}, "'AP8Q' is no DECIMAL(9,2); if it is base64"),
        ({"ts3": types.TIMESTAMP}, SCHEMAS, "field 'payload' is missing; schema-include is set"),
    ],
)
def test_what_the_declaration_does_not_fit(
    columns: dict[str, pa.DataType], given: dict[str, str], why: str
) -> None:
    message = records("plain.public.kinds")[0]
    assert why in reason(FORMAT, pa.schema(list(columns.items())), message, **given)


LOST = (3, date(44, 3, 15))
"""44 BC: Debezium lets the era of a DATE out, though not that of a TIMESTAMP."""


def test_days_that_spark_does_not_have_are_bad_or_null() -> None:
    read = partial(decode, "plain.public.odd", {"id": pa.int32(), "dt": pa.date32(), "ts": types.TIMESTAMP})
    assert [one.position for one in read(**PLAIN).bad] == [0, 1, 2]
    rows = read(**PLAIN, ignore_parse_errors="true").rows.to_pylist()
    assert rows == [{"id": number, "dt": day, "ts": None} for number, day in ((1, None), (2, None), LOST)]


@pytest.mark.parametrize(
    ("column", "type_"),
    [
        ("t", pa.string()),
        ("ta", list_of(pa.string())),
        ("b", pa.binary()),
        ("ints", list_of(pa.int32())),
        ("bigs", list_of(pa.int64())),
        ("ds", list_of(pa.date32())),
        ("us", list_of(pa.string())),
        ("hs", pa.string()),
        ("j", pa.string()),
    ],
)
def test_a_long_value_that_an_update_left_as_it_was_is_missed(column: str, type_: pa.DataType) -> None:
    (message,) = records("plain.shop.toast")
    fields = pa.schema([("id", pa.int32()), (column, type_)])
    assert f"field 'after.{column}' has no value" in reason(FORMAT, fields, message)


def test_a_truncation_says_what_to_do() -> None:
    (message,) = records("iso.shop.truncated")
    assert "'t' is a TRUNCATE" in reason(FORMAT, pa.schema([("id", pa.int32())]), message)


def test_rows_that_are_unwrapped_are_read_by_the_format_json() -> None:
    columns = {"Order Id": pa.int32(), "Due": pa.date32(), "Price": pa.decimal128(9, 2)}
    given = {name.replace("__", "."): mode for name, mode in PLAIN.items()}
    context = FormatContext(pa.schema(list(columns.items())), parse("json", JSON.options, given))
    found = JSON.decoder(context).decode(pa.array(records("unwrap.My_Shop.Order_Items"), pa.binary()))
    assert found.bad == ()
    assert [tuple(row.values()) for row in found.rows.to_pylist()] == [
        (1, date(2026, 1, 2), Decimal("9.99")),
        (1, date(2026, 1, 3), Decimal("10.00")),
        (1, date(2026, 1, 2), Decimal("1.11")),
        (1, date(2027, 1, 1), Decimal("10.00")),
    ]
