"""The names under which a process knows what `with_lookup` was told."""

import pytest
from cachetools import LRUCache

from deltajoin.latest import api
from tests.deltajoin.latest.driver import LEFT, side
from upsert.store.kept import Kept


def test_of_many_sides_those_that_plans_ask_for_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each holds its source, which may have rows: a process that lives long would have all of them."""
    monkeypatch.setattr(api, "_sides", Kept(lambda: LRUCache(2), is_inherited=True))
    declared = side(LEFT, ("lk",), ("lid",), ("+I",))
    asked_for, not_asked_for = (api.mark_of(declared) for _ in range(2))
    assert api.side_of_mark(asked_for) is declared
    newest = api.mark_of(declared)
    known = [api.side_of_mark(mark) is not None for mark in (asked_for, not_asked_for, newest)]
    assert known == [True, False, True]
