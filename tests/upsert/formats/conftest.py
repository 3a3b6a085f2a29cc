"""What the tests of formats with a schema registry share."""

from collections.abc import Iterator

import pytest

from tests.upsert.formats.registry_double import Double, registry_double


@pytest.fixture
def double() -> Iterator[Double]:
    """A registry of the test's own."""
    with registry_double() as server:
        yield server
