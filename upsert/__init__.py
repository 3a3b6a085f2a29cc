"""Tables with a primary key that can be looked up, and the changelogs they write and read."""

from typing import TYPE_CHECKING

from upsert import errors
from upsert.lazy_names import imported_on_use as _imported_on_use
from upsert.rowkind import ROW_KIND_COLUMN, RowKind
from upsert.schema import Column, Index, TableSchema
from upsert.store import Snapshot, Table, Version

if TYPE_CHECKING:
    from upsert.catalog.catalog import Catalog
    from upsert.changelog.operator import normalize
    from upsert.errors import own_error
    from upsert.kafka.frames import write_upsert
    from upsert.registration import register

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
    "own_error",
    "register",
    "write_upsert",
]

__getattr__, __dir__ = _imported_on_use(
    __name__,
    {
        "Catalog": "upsert.catalog.catalog",
        "normalize": "upsert.changelog.operator",
        "own_error": "upsert.errors",
        "register": "upsert.registration",
        "write_upsert": "upsert.kafka.frames",
    },
    globals(),
)
