"""What a connector is: a table whose rows lie elsewhere, as the catalog reads and writes it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from upsert.errors import ConfigurationError
from upsert.materializer.choice import Sink
from upsert.materializer.keyed_sink import KeyedSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from upsert.catalog.connectors.mirror import Mirror
    from upsert.store.table import Table

MIRRORED: Final = "'upsert-kafka', or a PRIMARY KEY and a format of Debezium"
"""Which topics have a mirror, in words for errors: those with all changes of a key in one partition."""


class Connector(ABC):
    """One table with a connector. What only some kinds have to do is nothing for the others."""

    mirror: Mirror | None
    """The managed table with its rows that it may have for joins and streams; None where it has none."""

    is_looked_up: ClassVar[bool] = False
    """Whether there are rows of keys alone: only a plan with lookups can read what `lookup_rows` gives."""

    @property
    @abstractmethod
    def sink(self) -> Sink:
        """The table as a sink of changes."""

    @property
    def sink_key(self) -> tuple[str, ...]:
        """The columns by which a row replaces an older one; () if rows are only added."""
        return self.sink.key

    @property
    def kept_in(self) -> str | None:
        """The folder of what its queries keep, each by its id; None where none keeps anything."""
        return None

    @property
    def has_order(self) -> bool:
        """Whether the table itself decides between two rows of one key."""
        return False

    @property
    def is_upsert(self) -> bool:
        """Whether it is an upsert topic, which holds the newest rows of keys, and deletions of keys alone."""
        return False

    def read_changes(self, spark: SparkSession, **options: object) -> DataFrame:  # noqa: ARG002
        """The changes of the table, or its new rows, as a stream; ``options`` replace those of the table."""
        raise self.without_mirror()

    def read(self, spark: SparkSession) -> DataFrame:  # noqa: ARG002
        """The rows of the table now."""
        raise self.without_mirror()

    def read_some(self, spark: SparkSession, columns: Sequence[str] | None) -> DataFrame:  # noqa: ARG002
        """The rows of the table now; with fewer columns where all are not needed (None: they are)."""
        return self.read(spark)

    def lookup_rows(self, spark: SparkSession, columns: Sequence[str] | None) -> DataFrame:  # noqa: ARG002
        """The rows for ``FOR SYSTEM_TIME AS OF PROCTIME()``; with fewer columns where all are not needed."""
        return self.read(spark)

    @abstractmethod
    def write_changes(self, df: DataFrame) -> DataStreamWriter:
        """A writer of the rows of a stream."""

    @abstractmethod
    def write_upsert(self, df: DataFrame) -> DataStreamWriter:
        """A writer in update mode, for aggregates whose rows replace each other."""

    @abstractmethod
    def write(self, df: DataFrame) -> None:
        """Write the rows of a batch DataFrame."""

    def check_target(self, session: Callable[[], SparkSession]) -> None:  # noqa: B027
        """Refuse, when the table is created, what it stands for, if that does not fit.

        ``session`` gives the Spark session of the statement, or refuses that there is none.
        """

    def check_unused(self, spark: SparkSession) -> None:  # noqa: B027
        """Refuse what has rows already, which a table of CREATE TABLE AS would have beside its own."""

    def fill(self, df: DataFrame) -> None:
        """Write the rows of CREATE TABLE AS."""
        self.write(df)

    def prepare(self) -> tuple[str, ...]:
        """Create what CREATE TABLE AS needs elsewhere; the names of what was not there."""
        return ()

    def clean_up(self, made: tuple[str, ...]) -> None:  # noqa: B027
        """Delete what ``prepare`` has made."""

    def keep_mirror(
        self,
        spark: SparkSession,  # noqa: ARG002
        trigger: Mapping[str, Any],  # noqa: ARG002
        checkpoints: str | None,  # noqa: ARG002
    ) -> StreamingQuery:
        """The query of this session that keeps the mirror, which only some connectors have."""
        raise self.without_mirror()

    def bring_mirror_along(self) -> None:
        """Let the mirror, if it was begun, have the columns, indexes and options that the table has now."""
        if self.mirror is not None:
            self.mirror.bring_along()

    def mirror_table(self) -> Table:
        """The mirror, which must have been begun, to be read: only its own query writes into it."""
        if (found := None if self.mirror is None else self.mirror.table()) is None:
            raise self.without_mirror()
        return found.refusing_changes(
            f"table {found.name!r}: its mirror must have the rows of what it mirrors, got others; write them "
            f"with INSERT INTO {found.name}, and the query that keeps the mirror brings them"
        )

    @abstractmethod
    def without_mirror(self) -> ConfigurationError:
        """Why there is no mirror, or none that was begun, and what to do instead."""


class KeyedConnector(Connector):
    """A table with a key in another system, whose sink is a `KeyedSink`: each micro-batch counts once."""

    state: str

    @property
    def kept_in(self) -> str | None:
        """The folder for the rows of keys that do not tell the rows of a query apart."""
        return self.state

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
