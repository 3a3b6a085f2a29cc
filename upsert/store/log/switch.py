"""A log that a table gets, or gives up, by ALTER TABLE.

The definition is the commit point in both directions: a snapshot names it, so that the log begins or ends
between two commits. A topic is made before that and deleted after it. What the process wants is written down
first (``beginnings``), so a statement that died is repeated, and DROP TABLE finds every topic of a table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from upsert.errors import ConfigurationError, SnapshotExpiredError, UnknownOutcomeError, UpsertError
from upsert.failpoints import reach
from upsert.flock import locked
from upsert.store import paths
from upsert.store.alterations import Alteration, ResetOptions, SetOptions, altered
from upsert.store.commit import alter
from upsert.store.commit.committer import Committer
from upsert.store.log import beginnings, protocol
from upsert.store.log.beginnings import GONE, MADE, OVER, LogBeginning
from upsert.store.log.protocol import LogSystem
from upsert.store.log.tables import drop_topic, tell_left
from upsert.store.log_options import TOPIC, LogOptions
from upsert.store.metadata.definition import Definition
from upsert.store.metadata.history import History
from upsert.store.retention import consumers
from upsert.store.retention.expiry import CONSUMER
from upsert.store.storage import storage_of

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

    A table that has got a log must publish what others have committed meanwhile.

    Raises:
        SchemaError, ConfigurationError, CommitConflictError: as for ``alter.alter``. Nothing was changed.
        KafkaUnavailableError: a log that is to be could not be made, and nothing was changed; or the table
            has no log any more, and its topic could not be deleted, which the same statement tries again.
    """
    changes, history = tuple(changes), committer.history
    history.latest()
    old = history.definition
    new = altered(old, changes)
    if old.options.log.is_kafka == new.options.log.is_kafka and not _wants_none(changes, new):
        _change(committer, changes, old, new)
        return False
    with _log_lock(history.root):
        history.latest()
        old = history.definition
        new = altered(old, changes)
        if new.options.log.is_kafka and not old.options.log.is_kafka:
            _begin(committer, changes, old, new)
            return True
        if not new.options.log.is_kafka:
            _end(committer, changes, old)
            return False
        _change(committer, changes, old, new)
        return False


def _change(committer: Committer, changes: tuple[Alteration, ...], old: Definition, new: Definition) -> None:
    protocol.change(old, new)
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


@contextmanager
def _log_lock(root: str) -> Iterator[None]:
    """One process of a machine at a time creates or deletes logs of a table.

    On other machines the same may happen: what they make is the same topic, and one of them publishes it.
    """
    with locked(storage_of(root).lock_file(root, paths.LOG_LOCK)):
        yield


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
        protocol.claim(history.root, history.uuid, replaces=True)
        alter.alter(committer, changes)
    except UnknownOutcomeError:
        raise  # the log may be the table's; if it is not, the statement finds it when it is repeated
    except BaseException:
        history.latest()
        if history.definition.options.log.topic != log.topic:
            _finish(history, only=log.topic)
        raise
    reach("switch.after-on")


def _system(log: LogOptions) -> LogSystem:
    found = protocol.log_system(log)
    assert found is not None, "the definition says that there is a log"
    return found


def _topic(history: History, new: Definition) -> str:
    """The topic of a new log: as it is given; that of an attempt that died; or a new one."""
    if new.options.log.topic is not None:
        return new.options.log.topic
    left = [each.topic for each in beginnings.read_all(history.root, history.uuid) if each.state == MADE]
    if left:
        return left[0]
    return _system(new.options.log).named(new.given, paths.name_of(history.root))[TOPIC]


def _claimed(history: History, new: Definition) -> LogBeginning:
    """Write down that the topic is the table's own, and from where on it has all changes."""
    log = new.options.log
    assert log.topic is not None, "it has been given a name"
    known = beginnings.read(history.root, history.uuid, log.topic)
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
        beginnings.hold(history, begun.data_version)
    except SnapshotExpiredError:
        later = LogBeginning.at(begun.topic, history.latest(), begun.properties)
        later.write(history.root, history.uuid)
        _hold(history, later)


def _end(committer: Committer, changes: tuple[Alteration, ...], old: Definition) -> None:
    history, topic = committer.history, old.options.log.topic
    if topic is not None:
        begun = beginnings.beginning_of(history.root, history.uuid, topic)
        replace(begun, state=OVER, properties=old.options.log.properties).write(history.root, history.uuid)
        reach("switch.after-end")
    alter.alter(committer, (*changes, ResetOptions((TOPIC,))))
    reach("switch.after-off")
    _finish(history)


def _finish(history: History, only: str | None = None) -> None:
    """Delete the topics of logs that the table does not have; all of them, or one.

    Raises:
        KafkaUnavailableError: one could not be deleted.
    """
    history.latest()
    definition = history.definition
    present = definition.options.log.topic
    if present is None:
        consumers.release(history, CONSUMER)
        reach("switch.after-release")
    for begun in beginnings.left(history.root, history.uuid, present):
        if only not in (None, begun.topic):
            continue
        try:
            if begun.state == MADE or protocol.is_home(history.root, history.uuid):
                drop_topic(begun, definition)
            else:
                tell_left(definition.owner, begun.topic)
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
