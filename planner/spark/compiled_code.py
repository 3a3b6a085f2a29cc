"""Room for the code that Spark has compiled for the expressions of kept plans.

Spark writes Java for the expressions of an operator each time a task begins, and looks up whether it has
compiled that text before. It remembers 100 texts, in four parts of 25 each; a refresh of a view takes some
ten to fifty. With a handful of views each refresh compiled all of its own again, and the JVM began again to
find out which parts of it are worth being optimized: more than half of the CPU time of a refresh of few rows.
The option ``spark.sql.codegen.cache.maxEntries`` says how many are remembered, and is read before any
session can set it. So the room is made where Spark has it.
"""

from __future__ import annotations

from typing import Final

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from planner.spark.catalyst import JavaObject
from upsert.spark.java import java_of

_ENTRIES: Final = 2_000
"""So many texts are remembered at least; one with its classes takes some 40 kB."""

_GENERATOR: Final = "org.apache.spark.sql.catalyst.expressions.codegen.CodeGenerator$"
_CACHES: Final = "org.sparkproject.guava.cache.LocalCache"


def make_room(spark: SparkSession) -> bool:
    """Let the session's JVM remember so many compiled texts; False if Spark does not have them as expected.

    It has as many as it had then, and a refresh takes longer.
    """
    jvm = java_of(spark)
    class_of, arrays = jvm.java.lang.Class.forName, jvm.java.lang.reflect.Array

    def field(owner: str, name: str) -> JavaObject:
        found = class_of(owner).getDeclaredField(name)
        found.setAccessible(True)
        return found

    try:
        cache = field(_GENERATOR, "cache").get(None).cache()
        of_all = field(f"{_CACHES}$LocalManualCache", "localCache").get(cache)
        parts = field(_CACHES, "segments").get(of_all)
        most = field(f"{_CACHES}$Segment", "maxSegmentWeight")
        count = arrays.getLength(parts)
        for number in range(count):
            part = arrays.get(parts, number)
            most.setLong(part, max(most.getLong(part), -(-_ENTRIES // count)))
    except Py4JError:
        return False
    return True
