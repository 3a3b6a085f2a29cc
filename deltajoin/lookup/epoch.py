"""The caches of a join's two sides, valid only for the one history that they have seen.

Spark runs a micro-batch wherever it likes, and again when it fails. A process that saw micro-batch 7, not 8,
and then gets 9 has stale entries; a task that died half-way has half-updated ones; a batch that ran twice,
once in vain, left entries of an attempt that never counted. So the state of the query, which Spark commits
with the micro-batch or not at all, holds an epoch, and caches are believed only if they have ended their last
batch with exactly that epoch. It is drawn at random: a number that is counted up would be the same for the
attempt that counted and the one that did not. With a journal, caches that lack steps of other processes are
brought up to the epoch; they never pass for another one.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final

from deltajoin.lookup.cache import RowCache
from deltajoin.lookup.journal import Journal, Step

_CACHES_AT_ONCE: Final = 64


class EpochCaches:
    """The caches of the left and the right side of one shard of one query.

    Args:
        left: one cache.
        right: the other.
        journal: what all processes did to the caches of this shard; the caches must be recorded. None: only
            what this process does counts.

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

    def __init__(self, left: RowCache, right: RowCache, journal: Journal | None = None) -> None:
        self.left = left
        self.right = right
        self._journal = journal
        self._epoch: int | None = None
        self._begun = 0
        self._trail: list[Step] = []

    def begin(self, epoch: int | None) -> bool:
        """Start a micro-batch; until ``seal``, what happens to the caches counts for nothing.

        Args:
            epoch: what the state of the query holds; None: there is none.

        Returns:
            Whether the entries are those of this epoch; if not, they have been dropped.

        Raises:
            BrokenPayloadError: a file of the journal is damaged.
        """
        known, self._epoch = self._epoch, None
        is_ours = epoch is not None and (epoch == known or self._caught_up(epoch, known))
        if not is_ours:
            self.left.drop()
            self.right.drop()
        self._begun = epoch if is_ours and epoch is not None else 0
        return is_ours

    def _caught_up(self, epoch: int, known: int | None) -> bool:
        """Do what other processes did since the epoch that this one knows, or from the beginning."""
        steps = None if self._journal is None else self._journal.leading_to(epoch, known)
        if steps is None:
            return False
        if not steps[0].parent:
            self.left.restart()
            self.right.restart()
            self._trail = []
        for step in steps:
            self.left.repeat(step.deeds[0])
            self.right.repeat(step.deeds[1])
            self._trail.append(step.without_deeds())
        return True

    def seal(self) -> int:
        """End a micro-batch; the epoch that must go into the state with it, never 0."""
        self._epoch = secrets.randbits(62) + 1
        if self._journal is not None:
            self._leave_step(self._journal, self._epoch)
        return self._epoch

    def _leave_step(self, journal: Journal, epoch: int) -> None:
        caches = self.left, self.right
        before = self._trail[-1] if self._begun else None
        deeds = self.left.take_deeds(), self.right.take_deeds()
        step = Step.after(before, epoch, deeds)
        if step.is_long(sum(cache.entries for cache in caches)):
            step = Step.after(None, epoch, (self.left.content(), self.right.content()))
        journal.append(step, kept=[one.epoch for one in self._trail] if self._begun else ())
        self._trail = [*(self._trail if step.parent else ()), step.without_deeds()]


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
