"""What views need of Spark beyond its public calls: a session of their own, and what a query depends on.

A view's query must mean the same in every session that refreshes it. So it runs in a copy of the session,
with the settings of the one that created the view; over Spark Connect in the session itself where these are
its own. The only file of this folder that reaches the JVM.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from upsert.registration import register
from upsert.spark.connect import is_connect
from upsert.spark.functions import functions_of
from upsert.spark.java import conf_of, is_a, items_of, java_of, object_of
from upsert.spark.settings import copy_of
from upsert.sql.volatile import functions_in, of_more_than_tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_OF_VARIABLE: Final = re.compile(r"\bvariablereference\(([^=]+)=")
"""As Spark shows it in a plan."""

_ZONE: Final = "spark.sql.session.timeZone"
_ANSI: Final = "spark.sql.ansi.enabled"

_KINDS: Final = (
    *("spark.sql.ansi.", "spark.sql.decimalOperations.", "spark.sql.function.", "spark.sql.legacy."),
    "spark.sql.parser.",
)
_OTHERS: Final = frozenset(
    f"spark.sql.{name}"
    for name in (
        *("analyzer.lowerEmptyGroupingSetToGlobalAggregate.enabled", "caseSensitive", "charAsVarchar"),
        *("chunkBase64String.enabled", "columnNameOfCorruptRecord", "groupByAliases", "groupByOrdinal"),
        *("icu.caseMappings.enabled", "json.enableExactStringParsing", "json.enablePartialResults"),
        *("jsonGenerator.ignoreNullFields", "mapKeyDedupPolicy", "orderByOrdinal"),
        *("preserveCharVarcharTypeInfo", "timestampType", "variant.allowDuplicateKeys"),
    )
)
"""Settings that decide what the text of a query means, by how their names begin, and by their names.

Spark keeps all settings with a view but those of some kinds. Here these are fewer, for the rest are about
how a query is computed, which who refreshes a view may choose.
"""


class Settings(NamedTuple):
    """What of a session decides what a query means.

    Attributes:
        zone: its time zone.
        is_ansi: whether its arithmetic raises errors, as ANSI SQL wants it.
        others: those of the other settings that it has been given; None if that is not known.
    """

    zone: str
    is_ansi: bool
    others: Mapping[str, str] | None


def settings(spark: SparkSession) -> Settings:
    """Those of a session.

    >>> settings(spark).zone
    'UTC'
    """
    return Settings(str(spark.conf.get(_ZONE)), spark.conf.get(_ANSI) == "true", _others(spark))


def _others(spark: SparkSession) -> dict[str, str]:
    given = conf_of(spark)
    return {
        name: value
        for name, value in sorted(given.items())
        if ((name.startswith(_KINDS) and name != _ANSI) or name in _OTHERS)
        and spark.conf.isModifiable(name)  # others hold for all sessions, and none can be given them
    }


def own_session(spark: SparkSession, meant: Settings) -> SparkSession:
    """A session in which a view's query means what it meant in the one that created the view."""
    register(spark)
    present = settings(spark)
    others = present.others or {} if meant.others is None else meant.others
    wanted = {_ZONE: meant.zone, _ANSI: str(meant.is_ansi).lower(), **others}
    if not is_connect(spark):
        own = copy_of(spark, wanted)
    elif present == (meant.zone, meant.is_ansi, others):
        return spark  # its server forgets a copy that rests for an hour
    else:
        client: Any = spark
        own = client.cloneSession()
        for name, value in wanted.items():
            own.conf.set(name, value)
    for name in (present.others or {}).keys() - others.keys():
        own.conf.unset(name)
    return own


_SMALL: Final = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.leafNodeDefaultParallelism": "1",
    "spark.sql.autoBroadcastJoinThreshold": "-1",  # a broadcast is a job of its own
    "spark.sql.codegen.aggregate.map.twolevel.enabled": "false",  # a second map, for many rows of few groups
    "spark.sql.codegen.hugeMethodLimit": "8000",  # the JVM never optimizes larger methods
    "spark.sql.execution.arrow.useLargeVarTypes": "false",
}


def small_session(spark: SparkSession) -> SparkSession:
    """A copy of a session for plans over few rows, all of them in the plan: one task computes each."""
    return copy_of(spark, _SMALL)


def settings_of(spark: SparkSession) -> str:
    """The application and all that is set in a session, as one text: what is planned holds for these."""
    if is_connect(spark):
        return str(spark.conf.getAll)
    return f"{spark.sparkContext.applicationId} {spark._jsparkSession.conf().getAll()}"


