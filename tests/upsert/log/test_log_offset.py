"""Places in a log: their form in a checkpoint, and what lies between two of them."""

from dataclasses import replace
from typing import Any

import pytest

from upsert.errors import ConfigurationError
from upsert.log.offset import LogOffset, LogRange, offsets_of_snapshot, ranges
from upsert.store.version import Version

PLACE = LogOffset("u", Version.complete(3), {0: 5, 1: 9, 10: 0}, "t-log", stream="s")


def test_partitions_are_in_the_order_of_their_numbers_whoever_planned() -> None:
    turned = replace(PLACE, at=dict(reversed(PLACE.at.items())))
    assert str(turned.to_json()) == str(PLACE.to_json())
    assert list(PLACE.to_json()["log"]["at"]) == ["0", "1", "10"]


def test_ranges_leave_out_what_has_not_moved_and_skip_what_was_read_before() -> None:
    end = replace(PLACE, at={0: 7, 1: 9, 10: 2}, version=Version.complete(4), is_whole=True)
    found = ranges(PLACE, end)
    assert found == [LogRange(0, 5, 7, 3, True, "s"), LogRange(10, 0, 2, 3, True, "s")]
    assert [part.behind_records for part in found] == [6, 1], "a transaction's end is no record"


def test_offsets_of_a_snapshot_that_knew_nothing_is_the_beginning() -> None:
    assert offsets_of_snapshot({"1": 4}, 2) == {0: 0, 1: 4}


@pytest.mark.parametrize(
    "damage",
    [
        {"log": {"at": {"0": -1}, "stream": None, "topic": "t-log", "whole": True}},
        {"log": {"at": {"x": 1}, "stream": None, "topic": "t-log", "whole": True}},
        {"log": {"at": {"0": True}, "stream": None, "topic": "t-log", "whole": True}},
        {"log": {"at": {"0": 1}, "stream": 5, "topic": "t-log", "whole": True}},
        {"log": {"at": {"0": 1}, "stream": None, "topic": "t-log", "whole": "yes"}},
        {"log": {"at": {"0": 1}, "stream": None, "topic": 5, "whole": True}},
        {"log": {"at": [], "stream": None, "topic": "t-log", "whole": True}},
        {"log": 5},
        {"version": 3},
    ],
)
def test_what_is_no_place_is_refused(damage: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="must hold offsets of the table's log"):
        LogOffset.from_json(PLACE.to_json() | damage, "table 't'")
