"""What tests of logs share: a publisher that has died is not waited for, as in a process of a user."""

import pytest

from upsert.log import publisher


@pytest.fixture(autouse=True)
def _the_dead_are_given_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two seconds go by with each transaction that was left open, and each try of a broker that is away."""
    monkeypatch.setattr(publisher, "DEAD_AFTER_S", 0.3)
