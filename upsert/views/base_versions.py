"""The snapshots of its tables that a view stands for, and whether the tables still have them."""

from __future__ import annotations

from collections.abc import Mapping

from upsert.errors import TableNotFoundError
from upsert.store.metadata.identity import is_same, uuids
from upsert.store.metadata.snapshot import SnapshotInfo
from upsert.store.table import Table

Versions = Mapping[str, int]
"""A snapshot of each base table, by the table's database and name, or by its uuid."""

Bases = Mapping[str, tuple[str, str]]
"""Folder and uuid of each base table, by the table's database and name."""


def known_versions(view: SnapshotInfo, bases: Bases) -> Versions:
    """The snapshots of its tables that a view stands for.

    A table that was replaced by an older copy has no such snapshot any more, and is left out: its rows are as
    new to the view as those of a table that it has never read. See docs/decisions/0106.
    """
    named = view.base_uuids or {}

    def has(base: str, id: int) -> bool:
        if base not in bases:
            return True
        try:
            history = Table.open(*bases[base]).published
        except TableNotFoundError:  # which a refresh says, with what to do
            return True
        return is_same(history, id, named.get(base, ""))

    return {base: id for base, id in (view.base_versions or {}).items() if has(base, id)}


def uuids_of(versions: Versions, bases: Bases) -> Mapping[str, str] | None:
    """What tells some snapshots of the base tables from others of their numbers; None if nothing is known."""
    histories = {base: Table.open(*at).published for base, at in bases.items() if versions.get(base)}
    found = {base: uuids(history, [versions[base]]) for base, history in histories.items()}
    return {base: uuid for base, known in found.items() for uuid in known.values()} or None
