"""Refreshes here go by changes, however many there are: what a test covers must not depend on the clock."""

from collections.abc import Callable

import pytest

from upsert.store.metadata.stands_for import Costs, Refresh

SetWay = Callable[[bool], None]


@pytest.fixture(autouse=True)
def go_by_changes(monkeypatch: pytest.MonkeyPatch) -> SetWay:
    """Lets refreshes go by changes, or by all rows if called with False."""

    def go(by_changes: bool) -> None:
        def refresh(costs: Costs, changed: int, rows: int, **_: object) -> Refresh:
            return Refresh.now(by_changes, "a test says so", changed, rows, costs)

        monkeypatch.setattr(Costs, "refresh", refresh)

    go(True)
    return go
