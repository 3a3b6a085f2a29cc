"""What the format csv reads and writes."""

from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.upsert.formats.random_columns import SCALARS, TEXTS, plain, schemas, tables
from upsert import types
from upsert.errors import ConfigurationError, SchemaError
from upsert.formats.base import BadMessage, Decoded, FormatContext
from upsert.formats.csv import FORMAT, LineReader, dialect_of, value_of
from upsert.formats.text_values import BadValueError
from upsert.options import parse

PAIR = pa.schema([("word", pa.string()), ("n", pa.int64())])


def context(fields: pa.Schema, given: Mapping[str, str] | None = None) -> FormatContext:
    found = FormatContext(fields, parse("csv", FORMAT.options, given or {}))
    FORMAT.check(found)
    return found


def decode(fields: pa.Schema, *messages: bytes | None, **given: str) -> Decoded:
    options = {name.replace("_", "-"): value for name, value in given.items()}
    return FORMAT.decoder(context(fields, options)).decode(pa.array(messages, pa.binary()))


def rows(fields: pa.Schema, *messages: bytes | None, **given: str) -> list[Any]:
    found = decode(fields, *messages, **given)
    assert found.bad == ()
    return [tuple(row.values()) for row in found.rows.to_pylist()]


def value(type_: pa.DataType, text: str, **given: str) -> Any:
    """The value of a field that stands between two others."""
    fields = pa.schema([("a", pa.string()), ("x", type_), ("b", pa.string())])
    (row,) = rows(fields, f"a,{text},b".encode(), **given)
    assert (row[0], row[2]) == ("a", "b")
    return row[1]


def reason(fields: pa.Schema, message: bytes, **given: str) -> str:
    found = decode(fields, message, **given)
    assert found.rows.num_rows == 0
    (bad,) = found.bad
    return bad.reason


def encode(rows: pa.Table, **given: str) -> list[str]:
    options = {name.replace("_", "-"): text for name, text in given.items()}
    messages = FORMAT.encoder(context(rows.schema, options)).encode(rows)
    return [message.decode() for message in messages.to_pylist()]


# --- lines


def test_one_line_is_one_row_and_positions_are_left_out() -> None:
    found = decode(PAIR, b"a,1", b"b,2")
    assert found == Decoded(found.rows)
    assert found.rows.equals(pa.table({"word": ["a", "b"], "n": [1, 2]}))


def test_no_message_and_empty_lines_give_no_row() -> None:
    found = decode(PAIR, None, b"", b"a,1\n", b"\r\n")
    assert found.rows.to_pylist() == [{"word": "a", "n": 1}]
    assert found.positions is not None
    assert found.positions.tolist() == [2]
    assert found.bad == ()


def test_quoted_fields_hold_delimiters_quotes_and_line_breaks() -> None:
    assert rows(PAIR, b'"a,b",1', b'"say ""hi""",2', b'"x\ny",3', b'a "b" c,4', b'"","5"', b'"a" ,6') == [
        ("a,b", 1),
        ('say "hi"', 2),
        ("x\ny", 3),
        ('a "b" c', 4),
        ("", 5),
        ("a", 6),
    ]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (b'"a,1', "not valid CSV: the quote is not closed in its field, after character 0"),
        (b'1,"a"b', "not valid CSV: the quote is not closed in its field, after character 2"),
        (b"a,1\nb,2", "not valid CSV: a line break or a lone escape, after character 2"),
        (b"a", "a line must have 2 fields, got 1"),
        (b"a,1,", "a line must have 2 fields, got 3"),
        (b"a,x", "field 'n': 'x' is no BIGINT"),
        (b"\xff,1", "not valid UTF-8 at byte 0"),
    ],
)
def test_unreadable_lines_are_named_with_the_reason(message: bytes, expected: str) -> None:
    assert reason(PAIR, message) == expected


def test_quote_left_open_does_not_reach_into_the_next_message() -> None:
    found = decode(PAIR, b'"a', b'b",1', b"c,2")
    assert found.rows.to_pylist() == [{"word": 'b"', "n": 1}, {"word": "c", "n": 2}]
    assert [bad.position for bad in found.bad] == [0]


