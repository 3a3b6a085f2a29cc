"""A table as a query reads it: its columns, and the rows that a condition of the store's leaves of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from upsert.catalog.system_tables import read as system_rows
from upsert.catalog.system_tables import split
from upsert.errors import StorageError, TableNotFoundError, UpsertError
from upsert.managed.reader import size_of
from upsert.schema import TableSchema
from upsert.sql.dialect import placed
from upsert.sql.predicates import instant
from upsert.sql.query import AsOf, AsOfKind, Reference
from upsert.store import Table
from upsert.store.files.formats.avro import AvroFormat
from upsert.store.predicate import Where, parse_where
from upsert.store.read.steps import StepSize
from upsert.store.rows.computed import NotInArrowError
from upsert.store.storage import storage_of

if TYPE_CHECKING:
    from upsert.catalog.context import Context
    from upsert.catalog.run.without_spark.settings import Settings


@dataclass(frozen=True)
class Source:
    """A table as a query reads it.

    Attributes:
        types: of its columns, in their order.
        read: gives some columns of the rows of which a condition is true, a piece at a time. Its last
            argument says that only some first rows are wanted. `NotInArrowError` where they may be too many.
        size: about how many bytes of files a read with a condition takes.
        count: about how many rows there are.
        counted: how many there are, exactly; None where they must be read for it.
        schema: None for a system table, which takes no condition.
    """

    types: Mapping[str, pa.DataType]
    read: Callable[[Sequence[str], Where, bool], Iterator[pa.Table]]
    size: Callable[[Where], int]
    count: Callable[[], int]
    counted: Callable[[], int | None]
    schema: TableSchema | None = None

    @property
    def names(self) -> list[str]:
        """Its columns."""
        return [*self.types]


def source_of(context: Context, reference: Reference, settings: Settings, subject: str) -> Source | None:
    """The table of a query; None for what is read by Spark, or of which Spark says what is wrong."""
    name, system = split(reference.name)
    try:
        table_ref = context.databases.resolve(name)
        if (
            not table_ref.exists
            or context.plain_view(name) is not None
            or context.definition(name) is not None
        ):
            return None
        table = context.managed(name)
    except StorageError:
        raise
    except (UpsertError, ValueError):
        return None  # it may be a file, which Spark reads
    if system is not None:
        return _of_system(table, system, reference, subject)
    if table.schema.computed:
        return None
    state = None
    if reference.as_of is not None and (state := _state(table, reference.as_of, settings)) is None:
        return None
    return stored(table, state, settings)


def stored(table: Table, state: int | str | None, settings: Settings) -> Source:
    """The columns of a table that are stored, as of a snapshot or a tag; None: the newest snapshot."""
    snapshot, schema = table.snapshot(state), table.schema

    def read(columns: Sequence[str], where: Where, ends_soon: bool) -> Iterator[pa.Table]:
        asked = parse_where(where, schema)
        needed = {*columns, *asked.columns, *schema.primary_key}
        bytes_read = _bytes_read(table, size_of(snapshot, asked), needed)
        is_large = bytes_read > settings.most_read and not (ends_soon and not where)
        if is_large and snapshot.named_keys(asked) is None:
            raise NotInArrowError("more files than one process reads")
        if not ends_soon:
            snapshot.fetch(asked)
        return snapshot.pieces(columns, where)

    def size(where: Where) -> int:
        return size_of(snapshot, parse_where(where, schema)).bytes

    types = {name: schema.type_of(name) for name in schema.names}
    return Source(types, read, size, lambda: snapshot.row_count, snapshot.counted, schema)


def _bytes_read(table: Table, size: StepSize, columns: Collection[str]) -> int:
    """About how many bytes a read of some columns takes of files of this size.

    All of them where a file is fetched as a whole, where rows are stored one by one, and for a text, whose
    part of a row is not known.
    """
    if not storage_of(table.path).is_local or table.layout.file_form.format == AvroFormat.name:
        return size.bytes
    try:
        bits: int = sum(table.schema.type_of(name).bit_width for name in columns)
    except ValueError:
        return size.bytes
    return min(size.bytes, size.rows * bits // 8)


def _state(table: Table, as_of: AsOf, settings: Settings) -> int | str | None:
    """The snapshot or the tag that a query names; None where Spark is needed to read it."""
    if as_of.kind is AsOfKind.VERSION:
        return int(as_of.value) if as_of.is_number else as_of.value
    if as_of.kind is not AsOfKind.TIMESTAMP:
        return None
    try:
        time = instant(as_of.value, settings.zone)
    except ValueError:
        return None
    return table.published.at_time(int(time.timestamp() * 1000)).id


def _of_system(table: Table, system: str, reference: Reference, subject: str) -> Source | None:
    if reference.as_of is not None:
        return None
    try:
        rows = system_rows(table, system)
    except TableNotFoundError as cause:
        raise TableNotFoundError(placed(f"{subject}: {cause}", reference.position)) from None

    def read(columns: Sequence[str], where: Where, ends_soon: bool) -> Iterator[pa.Table]:  # noqa: ARG001
        return iter([rows.select(columns)])

    types = {field.name: field.type for field in rows.schema}
    return Source(types, read, lambda _: rows.nbytes, lambda: rows.num_rows, lambda: rows.num_rows)
