"""Rows of Spark's own join of two changelogs, whose signs are still those of the inputs, consolidated.

A join is bilinear: of two signed rows it makes a row with the product of their signs, and what a micro-batch
adds to a join over signed rows is the change of the join. So Spark's stream-stream join is right over
changes, if it does not see the kinds, keeps every row of both inputs in its state for ever, the rows that
took others away among them, and what cancels is left out afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyspark.sql.functions as F
from pyspark.sql import DataFrame
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType, VariantType

from deltajoin.core.consolidate import consolidate_changes
from deltajoin.core.rows import Changes
from upsert.rowkind import ROW_KIND_COLUMN, RowKind, signs
from upsert.spark.batches import from_spark

CONSOLIDATED_MARK: Final = "deltajoin.net"
"""Metadata key of the columns that held the kinds of the inputs, by which the planner knows the operator."""
_KIND_PREFIX: Final = "_kind_"


def consolidate_join(joined: DataFrame, kinds: Sequence[int], shards: int) -> DataFrame:
    """The consolidated changes of each micro-batch of a signed join: ``c0``, ``c1`` … and ``_row_kind``.

    Equal rows meet in one task by their hash, one task a shard, which holds its rows of a micro-batch in
    memory. Nothing is kept between micro-batches, so a replayed one gives the same rows. Columns are taken by
    position, for their names may repeat; ``kinds`` are those of the inputs' kinds: one where an input is a
    stream of rows. Kinds that come out are ``+I`` or ``-D``.
    """
    own = [number for number in range(len(joined.columns)) if number not in kinds]
    names = {number: f"c{position}" for position, number in enumerate(own)}
    names |= {number: f"{_KIND_PREFIX}{position}" for position, number in enumerate(kinds)}
    named = joined.toDF(*(names[number] for number in range(len(names))))
    marked = [
        F.col(names[number]).alias(names[number], metadata={CONSOLIDATED_MARK: True}) for number in kinds
    ]
    signed = named.select(*(names[number] for number in own), *marked)
    fields = [signed.schema[names[number]] for number in own]
    hashed = [field.name for field in fields if _has_hash(field.dataType)]
    shard = F.pmod(F.xxhash64(*hashed), F.lit(shards)).cast("int") if hashed else F.lit(0)
    result = StructType([*fields, StructField(ROW_KIND_COLUMN, StringType())])
    return signed.repartitionById(shards, shard).mapInArrow(consolidate_rows, result)


def consolidate_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Consolidated rows of one task's part of a micro-batch, with ``_row_kind`` instead of the inputs' kinds.

    >>> kinds = {"_kind_0": ["+I", "-U", "-D"], "_kind_1": ["+U", "+I", "-D"]}
    >>> [batch.to_pylist() for batch in consolidate_rows([pa.record_batch({"c0": [1, 1, 2], **kinds})])]
    [[{'c0': 2, '_row_kind': '+I'}]]
    """
    parts = list(from_spark(batches))
    if not parts:
        return
    rows = pa.Table.from_batches(parts)
    kinds = [name for name in rows.column_names if name.startswith(_KIND_PREFIX)]
    product = np.prod([signs(rows.column(name)) for name in kinds], axis=0)
    kind = np.where(product > 0, RowKind.INSERT.value, RowKind.DELETE.value)
    changes = rows.drop_columns(kinds).append_column(ROW_KIND_COLUMN, pa.array(kind, pa.string()))
    yield from consolidate_changes(Changes(changes)).rows.to_batches()


def _has_hash(type_: DataType) -> bool:
    """Whether Spark's hash takes the type; rows that differ in no other column meet all the same."""
    match type_:
        case MapType() | VariantType():
            return False
        case ArrayType():
            return _has_hash(type_.elementType)
        case StructType():
            return all(_has_hash(field.dataType) for field in type_.fields)
    return True
