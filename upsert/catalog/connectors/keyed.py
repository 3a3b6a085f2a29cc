"""Tables with a key in another system, as the catalog writes changes into them: what all of them share."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from upsert.catalog.connectors.base import Connector
from upsert.errors import ConfigurationError
from upsert.materializer.choice import Sink
from upsert.materializer.keyed_sink import KeyedSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter


class KeyedConnector(Connector):
    """A table whose sink is a `KeyedSink`: each micro-batch counts once."""

    @property
    @abstractmethod
    def keyed(self) -> KeyedSink:
        """What writes into the table."""

    @property
    def sink(self) -> Sink:
        """The table as a sink of changes."""
        return self.keyed.sink

    def write_changes(self, df: DataFrame) -> DataStreamWriter:
        """A writer of changes, or of upserts."""
        return self.keyed.write_changes(df)

    def write_upsert(self, df: DataFrame) -> DataStreamWriter:
        """A writer in update mode."""
        return self.keyed.write_upsert(df)

    def fill(self, df: DataFrame) -> None:
        """Write the rows of CREATE TABLE AS; refuses existing rows."""
        self.check_unused(df.sparkSession)
        self.write(df)


def has_rows_already(shown: str) -> ConfigurationError:
    """What CREATE TABLE AS would fill has rows, which a new table would have beside its own."""
    return ConfigurationError(
        f"{shown}: CREATE TABLE AS needs an empty table, got one with rows; create the table without AS and "
        "INSERT INTO it"
    )
