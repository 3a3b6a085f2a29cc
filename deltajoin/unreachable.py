"""Lookups that a path needs and no index serves, in words (pure)."""

from __future__ import annotations

from dataclasses import dataclass

from upsert.errors import SchemaError


@dataclass(frozen=True)
class Unreachable:
    """A lookup that a path needs and no index serves: table, columns, and whose changes need it."""

    table: int
    name: str
    by: tuple[str, ...]
    driver: int
    driver_name: str

    def __str__(self) -> str:
        where = f"table {self.name!r} (t{self.table})"
        if not self.by:
            return (
                f"{where}: changes of {self.driver_name!r} (t{self.driver}) must find its rows by an "
                "equality, there is none; add a condition t.column = other.column to the join"
            )
        columns = ", ".join(self.by)
        return (
            f"{where}: a PRIMARY KEY, a prefix of it or an INDEX must lie within the join columns "
            f"({columns}) by which changes of {self.driver_name!r} (t{self.driver}) find its rows, there is "
            f"none; declare INDEX ({columns}) in its CREATE TABLE"
        )


class NoLookupError(SchemaError):
    """A path needs a lookup that no index serves: ``lookup`` says which."""

    def __init__(self, lookup: Unreachable) -> None:
        super().__init__(str(lookup))
        self.lookup = lookup
