"""A plan over streams as a batch of one step: the changes of all its tables between two states."""

from __future__ import annotations

from pyspark.sql import DataFrame

from planner.spark.catalyst import Catalyst, JavaObject
from upsert.managed.step import STEP, SUFFIX, Step
from upsert.spark_table import FORMAT


def as_step(catalyst: Catalyst, stream: DataFrame, step: Step) -> DataFrame:
    """The changes that a streaming DataFrame would give for a step, as a batch.

    Each source is read for that step, under the ids of its columns; all that is above stays as it is, so it
    must work row by row.
    """
    return catalyst.dataframe(_stepped(catalyst, catalyst.analyzed(stream), step))


def _stepped(catalyst: Catalyst, node: JavaObject, step: Step) -> JavaObject:
    if catalyst.class_name(node) != "StreamingRelationV2":
        inputs = [_stepped(catalyst, child, step) for child in catalyst.children(node)]
        return catalyst.with_children(node, inputs) if inputs else node
    name, options = catalyst.source(node)
    files = {"scan.source": "files"} if name == FORMAT else {}
    reader = catalyst.session.read.format(name + SUFFIX).options(**options, **files)
    source = catalyst.analyzed(reader.option(STEP.key, step.to_option()).load())
    pairs = zip(catalyst.output(source), map(catalyst.attribute, catalyst.output(node)), strict=True)
    return catalyst.project([catalyst.alias(one, name, id) for one, (id, name, _) in pairs], source)
