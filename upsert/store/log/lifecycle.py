"""A log begins with its table or by ALTER TABLE, and ends by ALTER TABLE or with the table.

The definition is the commit point of ALTER TABLE in both directions: a snapshot names it, so that the log
begins or ends between two commits. A topic is made before that and deleted after it.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final

from upsert.errors import (
    ConfigurationError,
    CorruptTableError,
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
from upsert.store.commit import alter
from upsert.store.commit.append import LeftoverWarning
from upsert.store.commit.committer import Committer
from upsert.store.log.base import LogSystem, log_system
from upsert.store.log.files import (
    GONE,
    MADE,
    OVER,
    LogBeginning,
    beginning_of,
    beginnings,
    claim,
    is_home,
    leftovers,
    stated,
)
from upsert.store.log.publishing import hold
from upsert.store.log_options import KAFKA, TOPIC, LogOptions
from upsert.store.metadata import table_file
from upsert.store.metadata.definition import Definition
from upsert.store.metadata.history import History
from upsert.store.metadata.table_file import TableFile
from upsert.store.retention import consumers
from upsert.store.retention.expiry import CONSUMER
from upsert.store.storage import storage_of
from upsert.store.table_options import check_new


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
    except Exception:  # of an interrupt the same is true
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
    left = leftovers(history.root, history.uuid, log.topic)
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
    except Exception:  # of an interrupt the same is true
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
    known = stated(history.root, history.uuid, log.topic)
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
    for begun in leftovers(history.root, history.uuid, present):
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
