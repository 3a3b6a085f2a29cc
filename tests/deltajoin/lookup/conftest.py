"""The servers that lookups are tested with, started once for all tests of a worker."""

from collections.abc import Iterator

import pytest

from tests.deltajoin.lookup.batch_endpoint import BatchEndpoint


@pytest.fixture(scope="session")
def running_endpoint() -> Iterator[BatchEndpoint]:
    endpoint = BatchEndpoint()
    yield endpoint
    endpoint.stop()


@pytest.fixture
def endpoint(running_endpoint: BatchEndpoint) -> BatchEndpoint:
    """A batch endpoint that answers at once, and has seen no request yet."""
    running_endpoint.behave()
    return running_endpoint
