"""Requests and replies in JSON: the quick ways of writing and reading give what the thorough ones give."""

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltajoin.lookup import http_json
from deltajoin.lookup.http_json import JsonExchange, PlainReplies
from deltajoin.lookup.protocol import as_table

KEYS = pa.schema({'say "id"': pa.int64(), "name": pa.string()})


@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.text()), min_size=1, max_size=4))
def test_a_few_keys_are_written_as_many_are(keys: list[tuple[int, str]]) -> None:
    exchange = JsonExchange(KEYS)
    few = pa.Table.from_pylist([dict(zip(KEYS.names, key, strict=True)) for key in keys], KEYS)
    many = pa.concat_tables([few] * http_json._FEW)
    body = exchange.request(few)
    one_by_one = body[body.index(b"[{") + 1 : -2]
    assert exchange.request(many) == body.replace(one_by_one, b",".join([one_by_one] * http_json._FEW))


ROWS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("small", pa.int8()),
        pa.field("name", pa.string()),
        pa.field("price", pa.float64()),
        pa.field("is_new", pa.bool_()),
    ]
)
ODD = (
    "null",
    "true",
    "-0",
    "-0.0",
    "1.0",
    "1e999",
    "-1e999",
    "1e2",
    "9" * 30,
    "128",
    "NaN",
    "9007199254740993",
)
ODD_TEXTS = (r'"\ud800"', '""', '"7"', '"NaN"', "[]", "{}", '"\x01"', r'"\u00e9"')

values = (
    st.integers(-200, 200).map(str)
    | st.floats(allow_nan=False, allow_infinity=False).map(repr)
    | st.sampled_from(ODD + ODD_TEXTS)
)
good = {
    "id": st.integers(-(2**63), 2**63 - 1).map(str),
    "small": st.integers(-128, 127).map(str) | st.just("null"),
    "name": st.text().map(json.dumps),
    "price": st.floats(allow_nan=False, allow_infinity=False).map(repr) | st.integers(-9, 9).map(str),
    "is_new": st.sampled_from(["true", "false", "null"]),
}
good_rows = st.fixed_dictionaries(good)
any_rows = st.dictionaries(st.sampled_from(ROWS.names), values, max_size=5)


def as_text(row: dict[str, str]) -> str:
    return "{" + ",".join(f'"{name}": {value}' for name, value in row.items()) + "}"


def of_a_key(rows: st.SearchStrategy[dict[str, str]]) -> st.SearchStrategy[str]:
    return st.lists(rows.map(as_text), max_size=3).map(lambda texts: f"[{','.join(texts)}]")


def check(results: list[str]) -> None:
    reply = f'{{"results": [{",".join(results)}]}}'.encode()
    quick = PlainReplies(ROWS).answer(reply, len(results))
    if quick is not None:
        thorough = JsonExchange(ROWS)._answer(reply, len(results))
        assert not thorough.failures
        assert quick.positions.tolist() == thorough.positions.tolist()
        assert repr(as_table(quick.rows).to_pylist()) == repr(thorough.rows.to_pylist())  # -0.0 is not 0.0
        assert quick.rows.schema.equals(ROWS)


# one odd value leaves the whole reply to the thorough reader, so half of the replies have none
@given(
    st.lists(of_a_key(good_rows), max_size=3) | st.lists(of_a_key(good_rows | any_rows) | values, max_size=3)
)
def test_a_reply_that_is_read_quickly_says_what_it_says_to_the_thorough_reader(results: list[str]) -> None:
    check(results)


PLAIN = {"id": "1", "small": "-1", "name": '"a"', "price": "3", "is_new": "true"}


@pytest.mark.parametrize("name", ROWS.names)
@pytest.mark.parametrize("value", [*ODD, *ODD_TEXTS])
def test_one_odd_value_is_what_it_is_to_the_thorough_reader(name: str, value: str) -> None:
    check([f"[{as_text(PLAIN | {name: value})}]"])


@pytest.mark.parametrize("text", ["3", "3.5", "-2.5e-7", "null"])
def test_plain_replies_are_read_quickly(text: str) -> None:
    row = f'{{"id": 1, "small": -1, "name": "a\\u00e9", "price": {text}, "is_new": true, "more": []}}'
    assert PlainReplies(ROWS).answer(f'{{"results": [[{row}], []]}}'.encode(), 2) is not None


@pytest.mark.parametrize(
    "reply", [b"", b"\xff", b"[]", b"7", b'{"results": 7}', b"[" * 100_000, b'{"results": [7]}']
)
def test_what_is_no_reply_is_left_to_the_thorough_reader(reply: bytes) -> None:
    assert PlainReplies(ROWS).answer(reply, 1) is None
