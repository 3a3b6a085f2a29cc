"""What a SQL text can ask of catalogs and databases, as values (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class CreateCatalog:
    """``CREATE CATALOG c WITH ('warehouse' = 'folder')``: a name for the session."""

    name: str
    options: Mapping[str, str] = field(default_factory=dict)
    if_not_exists: bool = False


@dataclass(frozen=True)
class DropCatalog:
    """``DROP CATALOG``; its tables stay."""

    name: str
    if_exists: bool = False


@dataclass(frozen=True)
class UseCatalog:
    """``USE CATALOG``: where names without a catalog are looked for."""

    name: str


@dataclass(frozen=True)
class ShowCatalogs:
    """``SHOW CATALOGS``, or ``SHOW CURRENT CATALOG``."""

    only_current: bool = False


@dataclass(frozen=True)
class CreateDatabase:
    """``CREATE DATABASE``."""

    name: str
    if_not_exists: bool = False


@dataclass(frozen=True)
class DropDatabase:
    """``DROP DATABASE``; only with CASCADE if it has tables."""

    name: str
    if_exists: bool = False
    cascade: bool = False


@dataclass(frozen=True)
class UseDatabase:
    """``USE database``: where names without a database are looked for."""

    name: str


@dataclass(frozen=True)
class ShowDatabases:
    """``SHOW DATABASES [FROM catalog]``, or ``SHOW CURRENT DATABASE``."""

    only_current: bool = False
    catalog: str | None = None


@dataclass(frozen=True)
class ShowTables:
    """``SHOW TABLES [FROM database] [LIKE 'pattern']``; in the pattern ``%`` and ``_`` stand for others."""

    database: str | None = None
    like: str | None = None