def test_null_in_a_column_declared_not_null_is_bad() -> None:
    fields = pa.schema([pa.field("n", pa.int64(), nullable=False), ("w", pa.string())])
    found = decode(fields, b"1,a", b",b")
    assert found.rows.schema == fields
    assert found.bad == (BadMessage(1, "field 'n': is NULL, but declared NOT NULL"),)


# --- values


@pytest.mark.parametrize(
    ("type_", "text", "expected"),
    [
        (pa.bool_(), "TRUE", True),
        (pa.int8(), " 5 ", 5),
        (pa.int32(), "", None),
        (pa.float64(), "1e3", 1000.0),
        (pa.float32(), "NaN", "nan"),
        (pa.decimal128(5, 2), "1.005", Decimal("1.01")),
        (pa.string(), " a ", " a "),
        (pa.string(), "", ""),
        (pa.binary(), "3q2+7w==", b"\xde\xad\xbe\xef"),
        (pa.date32(), "2020-02-29", date(2020, 2, 29)),
        (types.TIMESTAMP, "2020-12-30 12:13:14.123Z", datetime(2020, 12, 30, 12, 13, 14, 123_000, UTC)),
        (types.TIMESTAMP_NTZ, "2020-12-30 12:13:14", datetime(2020, 12, 30, 12, 13, 14)),
        (pa.list_(pa.int32()), "1;;3", [1, None, 3]),
        (pa.list_(pa.string()), "", []),
        (pa.struct([("a", pa.int32()), ("b", pa.string())]), "1;x", {"a": 1, "b": "x"}),
        (pa.struct([("a", pa.int32()), ("b", pa.string())]), "", None),
    ],
)
def test_values_of_all_types(type_: pa.DataType, text: str, expected: object) -> None:
    found = value(type_, text)
    assert (repr(found) if found != found else found) == expected


@pytest.mark.parametrize(
    ("type_", "text", "expected"),
    [
        (pa.int8(), "128", "'128' is no TINYINT"),
        (pa.bool_(), "1", "'1' is no BOOLEAN"),
        (
            types.TIMESTAMP,
            "2020-12-30T12:13:14Z",
            "'2020-12-30T12:13:14Z' is no TIMESTAMP like 2020-12-30 12:13:14.123Z",
        ),
        (pa.list_(pa.int32()), "1;x", "'x' is no INT"),
        (pa.struct([("a", pa.int32()), ("b", pa.string())]), "1", "'1' must have 2 parts, got 1"),
    ],
)
def test_values_of_no_type_are_bad(type_: pa.DataType, text: str, expected: str) -> None:
    assert reason(pa.schema([("x", type_)]), text.encode()) == f"field 'x': {expected}"


# --- options


def test_field_delimiter() -> None:
    assert rows(PAIR, b"a|1", field_delimiter="|") == [("a", 1)]
    assert rows(PAIR, b"a,b\t1", field_delimiter="\\t") == [("a,b", 1)]
    assert rows(PAIR, "a§1".encode(), field_delimiter="§") == [("a", 1)]
    assert encode(pa.table({"a": ["x|y"], "b": [1]}), field_delimiter="|") == ['"x|y"|1']


def test_quote_character() -> None:
    assert rows(PAIR, b"'a,''b',1", quote_character="'") == [("a,'b", 1)]
    assert rows(PAIR, "§a,b§,1".encode(), b"c,2", quote_character="§") == [("a,b", 1), ("c", 2)]
    assert encode(pa.table({"a": ["x'\",y"]}), quote_character="'") == ["'x''\",y'"]


def test_disabled_quotes_are_text_and_what_would_need_them_is_refused() -> None:
    assert rows(PAIR, b'"a",1', disable_quote_character="true") == [('"a"', 1)]
    table = pa.table({"a": ['say "hi"', "a,b"]})
    assert encode(table.slice(0, 1), disable_quote_character="true") == ['say "hi"']
    with pytest.raises(SchemaError, match="column 'a': 'a,b' needs quotes, which are disabled"):
        encode(table, disable_quote_character="true")


