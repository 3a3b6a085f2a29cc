"""What the store knows of a table's log, where changes go besides the files: its life, when it is asked.

The commit is the file store's. In consistency *transactional* a log gets the changes of a snapshot after its
commit, in *eventual* before it. A log that cannot be reached does not undo a commit: its writer gets an error
that says so, and the next commit publishes what is missing. A log is found by the table's options, so the
store imports none. The log's home says where the table lay when its log was made: a copy of its folder does
not take the original's topic away.

A log begins with its table or by ALTER TABLE, and ends by ALTER TABLE or with it. The definition is the
commit point of ALTER TABLE in both directions: a snapshot names it, so that the log begins or ends between
two commits. A topic is made before that and deleted after it.

A table knows its log by the name of the topic, which stands in its options. ``log/log-<hash of the topic>``
is written before ALTER TABLE makes the topic: so a statement that died is repeated, DROP TABLE finds every
topic of a table, and it says from which snapshot on the log is complete. It stays when the log is over: no
later log of the table may have its name, for offsets in checkpoints and snapshots would be taken for those of
the new one.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Final, Literal, Protocol, Self

from upsert.codec import MAY_BE_MISSING, Jsonable
from upsert.errors import (
    ConfigurationError,
    CorruptTableError,
    LogNotPublishedError,
    SnapshotExpiredError,
    TableExistsError,
    TableNotFoundError,
    UnknownOutcomeError,
    UpsertError,
)
from upsert.failpoints import reach
from upsert.flock import locked
from upsert.schema import TableSchema
from upsert.store import paths
from upsert.store.alterations import Alteration, ResetOptions, SetOptions, altered
from upsert.store.checksums import content_of, read_file, subject_of
from upsert.store.commit import alter
from upsert.store.commit.append import Announce, LeftoverWarning
from upsert.store.commit.committer import Committer, log_ends
from upsert.store.log_options import CLIENT_PREFIX, KAFKA, TOPIC, LogOptions, file_mode
from upsert.store.metadata import table_file
from upsert.store.metadata.definition import Definition, shown
from upsert.store.metadata.file_entry import FileEntry
from upsert.store.metadata.history import History
from upsert.store.metadata.snapshot import SnapshotInfo
from upsert.store.metadata.table_file import TableFile
from upsert.store.read.snapshot import PinnedTable
from upsert.store.retention import consumers
from upsert.store.retention.expiry import CONSUMER
from upsert.store.storage import storage_of
from upsert.store.table_options import check_new
from upsert.store.version import Version

_claimed_roots: set[str] = set()
"""Folders of which this process knows that they have the file."""


@dataclass(frozen=True)
class _Home(Jsonable):
    """Where a table lay when its log was made."""

    folder: str
    inode: int | None = field(default=None, metadata=MAY_BE_MISSING)


def claim(root: str, uuid: str, *, replaces: bool = False) -> None:
    """Say that a table's log belongs to the table in this folder; what is said stays, but for a new log."""
    if root in _claimed_roots and not replaces:
        return
    path, storage = os.path.join(root, paths.LOG_HOME), storage_of(root)
    content = content_of(_Home(root, _inode(root)).to_json(), subject_of(uuid, paths.LOG_HOME))
    if replaces:
        storage.replace(path, content)
    elif not storage.exists(path):
        storage.prepare(os.path.dirname(path))
        storage.put_if_absent(path, content)
    _claimed_roots.add(root)


def is_home(root: str, uuid: str) -> bool:
    """Whether the log of the table in a folder is its own."""
    must = "it must name a folder and an inode"
    home = read_file(root, uuid, paths.LOG_HOME, _Home.from_json, must, "restore it")
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

        Where changes have expired before they were sent, ``accept_gap`` continues behind them.
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


State = Literal["made", "over", "gone"]

MADE: Final = "made"
"""The topic is there, or about to be."""

OVER: Final = "over"
"""The table has no such log any more, or is about to give it up; the topic is to be deleted."""

GONE: Final = "gone"
"""The topic has been deleted."""

LEASE_S: Final = 30 * 86_400.0
"""So long a log may be out of reach before changes expire that it lacks."""

_PREFIX: Final = "log-"


