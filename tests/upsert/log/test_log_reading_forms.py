"""Records of several definitions of a table, in its present form."""

import pyarrow as pa
import pytest

from tests.upsert.log.log_content import KEYED, rows
from upsert.errors import CorruptTableError
from upsert.kafka.client.records import HEADERS
from upsert.log.messages import DEFINITION_HEADER, LogEncoder, marks
from upsert.log.reading import _by_definition, _in_form_of
from upsert.schema import Column
from upsert.store.alterations import AddColumn, Alteration, DropColumn, RenameColumn, altered
from upsert.store.log_options import LogOptions
from upsert.store.metadata.definition import Definition


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([DropColumn("v"), AddColumn(Column("v", pa.string()))], {"id": 1, "v": None}),
        ([RenameColumn("v", "w"), AddColumn(Column("v", pa.string()))], {"id": 1, "w": "a", "v": None}),
        ([AddColumn(Column("n", pa.int64()), initial=pa.scalar(7))], {"id": 1, "v": "a", "n": 7}),
    ],
    ids=["dropped", "renamed", "with a value"],
)
def test_an_added_column_has_its_own_value_in_older_rows_whatever_its_name_was(
    changes: list[Alteration], expected: dict[str, object]
) -> None:
    new = altered(Definition(0, KEYED), changes)
    found = _in_form_of(rows(("+I", 1, "a")), KEYED, new.schema)
    assert found.to_pylist() == [{**expected, "_row_kind": "+I"}]


def test_a_mark_stays_with_the_changes_that_it_ends() -> None:
    """By it they know the snapshot from which they start."""
    encoder = LogEncoder(KEYED, LogOptions(changelog_mode="all"), "f00", definition=3)
    (first,) = encoder.records(rows(("+I", 1, "a")), 0, 7)
    mark = marks("f00", 1, 7, 2, None)
    (later,) = LogEncoder(KEYED, LogOptions(changelog_mode="all"), "f00", definition=4).records(
        rows(("+I", 2, "a")), 0, 8
    )
    runs = list(_by_definition(pa.concat_tables([mark, first, mark, later, mark]), 5, "t"))
    assert [(version, run.num_rows) for version, run in runs] == [(5, 1), (3, 2), (4, 2)]


@pytest.mark.parametrize("text", [b"x", b"-1", b"9" * 30, b"\xff", b""])
def test_a_definition_that_is_no_number_is_refused(text: bytes) -> None:
    headers = pa.array([[{"key": DEFINITION_HEADER, "value": text}]], HEADERS)
    with pytest.raises(CorruptTableError, match="must name a version of the table's definition"):
        list(_by_definition(pa.table({"headers": headers}), 5, "t"))