def test_nothing_in_the_only_column_needs_quotes_for_a_line_of_nothing_is_no_row() -> None:
    table = pa.table({"a": pa.array(["x", None, ""])})
    assert encode(table) == ["x", '""', '""']
    for rows_with_nothing, more in ((table.slice(0, 2), {}), (table, {"null_literal": "-"})):
        with pytest.raises(
            SchemaError, match="column 'a': nothing in the only column of a line needs quotes"
        ):
            encode(rows_with_nothing, disable_quote_character="true", **more)
    assert encode(table.slice(0, 2), disable_quote_character="true", null_literal="-") == ["x", "-"]


def test_quote_character_and_disabled_quotes_exclude_each_other() -> None:
    with pytest.raises(ConfigurationError, match="must not both be set"):
        context(PAIR, {"disable-quote-character": "true", "quote-character": "'"})


def test_comments_are_rows_unless_allowed() -> None:
    assert rows(PAIR, b"#a,1", allow_comments="true") == []
    assert rows(PAIR, b"#a,1") == [("#a", 1)]
    table = pa.table({"a": ["#a"], "b": [1]})
    assert encode(table) == ["#a,1"]
    assert encode(table, allow_comments="true") == ['"#a",1']
    assert rows(PAIR, b'"#a",1', allow_comments="true") == [("#a", 1)]


def test_ignored_errors_are_null_and_unreadable_lines_leave_no_trace() -> None:
    found = decode(PAIR, b"a,x", b"b", b"c,1,2", b'"', b"\xff", b"d,4", ignore_parse_errors="true")
    assert found.rows.to_pylist() == [
        {"word": "a", "n": None},
        {"word": "b", "n": None},
        {"word": "d", "n": 4},
    ]
    assert found.positions is not None
    assert found.positions.tolist() == [0, 1, 5]
    assert found.bad == ()


def test_array_element_delimiter() -> None:
    type_ = pa.list_(pa.string())
    assert value(type_, "a||b;c", array_element_delimiter="||") == ["a", "b;c"]
    table = pa.table({"x": pa.array([["a;b", "c"]], type_)})
    assert encode(table, array_element_delimiter="||") == ["a;b||c"]
    with pytest.raises(
        SchemaError, match="column 'x': an element must not hold the array-element-delimiter ';'"
    ):
        encode(table)


def test_escape_character() -> None:
    assert rows(PAIR, rb"a\,b\\\"c\n,1", escape_character="\\\\") == [('a,b\\"c\n', 1)]
    assert rows(PAIR, rb'"a\"b""c",1', escape_character="\\\\") == [('a"b"c', 1)]
    table = pa.table({"a": ["x,y\\z\n"]})
    assert encode(table, escape_character="\\\\") == ['"x,y\\\\z\\n"']
    assert encode(table, escape_character="\\\\", disable_quote_character="true") == ["x\\,y\\\\z\\n"]


@pytest.mark.parametrize("type_", [pa.float64(), pa.float32()])
def test_floating_numbers_are_written_as_java_writes_them(type_: pa.DataType) -> None:
    """Jackson, so Flink, writes `Double.toString`; in a key the bytes decide the partition."""
    smallest = "4.9E-324" if type_ == pa.float64() else "1.4E-45"
    expected = {
        -0.0: "-0.0",
        1.0: "1.0",
        -12.0: "-12.0",
        0.5: "0.5",
        0.00025: "2.5E-4",
        9999999.0: "9999999.0",
        1e7: "1.0E7",
        float(smallest): smallest,
        float("nan"): "NaN",
        float("-inf"): "-Infinity",
    }
    column = pa.array([*expected, None], type_)
    assert encode(pa.table({"x": column, "n": [7] * len(column)})) == [
        f"{text},7" for text in (*expected.values(), "")
    ]
    arrays = pa.table({"x": pa.array([[1.0, None, 1e7]], pa.list_(type_))})
    assert encode(arrays, null_literal="-") == ["1.0;-;1.0E7"]


