"""Changes of a view whose key is not proven: after them its rows must have one key each."""

from pathlib import Path

import pyarrow as pa
import pytest

from upsert.errors import ChangelogError
from upsert.schema import TableSchema
from upsert.store import Table
from upsert.views.difference import check_keys

Change = tuple[str, int, int]


@pytest.mark.parametrize(
    ("changes", "is_refused"),
    [
        ([], False),
        ([("-D", 1, 10)], False),
        ([("+I", 3, 10)], False),
        ([("-U", 1, 10), ("+U", 1, 11)], False),
        ([("+I", 1, 20), ("-D", 1, 10), ("+I", 2, 10), ("-D", 2, 20)], False),
        ([("+I", 3, 1), ("-D", 3, 1)], False),
        ([("+I", 2, 21)], True),
        ([("+I", 3, 1), ("+I", 3, 2)], True),
        ([("-D", 1, 10), ("+I", 1, 11), ("+I", 1, 12)], True),
    ],
)
def test_two_rows_of_one_key_are_found_whether_the_view_has_one_of_them_or_the_changes_both(
    tmp_path: Path, changes: list[Change], is_refused: bool
) -> None:
    schema = TableSchema.of({"k": pa.int64(), "v": pa.int64()}, primary_key=["k"])
    table = Table.create(tmp_path / "v", schema)
    table.write(pa.table({"k": [1, 2], "v": [10, 20]}))
    kinds, keys, values = zip(*changes, strict=True) if changes else ((), (), ())
    rows = pa.table(
        [pa.array(keys, pa.int64()), pa.array(values, pa.int64()), pa.array(kinds, pa.string())],
        names=["k", "v", "_row_kind"],
    )
    if not is_refused:
        check_keys(table.snapshot(), rows, "view 'v'")
        return
    with pytest.raises(ChangelogError, match="view 'v': two rows of one key"):
        check_keys(table.snapshot(), rows, "view 'v'")
