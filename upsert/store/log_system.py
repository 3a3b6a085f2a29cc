"""What the store asks of a log, where a table's changes go besides its files, and when it asks (FLIP-188).

The commit is the file store's. In consistency *transactional* a log gets the changes of a snapshot after its
commit, in *eventual* before it. A log that cannot be reached does not undo a commit: whoever made it is told,
and the next one makes up for it. A log is found by the table's options, so the store imports none.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import Any, Final, Protocol

from upsert.errors import ConfigurationError, LogNotPublishedError, UpsertError
from upsert.log.log_options import LogOptions
from upsert.store import log_home
from upsert.store.definition import Definition
from upsert.store.file_entry import FileEntry
from upsert.store.history import History
from upsert.store.pinned_table import PinnedTable
from upsert.store.snapshot_info import SnapshotInfo
from upsert.store.tracking import shown

CONSUMER: Final = "table-log"
"""Name of the consumer that holds the snapshot up to which a log is complete."""
LEASE_S: Final = 30 * 86_400.0
"""So long a log may be out of reach before changes expire that it lacks."""


@dataclass(frozen=True)
class LoggedTable:
    """A table with a log, as it is at one moment.

    Attributes:
        uuid: of the table.
        definition: its columns and options.
        rows: how it is read.
    """

    uuid: str
    definition: Definition
    rows: PinnedTable

    @property
    def published(self) -> History:
        """Its snapshots."""
        return self.rows.published

    @property
    def log(self) -> LogOptions:
        """What its log is like."""
        return self.definition.options.log

    @property
    def owner(self) -> str:
        """The table, for messages."""
        return f"table {self.rows.name!r}"


class LogSystem(Protocol):
    """One kind of log. Implementations are values without state."""

    def named(self, given: Mapping[str, str], table: str) -> dict[str, str]:
        """The options of a new table, in which its log has a name."""

    def create(self, log: LogOptions, buckets: int, owner: str, *, may_be_there: bool = False) -> None:
        """Make the log of a table.

        Args:
            log: what it is like.
            buckets: of the table.
            owner: the table, for messages.
            may_be_there: whether an earlier attempt of the table's own may have made it; then it is empty.

        Raises:
            ConfigurationError: there is something in the way.
        """

    def check_is_free(self, log: LogOptions, buckets: int, owner: str) -> None:
        """Make sure that nothing is where a log is to be made.

        Raises:
            ConfigurationError: there is something in the way.
        """

    def change(self, old: LogOptions, new: LogOptions, buckets: int, owner: str) -> None:
        """Make what the log has outside fit other options."""

    def drop(self, log: LogOptions, buckets: int, owner: str, *, only_empty: bool = False) -> None:
        """Take the log away; nothing if it is not there, or must be empty to go, and is not."""

    def publish(self, table: LoggedTable, *, accept_gap: bool) -> int:
        """Send what is committed and not in the log; how many snapshots that were.

        Raises:
            SnapshotExpiredError: changes have expired before they were sent, and ``accept_gap`` is not set.
        """

    def announce(self, table: LoggedTable, files: Sequence[FileEntry]) -> None:
        """Send the rows of files that are about to be committed."""

    def ends(self, table: LoggedTable) -> Mapping[str, int]:
        """Partition -> the offset behind all that is in the log."""


_SYSTEMS: Final[Mapping[str, str]] = {"kafka": "upsert.log.kafka_log"}
"""Value of ``log.system`` -> the module whose ``LOG_SYSTEM`` it is; loaded when a table has such a log."""


def log_system(log: LogOptions) -> LogSystem | None:
    """The system of a table's log; None if it has no log."""
    module = _SYSTEMS.get(log.system)
    if module is None:
        return None
    found: LogSystem = import_module(module).LOG_SYSTEM
    return found


def change(old: Definition, new: Definition) -> None:
    """Make a log fit another definition that is about to be published.

    Raises:
        KafkaUnavailableError: the log could not be reached; nothing was changed.
    """
    system = log_system(new.options.log)
    if system is not None and old.options.log != new.options.log:
        system.change(old.options.log, new.options.log, new.options.bucket, new.owner)


def before_commit(table: LoggedTable) -> None:
    """Ask where the log ends before the first commit of a process, so that it names a place that is near."""
    system = log_system(table.log)
    key = table.uuid, table.log.topic
    if system is None or _offsets.known(key):
        return
    try:
        _offsets.note(key, system.ends(table))
    except UpsertError:
        # what earlier snapshots name holds for this one too, and publishing will say what is wrong
        _offsets.note(key, {})