@dataclass(frozen=True)
class LogBeginning(Jsonable):
    """A log that was not made with its table.

    It has the changes of every snapshot after ``data_version``, published at ``time_ms``; 0 and 0 for all.
    The client's ``properties``, by which its brokers are found, may hold secrets.
    """

    topic: str
    data_version: int = 0
    time_ms: int = 0
    state: State = MADE
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        """Refuse what is no version and no time."""
        if self.data_version < 0 or self.time_ms < 0:
            raise ValueError(f"{(self.data_version, self.time_ms)!r} is no version with a time")

    @classmethod
    def at(cls, topic: str, head: SnapshotInfo, properties: Mapping[str, str]) -> Self:
        """A new log whose first changes are those after ``head``."""
        return cls(topic, head.data_version, head.time_ms, MADE, dict(properties))

    def write(self, root: str, uuid: str) -> None:
        """Make this what the table with this uuid says of the log; a crash leaves what it said, or this."""
        name = paths.log_file(self.topic)
        path = os.path.join(root, name)
        said = replace(self, properties={}) if self.state == GONE else self
        mode = file_mode(CLIENT_PREFIX + key for key in self.properties)
        storage_of(path).replace(path, content_of(said.to_json(), subject_of(uuid, name)), mode)

    def forget(self, root: str) -> None:
        """Say nothing of the log any more: the topic turned out to be another table's."""
        path = os.path.join(root, paths.log_file(self.topic))
        storage_of(path).delete(path)


def beginning_of(root: str, uuid: str, topic: str) -> LogBeginning:
    """Where one of a table's logs began; a log that was made with the table has all of its changes."""
    return _read(root, uuid, paths.log_file(topic)) or LogBeginning(topic)


def beginnings(root: str, uuid: str) -> tuple[LogBeginning, ...]:
    """All that the table with this uuid says of logs."""
    names = paths.named_files(root, paths.LOG_FOLDER, _PREFIX)
    found = (_read(root, uuid, f"{paths.LOG_FOLDER}/{_PREFIX}{name}") for name in names)
    return tuple(each for each in found if each is not None)


def _read(root: str, uuid: str, name: str) -> LogBeginning | None:
    must = "what a table says of its log must have valid fields"
    return read_file(root, uuid, name, LogBeginning.from_json, must, "restore the file")


def _left(root: str, uuid: str, present: str | None) -> list[LogBeginning]:
    """The logs that a table does not have, and whose topics may be there."""
    return [each for each in beginnings(root, uuid) if each.topic != present and each.state != GONE]


def hold(history: History, published: int) -> None:
    """Keep the snapshot up to which a log is complete, and all that follow, from expiring."""
    consumers.hold(history, CONSUMER, Version.complete(published), LEASE_S)


def checked(folder: str, schema: TableSchema, options: Mapping[str, str]) -> Definition:
    """What a new table in a folder is; a ``ConfigurationError`` or ``SchemaError`` if it cannot be."""
    owner = f"table {os.path.basename(folder)!r}"
    found = Definition(0, schema, options, owner=owner)
    found.layout  # noqa: B018 - refuses what cannot be stored before anything is made
    check_new(owner, found.options, schema)
    return found


def create(folder: str, schema: TableSchema, options: Mapping[str, str]) -> TableFile:
    """Make a folder a table; its log, if it has one, is made before.

    After a crash there is a table with its log, or no table, and maybe a log without records that no table
    knows. When it raises, the log that this call has made is gone; it stays if the table may be there yet.
    """
    first = checked(folder, schema, options)
    owner = first.owner
    system = log_system(first.options.log)
    if system is None:
        return table_file.create(folder, schema, options)
    if not table_file.is_free(table_file.value_in(folder)):
        raise TableExistsError(
            f"table {folder!r} exists already; choose another path, or create it if_not_exists=True"
        )
    given = system.named(options, os.path.basename(folder))
    log = Definition(0, schema, given, owner=owner).options.log
    system.create(log, first.options.bucket, owner)
    reach("create.after-log")
    try:
        made = table_file.create(folder, schema, given)
    except UnknownOutcomeError:
        raise  # the table may be there yet, and needs its log
    except BaseException:
        if _topic_of(folder) != log.topic:  # else the table was published after all
            system.drop(log, first.options.bucket, owner)
        raise
    claim(made.root, made.uuid)
    return made


