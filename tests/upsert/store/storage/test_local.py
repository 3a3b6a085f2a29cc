"""A local disk does what is asked of every store."""

from pathlib import Path

from tests.upsert.store.storage.contract import (
    assert_a_table_lives_there,
    assert_one_of_eight_writers_of_a_name_wins,
)


def test_a_table_lives_there(tmp_path: Path) -> None:
    folders = iter([str(tmp_path / "table"), str(tmp_path / "none")])
    assert_a_table_lives_there(lambda: next(folders))


def test_of_eight_writers_of_one_name_one_wins(tmp_path: Path) -> None:
    (tmp_path / "table").mkdir()
    assert_one_of_eight_writers_of_a_name_wins(str(tmp_path / "table"), races=3)
