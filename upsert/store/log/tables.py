"""A table made together with its log, and the log taken away with it."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping

from upsert.errors import (
    ConfigurationError,
    CorruptTableError,
    TableExistsError,
    TableNotFoundError,
    UnknownOutcomeError,
)
from upsert.failpoints import reach
from upsert.schema import TableSchema
from upsert.store.commit.append import LeftoverWarning
from upsert.store.log import beginnings, protocol
from upsert.store.log.beginnings import MADE, LogBeginning
from upsert.store.log.protocol import log_system
from upsert.store.metadata import table_file
from upsert.store.metadata.definition import Definition
from upsert.store.metadata.history import History
from upsert.store.metadata.table_file import TableFile


def create(folder: str, schema: TableSchema, options: Mapping[str, str]) -> TableFile:
    """Make a folder a table; its log, if it has one, is made before.

    After a crash there is a table with its log, or no table, and maybe a log without records that no table
    knows. When it raises, the log that this call has made is gone; it stays if the table may be there yet.

    Raises:
        ConfigurationError: an option is wrong, or something is in the way of the log.
        SchemaError: the schema uses a name that the files need.
        TableExistsError: there is one already.
        KafkaUnavailableError: the log could not be made.
    """
    owner = f"table {os.path.basename(folder)!r}"
    first = Definition(0, schema, options, owner=owner)
    first.layout  # noqa: B018 - refuses what cannot be stored before anything is made
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
    protocol.claim(made.root, made.uuid)
    return made


def _topic_of(folder: str) -> str | None:
    """The log of the existing table."""
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
        return _no_log  # deleting its files was interrupted, after its log had gone; or it lies elsewhere
    history = History(file)
    try:
        history.latest()
    except TableNotFoundError:
        return _no_log  # another process has deleted its files, after the log
    except CorruptTableError:
        pass  # as above: where the log is cannot have been read from there
    definition = history.definition
    log = definition.options.log
    left = beginnings.left(history.root, history.uuid, log.topic)
    is_home = protocol.is_home(history.root, history.uuid)

    def drop() -> None:
        if not is_home:
            if log.is_kafka or left:
                tell_left(definition.owner, log.topic)
            return
        if (system := log_system(log)) is not None:
            system.drop(log, definition.options.bucket, definition.owner)
        for begun in left:
            drop_topic(begun, definition)

    return drop


def tell_left(owner: str, topic: str | None) -> None:
    """Warn that a topic stays, since the folder is a copy of the table that it was made for."""
    warnings.warn(
        f"{owner}: the topic {topic!r} of its log stays, for the folder is a copy of the table that the "
        "topic was made for; drop that one, or delete the topic",
        LeftoverWarning,
        stacklevel=2,
    )


def _no_log() -> None:
    """There is nothing to take away."""


def drop_topic(begun: LogBeginning, definition: Definition) -> None:
    """Delete the topic of a log that a table does not have, or has no more.

    Raises:
        KafkaUnavailableError: the brokers did not answer.
    """
    system = log_system(begun.log)
    if system is not None:
        # what was never the table's log has no records; if it has, another table has made it meanwhile
        system.drop(begun.log, definition.options.bucket, definition.owner, only_empty=begun.state == MADE)
