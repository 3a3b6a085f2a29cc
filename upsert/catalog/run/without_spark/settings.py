"""How a session reads SQL, where it is known without one: Spark's defaults, in a time zone."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from upsert.catalog.run.assignments import has_ansi_casts
from upsert.catalog.run.scans import is_read_otherwise, zone
from upsert.spark.connect import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from upsert.catalog.context import Context

MOST_BYTES: Final = 64 << 20
"""Of rows that are kept to be joined, grouped or written; Spark gives more of them to its tasks."""

_MOST_READ: Final = 512 << 20
"""Of files, where neither a key nor a LIMIT says that few rows are read, and of rows that are the result."""

_MOST_READ_BESIDE_EXECUTORS: Final = 64 << 20
"""The same where Spark's tasks would be on other machines, which may have the files already."""


@dataclass(frozen=True)
class Settings:
    """How a session reads SQL: as Spark does by default, in a time zone; None: an unknown one.

    ``most_read`` is how many bytes of files this process reads sooner than Spark, and of rows a SELECT may
    give. Without ``is_ansi`` values of two types may meet in another one: an INT and a FLOAT in a FLOAT.
    """

    zone: str | None
    most_read: int
    is_ansi: bool = True

    @classmethod
    def of(cls, context: Context, spark: SparkSession | None, text: str) -> Settings | None:
        """Those of a session, for None of one that is still to come; None if it may read a text otherwise."""
        return cls.to_come(context) if spark is None else cls._of_session(spark, text)

    @classmethod
    def to_come(cls, context: Context) -> Settings | None:
        """Those of a session that is still to come; None if it may not read SQL by default."""
        given = {**context.settings, **context.options.forwarded()}
        of_sql = {key: value for key, value in given.items() if key.startswith("spark.sql.")}
        own = of_sql.pop(_ZONE, None)
        if of_sql or _are_said_elsewhere(os.environ):
            return None
        if own is None:
            return cls(_zone_of_machine(os.environ), _MOST_READ)
        return cls(own, _MOST_READ) if _is_zone(own) else None

    @classmethod
    def _of_session(cls, spark: SparkSession, text: str) -> Settings | None:
        """Those of a session; None if it may read a text otherwise, or is one whose files are elsewhere."""
        if is_connect(spark) or is_read_otherwise(spark, text):
            return None
        if any(spark.conf.get(name, default) != default for name, default in _BY_DEFAULT.items()):
            return None
        own, most_read = zone(spark), _most_read(spark.conf.get("spark.master", ""))
        return cls(own if _is_zone(own) else None, most_read, has_ansi_casts(spark))


def _most_read(master: str | None) -> int:
    """How many bytes are read here sooner than by the tasks of a session with this master.

    >>> _most_read("local[4]") > _most_read("yarn")
    True
    """
    return _MOST_READ if (master or "").startswith("local") else _MOST_READ_BESIDE_EXECUTORS


_BY_DEFAULT: Final = {
    "spark.sql.groupByAliases": "true",
    "spark.sql.groupByOrdinal": "true",
    "spark.sql.orderByOrdinal": "true",
    "spark.sql.stableDerivedColumnAlias.enabled": "false",
    "spark.sql.execution.arrow.useLargeVarTypes": "false",
}
"""What numbers and names mean in GROUP BY and ORDER BY, what results are called, and their types in Arrow."""

_ZONE: Final = "spark.sql.session.timeZone"
_OF_SUBMIT: Final = (
    "PYSPARK_SUBMIT_ARGS",
    "SPARK_SUBMIT_OPTS",
    "JAVA_TOOL_OPTIONS",
    "JDK_JAVA_OPTIONS",
    "_JAVA_OPTIONS",
)
_MODES: Final = ("SPARK_ANSI_SQL_MODE", "SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_API_MODE")
"""Variables by which all sessions of an environment have other settings."""


def _are_said_elsewhere(environ: Mapping[str, str]) -> bool:
    """Whether Spark's configuration may say how SQL is read."""
    if any(environ.get(name) for name in _MODES):
        return True
    if any(
        "spark.sql" in environ.get(name, "") or "spark.remote" in environ.get(name, "") for name in _OF_SUBMIT
    ):
        return True
    home = environ.get("SPARK_HOME") or _home_of_pyspark()
    folder = environ.get("SPARK_CONF_DIR") or os.path.join(home, "conf")
    try:
        text = Path(folder, "spark-defaults.conf").read_text(encoding="utf-8")
    except FileNotFoundError:
        return False
    except (OSError, UnicodeDecodeError):
        return True  # Spark says what is wrong with it
    return "spark.sql" in text or "spark.remote" in text


def _home_of_pyspark() -> str:
    import pyspark

    return os.path.dirname(os.path.abspath(pyspark.__file__))


def _zone_of_machine(environ: Mapping[str, str]) -> str | None:
    """The zone that Java takes for this machine's; None where it is not sure."""
    if any("user.timezone" in environ.get(name, "") for name in _OF_SUBMIT):
        return None
    if (name := environ.get("TZ")) is not None:
        return name if _is_zone(name) else None
    name = os.path.realpath("/etc/localtime").partition("/zoneinfo/")[2]
    try:
        told = Path("/etc/timezone").read_text(encoding="utf-8").strip()
    except OSError:
        told = name
    return name if name == told and _is_zone(name) else None


def _is_zone(name: str) -> bool:
    """Whether Java, Python and Arrow know a zone by the name."""
    try:
        return bool(ZoneInfo(name).key) and not name.startswith(("posix", "right"))
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return False
