"""A lease in an object store that a process keeps for as long as it works: a thread renews it.

It tells others that the process lives, and nothing more: who stalls for a minute is passed over and does not
know it. So what the process does in the end must fail by itself if somebody has gone on in its place.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Self

from upsert.errors import UpsertError
from upsert.store.storage import lease
from upsert.store.storage.door import storage_of
from upsert.store.storage.lease import Lease

_RENEW_S: Final = lease.LEASE_S / 4
"""Often enough that a lost answer does no harm."""
_LOOK_S: Final = 1.0


class KeptLease:
    """A lease that is renewed until it is released or this process dies."""

    def __init__(self, held: Lease) -> None:
        """Use ``KeptLease.take``."""
        self._held = held
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        threading.Thread(target=self._keep, name="upsert-lease", daemon=True).start()

    @classmethod
    def take(cls, path: str) -> Self | None:
        """The lease of this name; None while another holder lives, or has died within the last minute."""
        held = Lease.take(storage_of(path), path)
        return None if held is None else cls(held)

    @classmethod
    def take_when_free(cls, path: str, sleep: Callable[[float], None] = time.sleep) -> Self | None:
        """The lease, after up to a minute in which its holder gives no sign of life; None if it gives one."""
        storage = storage_of(path)
        before = lease.age(storage, path)
        while (own := cls.take(path)) is None:
            sleep(_LOOK_S)
            now = lease.age(storage, path)
            if now is not None and before is not None and now < before:
                return None
            before = now
        return own

    def release(self, *, for_good: bool = False) -> None:
        """Let go of it; again is harmless.

        Args:
            for_good: nobody will ever ask for it, so that nothing has to say that it is free.
        """
        with self._lock:  # a renewal after it would bring it back
            if self._is_over.is_set():
                return
            self._is_over.set()
            # without an answer it ends by itself
            with suppress(OSError, UpsertError):
                if for_good:
                    storage_of(self._held.path).delete(self._held.path)
                else:
                    self._held.release()

    def _keep(self) -> None:
        while not self._is_over.wait(_RENEW_S):
            with self._lock:
                if self._is_over.is_set():
                    return
                # without an answer the next renewal may have one; if none has, the end of the work tells
                with suppress(OSError, UpsertError):
                    if not self._held.renew():
                        self._is_over.set()
