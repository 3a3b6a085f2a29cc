"""Java's packages and classes in the JVM of a session, its maps and sequences, with few calls into the JVM.

Each part of a name is a call, and a dear one for a package: py4j searches all of Spark's jars for a class of
that name first, half a millisecond. A map takes two calls for each entry and ends with an exception, of which
PySpark asks in fifteen calls what it is: ten milliseconds.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast
from weakref import WeakKeyDictionary

from py4j.java_gateway import GatewayClient, JavaClass, JavaMember, JavaPackage
from py4j.protocol import STATIC_PREFIX
from pyspark import SparkContext
from pyspark.sql import Column, DataFrame, SparkSession

from upsert.spark.connect import is_connect

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_names: WeakKeyDictionary[SparkContext, _Names] = WeakKeyDictionary()
_classes: WeakKeyDictionary[SparkContext, dict[str, Any]] = WeakKeyDictionary()
_mappers: WeakKeyDictionary[SparkContext, Any] = WeakKeyDictionary()

_REMEMBERED: Final = "_upsert_"
"""What begins the names of what is kept in Python's side of an object of Java's; no Java method has it."""

_CLASS_UTILS: Final = "org.apache.commons.lang3.ClassUtils"


class _Names:
    """A package or class, and those of its members that were asked for."""

    def __init__(self, java: Any) -> None:
        self._java = java

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._java, name)
        member = _Names(found) if isinstance(found, JavaPackage | JavaClass) else found
        self.__dict__[name] = member
        return member

    def __call__(self, *args: Any) -> Any:
        return self._java(*args)


def java_of(spark: SparkSession) -> Any:
    """All packages, as ``spark._jvm`` has them."""
    context = spark.sparkContext
    if (found := _names.get(context)) is None:
        found = _names[context] = _Names(spark._jvm)
    return found


def is_a(spark: SparkSession, thing: Any, name: str) -> bool:
    """Whether an object of Java's is of a class or interface, by its full name."""
    classes = _classes.setdefault(spark.sparkContext, {})
    if (found := classes.get(name)) is None:
        found = classes[name] = java_of(spark).java.lang.Class.forName(name)
    return bool(found.isInstance(thing))


def remembered(thing: Any, name: str, ask: Callable[[Any], T]) -> T:
    """What is asked of an object of Java's that never changes, as plans do not; asked for once."""
    known, kept = vars(thing), f"{_REMEMBERED}{name}"
    if kept not in known:
        known[kept] = ask(thing)
    return cast("T", known[kept])


def class_name(thing: Any) -> str:
    """The class of an object of Java's or Scala's, without its package; asked for once."""
    return remembered(thing, "class", lambda one: str(_class_names(one._gateway_client)(one)))


@lru_cache(maxsize=4)
def _class_names(client: GatewayClient) -> JavaMember:
    """A function of a library that Spark has: one call, where the class itself takes two, and an object."""
    return JavaMember("getSimpleName", None, f"{STATIC_PREFIX}{_CLASS_UTILS}", client)


def object_of(package: Any, name: str) -> Any:
    """The one instance of a Scala object."""
    return getattr(getattr(package, f"{name}$"), "MODULE$")


def items_of(seq: Any) -> list[Any]:
    """A sequence of Scala as a list."""
    return [seq.apply(number) for number in range(seq.size())]


def seq_of(spark: SparkSession, items: Any) -> Any:
    """A list of Python's or Java's as a sequence of Scala."""
    return java_of(spark).org.apache.spark.api.python.PythonUtils.toSeq(items)


def column_of(spark: SparkSession, sql: str) -> Column:
    """A column by its Spark SQL, in one call; each function of PySpark's takes a dozen."""
    return Column(java_of(spark).org.apache.spark.sql.functions.expr(sql))


def frame_of(spark: SparkSession, plan: Any) -> DataFrame:
    """The DataFrame of a plan of Catalyst's."""
    dataset = java_of(spark).org.apache.spark.sql.classic.Dataset
    return DataFrame(dataset.ofRows(cast("Any", spark)._jsparkSession, plan), spark)


def under_ids(spark: SparkSession, plan: Any, columns: Any) -> Any:
    """Columns of a plan by their names, each under the id of one of ``columns``, which a plan above knows."""
    jvm, nothing = java_of(spark), seq_of(spark, [])
    catalyst, none = jvm.org.apache.spark.sql.catalyst, jvm.scala.Option.empty()
    alias = catalyst.expressions.Alias
    given = {str(one.name()): one for one in items_of(plan.output())}
    named = [
        alias(given[str(one.name())], one.name(), one.exprId(), one.qualifier(), none, nothing)
        for one in items_of(columns)
    ]
    return catalyst.plans.logical.Project(seq_of(spark, named), plan)


def texts_of(spark: SparkSession, texts: Any) -> dict[str, str]:
    """A map of Java's from texts to texts."""
    context = spark.sparkContext
    if (mapper := _mappers.get(context)) is None:
        mapper = _mappers[context] = java_of(spark).com.fasterxml.jackson.databind.ObjectMapper()
    return dict(json.loads(mapper.writeValueAsString(texts)))


def conf_of(spark: SparkSession) -> dict[str, str]:
    """All settings of a session."""
    return spark.conf.getAll if is_connect(spark) else texts_of(spark, spark.conf._jconf.getAllAsJava())
