"""One bucket of the operator, in both of its memories, against a dict; no Spark."""

import pickle
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import changelog
from tests.upsert.changelog.model import Log, Model, Row, by_key, logs
from upsert.changelog.normalizer import Expiry, Rules
from upsert.changelog.operator import NormalizeSpec, Remembered, step
from upsert.errors import BrokenPayloadError, ConfigurationError, SchemaError
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.schema import TableSchema
from upsert.store.rows.conform import conform
from upsert.store.rows.layout import Layout

SCHEMA = TableSchema.of({"word": pa.string(), "n": pa.int64(), "seq": pa.int64()}, primary_key=["word"])
SPEC = NormalizeSpec(SCHEMA, Rules(("word",), ("n", "seq"), ("seq",)), buckets=1)


def batch(
    spec: NormalizeSpec, known: Remembered | None, *lines: str, query: str = "query"
) -> tuple[list[Row], Remembered]:
    return run(spec, known, changelog(SCHEMA.arrow, *lines), query)


def run(
    spec: NormalizeSpec, known: Remembered | None, records: pa.Table, query: str = "query"
) -> tuple[list[Row], Remembered]:
    rows, _ = conform(Layout.of(spec.schema), records)
    rows = rows.append_column(ROW_KIND_COLUMN, records.column(ROW_KIND_COLUMN))
    changes, remembered = step(spec, 0, query, known, rows)
    return [row for table in changes for row in table.to_pylist()], remembered


def lines(*given: str) -> list[Row]:
    found: list[Row] = changelog(SCHEMA.arrow, *given).to_pylist()
    return found


@pytest.fixture(params=["blob", "table"])
def spec(request: pytest.FixtureRequest, tmp_path: Path) -> NormalizeSpec:
    return SPEC if request.param == "blob" else replace(SPEC, state_path=str(tmp_path))


@given(logs(), st.booleans())
def test_any_rows_give_what_a_dict_gives(log: Log, in_table: bool) -> None:
    with TemporaryDirectory() as folder:
        schema = TableSchema.of(log.schema, primary_key=log.keys)
        rules = Rules(log.keys, log.values, ("at",))
        spec = NormalizeSpec(schema, rules, 1, folder if in_table else None)
        model, known = Model(rules), None
        for records in filter(None, log.batches):
            expected = model.batch(log.table(records).to_pylist())
            for _ in range(2):  # the second one after a crash, from the same state
                found, remembered = run(spec, known, log.table(records))
                assert by_key(found, log.keys) == by_key(expected, log.keys)
            known = remembered


def test_late_rows_and_duplicates_give_nothing(spec: NormalizeSpec) -> None:
    found, known = batch(spec, None, "+U a 1 10", "+U a 1 10", "+U b 1 10", "+U a 0 9")
    assert by_key(found, ["word"]) == by_key(
        lines("+I a 0 9", "-U a 0 9", "+U a 1 10", "+I b 1 10"), ["word"]
    )
    found, known = batch(spec, known, "+U a 1 10", "+U a 0 8", "-D b NULL 20")
    assert found == lines("-D b 1 10")
    found, known = batch(spec, known, "+U b 2 15")
    assert found == []
    assert batch(spec, known, "+U b 2 25")[0] == lines("+I b 2 25")


def test_images_beyond_the_limit_need_a_state_path_and_then_move_there(tmp_path: Path) -> None:
    small = replace(SPEC, max_state_bytes=100)
    _, known = batch(small, None, "+U a 1 10")
    with pytest.raises(ConfigurationError, match=r"must fit into max_state_bytes=100, got .*give state_path"):
        batch(small, known, "+U b 1 11", "+U c 1 12", "+U d 1 13")
    moved = replace(small, state_path=str(tmp_path))
    for _ in range(2):
        found, later = batch(moved, known, "+U a 2 11", "+U b 1 11")
        assert by_key(found, ["word"]) == by_key(lines("-U a 1 10", "+U a 2 11", "+I b 1 11"), ["word"])
    assert (later.images, later.position) == (b"", 2)
    assert batch(moved, later, "-D a NULL 12")[0] == lines("-D a 2 11")
    with pytest.raises(ConfigurationError, match="in tables since an earlier run; give state_path"):
        batch(small, later, "+U a 2 11")


def test_tables_of_another_query_are_never_read(tmp_path: Path) -> None:
    spec = replace(SPEC, state_path=str(tmp_path))
    batch(spec, None, "+U a 1 10")
    assert batch(spec, None, "+U a 1 10", query="another")[0] == lines("+I a 1 10")


def test_a_checkpoint_of_other_arguments_is_refused() -> None:
    _, known = batch(SPEC, None, "+U a 1 10")
    with pytest.raises(ConfigurationError, match="must continue with the arguments of its checkpoint"):
        batch(replace(SPEC, buckets=2), known, "+U a 1 10")


def test_a_damaged_blob_is_an_error() -> None:
    _, known = batch(SPEC, None, "+U a 1 10")
    with pytest.raises(BrokenPayloadError):
        batch(SPEC, known._replace(images=known.images[:50]), "+U a 1 10")


def test_expired_images_do_not_fill_the_blob() -> None:
    spec = replace(SPEC, rules=replace(SPEC.rules, expiry=Expiry("seq", 10)))
    known: Remembered | None = None
    sizes = []
    for number in range(1, 6):
        _, known = batch(spec, known, *(f"+U key{number}-{n} 1 {100 * number}" for n in range(5)))
        sizes.append(len(known.images))
    assert sizes[-1] == sizes[0]


def test_arguments_out_of_range_are_refused() -> None:
    given: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"buckets": 0}, ConfigurationError, "buckets must be a positive integer, got 0"),
        ({"max_state_bytes": -1}, ConfigurationError, "max_state_bytes must be a positive integer, got -1"),
        ({"rules": Rules(("word",), ("x",), ("seq",))}, SchemaError, "compare has unknown column 'x'"),
    ]
    for arguments, error, message in given:
        with pytest.raises(error, match=message):
            replace(SPEC, **arguments)


def test_what_goes_to_the_tasks_can_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(SPEC)) == SPEC
