"""What tests of catalogs share."""

from pathlib import Path

import pytest

from upsert.catalog.catalog import Catalog


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    """A catalog with nothing in it."""
    return Catalog(tmp_path / "warehouse")