def test_null_literal() -> None:
    fields = pa.schema([("a", pa.string()), ("b", pa.int64()), ("c", pa.list_(pa.string()))])
    assert rows(fields, b'n/a,"n/a",n/a', b",1,x;n/a", null_literal="n/a") == [
        (None, None, None),
        ("", 1, ["x", None]),
    ]
    table = pa.Table.from_pylist([{"a": None, "b": None, "c": None}, {"a": "", "b": 1, "c": [None]}], fields)
    assert encode(table, null_literal="n/a") == ["n/a,n/a,n/a", ",1,n/a"]
    assert encode(table) == [",,", ",1,"]
    assert rows(fields, b",,", null_literal="") == [(None, None, None)]


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        ("field-delimiter", "||", "one character"),
        ("field-delimiter", "\n", "one character"),
        ("field-delimiter", "x", "one character that is no letter"),
        ("field-delimiter", "\\uD800", "one character"),
        ("disable-quote-character", "x", "true or false"),
        ("quote-character", "", "one character"),
        ("allow-comments", "#", "true or false"),
        ("ignore-parse-errors", "0", "true or false"),
        ("array-element-delimiter", "", "a non-empty text"),
        ("escape-character", "\\\\\\\\", "one character"),
    ],
)
def test_bad_options_are_refused(key: str, text: str, expected: str) -> None:
    with pytest.raises(ConfigurationError, match=f"option '{key}' must be {expected}"):
        context(PAIR, {key: text})


def test_characters_with_two_meanings_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="must differ"):
        context(PAIR, {"field-delimiter": '"'})
    with pytest.raises(ConfigurationError, match="must differ"):
        context(PAIR, {"field-delimiter": "|", "escape-character": "|"})


@pytest.mark.parametrize(
    "type_",
    [
        pa.map_(pa.string(), pa.int32()),
        pa.list_(pa.list_(pa.int32())),
        pa.struct([("a", pa.list_(pa.int32()))]),
    ],
)
def test_maps_and_deeper_nesting_are_refused(type_: pa.DataType) -> None:
    with pytest.raises(
        SchemaError, match="column 'x': in CSV it must be of a scalar type, or an ARRAY or STRUCT"
    ):
        context(pa.schema([("x", type_)]))


def test_there_is_no_metadata() -> None:
    assert FORMAT.metadata == ()
    assert FORMAT.is_insert_only


# --- what is written and read back


def test_line_of_one_empty_field_is_no_empty_message() -> None:
    table = pa.table({"a": ["", "x"]})
    assert encode(table) == ['""', "x"]
    assert rows(table.schema, b'""', b"x") == [("",), ("x",)]


OPTIONS = st.fixed_dictionaries(
    {"null-literal": st.just("<NULL>"), "array-element-delimiter": st.just("<NEXT>")},
    optional={
        "field-delimiter": st.sampled_from([",", "|", "\\t", "§", " ", "-", "^", ".", "]"]),
        "escape-character": st.sampled_from(["\\\\", "~", "%"]),
        "quote-character": st.sampled_from(["'", '\\"', "`", "[", "*"]) | st.none(),
        "allow-comments": st.sampled_from(["true", "false"]),
    },
)
CSV_TEXTS = TEXTS | st.sampled_from(["\r", "x\r\n", "\ufeffa", "a%b", "~", "'a'", "[", "|", "a\tb", "\\n"])
FLAT = SCALARS | st.one_of(
    SCALARS.map(lambda type_: pa.list_(pa.field("element", type_))),
    st.lists(SCALARS, min_size=2, max_size=3).map(
        lambda found: pa.struct([(f"f{i}", type_) for i, type_ in enumerate(found)])
    ),
)


def is_ambiguous(cell: Any) -> bool:
    """An array of one empty text is written like the empty array, one of just NULL like NULL."""
    return cell in ([""], [b""], [None])


