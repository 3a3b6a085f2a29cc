"""Changes to records and back: what is read is what was written, and what others wrote is refused."""

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from upsert.errors import ConfigurationError, CorruptTableError
from upsert.log.messages import (
    KIND_HEADER,
    SINCE_HEADER,
    SNAPSHOT_HEADER,
    TABLE_HEADER,
    UNTRACKED_HEADER,
    LogDecoder,
    LogEncoder,
    Mark,
    marks,
)
from upsert.log.messages import headers as headers_of
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.schema import TableSchema
from upsert.store.log_options import LogOptions

SCHEMA = TableSchema.of(
    {"id": pa.int64(), "v": pa.string(), "x": pa.float64(), "day": pa.date32()}, primary_key=["id"]
)
ALL = LogOptions(changelog_mode="all")

CHANGES = st.lists(
    st.fixed_dictionaries(
        {
            "id": st.integers(-(2**63), 2**63 - 1),
            "v": st.none() | st.text(max_size=5),
            "x": st.none() | st.floats(allow_nan=False, allow_infinity=False),
            "day": st.none() | st.dates(),
            ROW_KIND_COLUMN: st.sampled_from(["+I", "-U", "+U", "-D"]),
        }
    ),
    max_size=8,
)


def table_of(changes: list[dict[str, object]]) -> pa.Table:
    fields = [*(pa.field(c.name, c.type) for c in SCHEMA.columns), pa.field(ROW_KIND_COLUMN, pa.string())]
    return pa.Table.from_pylist(changes, pa.schema(fields))


def records_of(changes: list[dict[str, object]], snapshot: int | None, log: LogOptions = ALL) -> pa.Table:
    parts = list(LogEncoder(SCHEMA, log, "f00").records(table_of(changes), 1, snapshot))
    return pa.concat_tables([*parts, marks("f00", 1, 9, 8, None)])


@given(CHANGES, st.none() | st.integers(1, 10**15))
def test_what_is_read_is_what_was_written(changes: list[dict[str, object]], snapshot: int | None) -> None:
    records = records_of(changes, snapshot)
    found = LogDecoder(SCHEMA, ALL, "f00").decode(records)
    assert found.rows.to_pylist() == changes
    assert found.snapshots.tolist() == [snapshot or 0] * len(changes)
    assert found.marks == (Mark(9, 8, None, len(changes)),)
    keys = [json.loads(key) for key in records.column("key").to_pylist()[:-1]]
    assert keys == [{"id": change["id"]} for change in changes]


@given(CHANGES)
def test_in_mode_upsert_only_update_before_is_missing(changes: list[dict[str, object]]) -> None:
    records = records_of(changes, 3, LogOptions(changelog_mode="upsert"))
    found = LogDecoder(SCHEMA, ALL, "f00").decode(records).rows.to_pylist()
    assert found == [change for change in changes if change[ROW_KIND_COLUMN] != "-U"]


def test_a_deletion_has_the_whole_row() -> None:
    """FLIP-188: sinks with the key and joins on it need no images of their own."""
    gone = {"id": 1, "v": "a", "x": 0.5, "day": None, ROW_KIND_COLUMN: "-D"}
    value = json.loads(records_of([gone], 3).column("value")[0].as_py())
    assert value == {"before": {"id": 1, "v": "a", "x": 0.5, "day": None}, "after": None, "op": "d"}


def test_a_mark_names_the_partitions_that_do_not_show() -> None:
    decoder = LogDecoder(SCHEMA, ALL, "f00")
    assert decoder.marks(marks("f00", 2, 9, 8, ["day=2020-01-01"]))[1] == Mark(9, 8, ("day=2020-01-01",), 1)
    assert decoder.marks(marks("f00", 1, 9, 8, []))[0].untracked == ()


GOOD = b'{"before":null,"after":{"id":1,"v":"a","x":0.5,"day":null},"op":"c"}'
OWN = {TABLE_HEADER: "f00", SNAPSHOT_HEADER: "7", KIND_HEADER: "+I"}


@pytest.mark.parametrize(
    ("value", "given_headers", "error", "message"),
    [
        (GOOD, {}, ConfigurationError, "written by the table with the uuid 'f00', got one of None"),
        (GOOD, OWN | {TABLE_HEADER: "f01"}, ConfigurationError, "got one of b'f01'"),
        (GOOD, OWN | {SNAPSHOT_HEADER: "-7"}, CorruptTableError, "is no number"),
        (GOOD, OWN | {SNAPSHOT_HEADER: "9" * 30}, CorruptTableError, "is no number"),
        (GOOD, OWN | {KIND_HEADER: "-D"}, CorruptTableError, "unlike its value"),
        (GOOD, OWN | {KIND_HEADER: "\x00"}, CorruptTableError, "unlike its value"),
        (GOOD, {TABLE_HEADER: "f00"}, CorruptTableError, "unlike its value"),
        (GOOD, OWN | {SINCE_HEADER: "6"}, CorruptTableError, "no value"),
        (None, OWN, CorruptTableError, "it has no value"),
        (b"{", OWN, CorruptTableError, "number 0"),
        (None, OWN | {SINCE_HEADER: "6", UNTRACKED_HEADER: "{}"}, CorruptTableError, "untracked"),
    ],
)
def test_a_record_that_the_table_has_not_written_is_refused(
    value: bytes | None, given_headers: dict[str, str], error: type[Exception], message: str
) -> None:
    records = pa.table({"value": pa.array([value], pa.binary()), "headers": headers_of(given_headers, 1)})
    with pytest.raises(error, match=message):
        LogDecoder(SCHEMA, ALL, "f00").decode(records)


def test_bytes_that_are_no_text_are_refused_like_other_wrong_headers() -> None:
    entry = [{"key": TABLE_HEADER, "value": b"f00"}, {"key": SNAPSHOT_HEADER, "value": b"\xff\xfe"}]
    records = pa.table({"value": pa.array([GOOD]), "headers": pa.array([entry], headers_of({}, 1).type)})
    with pytest.raises(CorruptTableError, match="is no number"):
        LogDecoder(SCHEMA, ALL, "f00").decode(records)