Announce = Callable[[Sequence[FileEntry]], None]
"""Tells a log of files that are about to be committed; an error means that they must not be."""


def announcer(table: LoggedTable, tracked: bool | None) -> Announce | None:
    """What sends the rows of a commit that adds rows and does nothing else; None if they are sent after it.

    Args:
        table: the table.
        tracked: whether the commit shows in change streams, as for the commit.
    """
    system = log_system(table.log)
    if system is None or not table.log.is_eventual:
        return None

    def announce(files: Sequence[FileEntry]) -> None:
        visible = shown(table.definition, {entry.partition for entry in files}, tracked)
        if visible.is_tracked:
            system.announce(table, [entry for entry in files if entry.partition not in visible.hidden])

    return announce


def publish(table: LoggedTable, *, accept_gap: bool) -> int:
    """Send what is committed and not in the log; how many snapshots that were.

    Raises:
        ConfigurationError: the table has no log, or not this one.
        SnapshotExpiredError: changes have expired before they were sent, and ``accept_gap`` is not set.
    """
    system = log_system(table.log)
    if system is None:
        raise ConfigurationError(
            f"{table.owner}: publish_log needs a table with a log, got 'log.system' = {table.log.system!r}; "
            "ALTER TABLE … SET ('log.system' = 'kafka') gives it one"
        )
    sent = system.publish(table, accept_gap=accept_gap)
    log_home.claim(table.published.root, table.uuid)
    return sent


def after_commit(table: LoggedTable, head: SnapshotInfo) -> LogNotPublishedError | None:
    """Send the changes of a commit to the log; what became of it, if that failed.

    Args:
        table: the table.
        head: the snapshot that the commit has made.
    """
    system = log_system(table.log)
    if system is None:
        return None
    try:
        publish(table, accept_gap=False)
    except Exception as cause:  # the commit is published: nothing that happens here may deny it
        if _is_turned_off(table):
            return None  # nobody waits for the changes
        failure = LogNotPublishedError(
            f"{table.owner}: committed as snapshot {head.id}; its log messages were not published: {cause}; "
            "the next commit or publish_log() publishes them"
        )
        failure.__cause__ = cause
        return failure
    return None


def _is_turned_off(table: LoggedTable) -> bool:
    """Whether somebody has turned the log off meanwhile; no, if that cannot be seen."""
    try:
        table.published.latest()
    except (UpsertError, OSError):
        return False  # the failure at hand is told
    return table.published.definition.options.log.topic != table.log.topic


_Key = tuple[str, str | None]
"""A table, by its uuid, and its topic: offsets of one log say nothing of the next one."""


class _Offsets:
    """Where the logs of tables ended when this process last looked."""

    def __init__(self) -> None:
        self._ends: dict[_Key, Mapping[str, int]] = {}
        self._lock = threading.Lock()

    def known(self, key: _Key) -> bool:
        return key in self._ends

    def note(self, key: _Key, ends: Mapping[str, int]) -> None:
        with self._lock:
            self._ends[key] = later(self._ends.get(key, {}), ends)

    def of(self, key: _Key) -> Mapping[str, int]:
        return self._ends.get(key, {})


def later(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """The higher offset of each partition.

    >>> later({"0": 5, "1": 2}, {"0": 3, "2": 1})
    {'0': 5, '1': 2, '2': 1}
    """
    return {key: max(one.get(key, 0), other.get(key, 0)) for key in sorted({*one, *other}, key=int)}


_offsets = _Offsets()


def note_ends(uuid: str, topic: str, ends: Mapping[str, int]) -> None:
    """Remember where a table's log ended, now that all snapshots up to the latest are in it or before it."""
    _offsets.note((uuid, topic), ends)


def offsets_for(uuid: str, old: Definition, new: Definition, before: Mapping[str, Any]) -> Mapping[str, Any]:
    """The offsets that the next snapshot of a table names: below them lie changes of earlier ones only.

    Args:
        uuid: of the table.
        old: its definition as of the snapshot before.
        new: as of the next one.
        before: what the snapshot before names.
    """
    topic = new.options.log.topic
    named = before if topic == old.options.log.topic else MappingProxyType({})
    known = _offsets.of((uuid, topic))
    return MappingProxyType(later(named, known)) if known else named
