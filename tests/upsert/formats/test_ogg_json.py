"""Which change a message of Oracle GoldenGate holds, and how a change is written."""

import json
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.upsert.formats import json_changes
from tests.upsert.formats.json_changes import changes
from upsert.errors import ConfigurationError
from upsert.formats.base import FormatContext
from upsert.formats.cdc_json import OGG as FORMAT
from upsert.formats.cdc_json import OGG_REMEDY
from upsert.formats.debezium.json import FORMAT as DEBEZIUM
from upsert.options import parse

N = pa.schema([("n", pa.int64())])

decode = partial(json_changes.decode, FORMAT)


def test_insert_update_of_the_key_and_delete() -> None:
    found = decode(
        N,
        [
            {"after": {"n": 1}, "op_type": "I", "pos": "143"},
            None,
            {"before": {"n": 1}, "after": {"n": 2}, "op_type": "U"},
            b"",
            {"before": {"n": 2}, "after": None, "op_type": "D"},
        ],
    )
    assert changes(found) == [["+I", 1], ["-U", 1], ["+U", 2], ["-D", 2]]
    assert found.positions is not None
    assert found.positions.tolist() == [0, 2, 2, 4]
    assert found.bad == ()


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            {"after": {"n": 1}, "op_type": "U"},
            f"field 'before' is NULL in an update or delete; {OGG_REMEDY}",
        ),
        ({"before": {"n": 1}, "op_type": "U"}, "field 'after' is NULL in an insert or update"),
        ({"table": "T", "op_type": "T"}, "field 'op_type': 'T' is none of I, U, D"),
        ({"after": {"n": 1}}, "field 'op_type' is missing"),
        ({"after": {"n": "x"}, "op_type": "I"}, "field 'after.n': 'x' is no BIGINT"),
    ],
)
def test_messages_that_are_no_change_are_bad(message: object, expected: str) -> None:
    assert [bad.reason for bad in decode(N, [message]).bad] == [expected]
    assert decode(N, [message], ignore_parse_errors="true").bad == ()


def test_metadata_is_that_of_the_message_in_either_form_of_a_time() -> None:
    message = {
        "table": "OGG.TBL_TEST",
        "before": {"n": 1},
        "after": {"n": 2},
        "op_type": "U",
        "op_ts": "2020-05-13 15:40:06.000001",
        "current_ts": "2020-05-13T15:40:07.5Z",
        "primary_keys": ["n"],
    }
    keys = ("event-timestamp", "table", "ingestion-timestamp", "primary-keys")
    found = decode(N, [message, {"after": {"n": 3}, "op_type": "I"}], keys)
    at = datetime(2020, 5, 13, 15, 40, 6, 1, UTC)
    of_update = [at, "OGG.TBL_TEST", at.replace(second=7, microsecond=500_000), ["n"]]
    assert changes(found) == [["-U", 1, *of_update], ["+U", 2, *of_update], ["+I", 3, *[None] * 4]]
    bad = decode(N, [{**message, "op_ts": "yesterday"}], keys).bad
    assert [one.reason for one in bad] == ["field 'op_ts' is no TIMESTAMP"]
    assert not any(key.is_writable for key in FORMAT.metadata)


def test_unknown_options_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="unknown option 'schema-include'"):
        parse("ogg-json", FORMAT.options, {"schema-include": "true"})


def test_positive_kinds_are_written_as_inserts_and_negative_ones_as_deletes() -> None:
    rows = pa.table({"n": [1, 2, 3, 4]})
    messages = FORMAT.encoder(FormatContext(rows.schema)).encode(rows, pa.array(["+I", "-U", "+U", "-D"]))
    assert messages.to_pylist() == [
        b'{"before":null,"after":{"n":1},"op_type":"I"}',
        b'{"before":{"n":2},"after":null,"op_type":"D"}',
        b'{"before":null,"after":{"n":3},"op_type":"I"}',
        b'{"before":{"n":4},"after":null,"op_type":"D"}',
    ]


IMAGES = st.none() | st.fixed_dictionaries({}, optional={"n": st.none() | st.integers(-9, 9)})
OPERATIONS = {"I": "c", "U": "u", "D": "d", "T": "t"}


@given(st.lists(st.tuples(st.sampled_from([*OPERATIONS]), IMAGES, IMAGES), max_size=8))
def test_envelopes_mean_what_those_of_debezium_mean(envelopes: list[tuple[str, Any, Any]]) -> None:
    found = decode(N, [{"op_type": op, "before": b, "after": a} for op, b, a in envelopes])
    same = DEBEZIUM.decoder(FormatContext(N)).decode(
        pa.array(
            [json.dumps({"op": OPERATIONS[op], "before": b, "after": a}).encode() for op, b, a in envelopes],
            pa.binary(),
        )
    )
    assert changes(found) == changes(same)
    assert [bad.position for bad in found.bad] == [bad.position for bad in same.bad]