def _topic_of(folder: str) -> str | None:
    try:
        return table_file.read(folder).definition.options.log.topic
    except TableNotFoundError:
        return None


def drop_log(folder: str) -> None:
    """Drop the log of a table that is dropped already; nothing if it has none.

    That of a copied folder stays, with a ``LeftoverWarning``: it is the original's.
    """
    log_dropper(folder)()


def log_dropper(folder: str) -> Callable[[], None]:
    """What takes away the log of the table that is in a folder now, whatever will be there by then.

    Calling it raises ``KafkaUnavailableError`` if the log cannot be reached.
    """
    try:
        file = table_file.read(folder)
    except (TableNotFoundError, ConfigurationError):
        return lambda: None  # it lies elsewhere, or its log has gone and deleting its files was interrupted
    history = History(file)
    try:
        history.latest()
    except TableNotFoundError:
        return lambda: None  # another process has deleted its files, after the log
    except CorruptTableError:
        pass  # as above: where the log is cannot have been read from there
    definition = history.definition
    log = definition.options.log
    left = _left(history.root, history.uuid, log.topic)
    is_own = is_home(history.root, history.uuid)

    def drop() -> None:
        if not is_own:
            if log.is_kafka or left:
                _tell_left(definition.owner, log.topic)
            return
        if (system := log_system(log)) is not None:
            system.drop(log, definition.options.bucket, definition.owner)
        for begun in left:
            _drop_topic(begun, definition)

    return drop


def _tell_left(owner: str, topic: str | None) -> None:
    """Warn that a topic stays, since the folder is a copy of the table that it was made for."""
    warnings.warn(
        f"{owner}: the topic {topic!r} of its log stays, for the folder is a copy of the table that the "
        "topic was made for; drop that one, or delete the topic",
        LeftoverWarning,
        stacklevel=2,
    )


def _drop_topic(begun: LogBeginning, definition: Definition) -> None:
    """Delete the topic of a log that a table does not have, or has no more."""
    log = LogOptions(KAFKA, begun.topic, properties=begun.properties)
    # what was never the table's log has no records; if it has, another table has made it meanwhile
    only_empty = begun.state == MADE
    _system(log).drop(log, definition.options.bucket, definition.owner, only_empty=only_empty)


def _system(log: LogOptions) -> LogSystem:
    found = log_system(log)
    assert found is not None, "the options say that there is a log"
    return found


POINTS: Final = (
    "switch.after-claim",
    "switch.after-topic",
    "switch.after-hold",
    "switch.after-on",
    "switch.after-end",
    "switch.after-off",
    "switch.after-release",
    "switch.after-drop",
)
"""Points of ``upsert.failpoints``: of a log that begins, then of one that ends."""


def alter_table(committer: Committer, changes: Iterable[Alteration]) -> bool:
    """Publish another definition, and make or delete a log as it says; whether the table has got one.

    A table that has got a log must publish what others have committed meanwhile. After a
    ``KafkaUnavailableError`` nothing was changed; or the table has no log any more, and the same statement
    tries again to delete its topic.
    """
    changes, history = tuple(changes), committer.history
    history.latest()
    old = history.definition
    new = altered(old, changes)
    if old.options.log.is_kafka == new.options.log.is_kafka and not _wants_none(changes, new):
        _change(committer, changes, old, new)
        return False
    # one process of a machine at a time creates or deletes logs of a table; what another machine makes
    # meanwhile is the same topic, and one of them publishes it
    with locked(storage_of(history.root).lock_file(history.root, paths.LOG_LOCK)):
        history.latest()
        old = history.definition
        new = altered(old, changes)
        if not new.options.log.is_kafka:
            _end(committer, changes, old)
            return False
        if old.options.log.is_kafka:
            _change(committer, changes, old, new)
            return False
        _begin(committer, changes, old, new)
        return True


def _change(committer: Committer, changes: tuple[Alteration, ...], old: Definition, new: Definition) -> None:
    log = new.options.log
    if (system := log_system(log)) is not None and old.options.log != log:
        system.change(old.options.log, log, new.options.bucket, new.owner)
    alter.alter(committer, changes)