class Dependence(NamedTuple):
    """What but its tables a query depends on.

    Attributes:
        on: the clock, the session or chance; over Spark Connect what the text says.
        offset: where that stands in the text that Spark has parsed; None if Spark does not say.
    """

    on: str
    offset: int | None


def what_it_depends_on(df: DataFrame) -> Dependence | None:
    """What but its tables decides which rows a batch query gives: the clock, the session or chance; or None.

    Spark's own rules fill in what is the same all through one query, and another in the next one.
    """
    plan = df._jdf.queryExecution().analyzed()
    jvm = java_of(df.sparkSession)
    optimizer = jvm.org.apache.spark.sql.catalyst.optimizer
    catalogs = df.sparkSession._jsparkSession.sessionState().catalogManager()
    parts = _Parts(df.sparkSession)
    of_clock = ("ComputeCurrentTime", "SpecialDatetimeValues")
    rules = {
        "the clock": [object_of(optimizer, name) for name in of_clock],
        "the session": [optimizer.ReplaceCurrentLike(catalogs)],
    }
    for what, of_kind in rules.items():
        for rule in of_kind:
            filled_in = rule.apply(plan)
            if not filled_in.fastEquals(plan):
                return Dependence(what, _first_offset(parts.changed(plan, filled_in)))
    if not plan.deterministic():
        return Dependence(
            "chance", _first_offset(one for one in parts.below(plan) if not one.deterministic())
        )
    # REPEATABLE does not help: which rows it takes depends on how they lie in files and tasks
    sampled = [node for whole in (plan, *items_of(plan.subqueriesAll())) for node in parts.samples(whole)]
    return Dependence("chance", _first_offset(sampled)) if sampled else None


def what_text_depends_on(spark: SparkSession, text: str) -> Dependence | None:
    """The same for the text of a query over Spark Connect, where there is no plan to ask.

    Functions that are not Spark's own are among it: only the user's own session has them.
    """
    if (found := of_more_than_tables(text)) is not None:
        return Dependence(found.what, found.offset)
    called = functions_in(text)
    own = functions_of(spark, called)
    name = next((name for name in called if name in own), None)
    return None if name is None else Dependence(f"the function {name!r} of this session", called[name])


def variable_in(df: DataFrame) -> Dependence | None:
    """The variable of a session of Spark Connect that a query reads; a copy of a classic session has none."""
    shown: Any = df
    found = _OF_VARIABLE.search(shown._explain_string(extended=True))
    return None if found is None else Dependence(f"the variable {found[1]!r} of this session", None)


@dataclass(frozen=True)
class _Parts:
    """Expressions and nodes of analysed plans, the innermost expressions first."""

    spark: SparkSession

    def below(self, node: Any) -> Iterator[Any]:
        """Those of a plan or of an expression."""
        for one in self._of(node):
            yield from self.below(one)
        if self._is(node, "Expression"):
            yield node

    def samples(self, plan: Any) -> Iterator[Any]:
        """Where a plan, but for its subqueries, takes some of the rows by chance."""
        if is_a(self.spark, plan, "org.apache.spark.sql.catalyst.plans.logical.Sample"):
            yield plan
        for child in items_of(plan.children()):
            yield from self.samples(child)

    def changed(self, old: Any, new: Any) -> Iterator[Any]:
        """Those of a plan or of an expression that are others in a rewritten one."""
        if old.fastEquals(new):
            return
        if old.getClass().equals(new.getClass()):
            for pair in zip(self._of(old), self._of(new), strict=True):
                yield from self.changed(*pair)
        if self._is(old, "Expression"):
            yield old

    def _of(self, node: Any) -> list[Any]:
        """What stands directly below a plan or an expression; the plan of a subquery, too."""
        children = items_of(node.children())
        if not self._is(node, "Expression"):
            return [*items_of(node.expressions()), *children]
        return [*children, node.plan()] if self._is(node, "SubqueryExpression") else children

    def _is(self, node: Any, kind: str) -> bool:
        return is_a(self.spark, node, f"org.apache.spark.sql.catalyst.expressions.{kind}")


def _first_offset(found: Iterable[Any]) -> int | None:
    """Where the first of some expressions or nodes that Spark has parsed stands in the text."""
    offsets = (one.origin().startIndex() for one in found)
    return next((int(offset.get()) for offset in offsets if offset.isDefined()), None)
