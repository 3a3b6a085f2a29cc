"""What the store asks of a log, where a table's changes go besides its files, and when it asks (FLIP-188).

The commit is the file store's. In consistency *transactional* a log gets the changes of a snapshot after its
commit, in *eventual* before it. A log that cannot be reached does not undo a commit: its writer gets an error
that says so, and the next commit publishes what is missing. A log is found by the table's options, so the
store imports none. The log's home says where the table lay when its log was made: a copy of its folder does
not take the original's topic away.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Final, Protocol

from upsert.codec import MAY_BE_MISSING, Jsonable
from upsert.errors import ConfigurationError, LogNotPublishedError, UpsertError
from upsert.store import paths
from upsert.store.checksums import content_of, subject_of
from upsert.store.commit.append import Announce
from upsert.store.commit.committer import log_ends
from upsert.store.log_options import LogOptions
from upsert.store.metadata import json_file
from upsert.store.metadata.definition import Definition, shown
from upsert.store.metadata.file_entry import FileEntry
from upsert.store.metadata.history import History
from upsert.store.metadata.snapshot import SnapshotInfo
from upsert.store.read.snapshot import PinnedTable
from upsert.store.storage import storage_of

_claimed: set[str] = set()
"""Folders of which this process knows that they have the file."""


@dataclass(frozen=True)
class _Home(Jsonable):
    """Where a table lay when its log was made."""

    folder: str
    inode: int | None = field(default=None, metadata=MAY_BE_MISSING)


def claim(root: str, uuid: str, *, replaces: bool = False) -> None:
    """Say that a table's log belongs to the table in this folder; what is said stays, but for a new log."""
    if root in _claimed and not replaces:
        return
    path, storage = os.path.join(root, paths.LOG_HOME), storage_of(root)
    content = content_of(_Home(root, _inode(root)).to_json(), subject_of(uuid, paths.LOG_HOME))
    if replaces:
        storage.replace(path, content)
    elif not storage.exists(path):
        storage.prepare(os.path.dirname(path))
        storage.put_if_absent(path, content)
    _claimed.add(root)


def is_home(root: str, uuid: str) -> bool:
    """Whether the log of the table in a folder is its own."""
    must = "it must name a folder and an inode"
    home = json_file.read(root, uuid, paths.LOG_HOME, _Home.from_json, must, "restore it")
    if home is None or home.folder == root:
        return True
    return home.inode is not None and home.inode == _inode(root)


def _inode(root: str) -> int | None:
    """What stays the same when a local folder is moved, and differs in a copy; None elsewhere."""
    return os.stat(root).st_ino if storage_of(root).is_local else None


@dataclass(frozen=True)
class LoggedTable:
    """A table with a log, as it is at one moment."""

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
        """Make the log of a table; ``ConfigurationError`` if there is something in the way.

        With ``may_be_there`` an earlier attempt of the table's own may have made it; then it is empty.
        """

    def check_is_free(self, log: LogOptions, buckets: int, owner: str) -> None:
        """Make sure that nothing is where a log is to be made, else ``ConfigurationError``."""

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


def before_commit(table: LoggedTable) -> None:
    """Ask where the log ends before the first commit of a process, so that it names a near offset."""
    system = log_system(table.log)
    key = table.uuid, table.log.topic
    if system is None or log_ends.known(key):
        return
    try:
        log_ends.note(key, system.ends(table))
    except UpsertError:
        # what earlier snapshots name holds for this one too, and publishing will say what is wrong
        log_ends.note(key, {})


def announcer(as_logged: Callable[[], LoggedTable], tracked: bool | None) -> Announce | None:
    """What sends the rows of a commit that only adds some before it is made; None if they go after it."""
    log = as_logged().log
    system = log_system(log)
    if system is None or not log.is_eventual:
        return None

    def announce(files: Sequence[FileEntry]) -> None:
        table = as_logged()
        visible = shown(table.definition, {entry.partition for entry in files}, tracked)
        if visible.is_tracked:
            system.announce(table, [entry for entry in files if entry.partition not in visible.hidden])

    return announce


def publish(table: LoggedTable, *, accept_gap: bool) -> int:
    """Send what is committed and not in the log, see ``Table.publish_log``."""
    system = log_system(table.log)
    if system is None:
        raise ConfigurationError(
            f"{table.owner}: publish_log needs a table with a log, got 'log.system' = {table.log.system!r}; "
            "ALTER TABLE … SET ('log.system' = 'kafka') gives it one"
        )
    sent = system.publish(table, accept_gap=accept_gap)
    claim(table.published.root, table.uuid)
    return sent


def after_commit(table: LoggedTable, head: SnapshotInfo) -> LogNotPublishedError | None:
    """Send the changes of the commit that made ``head`` to the log; what became of it, if that failed."""
    system = log_system(table.log)
    if system is None:
        return None
    try:
        publish(table, accept_gap=False)
    except Exception as cause:  # the commit is published: nothing that happens here may deny it
        if _is_turned_off(table):
            return None  # no reader waits for the changes
        failure = LogNotPublishedError(
            f"{table.owner}: committed as snapshot {head.id}; its log messages were not published: {cause}; "
            "the next commit or publish_log() publishes them"
        )
        failure.__cause__ = cause
        return failure
    return None


def _is_turned_off(table: LoggedTable) -> bool:
    """Whether the log was turned off meanwhile; no, if that cannot be seen."""
    try:
        table.published.latest()
    except (UpsertError, OSError):
        return False  # the failure at hand is reported
    return table.published.definition.options.log.topic != table.log.topic
