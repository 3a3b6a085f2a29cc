"""What a log is to the store, which imports none: a system that is found by a table's options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Final, Protocol

from upsert.store.log_options import LogOptions
from upsert.store.metadata.definition import Definition
from upsert.store.metadata.file_entry import FileEntry
from upsert.store.metadata.history import History
from upsert.store.read.snapshot import PinnedTable


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
