"""Options of the Spark format: what is refused, and what the refusal says."""

import pytest

from upsert.errors import ConfigurationError
from upsert.managed.options import ALL_ROWS, DEFAULT_MAX_ROWS, ReadOptions, WriteOptions


def test_defaults_read_everything_in_bounded_steps() -> None:
    assert ReadOptions.parse({"path": "/t"}) == ReadOptions("/t", "full", None, None, DEFAULT_MAX_ROWS, True)


def test_rows_are_not_counted_where_memory_is_given_alone() -> None:
    given = {"path": "/t", "max-memory-per-task": "300 mb"}
    assert (ReadOptions.parse(given).max_rows, ReadOptions.parse(given).task_memory) == (ALL_ROWS, 300 << 20)
    assert ReadOptions.parse(given).asked == {"path", "max-memory-per-task"}
    assert ReadOptions.parse({**given, "max-rows-per-trigger": "7"}).max_rows == 7


def test_flip_188_names_are_aliases() -> None:
    given = {"path": "/t", "log.scan": "from-timestamp", "log.scan.timestamp-mills": "5"}
    assert ReadOptions.parse(given) == ReadOptions("/t", "from-timestamp", timestamp_ms=5)


def test_path_may_be_a_uri() -> None:
    assert ReadOptions.parse({"path": "file:///data/t"}).path == "/data/t"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "option 'path' is required"),
        ({"path": "/t", "scan.mod": "full"}, "did you mean 'scan.mode'"),
        ({"path": "/t", "scan.mode": "newest"}, "must be one of full, latest, from-snapshot, from-timestamp"),
        ({"path": "/t", "scan.mode": "full", "log.scan": "full"}, "mean the same"),
        ({"path": "/t", "scan.mode": "from-snapshot"}, "needs the option 'scan.snapshot-id'"),
        ({"path": "/t", "scan.snapshot-id": "3"}, "needs 'scan.mode' = 'from-snapshot'"),
        ({"path": "/t", "scan.mode": "latest", "scan.timestamp-millis": "3"}, "= 'from-timestamp', got"),
        ({"path": "/t", "max-rows-per-trigger": "0"}, "must be a positive integer, got '0'"),
        ({"path": "/t", "max-memory-per-task": "9 mb"}, "must be a size of at least 256 mb, got '9 mb'"),
        ({"path": "/t", "row-kind": "no"}, "must be true or false, got 'no'"),
        ({"path": "/t", "scan.source": "kafka"}, "must be one of auto, log, files, got 'kafka'"),
    ],
)
def test_bad_read_options_are_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        ReadOptions.parse(given)


def test_sparks_own_options_are_no_options_of_a_writer() -> None:
    """Of the checkpoint it is known where it is."""
    given = {"path": "/t", "checkpointlocation": "/c", "queryname": "q"}
    assert WriteOptions.parse(given) == WriteOptions("/t", bucketed=0, checkpoint="/c")
    with pytest.raises(ConfigurationError, match="unknown option 'checkpoint'") as error:
        WriteOptions.parse({"path": "/t", "checkpoint": "/c"})
    assert "partition-overwrite-mode" in str(error.value)
    assert "stands-for" not in str(error.value), "what only a statement gives is no choice of a user"


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("incremental-between", "a batch by table_changes"),
        ("versionAsOf", "write 'scan.mode' = 'from-snapshot' and 'scan.snapshot-id'"),
        ("startingVersion", "'scan.snapshot-id', the state before"),
        ("readChangeFeed", r"table_changes\(t, from, to\)"),
        ("ignoreChanges", "each change with its _row_kind"),
    ],
)
def test_options_of_delta_are_refused_with_what_is_written_here(name: str, instead: str) -> None:
    with pytest.raises(ConfigurationError, match=f"unknown option '{name}'; .*{instead}"):
        ReadOptions.parse({"path": "/t", name: "1"})
