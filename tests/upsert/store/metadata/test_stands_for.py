"""Which way a refresh takes, by what earlier ones took."""

from dataclasses import replace

import pytest

from upsert.store.metadata.snapshot import EMPTY, SnapshotInfo
from upsert.store.metadata.stands_for import Cost, Costs, Refresh


def after(refresh: Refresh, took_ms: int) -> Costs:
    return Costs.after(refresh, refresh.began_ms + took_ms)


def test_what_a_refresh_took_is_known_to_the_next_one() -> None:
    first = Refresh.now(False, "it has had no rows", 0, 1000, Costs.after(None, 0))
    known = after(first, 800)
    assert known == Costs(None, Cost(1000, 800))
    second = known.refresh(100, 1000)
    assert second.by_changes
    assert second.reason == "100 of 1,000 rows have changed"
    known = after(second, 160)
    assert known == Costs(Cost(100, 160), Cost(1000, 800))
    assert known.refresh(500, 1000).by_changes  # 800 ms each
    third = known.refresh(501, 1000)
    assert not third.by_changes
    assert third.reason == "501 of 1,000 rows have changed, which takes some 0.8 s; all rows take 0.8 s"
    assert known.refresh(501, 1200).by_changes
    assert after(third, 700).all_rows == Cost(1000, 700)


@pytest.mark.parametrize(("changed", "by_changes"), [(3, True), (4, False)])
def test_a_share_decides_until_both_ways_are_measured(changed: int, by_changes: bool) -> None:
    for costs in (Costs(), Costs(Cost(1, 1)), Costs(None, Cost(1, 1))):
        assert costs.refresh(changed, 10).by_changes is by_changes
        assert costs.refresh(changed, 10, must_be_by_changes=True).by_changes


def test_few_changes_tell_what_is_fixed() -> None:
    few = Costs(Cost(100, 160), Cost(1000, 800)).refresh(9, 1000)
    assert after(few, 300).changes == Cost(100, 160)
    assert not after(few, 300).refresh(501, 1000).by_changes  # one measurement is disturbed
    known = after(few, 69)
    assert known.few == Cost(9, 69)
    assert known.refresh(740, 1000).by_changes  # 69 ms, and one for each further row
    assert not known.refresh(741, 1000).by_changes


def test_a_time_that_may_all_be_fixed_is_not_that_of_its_rows() -> None:
    # a small table: 1 % of its rows took as long as the few before them, and were not a hundredth of the work
    known = Costs(Cost(170, 300), Cost(15_000, 900), few=Cost(35, 320))
    assert known.refresh(1650, 15_000).by_changes
    assert known.refresh(3100, 15_000).by_changes  # 300 ms, and a fifth of one for each further row
    assert not known.refresh(3200, 15_000).by_changes
    assert not Costs(Cost(170, 950), Cost(15_000, 900)).refresh(1650, 15_000).by_changes


def test_a_later_snapshot_keeps_how_long_the_refresh_was() -> None:
    refresh = Refresh.now(True, "", 100, 1000, Costs())
    ended = refresh.ended(refresh.began_ms + 50)
    assert after(ended, 4000).changes == Cost(100, 50)
    assert "in 0.05 s" in str(ended.ended(refresh.began_ms + 4000))


def test_a_clock_that_was_ahead_measures_nothing() -> None:
    refresh = Refresh.now(True, "", 100, 1000, Costs(Cost(7, 7)))
    assert after(refresh, -5).changes == Cost(7, 7)


def test_all_rows_of_an_unknown_number_measure_nothing() -> None:
    refresh = Refresh.now(False, "option 'refresh' = 'full' says so", 0, 0, Costs(None, Cost(10, 20)))
    assert after(refresh, 500).all_rows == Cost(10, 20)


def test_it_is_read_again_from_a_snapshot() -> None:
    refresh = Refresh.now(True, "so", 1, 2, Costs(Cost(3, 4)))
    info = replace(EMPTY, base_versions={"t": 1}, refresh=refresh)
    assert SnapshotInfo.from_json(info.to_json()) == info
    without = {name: value for name, value in info.to_json().items() if name != "refresh"}
    assert SnapshotInfo.from_json(without).refresh is None
