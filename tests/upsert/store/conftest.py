"""Fixtures of the store's tests."""

import pytest

from upsert.store.metadata import folding


@pytest.fixture
def few_manifests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Manifests are folded every few commits, so that a short life has folds too."""
    monkeypatch.setattr(folding, "MAX_MANIFESTS", 3)
    monkeypatch.setattr(folding, "_FEWEST_TO_FOLD", 2)
