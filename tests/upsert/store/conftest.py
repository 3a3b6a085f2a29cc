"""Fixtures of the store's tests."""

import pytest

from upsert.store.metadata import manifest


@pytest.fixture
def few_manifests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Manifests are folded every few commits, so that a short life has folds too."""
    monkeypatch.setattr(manifest, "MAX_MANIFESTS", 3)
    monkeypatch.setattr(manifest, "_FEWEST_TO_FOLD", 2)
