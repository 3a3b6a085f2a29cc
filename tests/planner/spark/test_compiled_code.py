"""Code that Spark has compiled for kept plans stays, however many there are."""

from typing import Any

import pytest
from pyspark.sql import SparkSession

from planner.spark.few_rows import make_room

pytestmark = pytest.mark.spark

TEXTS = 300


def test_what_was_compiled_once_is_not_compiled_again(spark: SparkSession) -> None:
    """Spark itself remembers 100 texts, which a handful of views needs."""
    assert make_room(spark)
    jvm: Any = spark._jvm
    metrics = getattr(jvm.org.apache.spark.metrics.source, "CodegenMetrics$")
    counted = getattr(metrics, "MODULE$").METRIC_COMPILATION_TIME()
    codegen = jvm.org.apache.spark.sql.catalyst.expressions.codegen
    generator = getattr(getattr(codegen, "CodeGenerator$"), "MODULE$")
    comments = getattr(getattr(jvm.scala.collection.immutable, "Map$"), "MODULE$").empty()

    def compile_all() -> int:
        before = counted.getCount()
        for number in range(TEXTS):
            body = f'public Object generate(Object[] references) {{ return "{number} of {TEXTS}"; }}'
            generator.compile(codegen.CodeAndComment(body, comments))
        return int(counted.getCount() - before)

    assert compile_all() == TEXTS
    assert compile_all() == 0