@given(tables(schemas(FLAT), CSV_TEXTS), OPTIONS)
def test_what_is_written_is_read_back(table: pa.Table, options: dict[str, Any]) -> None:
    if any(is_ambiguous(cell) for row in table.to_pylist() for cell in row.values()):
        return
    if not options.get("quote-character", "x"):
        # A line without quotes needs escapes, and one of a single empty field cannot be told from none.
        del options["quote-character"]
        options |= {"disable-quote-character": "true", "escape-character": "~", "null-literal": "<NULL>"}
        table = table.append_column(pa.field("last", pa.int8()), pa.nulls(table.num_rows, pa.int8()))
    made = context(table.schema, options)
    messages = FORMAT.encoder(made).encode(table)
    found = FORMAT.decoder(made).decode(messages)
    assert found.bad == ()
    assert found.rows.schema == table.schema
    found.rows.validate(full=True)
    assert plain(found.rows) == plain(table)


LINE_PARTS = st.sampled_from(
    [
        "a",
        "1",
        "-5",
        "2.50",
        ",",
        ",",
        ",",
        '"',
        '""',
        '"x"',
        "\\",
        "\\n",
        ";",
        "\n",
        " ",
        "#",
        "",
        "\x00",
        "\ufeff",
        "ü",
        "n/a",
    ]
)
LINES = st.lists(LINE_PARTS, max_size=9).map(lambda parts: "".join(parts).encode())
READING = st.fixed_dictionaries(
    {},
    optional={
        "escape-character": st.just("\\\\"),
        "disable-quote-character": st.just("true"),
        "allow-comments": st.just("true"),
        "ignore-parse-errors": st.just("true"),
        "null-literal": st.sampled_from(["n/a", "", "1"]),
    },
)
TRIPLE = pa.schema(
    [("a", pa.string()), pa.field("b", pa.int64(), nullable=False), ("c", pa.list_(pa.decimal128(4, 1)))]
)


def one_by_one(
    fields: pa.Schema, given: Mapping[str, str], messages: list[bytes]
) -> tuple[list[Any], list[int]]:
    """Rows with their positions, and the positions of bad messages, by the reference alone."""
    dialect = dialect_of(context(fields, given).options)
    lines = LineReader(dialect)
    found = []
    bad = []
    for position, message in enumerate(messages):
        line = message.decode().removeprefix("\ufeff")
        if not line.strip("\r\n") or (dialect.allows_comments and line.startswith("#")):
            continue
        try:
            texts: list[str | None] = [*lines.fields_of(line)]
            if len(texts) != len(fields) and (len(texts) > len(fields) or not dialect.ignores_parse_errors):
                raise BadValueError("another number of fields")
            texts += [None] * (len(fields) - len(texts))
            row = [value_of(text, field, dialect) for text, field in zip(texts, fields, strict=True)]
        except BadValueError:
            bad.append(position)
            continue
        found.append((position, row))
    return found, [] if dialect.ignores_parse_errors else bad


@given(st.lists(LINES, max_size=12), READING)
def test_lines_read_together_give_what_each_gives_alone(
    messages: list[bytes], options: dict[str, str]
) -> None:
    expected, bad = one_by_one(TRIPLE, options, messages)
    found = FORMAT.decoder(context(TRIPLE, options)).decode(pa.array(messages, pa.binary()))
    positions = range(len(messages)) if found.positions is None else found.positions.tolist()
    rows_found = [list(row.values()) for row in found.rows.to_pylist()]
    assert list(zip(positions, rows_found, strict=True)) == expected
    assert [message.position for message in found.bad] == bad


def test_ordinary_lines_are_all_split_together() -> None:
    dialect = dialect_of({})
    lines = pa.array(['1,"say ""hi"", Bob",2.5\n', "2,,"])
    places, columns = LineReader(dialect).columns(lines, 3)
    assert places.tolist() == [0, 1]
    assert [column.to_pylist() for column in columns] == [["1", "2"], ['say "hi", Bob', ""], ["2.5", ""]]
