"""The kinds of table that a query can create and fill: managed ones, and those with a connector."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from upsert.catalog import persistence
from upsert.catalog.connectors import connect
from upsert.catalog.persistence import Definition
from upsert.errors import ConfigurationError
from upsert.managed import frames
from upsert.managed.writer import described_sink
from upsert.materializer.choice import Sink
from upsert.schema import TableSchema
from upsert.store import Table
from upsert.store.table_options import TableOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter


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
        """The table as a sink of changes; it need not be anywhere."""
        return connect(self.name, self.definition, "").sink

    def create(self, folder: str) -> None:
        """Write the definition."""
        persistence.create(folder, self.definition)

    def schema_in(self, folder: str) -> TableSchema:
        """The schema of the definition in a folder."""
        found = persistence.load(folder)
        if found is None:
            raise ConfigurationError(
                f"table {self.name!r}: the statement has a connector, the table that it began has none; give "
                "another name and checkpoint to begin anew"
            )
        return found.schema

    def make_outside(self, folder: str) -> tuple[str, ...]:
        """Create what does not exist yet, such as the topic."""
        return connect(self.name, self.definition, folder).prepare()

    def check_unused(self, folder: str, spark: SparkSession) -> None:
        """Refuse a place that has rows."""
        connect(self.name, self.definition, folder).check_unused(spark)

    def fill(self, folder: str, rows: DataFrame) -> None:
        """Write all rows of a batch."""
        connect(self.name, self.definition, folder).fill(rows)

    def write(self, folder: str, changes: DataFrame) -> DataStreamWriter:
        """A writer of a stream."""
        return connect(self.name, self.definition, folder).write_changes(changes)


def clean_up(folder: str, made: tuple[str, ...]) -> None:
    """Take away what a statement that failed has made outside for the table in ``folder``."""
    definition = persistence.load(folder)
    if definition is not None:
        connect("of a failed CREATE TABLE AS", definition, folder).clean_up(made)
