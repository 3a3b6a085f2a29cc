"""Commits and a table's log: what is asked of it before one, and what it gets after one.

The commit is the file store's. In consistency *transactional* a log gets the changes of a snapshot after its
commit, in *eventual* before it. A log that cannot be reached does not undo a commit: its writer gets an error
that says so, and the next commit publishes what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from upsert.errors import (
    ConfigurationError,
    LogNotPublishedError,
    UpsertError,
)
from upsert.store.commit.append import Announce
from upsert.store.commit.committer import log_ends
from upsert.store.log.base import LoggedTable, log_system
from upsert.store.log.files import claim
from upsert.store.metadata.definition import shown
from upsert.store.metadata.file_entry import FileEntry
from upsert.store.metadata.history import History
from upsert.store.metadata.snapshot import SnapshotInfo
from upsert.store.retention import consumers
from upsert.store.retention.expiry import CONSUMER
from upsert.store.version import Version


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


LEASE_S: Final = 30 * 86_400.0
"""So long a log may be out of reach before changes expire that it lacks."""


def hold(history: History, published: int) -> None:
    """Keep the snapshot up to which a log is complete, and all that follow, from expiring."""
    consumers.hold(history, CONSUMER, Version.complete(published), LEASE_S)
