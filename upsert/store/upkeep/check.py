"""Whether a table on the disk keeps every rule of the store: each a named function, each breach a value.

Nothing is repaired, and nothing that this process remembers is believed: all is read from the disk again. A
rule is asked only of what could be read, so that one damage is named by one rule. Rules of commits are those
that commits obey, `upsert.store.commit.change`; they and those of definitions are in ``check_history``, those
of data in ``check_data``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from upsert.errors import (
    CorruptTableError,
    SnapshotExpiredError,
    StorageError,
    TableNotFoundError,
    UpsertError,
)
from upsert.store import paths
from upsert.store.log.lifecycle import beginnings
from upsert.store.metadata.history import History
from upsert.store.retention import consumers
from upsert.store.upkeep import check_data, check_history
from upsert.store.upkeep.check_data import Finding
from upsert.store.upkeep.disk_state import DiskState
from upsert.store.upkeep.orphans import based_files, temporary_files


@dataclass(frozen=True)
class Violation:
    """A rule that a table on the disk does not keep.

    Attributes:
        rule: name of the rule, which is the name of its function.
        subject: what breaks it: a file relative to the table's folder, or a snapshot.
        found: what is wrong, in words.
        is_information: whether it does no harm: waste on the disk, or a lease that is over.
    """

    rule: str
    subject: str
    found: str
    is_information: bool = False

    def __str__(self) -> str:
        return f"{self.rule}: {self.subject}: {self.found}"


Rule = Callable[[DiskState], Iterator[Finding]]


def check(history: History, *, deep: bool = False, now_s: float | None = None) -> tuple[Violation, ...]:
    """Everything that is wrong with the table; empty for a table that keeps every rule and has no waste.

    Other processes may be at work: what an expiry takes away meanwhile is left out, what a writer has not yet
    committed is information.

    ``deep``: data files are read too, each once, and the latest snapshot is scanned; else their sizes are
    compared.
    """
    at_ms = int((time.time() if now_s is None else now_s) * 1000)
    found = _once(history, deep, at_ms)
    if all(one.is_information for one in found):
        return found
    # what others took away or put there meanwhile looks like damage, and is something else the next time
    before = frozenset(found)
    return tuple(one for one in _once(history, deep, at_ms) if one.is_information or one in before)


def _once(history: History, deep: bool, now_ms: int) -> tuple[Violation, ...]:
    try:
        reread = history.reread()
    except StorageError as reason:
        return (Violation(file_is_given.__name__, paths.TABLE_FILE, str(reason)),)
    except CorruptTableError as reason:
        return (Violation(table_can_be_read.__name__, paths.TABLE_FILE, str(reason)),)
    state = DiskState.read(reread, now_ms)
    rules = (*RULES, *check_history.DEFINITION_RULES, *(check_data.RULES if deep else ()))
    harmful = [Violation(rule.__name__, *finding) for rule in rules for finding in _asked(rule, state)]
    waste = [
        Violation(rule.__name__, *finding, True) for rule in INFORMATION for finding in _asked(rule, state)
    ]
    unread = [Violation(file_is_given.__name__, *finding) for finding in file_is_given(state)]
    return (*harmful, *unread, *waste)


def _asked(rule: Rule, state: DiskState) -> Iterator[Finding]:
    """What a rule finds; of a table that is damaged so that it cannot be asked, that."""
    try:
        yield from rule(state)
    except TableNotFoundError:
        raise
    except StorageError as reason:
        subject = os.fspath(reason.filename) if reason.filename is not None else "table"
        state.unread.setdefault(subject.removeprefix(f"{state.history.root}/"), str(reason))
    except (UpsertError, ValueError, LookupError, TypeError, ArithmeticError) as cause:
        yield Finding("table", f"the rule cannot be asked of what lies there: {cause!r}")


def file_is_given(state: DiskState) -> Iterator[Finding]:
    """The disk or the store gives every file that is asked for; one that it does not give may be whole."""
    for name, reason in sorted(state.unread.items()):
        yield Finding(name, f"it could not be read: {reason}")


def table_can_be_read(state: DiskState) -> Iterator[Finding]:
    """The file that makes a folder a table is whole, and says what it said when snapshots were published."""
    found = state.history.definition_at(0).checksum
    for one in state.published:
        if one.info.definition == 0 and one.info.definition_checksum not in (0, found):
            stated = one.info.definition_checksum
            yield Finding(paths.TABLE_FILE, f"{one.name} names the checksum {stated:016x}, got {found:016x}")
            return


def data_file_is_whole(state: DiskState) -> Iterator[Finding]:
    """Every live file is there with the size that its manifest says."""
    for entry in state.entries:
        size = state.size_of(entry.file)
        if size != entry.bytes:
            found = "it is missing" if size is None else f"it has {size} bytes"
            yield Finding(entry.file, f"it must have {entry.bytes} bytes, {found}")


def index_file_is_there(state: DiskState) -> Iterator[Finding]:
    """Every live file has its lookup indexes beside it."""
    for entry in state.entries:
        if not state.size_of(name := paths.index_file(entry.file)):
            yield Finding(name, "the lookup indexes are missing")


def tag_can_be_read(state: DiskState) -> Iterator[Finding]:
    """A tag has a valid name and a whole file."""
    for name, reason in sorted(state.bad_tags.items()):
        yield Finding(paths.tag_file(name), reason)


def tag_is_of_this_history(state: DiskState) -> Iterator[Finding]:
    """A tag's snapshot is the one that the history has or had under its id."""
    retained = {one.info.id: one.info for one in state.published}
    for tag in state.tags:
        there = retained.get(tag.snapshot.id)
        if state.head is not None and tag.snapshot.id > state.head.id:
            yield Finding(paths.tag_file(tag.name), f"snapshot {tag.snapshot.id} is not there yet")
        elif there is not None and there != tag.snapshot:
            yield Finding(paths.tag_file(tag.name), f"it is not equal to snapshot {there.id} of the history")


