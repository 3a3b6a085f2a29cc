"""The caches of a join's two sides, valid only for the one history that they have seen.

Spark runs a micro-batch wherever it likes, and again when it fails. A process that saw micro-batch 7, not 8,
and then gets 9 has stale entries; a task that died half-way has half-updated ones; a batch that ran twice,
once in vain, left entries of an attempt that never counted. So the state of the query, which Spark commits
with the micro-batch or not at all, holds an epoch, and caches are believed only if they have ended their last
batch with exactly that epoch. It is drawn at random: a number that is counted up would be the same for the
attempt that counted and the one that did not.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final

from deltajoin.lookup.cache import RowCache

_CACHES_AT_ONCE: Final = 64


class EpochCaches:
    """The caches of the left and the right side of one shard of one query.

    >>> import pyarrow as pa
    >>> side = RowCache(pa.schema({"id": pa.int64()}), ["id"], ["id"])
    >>> caches = EpochCaches(side, RowCache(pa.schema({"id": pa.int64()}), ["id"], ["id"]))
    >>> caches.begin(None)
    False
    >>> epoch = caches.seal()
    >>> caches.begin(epoch)  # the batch that comes right after
    True
    >>> caches.begin(epoch)  # the same again: the attempt before has died
    False
    """

    def __init__(self, left: RowCache, right: RowCache) -> None:
        self.left = left
        self.right = right
        self._epoch: int | None = None

    def begin(self, epoch: int | None) -> bool:
        """Start a micro-batch; until ``seal``, what happens to the caches counts for nothing.

        Args:
            epoch: what the state of the query holds; None: there is none.

        Returns:
            Whether the entries are kept; if not, they have been dropped.
        """
        is_ours = epoch is not None and epoch == self._epoch
        self._epoch = None
        if not is_ours:
            self.left.drop()
            self.right.drop()
        return is_ours

    def seal(self) -> int:
        """End a micro-batch; the epoch that must go into the state with it, never 0."""
        self._epoch = secrets.randbits(62) + 1
        return self._epoch


_kept: Final[OrderedDict[Hashable, EpochCaches]] = OrderedDict()


def caches_of(token: Hashable, make: Callable[[], EpochCaches]) -> EpochCaches:
    """The caches that this process keeps under a token; ``make`` makes them where there are none.

    The 64 that were used last stay.

    Args:
        token: names the query and the shard, for example ``(checkpoint, 3)``.
        make: makes empty caches.
    """
    if token not in _kept:
        _kept[token] = make()
    _kept.move_to_end(token)
    if len(_kept) > _CACHES_AT_ONCE:
        _kept.popitem(last=False)
    return _kept[token]
