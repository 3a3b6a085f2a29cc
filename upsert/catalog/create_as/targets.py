"""The kinds of table that a query can create and fill: managed ones, and those with a connector."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from pyspark.sql.types import StructField, StructType

from upsert.catalog import definitions
from upsert.catalog.connectors import connect
from upsert.catalog.definitions import Definition
from upsert.errors import ConfigurationError, SchemaError
from upsert.managed import frames
from upsert.managed.writer import described_sink
from upsert.materializer.choice import Sink
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.schema import Column, Index, TableSchema
from upsert.spark_table import stored_type
from upsert.store import Table
from upsert.store.table_options import TableOptions
from upsert.stream_keys import UpsertKey

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter


class Target(Protocol):
    """A kind of table that a query can fill: what creating and writing it means."""

    @property
    def name(self) -> str:
        """The table's name."""

    @property
    def schema(self) -> TableSchema:
        """Its columns and keys."""

    def create(self, folder: str) -> None:
        """Create the empty table, or the definition of one that lies elsewhere."""

    def schema_in(self, folder: str) -> TableSchema:
        """The schema of the table that was begun in a folder."""

    def make_outside(self, folder: str) -> tuple[str, ...]:
        """Create what the table lacks outside the warehouse; returns what was created."""

    def check_unused(self, folder: str, spark: SparkSession) -> None:
        """Refuse a folder outside of the warehouse that has rows, before a stream writes into it."""

    def fill(self, folder: str, rows: DataFrame) -> None:
        """Write all rows of a batch DataFrame, in one commit where the table has commits."""

    def write(self, folder: str, changes: DataFrame) -> DataStreamWriter:
        """A writer of a streaming DataFrame."""


def derived_schema(
    name: str,
    rows: StructType,
    *,
    primary_key: Sequence[str] = (),
    partitioned_by: Sequence[str] = (),
    indexes: Iterable[Index] = (),
    comment: str | None = None,
) -> TableSchema:
    """The schema of a table for rows of a DataFrame: its columns but ``_row_kind``, comments included.

    A column is NOT NULL where Spark knows that. Without ``primary_key`` an aggregate over changes, whose rows
    replace each other by its groups, gives the key; any other query gives a table without one.

    Raises:
        SchemaError: two columns have one name, a column has a type that no table can have, or keys and
            indexes do not fit the columns.

    >>> schema = derived_schema("t", StructType().add("id", "long").add("n", "integer"), primary_key=["id"])
    >>> schema.names, schema.primary_key
    (('id', 'n'), ('id',))
    """
    columns = tuple(_column(name, field) for field in rows.fields if field.name != ROW_KIND_COLUMN)
    key = tuple(primary_key) or _group_key(rows)
    try:
        return TableSchema(columns, key, tuple(indexes), tuple(partitioned_by), comment)
    except SchemaError as cause:
        raise SchemaError(f"table {name!r}: {cause}") from None


def _column(table: str, field: StructField) -> Column:
    type_ = stored_type(field, f"table {table!r}")
    return Column(field.name, type_, field.nullable, field.metadata.get("comment"))


def _group_key(rows: StructType) -> tuple[str, ...]:
    """The columns by which rows of an aggregate replace each other; empty if there are none."""
    key = UpsertKey.of_schema(rows.jsonValue())
    if key is None or not all(key.keys):
        return ()
    return tuple(names[0] for names in key.keys) or key.constants[:1]


@dataclass(frozen=True)
class NewManagedTable:
    """A managed table; its first commit shows it."""

    name: str
    schema: TableSchema
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def sink(self) -> Sink:
        """The table as a sink of changes."""
        options = TableOptions.parse(self.options, self.schema, f"table {self.name!r}")
        return described_sink(self.name, self.schema, options)

    def create(self, folder: str) -> None:
        """Make the empty table."""
        Table.create(folder, self.schema, self.options)

    def schema_in(self, folder: str) -> TableSchema:
        """The schema of the table in a folder."""
        return Table.open(folder).schema

    def make_outside(self, folder: str) -> tuple[str, ...]:  # noqa: ARG002
        """Nothing: all of it lies in the warehouse."""
        return ()

    def check_unused(self, folder: str, spark: SparkSession) -> None:
        """Nothing: a new table has no rows."""

    def fill(self, folder: str, rows: DataFrame) -> None:
        """Write all rows, in one commit."""
        frames.write(rows, folder)

    def write(self, folder: str, changes: DataFrame) -> DataStreamWriter:
        """A writer of a stream."""
        return frames.write_changes(changes, folder)


@dataclass(frozen=True)
class NewConnectorTable:
    """A table with a connector: a definition here, and for example a topic elsewhere."""

    name: str
    definition: Definition

    @property
    def schema(self) -> TableSchema:
        """The columns and the key."""
        return self.definition.schema

    @property
    def sink(self) -> Sink:
        """The table as a sink of changes, whether it exists or not."""
        return connect(self.name, self.definition, "").sink

    def create(self, folder: str) -> None:
        """Write the definition."""
        definitions.create(folder, self.definition)

    def schema_in(self, folder: str) -> TableSchema:
        """The schema of the definition in a folder."""
        found = definitions.load(folder)
        if found is None:
            raise ConfigurationError(
                f"table {self.name!r}: the statement has a connector, the table that it began has none; give "
                "another name and checkpoint to start over"
            )
        return found.schema

    def make_outside(self, folder: str) -> tuple[str, ...]:
        """Create what does not exist yet, such as the topic."""
        return connect(self.name, self.definition, folder).prepare()

    def check_unused(self, folder: str, spark: SparkSession) -> None:
        """Refuse a topic or folder that has rows."""
        connect(self.name, self.definition, folder).check_unused(spark)

    def fill(self, folder: str, rows: DataFrame) -> None:
        """Write all rows of a batch."""
        connect(self.name, self.definition, folder).fill(rows)

    def write(self, folder: str, changes: DataFrame) -> DataStreamWriter:
        """A writer of a stream."""
        return connect(self.name, self.definition, folder).write_changes(changes)


def clean_up(folder: str, made: tuple[str, ...]) -> None:
    """Delete what a failed statement has created outside for the table in ``folder``."""
    definition = definitions.load(folder)
    if definition is not None:
        connect("of a failed CREATE TABLE AS", definition, folder).clean_up(made)
