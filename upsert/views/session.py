"""What views need of Spark beyond its public calls: a session of their own, and what a query depends on.

A view's query must mean the same in every session that refreshes it. So it runs in a copy of the session,
with the settings of the one that created the view. The only file of this folder that reaches the JVM.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from upsert.spark_formats import register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ZONE: Final = "spark.sql.session.timeZone"
_ANSI: Final = "spark.sql.ansi.enabled"


def settings(spark: SparkSession) -> tuple[str, bool]:
    """What decides what a query means: the session's time zone, and whether its arithmetic is ANSI SQL's."""
    return str(spark.conf.get(_ZONE)), spark.conf.get(_ANSI) == "true"


def own_session(spark: SparkSession, *, zone: str, is_ansi: bool) -> SparkSession:
    """A session in which a view's query means what it meant in the one that created the view."""
    register(spark)
    return _copy(spark, {_ZONE: zone, _ANSI: str(is_ansi).lower()})


def _copy(spark: SparkSession, settings: Mapping[str, str]) -> SparkSession:
    own = type(spark)(spark.sparkContext, spark._jsparkSession.cloneSession())
    for name, value in settings.items():
        own.conf.set(name, value)
    return own


_SMALL: Final = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.leafNodeDefaultParallelism": "1",
    "spark.sql.autoBroadcastJoinThreshold": "-1",  # a broadcast is a job of its own
    "spark.sql.codegen.wholeStage": "false",  # to generate code takes longer than to compute a few rows
}


def small_session(spark: SparkSession) -> SparkSession:
    """A copy of a session for plans over few rows, all of them in the plan: one task computes each."""
    return _copy(spark, _SMALL)


def settings_of(spark: SparkSession) -> str:
    """The application and all that is set in a session, as one text: what is planned holds for these."""
    return f"{spark.sparkContext.applicationId} {spark._jsparkSession.conf().getAll()}"


def what_it_depends_on(df: DataFrame) -> str | None:
    """What but its tables decides which rows a batch query gives: the clock, the session or chance; or None.

    Spark's own rules fill in what is the same all through one query, and another in the next one.
    """
    plan = df._jdf.queryExecution().analyzed()
    jvm: Any = df.sparkSession._jvm
    optimizer = jvm.org.apache.spark.sql.catalyst.optimizer
    catalogs = df.sparkSession._jsparkSession.sessionState().catalogManager()
    of_clock = (getattr(optimizer, f"{name}$") for name in ("ComputeCurrentTime", "SpecialDatetimeValues"))
    rules = {
        "the clock": [getattr(rule, "MODULE$") for rule in of_clock],  # the one instance of a Scala object
        "the session": [optimizer.ReplaceCurrentLike(catalogs)],
    }
    for what, of_kind in rules.items():
        if not all(rule.apply(plan).fastEquals(plan) for rule in of_kind):
            return what
    return None if plan.deterministic() else "chance"
