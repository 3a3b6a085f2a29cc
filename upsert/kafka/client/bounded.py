"""Calls that must come back: the client library does not always keep to the time limit it was given.

After a restart of the broker inside a transaction, ``send_offsets_to_transaction`` of librdkafka 2.16 has
been seen not to return for minutes, whatever its timeout.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

GRACE_SECONDS: Final = 10.0
"""How much longer than its own limit a call is waited for."""


class DidNotReturnError(Exception):
    """A call is still at work: what it works on may not be touched any more."""


def bounded(call: Callable[[], object], seconds: float) -> None:
    """Make a call that should take so many seconds at most; what it raises is raised here.

    It runs in a thread of its own, which cannot be ended: after a ``DidNotReturnError`` it goes on, holding
    on to what it uses, until it returns or the process ends.

    Raises:
        DidNotReturnError: the call took `GRACE_SECONDS` longer.
    """
    failures: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as failure:
            failures.append(failure)

    thread = threading.Thread(target=run, name="kafka-call", daemon=True)
    thread.start()
    thread.join(seconds + GRACE_SECONDS)
    if thread.is_alive():
        raise DidNotReturnError
    if failures:
        raise failures[0]
