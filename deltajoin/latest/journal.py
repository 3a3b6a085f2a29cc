"""The caches of a shard, valid only for the one history that they have seen, and the files that tell it.

Spark runs a micro-batch wherever it likes, and again when it fails. A process that saw micro-batch 7, not 8,
and then gets 9 has stale entries; a task that died half-way has half-updated ones; a batch that ran twice
left entries of an attempt that never counted. So the state of the query, which Spark commits with the
micro-batch or not at all, holds an epoch, and caches are believed only if they have ended their last batch
with exactly that epoch. It is drawn at random: a number that is counted up would be the same for the attempt
that counted and the one that did not.

Spark hands a shard to whichever Python worker is idle, so the caches of one process miss the steps that
another one ran. Each step leaves a file, named by the epoch that it ended with: what was looked up, what
changed, and the epoch it began with. A process whose caches are a few steps behind reads these files, and a
new one all of them, back to a file that begins with empty caches. From time to time a step writes its caches
whole, so that there are never many to read. Files of attempts that did not count have epochs that are never
asked for. A file that is gone costs lookups, no more.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, Self

import pyarrow as pa
from cachetools import LRUCache

from deltajoin.lookup.cache import CacheEffect, RowCache
from upsert.errors import BrokenPayloadError

_STEPS: Final = 64
_ROWS: Final = 1_000

CacheEffects = tuple[Sequence[CacheEffect], Sequence[CacheEffect]]
"""What a step did to the left and to the right cache, in its order."""


@dataclass(frozen=True, eq=False)
class CacheStep:
    """One file: the epochs with which the step ended and began, and what it did.

    ``parent`` is 0 where `effects` begin with empty caches; ``steps`` and ``rows`` count files since one that
    did, and their keys and rows.
    """

    epoch: int
    parent: int
    steps: int
    rows: int
    effects: CacheEffects = ((), ())

    @classmethod
    def after(cls, before: CacheStep | None, epoch: int, effects: CacheEffects) -> Self:
        """What was done after another step; None: with empty caches."""
        rows = sum(effect.size for of_side in effects for effect in of_side)
        if before is None:
            return cls(epoch, 0, 1, rows, effects)
        return cls(epoch, before.epoch, before.steps + 1, before.rows + rows, effects)

    def is_long(self, entries: int) -> bool:
        """Whether to repeat all steps would take longer than to read so many entries."""
        return self.steps > _STEPS or self.rows > 3 * entries + _ROWS

    def without_effects(self) -> Self:
        """What is known of the step when it has been done."""
        return replace(self, effects=((), ()))


class Journal:
    """The files of one shard in one run of a query.

    The shard's folder goes away with the executor; what other runs have left in it is deleted.

    >>> import tempfile
    >>> import numpy as np
    >>> journal = Journal(tempfile.mkdtemp(), "run 1")
    >>> ids = pa.table({"id": [7]})
    >>> effects = [CacheEffect(ids, ids, np.array([0]))], [CacheEffect(None, ids, np.array([True]))]
    >>> journal.append(CacheStep(41, 0, 1, 2, effects), kept=())
    >>> [step.epoch for step in journal.leading_to(41, known=None)], journal.leading_to(42, known=None)
    ([41], None)
    """

    def __init__(self, folder: str, run: str) -> None:
        self._folder = os.path.join(folder, run)
        if not os.path.isdir(self._folder):
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            for other in set(os.listdir(folder)) - {run}:
                shutil.rmtree(os.path.join(folder, other), ignore_errors=True)  # another process does so too

    def append(self, step: CacheStep, kept: Sequence[int]) -> None:
        """Leave a step's file; where it begins with empty caches, delete all others but those `kept`."""
        path = self._path(step.epoch)
        part = f"{path}.{secrets.token_hex(4)}.part"
        with open(part, "xb") as file:
            file.write(_to_bytes(step))
        os.replace(part, path)
        if not step.parent:
            stay = {os.path.basename(self._path(epoch)) for epoch in (step.epoch, *kept)}
            for name in set(os.listdir(self._folder)) - stay:
                with suppress(FileNotFoundError):  # another attempt at the step has deleted it
                    os.unlink(os.path.join(self._folder, name))

    def leading_to(self, epoch: int, known: int | None) -> list[CacheStep] | None:
        """The steps up to an epoch, oldest first, from the one after `known` on, or else from empty caches.

        None if some are gone.
        """
        steps: list[CacheStep] = []
        while epoch and epoch != known:
            try:
                with open(self._path(epoch), "rb") as file:
                    step = _from_bytes(epoch, file.read())
            except FileNotFoundError:
                return None
            steps.append(step)
            epoch = step.parent
        return steps[::-1]

    def _path(self, epoch: int) -> str:
        return os.path.join(self._folder, f"{epoch}.arrow")


