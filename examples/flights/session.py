"""The Spark session of a demo's driver process."""

from __future__ import annotations

import tempfile
from typing import Final

from pyspark.sql import SparkSession

# A JVM of the demo lives for a minute, in which the optimizing compiler costs more than it gains: the demo
# took 76 s of processor time with it, 52 s without.
_SHORT_LIVED_JVM: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def start_spark(name: str) -> SparkSession:
    """A local session of two threads, whose JVM has its temporary files where this process has them."""
    scratch = tempfile.gettempdir()
    builder = SparkSession.builder.master("local[2]").appName(name)
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": f'-Djava.io.tmpdir="{scratch}" {_SHORT_LIVED_JVM}',
        "spark.local.dir": scratch,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
