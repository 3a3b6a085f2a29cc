"""What is asked in JSON is the same text whichever way it is written."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from deltajoin.lookup import http_json
from deltajoin.lookup.http_json import JsonExchange

KEYS = pa.schema({'say "id"': pa.int64(), "name": pa.string()})


@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.text()), min_size=1, max_size=4))
def test_a_few_keys_are_written_as_many_are(keys: list[tuple[int, str]]) -> None:
    exchange = JsonExchange(KEYS)
    few = pa.Table.from_pylist([dict(zip(KEYS.names, key, strict=True)) for key in keys], KEYS)
    many = pa.concat_tables([few] * http_json._FEW)
    body = exchange.request(few)
    one_by_one = body[body.index(b"[{") + 1 : -2]
    assert exchange.request(many) == body.replace(one_by_one, b",".join([one_by_one] * http_json._FEW))
