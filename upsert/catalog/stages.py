"""What ``CREATE TABLE … AS SELECT`` asks of a warehouse: a place for a table that nobody sees yet (pure)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from upsert.catalog.staged import Entry

CleanUp = Callable[[str, tuple[str, ...]], None]
"""Takes away what a statement has made outside, given the folder of its table."""


class Stage(Protocol):
    """A table that this process fills."""

    @property
    def folder(self) -> str:
        """Where the table lies while it is filled."""

    @property
    def is_visible(self) -> bool:
        """Whether everybody sees the table."""

    def remember(self, made: tuple[str, ...]) -> None:
        """Note what was made outside, so that it goes away with the table if that is never seen."""

    def show_after_commit(self) -> None:
        """Let everybody see a table whose query has committed a micro-batch, while it is filled on."""

    def done(self, *, forget: bool) -> None:
        """Let everybody see the table, and let go of it.

        Args:
            forget: also take away the entry, by which the same statement could go on.

        Raises:
            CommitConflictError: this process stalled or the table was dropped, and somebody else went on.
            UnknownOutcomeError: nobody knows whether it is seen; ``discard`` settles that.
        """

    def discard(self) -> None:
        """Take the table away unless somebody may have seen it, and let go of it."""

    def let_go(self) -> None:
        """Leave the table as it is, for the same statement to go on."""


class Stages(Protocol):
    """The tables of a warehouse that are being filled."""

    def drop(self, name: str) -> bool:
        """Drop a table of the warehouse, see ``Warehouse.drop``."""

    def entry(self, name: str) -> Entry | None:
        """What is said of a table that a statement fills, or has filled and may go on with."""

    def sweep(self, name: str) -> None:
        """Take away what a dead process has begun under this name, if it was never seen.

        Raises:
            TableExistsError: a living process is at it.
        """

    def begin(self, name: str, entry: Entry, create: Callable[[str], None]) -> Stage:
        """A table made by ``create`` in the folder that it is given.

        Raises:
            TableExistsError: there is a table, or a living process fills one.
        """

    def resume(self, name: str, checkpoint: str) -> Stage | None:
        """The table that an earlier run of the same streaming statement has begun; None if there is none.

        Raises:
            TableExistsError: that run still lives.
        """

    def successor(self, name: str) -> AbstractContextManager[str]:
        """A hidden folder for the table that will replace ``name``; it does so when the block ends well.

        Readers find the old table until then, and the new one from that moment on.

        Raises:
            ConfigurationError: the file system cannot exchange two folders.
            TableNotFoundError: the old table has been dropped meanwhile.
        """
