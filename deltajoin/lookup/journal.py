"""What the steps of a shard did to its caches, in files that all workers of an executor can read.

Spark hands a shard to whichever Python worker is idle, so the caches of one process miss the steps that
another one ran. Each step leaves a file, named by the epoch that it ended with: what was looked up, what
changed, and the epoch it began with. A process whose caches are a few steps behind reads these files, and a
new one all of them, back to a file that begins with empty caches. From time to time a step writes its caches
whole, so that there are never many to read.

An epoch that the query's state holds was drawn by one attempt alone, so its file tells exactly what led
there; files of attempts that did not count have epochs that nobody asks for. A file that is gone costs
lookups, no more.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, Self

import pyarrow as pa

from deltajoin.lookup.cache_values import Deed
from upsert.errors import BrokenPayloadError

_STEPS: Final = 64
_ROWS: Final = 1_000

Deeds = tuple[Sequence[Deed], Sequence[Deed]]
"""What a step did to the left and to the right cache, in its order."""


@dataclass(frozen=True, eq=False)
class Step:
    """One file.

    Attributes:
        epoch: with which the step ended.
        parent: with which it began; 0 where `deeds` begin with empty caches.
        steps: how many files there are since one that did.
        rows: how many keys and rows they have.
        deeds: what it did.
    """

    epoch: int
    parent: int
    steps: int
    rows: int
    deeds: Deeds = ((), ())

    @classmethod
    def after(cls, before: Step | None, epoch: int, deeds: Deeds) -> Self:
        """What was done after another step; None: with empty caches."""
        rows = sum(deed.size for of_side in deeds for deed in of_side)
        if before is None:
            return cls(epoch, 0, 1, rows, deeds)
        return cls(epoch, before.epoch, before.steps + 1, before.rows + rows, deeds)

    def is_long(self, entries: int) -> bool:
        """Whether to repeat all steps would take longer than to read so many entries."""
        return self.steps > _STEPS or self.rows > 3 * entries + _ROWS

    def without_deeds(self) -> Self:
        """What is known of the step when it has been done."""
        return replace(self, deeds=((), ()))


class Journal:
    """The files of one shard in one run of a query.

    Args:
        folder: of the shard, in a place that goes away with the executor; made if necessary.
        run: of the query; what other runs have left in the folder is deleted.

    >>> import tempfile
    >>> import numpy as np
    >>> journal = Journal(tempfile.mkdtemp(), "run 1")
    >>> ids = pa.table({"id": [7]})
    >>> deeds = [Deed(ids, ids, np.array([0]))], [Deed(None, ids, np.array([True]))]
    >>> journal.append(Step(41, 0, 1, 2, deeds), kept=())
    >>> [step.epoch for step in journal.leading_to(41, known=None)], journal.leading_to(42, known=None)
    ([41], None)
    """

    def __init__(self, folder: str, run: str) -> None:
        self._folder = os.path.join(folder, run)
        if not os.path.isdir(self._folder):
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            for other in set(os.listdir(folder)) - {run}:
                shutil.rmtree(os.path.join(folder, other), ignore_errors=True)  # another process does so too

    def append(self, step: Step, kept: Sequence[int]) -> None:
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

    def leading_to(self, epoch: int, known: int | None) -> list[Step] | None:
        """The steps up to an epoch, from the one after `known` on, or else from empty caches.

        Returns:
            The steps, oldest first; None if some are gone.

        Raises:
            BrokenPayloadError: a file is damaged.
        """
        steps: list[Step] = []
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


def _to_bytes(step: Step) -> bytes:
    """A line of JSON, then the tables of each deed as Arrow streams."""
    deeds = [(side, deed) for side, deeds in enumerate(step.deeds) for deed in deeds]
    kinds = [[side, deed.keys is not None] for side, deed in deeds]
    about = {"parent": step.parent, "steps": step.steps, "rows": step.rows, "deeds": kinds}
    sink = pa.BufferOutputStream()
    sink.write(json.dumps(about).encode() + b"\n")
    for _, deed in deeds:
        for table in (deed.keys, deed.rows.append_column("marks", pa.array(deed.marks))):
            if table is not None:
                with pa.ipc.new_stream(sink, table.schema) as writer:
                    writer.write_table(table)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def _from_bytes(epoch: int, found: bytes) -> Step:
    head, _, body = found.partition(b"\n")
    deeds: tuple[list[Deed], list[Deed]] = [], []
    try:
        about = json.loads(head)
        parent, steps, rows = (int(about[name]) for name in ("parent", "steps", "rows"))
        with pa.BufferReader(body) as reader:
            for side, has_keys in about["deeds"]:
                keys = _table(reader) if has_keys else None
                marked = _table(reader)
                last = marked.num_columns - 1
                marks = marked.column(last).to_numpy()
                deeds[side].append(Deed(keys, marked.remove_column(last), marks))
    except (pa.ArrowException, OSError, ValueError, LookupError, TypeError) as cause:
        raise BrokenPayloadError(
            f"lookup join: a file of what a step did to its caches must be as the step wrote it, got "
            f"{len(found)} bytes that are not ({cause}); restart the query, which begins with empty caches"
        ) from cause
    return Step(epoch, parent, steps, rows, deeds)


def _table(reader: pa.BufferReader) -> pa.Table:
    with pa.ipc.open_stream(reader) as stream:
        table = stream.read_all()
    table.validate(full=True)
    return table
