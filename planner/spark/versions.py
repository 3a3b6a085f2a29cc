"""What differs between the versions of Spark in the classes that the adapter calls, by version.

Catalyst's constructors are not public: a version may add arguments. To support another version, compare the
classes (``javap -cp 'pyspark/jars/*' CLASS``), add it here, and run the tests with it: CONTRIBUTING.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql import SparkSession

from upsert.spark.version import version_of


@dataclass(frozen=True)
class Constructors:
    """What classes of Catalyst's take as arguments.

    Attributes:
        inline_cte: how many the rule ``InlineCTE`` takes.
        incremental_execution: how many the plan of a micro-batch, ``IncrementalExecution``, takes.
        logical_rdd: the flags that are the last ones of a leaf ``LogicalRDD``.
        deduplicate: fields of a ``Deduplicate`` or ``DeduplicateWithinWatermark`` after keys and input.
    """

    inline_cte: int
    incremental_execution: int
    logical_rdd: tuple[bool, ...]
    deduplicate: tuple[str, ...]


CONSTRUCTORS: Final[Mapping[str, Constructors]] = {
    "4.2": Constructors(inline_cte=2, incremental_execution=15, logical_rdd=(), deduplicate=()),
    "4.3": Constructors(
        inline_cte=3, incremental_execution=16, logical_rdd=(False,), deduplicate=("dedupSpec",)
    ),
}


def constructors(spark: SparkSession) -> Constructors:
    """Those of a session's Spark.

    Raises:
        ConfigurationError: that version is not supported.
    """
    return CONSTRUCTORS[version_of(spark)]
