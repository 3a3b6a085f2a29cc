"""Listeners of streaming queries that cost the driver little, and can be forgotten."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from pyspark import SparkContext
from pyspark.sql.streaming.listener import JStreamingQueryListener, StreamingQueryListener

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import QueryProgressEvent


class ProgressListener(StreamingQueryListener):
    """Is told the progress of a micro-batch as one text.

    PySpark asks for each figure of it, in 456 calls for a copy of a table. A driver of many queries may have
    dozens of micro-batches a second: then events wait, up to 10,000 of them.
    """

    @abstractmethod
    def progressed(self, text: str) -> None:
        """A micro-batch has ended, with a progress as Spark's JSON."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """The same, as a session of Spark Connect tells it."""
        self.progressed(event.progress.json)

    @property
    def _jlistener(self) -> JavaObject:
        """What the JVM calls; PySpark's own has an attribute of this name."""
        if not hasattr(self, "_jlistenerobj"):
            jvm: Any = SparkContext._jvm
            self._jlistenerobj = jvm.PythonStreamingQueryListenerWrapper(ToldAsText(self))
        return self._jlistenerobj


class ToldAsText(JStreamingQueryListener):
    """Hands on to a `ProgressListener` what the JVM tells."""

    pylistener: ProgressListener

    def onQueryProgress(self, jevent: JavaObject) -> None:  # noqa: N802
        """A micro-batch has ended."""
        self.pylistener.progressed(jevent.progress().json())

    def onQueryIdle(self, jevent: JavaObject) -> None:  # noqa: N802
        """Nothing, before PySpark asks for its figures."""


def stop_listening(spark: SparkSession, listener: StreamingQueryListener) -> None:
    """Let a listener hear no more, and be collected.

    PySpark lets it hold an object of the JVM that holds the listener: neither side would ever be collected.
    """
    spark.streams.removeListener(listener)
    vars(listener).pop("_jlistenerobj", None)
