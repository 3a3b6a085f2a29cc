"""Tables with a primary key that can be looked up, and the changelogs they write and read."""

from upsert import errors
from upsert.catalog.catalog import Catalog
from upsert.changelog.operator import normalize
from upsert.kafka.write_upsert import write_upsert
from upsert.rowkind import ROW_KIND_COLUMN, RowKind
from upsert.schema import Column, Index, TableSchema
from upsert.spark_formats import register
from upsert.store import Snapshot, Table, Version

__all__ = [
    "ROW_KIND_COLUMN",
    "Catalog",
    "Column",
    "Index",
    "RowKind",
    "Snapshot",
    "Table",
    "TableSchema",
    "Version",
    "errors",
    "normalize",
    "register",
    "write_upsert",
]
