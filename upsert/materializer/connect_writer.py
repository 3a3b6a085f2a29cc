"""The writer of a stream of Spark Connect whose micro-batches a function writes.

Imports what only `pyspark[connect]` has, so it is imported where such a session is at hand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyspark.sql.connect.streaming.readwriter import DataStreamWriter

from upsert.errors import ConfigurationError
from upsert.spark.task import OfCheckpoint

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.connect.streaming.query import StreamingQuery


class ConnectWriter(DataStreamWriter):
    """Calls a function with each micro-batch, which the checkpoint tells of which query it is."""

    def __init__(self, df: DataFrame, write: Callable[[DataFrame, int], None]) -> None:
        """Of a streaming DataFrame of Spark Connect."""
        of: Any = df
        super().__init__(of._plan, of.sparkSession)
        self._write = write

    def start(self, *args: Any, **kwargs: Any) -> StreamingQuery:
        """Start the query, as Spark's own writer does.

        Raises:
            ConfigurationError: it has no option ``checkpointLocation``.
        """
        given = {**self._write_proto.options, **kwargs}
        checkpoint = next((text for key, text in given.items() if key.lower() == "checkpointlocation"), None)
        if not checkpoint:
            raise ConfigurationError(
                "over Spark Connect a query whose micro-batches are written by a function needs a "
                "checkpoint, which says of which query they are, got none; give "
                "option('checkpointLocation', …)"
            )
        self.foreachBatch(OfCheckpoint(self._write, str(checkpoint)))
        return super().start(*args, **kwargs)
