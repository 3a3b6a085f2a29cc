"""Memory of writing and compacting a bucket that is larger than what may be used for it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import REPOSITORY
from tests.upsert.store.big_table import KEYS


def measured(folder: Path, rows: int, key: str, mb: int, format: str = "arrow") -> dict[str, Any]:
    """What a process of its own used, without pages of mapped files."""
    arguments = [str(folder / "table"), str(rows), key, str(mb), format]
    command = [sys.executable, "-m", "tests.upsert.store.big_table", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["runs"] == [1]
    return found


@pytest.mark.long
def test_memory_is_bounded_by_what_is_worked_on_at_a_time(tmp_path: Path) -> None:
    """60 MB of rows in pieces of 2 MB; without them it takes 300 MB, the interpreter and libraries 65 MB."""
    found = measured(tmp_path, 1_000_000, "text", 2)
    assert max(found[step] for step in ("write", "write_more", "fold_raw", "compact")) < 180


@pytest.mark.long
@pytest.mark.parametrize("format", ["parquet", "orc"])
def test_so_it_is_where_files_are_not_mapped(tmp_path: Path, format: str) -> None:
    """Of a compressed file the range of keys that is merged is decoded; a part of a file has 4 MB."""
    found = measured(tmp_path, 1_000_000, "text", 2, format)
    assert max(found[step] for step in ("write", "write_more", "fold_raw", "compact")) < 300


@pytest.mark.long
@pytest.mark.minutes
@pytest.mark.parametrize("key", KEYS)
def test_twenty_million_rows_of_a_bucket_take_less_than_one_gibibyte(key: str, tmp_path: Path) -> None:
    found = measured(tmp_path, 20_000_000, key, 0)
    assert found["rows"] >= 20_000_000
    assert max(found[step] for step in ("write", "write_more", "fold_raw", "compact")) < 1024
