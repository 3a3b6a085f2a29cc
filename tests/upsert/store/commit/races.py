"""Two things that happen to a table at the same moment."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from upsert.store import Table


@contextmanager
def beside_an_expiry(table: Table) -> Iterator[None]:
    """The block begins with an expiry of all but the newest state, which has ended when the block is left."""
    start = threading.Barrier(2)

    def expire() -> None:
        start.wait()
        table.expire(keep=1)

    other = threading.Thread(target=expire)
    other.start()
    start.wait()
    yield
    other.join()
