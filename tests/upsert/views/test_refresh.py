"""Which refreshes that fail are made again by all rows."""

import pytest

from upsert.errors import ChangelogError
from upsert.store.metadata.stands_for import Cost, Costs, Refresh
from upsert.views.refresh import trial_begins, tried

UNTRIED = Costs(all_rows=Cost(10, 100), untried=9)


def test_all_rows_follow_a_trial_of_changes_that_fails() -> None:
    begun = list[Costs]()

    def refresh(costs: Costs) -> str:
        begun.append(costs)
        if len(begun) == 1:
            trial_begins(Refresh.now(True, "for once", 5, 10, costs))
            raise MemoryError
        return "all rows"

    assert tried(UNTRIED, refresh) == "all rows"
    assert begun == [UNTRIED, UNTRIED.after_failure]


def test_no_other_refresh_that_fails_is_made_again() -> None:
    begun = list[str]()

    def of_hidden_table(costs: Costs) -> None:
        begun.append("hidden table")
        if begun.count("hidden table") == 1:
            trial_begins(Refresh.now(True, "for once", 5, 10, costs))
            raise MemoryError

    def of_view(_: Costs) -> None:
        tried(UNTRIED, of_hidden_table)
        begun.append("view")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        tried(UNTRIED, of_view)
    assert begun == ["hidden table", "hidden table", "view"]


def test_a_trial_that_all_rows_would_not_help_is_an_error() -> None:
    def refresh(costs: Costs) -> None:
        trial_begins(Refresh.now(True, "for once", 5, 10, costs))
        raise ChangelogError("two rows of one key")

    with pytest.raises(ChangelogError):
        tried(UNTRIED, refresh)