def _to_bytes(step: CacheStep) -> bytes:
    """A line of JSON, then the tables of each effect as Arrow streams."""
    effects = [(side, effect) for side, effects in enumerate(step.effects) for effect in effects]
    kinds = [[side, effect.keys is not None] for side, effect in effects]
    about = {"parent": step.parent, "steps": step.steps, "rows": step.rows, "effects": kinds}
    sink = pa.BufferOutputStream()
    sink.write(json.dumps(about).encode() + b"\n")
    for _, effect in effects:
        for table in (effect.keys, effect.rows.append_column("marks", pa.array(effect.marks))):
            if table is not None:
                with pa.ipc.new_stream(sink, table.schema) as writer:
                    writer.write_table(table)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def _from_bytes(epoch: int, found: bytes) -> CacheStep:
    head, _, body = found.partition(b"\n")
    effects: tuple[list[CacheEffect], list[CacheEffect]] = [], []
    try:
        about = json.loads(head)
        parent, steps, rows = (int(about[name]) for name in ("parent", "steps", "rows"))
        with pa.BufferReader(body) as reader:
            for side, has_keys in about["effects"]:
                keys = _table(reader) if has_keys else None
                marked = _table(reader)
                last = marked.num_columns - 1
                marks = marked.column(last).to_numpy()
                effects[side].append(CacheEffect(keys, marked.remove_column(last), marks))
    except (pa.ArrowException, OSError, ValueError, LookupError, TypeError) as cause:
        raise BrokenPayloadError(
            f"lookup join: a file with the changes of a step to its caches must be readable, got "
            f"{len(found)} bytes that are not ({cause}); restart the query, which begins with empty caches"
        ) from cause
    return CacheStep(epoch, parent, steps, rows, effects)


def _table(reader: pa.BufferReader) -> pa.Table:
    with pa.ipc.open_stream(reader) as stream:
        table = stream.read_all()
    table.validate(full=True)
    return table


_CACHES_AT_ONCE: Final = 64


class EpochCaches:
    """The caches of the left and the right side of one shard of one query.

    With a journal, of what all processes did to them, the caches must be recorded; without one, only what
    this process does counts.

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
        self._trail: list[CacheStep] = []

    def begin(self, epoch: int | None) -> bool:
        """Start a micro-batch; until ``seal``, what happens to the caches counts for nothing.

        Whether the entries are those of the epoch that the query's state holds; if not, they are dropped.
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
            self.left.repeat(step.effects[0])
            self.right.repeat(step.effects[1])
            self._trail.append(step.without_effects())
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
        effects = self.left.take_effects(), self.right.take_effects()
        step = CacheStep.after(before, epoch, effects)
        if step.is_long(sum(cache.entries for cache in caches)):
            step = CacheStep.after(None, epoch, (self.left.content(), self.right.content()))
        journal.append(step, kept=[one.epoch for one in self._trail] if self._begun else ())
        self._trail = [*(self._trail if step.parent else ()), step.without_effects()]


_kept: Final[LRUCache[Hashable, EpochCaches]] = LRUCache(_CACHES_AT_ONCE)


def caches_of(token: Hashable, make: Callable[[], EpochCaches]) -> EpochCaches:
    """The caches that this process keeps under a token; ``make`` makes them where there are none."""
    if token not in _kept:
        _kept[token] = make()
    return _kept[token]
