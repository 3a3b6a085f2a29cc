"""Whether a keyed sink must keep all rows of each key: ``sink.materialize``, and what decides it (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from upsert import options
from upsert.errors import ConfigurationError
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.store.table_options import SINK_MATERIALIZE
from upsert.stream_keys import UniqueKeys, UpsertKey


class UnprovenKeyWarning(UserWarning):
    """Changes go into a keyed table, and it is not known whether its key tells their rows apart.

    Where it does not, a row that is taken away takes another one of its key with it.
    """


def mode_of(given: Mapping[str, str], of: str) -> str | None:
    """What some options say of ``sink.materialize``; None for nothing.

    >>> mode_of({"Sink.Materialize": "FORCE", "bucket": "2"}, "table 't'")
    'force'
    """
    own = {name: value for name, value in given.items() if name.lower() == SINK_MATERIALIZE.key}
    return str(options.parse(of, [SINK_MATERIALIZE], own)[SINK_MATERIALIZE.key]) if own else None


SEQUENCE: Final = "sequence.field"
"""The option of a table by which a column says which row of a key is the newest."""


@dataclass(frozen=True)
class Sink:
    """What counts of a table that changes go into; ``mode`` is its ``sink.materialize``.

    By ``key`` a row replaces an older one, () for none. ``combined_by`` is the option by which the table
    itself makes one row of several of a key, None for none; ``is_ordered`` is whether a column says which of
    several rows that are written at once is the newest.
    """

    name: str
    key: tuple[str, ...]
    mode: str = "auto"
    combined_by: str | None = None
    is_ordered: bool = False

    @property
    def rule(self) -> str | None:
        """The option by which the table decides between several rows of a key, None for none."""
        return SEQUENCE if self.is_ordered else self.combined_by


@dataclass(frozen=True)
class Changes:
    """What is known of the stream that goes in.

    Attributes:
        has_kinds: whether its rows are changes; else rows are only added.
        keys: its unique keys; None where that is not known.
        upserts: the key of a stream without UPDATE_BEFORE.
    """

    has_kinds: bool
    keys: UniqueKeys | None = None
    upserts: UpsertKey | None = None

    @classmethod
    def of_schema(cls, schema: dict[str, Any]) -> Self:
        """The stream with this schema, as Spark has it in JSON."""
        has_kinds = any(field["name"] == ROW_KIND_COLUMN for field in schema["fields"])
        return cls(has_kinds, UniqueKeys.of_schema(schema), UpsertKey.of_schema(schema))


@dataclass(frozen=True)
class Choice:
    """The answer, and why; ``is_unproven`` if none are kept, but it is not known whether they should be."""

    is_materialized: bool
    reason: str
    is_unproven: bool = False


def choose(sink: Sink, changes: Changes) -> Choice:
    """Whether a sink keeps the rows of each key.

    >>> by_id = Changes(has_kinds=True, keys=UniqueKeys(((("id",),),)))
    >>> choose(Sink("s", ("id", "day")), by_id).is_materialized, choose(Sink("s", ("day",)), by_id).reason
    (False, 'PRIMARY KEY (day) does not tell the rows of the query apart, (id) does')
    """
    key = f"PRIMARY KEY ({', '.join(sink.key)})"
    if sink.mode == "none":
        return Choice(False, "'sink.materialize' = 'none': that the key tells the rows apart is believed")
    if sink.mode == "force":
        _check_can_be_forced(sink, changes)
        return Choice(True, "'sink.materialize' = 'force'")
    if not sink.key:
        return Choice(False, "the table has no PRIMARY KEY: equal rows are counted")
    if not changes.has_kinds:
        return Choice(False, "rows are only added: each replaces the one of its key")
    if sink.combined_by is not None:
        return Choice(False, f"the table itself combines the rows of a key, by {sink.combined_by!r}")
    if changes.upserts is not None:
        return Choice(False, f"rows of {changes.upserts.of} replace each other by the table's key")
    if changes.keys is None:
        return Choice(False, f"it is not known whether {key} tells the rows apart", is_unproven=True)
    if changes.keys.within(sink.key):
        return Choice(False, f"{key} tells the rows of the query apart")
    told = f", {changes.keys} does" if changes.keys.keys else "; no columns are known that do"
    return Choice(True, f"{key} does not tell the rows of the query apart{told}")


def check_raw(sink: Sink, schema: dict[str, Any]) -> None:
    """Refuse to write a stream with a Spark format alone where the sink must keep the rows of each key."""
    choice = choose(sink, Changes.of_schema(schema))
    if choice.is_materialized:
        raise ConfigurationError(
            f"{sink.name}: {choice.reason}, and a write with the Spark format keeps no rows; use "
            "catalog.write_changes, or say 'sink.materialize' = 'none'"
        )


def _check_can_be_forced(sink: Sink, changes: Changes) -> None:
    why, remedy = None, "leave the option out"
    if not sink.key:
        why = "needs a PRIMARY KEY, got a table without one"
    elif sink.combined_by is not None:
        why = f"needs a table in which a row replaces the earlier one of its key, got {sink.combined_by!r}"
    elif changes.upserts is not None:
        why = f"needs every kind of change, got {changes.upserts.of}, whose rows come without UPDATE_BEFORE"
        remedy = "leave the option out, or read every kind of change"
    if why is not None:
        raise ConfigurationError(f"{sink.name}: 'sink.materialize' = 'force' {why}; {remedy}")