def consumer_can_be_read(state: DiskState) -> Iterator[Finding]:
    """A consumer has a valid name and a whole file."""
    for name, reason in sorted(state.bad_consumers.items()):
        yield Finding(paths.consumer_file(name), reason)


def held_version_can_be_read(state: DiskState) -> Iterator[Finding]:
    """What a consumer holds by a lease that goes on has not expired."""
    for consumer in () if state.unreadable or state.bad_tags else state.consumers:
        for version in () if consumer.is_lapsed(state.now_ms) else consumers.needed(consumer.version):
            try:
                state.history.equal_to(version)
            except SnapshotExpiredError as reason:
                yield Finding(paths.consumer_file(consumer.name), str(reason))
            except StorageError:
                raise
            except UpsertError as reason:
                yield Finding(
                    paths.consumer_file(consumer.name), f"it must hold an existing snapshot: {reason}"
                )


def log_can_be_read(state: DiskState) -> Iterator[Finding]:
    """What the table says of logs that began or ended by ALTER TABLE is in whole files."""
    try:
        beginnings(state.history.root, state.history.uuid)
    except CorruptTableError as reason:
        yield Finding(paths.LOG_FOLDER, str(reason))


RULES: Final[tuple[Rule, ...]] = (
    table_can_be_read,
    *check_history.RULES,
    data_file_is_whole,
    index_file_is_there,
    tag_can_be_read,
    tag_is_of_this_history,
    consumer_can_be_read,
    held_version_can_be_read,
    log_can_be_read,
)
"""The rules that every table keeps."""


def file_is_needed(state: DiskState) -> Iterator[Finding]:
    """A file of data, index, staging or manifests is named by a snapshot or tag, or is on its way to be."""
    if state.is_partial:
        return
    needed = state.needed
    for name in sorted(found.name for found, _ in based_files(state.history.root)):
        if name not in needed:
            yield Finding(name, "no snapshot and no tag needs it; clean() removes it when it is old enough")


def expired_snapshot_is_gone(state: DiskState) -> Iterator[Finding]:
    """A snapshot file below the boundary has been deleted."""
    for id in state.expired:
        yield Finding(paths.snapshot_file(id), "it has expired; expire() or clean() removes it")


def temporary_file_is_gone(state: DiskState) -> Iterator[Finding]:
    """A file under a temporary name is being published."""
    for name in sorted(temporary_files(state.history.root)):
        yield Finding(name, "no snapshot names it; clean() removes it when it is old enough")


def lease_goes_on(state: DiskState) -> Iterator[Finding]:
    """A consumer has renewed its lease in time."""
    for consumer in state.consumers:
        if consumer.is_lapsed(state.now_ms):
            yield Finding(
                paths.consumer_file(consumer.name),
                f"its lease is over since {consumer.until_ms} ms; the next expiry removes it",
            )


INFORMATION: Final[tuple[Rule, ...]] = (
    file_is_needed,
    expired_snapshot_is_gone,
    temporary_file_is_gone,
    lease_goes_on,
)
"""What does no harm."""
