"""The Spark format ``delta-join``: the changes of all tables of a join as one source. Wiring only.

One source reads all tables, so that one offset pins all their versions: see `deltajoin.spark.reader`.
"""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.types import StructType

from deltajoin.spark.blobs import BLOBS, ChangesReader
from deltajoin.spark.fused import JoiningReader
from deltajoin.spark.options import FORMAT, SourceOptions
from deltajoin.spark.tables import JoinedTables
from deltajoin.spark.tasks import output_type


class DeltaJoinSource(DataSource):
    """The format ``delta-join``; made for ``deltajoin.read_join``. See ``deltajoin.spark.options``."""

    @classmethod
    def name(cls) -> str:
        """``delta-join``."""
        return FORMAT

    def schema(self) -> StructType | str:
        """The join's columns and ``_row_kind``; or shards, and the changes in them."""
        options = SourceOptions.parse(self.options)
        return output_type(JoinedTables.open(options.spec)) if options.gives_joined else BLOBS

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """A stream read."""
        options = SourceOptions.parse(self.options)
        return JoiningReader(options, schema) if options.gives_joined else ChangesReader(options)


def register(spark: SparkSession) -> None:
    """Make the format ``delta-join`` known to a session; doing it again changes nothing."""
    spark.dataSource.register(DeltaJoinSource)