def _wants_none(changes: tuple[Alteration, ...], new: Definition) -> bool:
    """Whether the log is to go, also if only an earlier attempt has left something of it."""
    keys: list[str] = []
    for change in changes:
        if isinstance(change, SetOptions):
            keys += change.options
        elif isinstance(change, ResetOptions):
            keys += change.keys
    return not new.options.log.is_kafka and "log.system" in map(str.lower, keys)


def _begin(committer: Committer, changes: tuple[Alteration, ...], old: Definition, new: Definition) -> None:
    history = committer.history
    changes = (*changes, SetOptions({TOPIC: _topic(history, new)}))
    new = altered(old, changes)
    log = new.options.log
    begun = _claimed(history, new)
    reach("switch.after-claim")
    try:
        _system(log).create(log, new.options.bucket, new.owner, may_be_there=True)
    except ConfigurationError:
        begun.forget(history.root)  # it is another table's, and must not go with this one
        raise
    reach("switch.after-topic")
    try:
        _hold(history, begun)
        reach("switch.after-hold")
        claim(history.root, history.uuid, replaces=True)
        alter.alter(committer, changes)
    except UnknownOutcomeError:
        raise  # the log may be the table's; if it is not, the statement finds it when it is repeated
    except BaseException:
        history.latest()
        if history.definition.options.log.topic != log.topic:
            _finish(history, only=log.topic)
        raise
    reach("switch.after-on")


def _topic(history: History, new: Definition) -> str:
    """The topic of a new log: as it is given; that of an attempt that died; or a new one."""
    if new.options.log.topic is not None:
        return new.options.log.topic
    left = [each.topic for each in beginnings(history.root, history.uuid) if each.state == MADE]
    if left:
        return left[0]
    return _system(new.options.log).named(new.given, paths.name_of(history.root))[TOPIC]


def _claimed(history: History, new: Definition) -> LogBeginning:
    """Write down that the topic is the table's own, and from where on it has all changes."""
    log = new.options.log
    assert log.topic is not None, "it has been given a name"
    known = _read(history.root, history.uuid, paths.log_file(log.topic))
    if known is not None and known.state != MADE:
        raise ConfigurationError(
            f"{new.owner}: a new log needs a topic of another name than the logs that the table had, got "
            f"{log.topic!r}; leave {TOPIC!r} out, which gives a new name"
        )
    if known is None:
        _system(log).check_is_free(log, new.options.bucket, new.owner)
        known = LogBeginning.at(log.topic, history.latest(), log.properties)
        known.write(history.root, history.uuid)
    return known


def _hold(history: History, begun: LogBeginning) -> None:
    """Keep what the log does not have yet; it begins later if that has expired since an attempt that died."""
    try:
        hold(history, begun.data_version)
    except SnapshotExpiredError:
        later = LogBeginning.at(begun.topic, history.latest(), begun.properties)
        later.write(history.root, history.uuid)
        _hold(history, later)


def _end(committer: Committer, changes: tuple[Alteration, ...], old: Definition) -> None:
    history, topic = committer.history, old.options.log.topic
    if topic is not None:
        begun = beginning_of(history.root, history.uuid, topic)
        replace(begun, state=OVER, properties=old.options.log.properties).write(history.root, history.uuid)
        reach("switch.after-end")
    alter.alter(committer, (*changes, ResetOptions((TOPIC,))))
    reach("switch.after-off")
    _finish(history)


def _finish(history: History, only: str | None = None) -> None:
    """Delete the topics of logs that the table does not have; all of them, or one."""
    history.latest()
    definition = history.definition
    present = definition.options.log.topic
    if present is None:
        consumers.release(history, CONSUMER)
        reach("switch.after-release")
    for begun in _left(history.root, history.uuid, present):
        if only not in (None, begun.topic):
            continue
        try:
            if begun.state == MADE or is_home(history.root, history.uuid):
                _drop_topic(begun, definition)
            else:
                _tell_left(definition.owner, begun.topic)
        except UpsertError as failure:
            raise type(failure)(
                f"{definition.owner}: it has no log {begun.topic!r}, whose topic could not be deleted: "
                f"{failure}; repeat ALTER TABLE … SET ('log.system' = 'none'), or DROP TABLE"
            ) from failure
        reach("switch.after-drop")
        if begun.state == OVER:
            replace(begun, state=GONE).write(history.root, history.uuid)
        else:
            begun.forget(history.root)
