"""Reading many messages at once gives exactly what reading each of them by itself gives."""

import json
from functools import lru_cache
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tests.upsert.formats.random_columns import SCALARS, TEXTS, nested, plain, schemas
from upsert.formats.base import BadMessage, Decoded
from upsert.formats.json_reader import BulkReader, JsonReader
from upsert.formats.json_values import JsonDialect
from upsert.formats.text_values import BadValueError, TimestampStandard

NUMBER_TEXTS = """
    0 -0 1 -7 01 1.0 1.5 1e2 1E-2 1e400 1e-400 9e308 1e39 -1 +1 .5 5. . - e5 1_0 0x10 1f
    1e1000000000 1e-1000000000 1e99999999999999999999 1e-99999999999999999999
    127 128 -32769 2147483648 9223372036854775807 9223372036854775808 0.1 1.005 100.00 1e-77 1e99 0e99
    NaN Infinity -Infinity Inf nan
"""
NUMBERS = st.one_of(
    st.sampled_from(NUMBER_TEXTS.split()),
    st.sampled_from([f"0.{'0' * 90}1", "9" * 38, "9" * 39, "9" * 500, "", " 1 "]),
    st.floats().map(repr),
)
TIMES = st.one_of(
    st.sampled_from(
        ["2020-12-30 12:13:14.123Z", "2020-12-30 12:13:14", "2020-12-30 12:13:14Z ", "2020-12-30"]
    ),
    st.sampled_from(["2020-12-30T12:13:14.123456789Z", "2020-12-30T12:13Z", "2020-12-30T12:13:14+05:30"]),
    st.sampled_from(
        ["2020-12-30T12:13:14-19:00", "0001-01-01T00:00:00+10:00", "9999-12-31T23:59:59.9-01:00"]
    ),
    st.sampled_from(
        ["0000-01-01 00:00:00", "2020-02-30 00:00:00", "2020-12-30 24:00:00", "2020-12-30 12:60:00"]
    ),
    st.sampled_from(
        ["2020-12-30 23:59:60", "2020-12-30 12:13:14.", "2021-02-29", "0000-12-31", "9999-12-31"]
    ),
    st.sampled_from(["10000-01-01", "2020-1-1", "20201230", "٢٠٢٠-12-30"]),
)
STRINGS = st.one_of(
    TEXTS, TIMES, NUMBERS, st.sampled_from(["true", "FALSE", "3q2+7w==", "AB=C", "AB==", "A==="])
)
LITERALS = st.sampled_from(["true", "false", "null", "nul", "True"])
ODD_STRINGS = st.sampled_from(
    [
        r'"{\"a\": {}} \"NaN\" \\"',
        r'"\\\"}"',
        '"} Inf"',
        f'"{"[" * 201}"',
        f'"{"{}" * 201}',
        '"\\ud800"',
        '"\\udc00"',
        '"\\ud83d\\ude00"',
        '"\\x"',
        '"a\nb"',
        '"\t"',
        '"\x00"',
        '"\\u0000"',
        '"',
        '"\\',
        "'a'",
        '"a\\',
    ]
)


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def objects(names: st.SearchStrategy[str], inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    member = st.tuples(names.map(quoted), inner).map(": ".join)
    return st.lists(member, max_size=4).map(lambda found: "{" + ",".join(found) + "}")


ANYTHING = st.recursive(
    st.one_of(NUMBERS, STRINGS.map(quoted), LITERALS, ODD_STRINGS),
    lambda inner: st.one_of(
        objects(TEXTS | st.sampled_from(["id", "word", "f0", "f1"]), inner),
        st.lists(inner, max_size=3).map(lambda found: "[" + ",".join(found) + "]"),
    ),
    max_leaves=4,
)


@lru_cache(maxsize=512)
def texts_of(type_: pa.DataType) -> st.SearchStrategy[str]:
    """JSON that is often of the type and often nearly so."""
    return st.one_of(_good(type_), _good(type_), _good(type_), ANYTHING)


def _good(type_: pa.DataType) -> st.SearchStrategy[str]:
    if pa.types.is_struct(type_):
        members = st.tuples(*(texts_of(child.type) for child in type_))
        names = [quoted(child.name) for child in type_]
        return members.map(
            lambda found: "{" + ", ".join(f"{n}:{v}" for n, v in zip(names, found, strict=True)) + "}"
        )
    if pa.types.is_list(type_):
        return st.lists(texts_of(type_.value_type), max_size=3).map(lambda found: "[" + ",".join(found) + "]")
    if pa.types.is_map(type_):
        return objects(TEXTS, texts_of(type_.item_type))
    if pa.types.is_temporal(type_):
        return TIMES.map(quoted)
    if type_ in (pa.string(), pa.binary()):
        return STRINGS.map(quoted)
    if type_ == pa.bool_():
        return LITERALS
    return NUMBERS | NUMBERS.map(quoted)


DAMAGE = st.sampled_from(
    ["", "", "", "", " ", "\n", "null", "{}", "5", "[]", "\x00", ",", "}", "{", "/**/", "\ufeff", "\f"]
)


@st.composite
def batches(draw: st.DrawFn) -> tuple[pa.Schema, list[bytes | None]]:
    fields = draw(schemas(nested(SCALARS)))
    row = texts_of(pa.struct(list(fields)))
    message = st.one_of(
        row,
        row,
        row,
        st.tuples(DAMAGE, row, DAMAGE).map("".join),
        st.lists(row, max_size=2).map(lambda found: "[" + ",".join(found) + "]"),
        row.flatmap(lambda text: st.integers(0, len(text)).map(lambda end: text[:end])),
        ANYTHING,
    ).map(lambda text: text.encode("utf-8", "surrogatepass"))
    broken = st.tuples(message, st.sampled_from([b"\xff", b"\xc3", b"\xed\xa0\x80"])).map(b"".join)
    return fields, draw(st.lists(st.none() | message | message | message | broken, max_size=8))


def one_by_one(fields: pa.Schema, dialect: JsonDialect, messages: list[bytes | None]) -> Decoded:
    reader = JsonReader(fields, dialect)
    rows: list[tuple[Any, ...]] = []
    positions: list[int] = []
    bad = []
    for position, message in enumerate(messages):
        try:
            found = [] if message is None else reader.rows_of(message)
        except BadValueError as cause:
            if not dialect.ignore_parse_errors:
                bad.append(BadMessage(position, cause.reason))
            continue
        rows += found
        positions += [position] * len(found)
    columns = [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(fields)]
    return Decoded(pa.Table.from_arrays(columns, schema=fields), positions, bad=tuple(bad))


DIALECTS = st.builds(
    JsonDialect,
    timestamps=st.sampled_from(TimestampStandard),
    fail_on_missing_field=st.booleans(),
    ignore_parse_errors=st.booleans(),
)


def compare(fields: pa.Schema, dialect: JsonDialect, messages: list[bytes | None]) -> None:
    expected = one_by_one(fields, dialect, messages)
    found = JsonReader(fields, dialect).decode(pa.array(messages, pa.binary()))
    assert found.rows.schema == fields
    found.rows.validate(full=True)
    positions = range(len(messages)) if found.positions is None else found.positions.tolist()
    assert list(positions) == expected.positions
    assert found.bad == expected.bad
    assert plain(found.rows) == plain(expected.rows)


@given(batches(), DIALECTS)
def test_bulk_and_reference_agree_on_random_messages(
    batch: tuple[pa.Schema, list[bytes | None]], dialect: JsonDialect
) -> None:
    compare(batch[0], dialect, batch[1])


@given(schemas(SCALARS, max_size=2), st.data(), DIALECTS)
def test_bulk_and_reference_agree_on_columns_of_one_kind(
    fields: pa.Schema, data: st.DataObject, dialect: JsonDialect
) -> None:
    """Nearly every message is good here, so that the bulk reader has most of them."""
    members = st.tuples(*(_good(field.type) for field in fields)).map(
        lambda found: (
            "{" + ",".join(f"{quoted(f.name)}:{v}" for f, v in zip(fields, found, strict=True)) + "}"
        )
    )
    compare(fields, dialect, [text.encode() for text in data.draw(st.lists(members, max_size=6))])


BARE_FIELDS = pa.schema(
    {
        "a": pa.string(),
        "b.é": pa.string(),
        "n": pa.int64(),
        ",": pa.string(),
        "c": pa.struct([("a", pa.string()), ("n", pa.int64())]),
    }
)
LOOKALIKES = st.sampled_from(['{"a":5}', ',"a": 5,"b', ',"', ":5", '\\","a":1', '"a":true', "5"])


@given(st.data())
def test_numbers_and_booleans_become_texts_in_bulk_as_one_by_one(data: st.DataObject) -> None:
    texts = st.one_of(LOOKALIKES, TEXTS)
    bare = st.sampled_from(["0", "-0", "1.50", "-12e+3", "9" * 30, "1E400", "true", "false"])
    space = st.sampled_from(["", " ", "\n\t "])
    member = st.one_of(texts.map(quoted), bare, bare, st.just("null"))
    number = st.integers(-9, 9).map(str)

    def members(**found: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        parts = [
            st.tuples(space, st.just(quoted(name)), space, st.just(":"), space, of, space).map("".join)
            for name, of in found.items()
        ]
        return (
            st.permutations(parts).flatmap(lambda some: st.tuples(*some)).map(",".join).map("{{{}}}".format)
        )

    other = st.one_of(texts.map(quoted), number)  # where no column wants it, 1E400 is too large
    other = members(a=other, b=number, n=other)
    row = members(
        **{"a": member, "b.é": member, "n": number, ",": texts.map(quoted)},
        c=members(a=member, n=number),
        x=other,
    )
    messages = [text.encode() for text in data.draw(st.lists(row, min_size=1, max_size=8))]
    compare(BARE_FIELDS, JsonDialect(), messages)
    assert bulk_share(messages, BARE_FIELDS) == 1


def test_decimal_of_too_many_digits_does_not_wrap_around() -> None:
    """Arrow's reader takes 2028312315012101.0 for a DECIMAL(32,32) below one."""
    for precision, scale in ((32, 32), (38, 38), (38, 0), (38, 18), (3, 2), (1, 0)):
        fields = pa.schema([("d", pa.decimal128(precision, scale))])
        numbers = [
            "2028312315012101.0",
            *(
                f"{sign}{'9' * n}{end}"
                for n in (1, 6, 7, 20, 37, 38, 39, 45, 76, 77, 78)
                for sign in ("", "-")
                for end in ("", ".0", "e3")
            ),
        ]
        compare(fields, JsonDialect(), [b'{"d":%s}' % number.encode() for number in numbers])
        for number in numbers:
            compare(fields, JsonDialect(), [b'{"d":%s}' % number.encode()])


FIELDS = pa.schema([("n", pa.int64()), ("w", pa.string())])


def bulk_share(messages: list[bytes], fields: pa.Schema = FIELDS) -> float:
    """The part of the messages that the bulk reader takes."""
    found = BulkReader(fields, JsonDialect()).read(pa.array(messages, pa.binary()))
    return sum(len(places) for places, _ in found) / len(messages)


def test_ordinary_messages_are_all_read_in_bulk() -> None:
    assert bulk_share([b'{"n": %d, "w": "{x}, \\"y\\" 5"}' % n for n in range(1000)]) == 1
    assert bulk_share([b'{"n": "%d", "w": "x"}' % n for n in range(1000)]) == 1
    assert bulk_share([b'{"w": %d.50, "n": %d}' % (n, n) for n in range(1000)]) == 1
    pretty = [b'{\n  "n": %d,\r\n  "z": [{}, {"a": {}}],\n  "w": null\n}\n' % n for n in range(1000)]
    assert bulk_share(pretty) == 1


def test_json_in_texts_and_many_objects_are_read_in_bulk_too() -> None:
    """As of a column JSON, and of a message with its schema or with many rows; also the word Information."""
    texts = [rb"{\"a\": {\"b\": {}}, \"c\": \"}{\\\\\"}", b"Information: NaN", b"{[" * 300]
    for text in texts:
        assert bulk_share([b'{"n": %d, "w": "%s"}' % (n, text) for n in range(1000)]) == 1
    assert bulk_share([b'{"n": %d, "z": [%s{}]}' % (n, b"{}, " * 300) for n in range(1000)]) == 1
    deep = b'{"n": 1, "z": %s%s}' % (b"[" * 201, b"]" * 201)
    for bad in (deep, b'{"n": 1, "z": {"a": NaN}}', b'{"n": 1, "z": {} "w": "x"}'):
        assert bulk_share([bad] * 10) == 0


def test_object_that_is_null_lacks_none_of_its_fields() -> None:
    image = pa.struct([pa.field("id", pa.int64(), nullable=False), pa.field("w", pa.string())])
    fields = pa.schema([("before", image), ("after", image)])
    assert bulk_share([b'{"before": null, "after": {"id": %d}}' % n for n in range(100)], fields) == 1
    assert bulk_share([b'{"before": {"w": "x"}, "after": null}'] * 100, fields) == 0


def test_few_bad_messages_leave_most_of_the_others_in_bulk() -> None:
    good = b'{"n": 1, "w": "x"}'
    assert bulk_share([b'{"n": 1.5}', *[good] * 10_000]) > 0.9
    assert bulk_share([b'{"n": "a", "w": "x"}', *[b'{"n": "1", "w": "x"}'] * 10_000]) > 0.9
    assert bulk_share([b"", b"[]", b'{"n": 1}null', b'{"n": NaN}', b"\xff", *[good] * 10_000]) > 0.99


def test_column_that_is_not_null_costs_only_the_messages_with_null() -> None:
    fields = pa.schema([pa.field("n", pa.int64(), nullable=False)])
    assert bulk_share([b"{}", *[b'{"n": 1}'] * 10_000], fields) > 0.99
