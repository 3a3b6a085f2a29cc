"""What a DDL text can ask for, as values (pure). They know no parser, so that only DDL loads one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from upsert.schema import TableSchema


@dataclass(frozen=True)
class CreateTable:
    """``CREATE TABLE``: the name, what the table looks like, and its options as they were written."""

    name: str
    schema: TableSchema
    options: Mapping[str, str] = field(default_factory=dict)
    if_not_exists: bool = False


@dataclass(frozen=True)
class DropTable:
    """``DROP TABLE``."""

    name: str
    if_exists: bool = False


Statement = CreateTable | DropTable
