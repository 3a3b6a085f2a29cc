"""What tests of catalogs share."""

from pathlib import Path

import pytest

from upsert.catalog.catalog import Catalog

# decorators of Spark in it need a session, which is not there when doctests are collected
collect_ignore = ["run/functions_of_python.py"]


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    """A catalog with nothing in it."""
    return Catalog(tmp_path / "warehouse")
