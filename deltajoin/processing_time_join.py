"""Enrichment: each row of a stream looks up what a managed table holds when the row is processed.

That is what ``FOR SYSTEM_TIME AS OF`` a processing time means in FLIP-149's dimension join. The table's later
changes do not come back to rows that are out already; where they should, join the changes of both tables.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from deltajoin.enrichment import HOWS, Enrichment, UpsertEnrichment
from upsert import types
from upsert.errors import ConfigurationError, SchemaError
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.schema import Column, TableSchema
from upsert.spark_table import spark_schema
from upsert.store.filters import Where
from upsert.store.table import Table
from upsert.stream_keys import UPSERTS_MARK, UpsertKey

On = str | Sequence[str | tuple[str, str]]


def lookup_join(
    df: DataFrame,
    table: Table | str,
    *,
    on: On,
    how: str = "inner",
    select: Sequence[str] | None = None,
    where: Where | None = None,
    snapshot: int | None = None,
    upsert_key: Sequence[str] = (),
) -> DataFrame:
    """The rows of a stream, each with the current rows of a managed table that match it.

    A task looks all of its rows of a micro-batch up in one snapshot, the latest when it begins; another task
    may see a later one, and so may a micro-batch that is run again after a crash. Should it expire before the
    task is through, the rest is looked up in the latest then. Sinks that write exactly
    once keep what the first run has committed. Spark keeps no state.

    A changelog needs ``upsert_key``: a row that is taken away would look up another version of the table
    than it did when it came, so it could not be taken away as it was put out. Instead the result replaces by
    key: of each key a micro-batch has one row, ``+U`` with the new row and what the table holds now, or
    ``-D`` with the key alone where the row is gone or has no match. Such a result goes into a sink with this
    primary key. The changelog must be right as it is: optimize a join of changelogs first.

    The result has no watermark: declare ``withWatermark`` on it.

    Args:
        df: a DataFrame, streaming or not.
        table: a managed table, such as ``catalog.table(name)``, or its folder.
        on: what must be equal: columns of one name on both sides, or pairs of a column of ``df`` and one of
            the table. Some index of the table must lie within its columns. NULL matches nothing.
        how: "inner", or "left": a row without match has NULLs in the table's columns.
        select: the table's columns to add; None for all but those of ``on``.
        where: which rows of the table, see ``upsert.store.filters``; None for all.
        snapshot: id of the snapshot to look up in; None for the latest of each micro-batch.
        upsert_key: columns of ``df`` by which rows of a changelog are told apart. The table is then to be
            looked up by its PRIMARY KEY or a UNIQUE INDEX, for one match at most.

    Returns:
        The columns of ``df``, then those selected, and ``_row_kind`` last for a changelog.

    Raises:
        ConfigurationError: ``how`` is another one; or ``df`` is a changelog, and there is no ``upsert_key``.
        SchemaError: a column is unknown or would be there twice, or no index serves the lookup.
        TableNotFoundError: there is no such table.

    >>> import tempfile, pyarrow as pa
    >>> schema = TableSchema.of({"user": pa.int64(), "region": pa.string()}, primary_key=["user"])
    >>> users = Table.create(tempfile.mkdtemp() + "/users", schema)
    >>> _ = users.write(pa.table({"user": [1, 2], "region": ["Berlin", "Beijing"]}))
    >>> views = spark.createDataFrame([(1, "/home"), (3, "/cart")], "user BIGINT, page STRING")
    >>> lookup_join(views, users, on="user", how="left").orderBy("user").collect()
    [Row(user=1, page='/home', region='Berlin'), Row(user=3, page='/cart', region=None)]
    """
    opened = table if isinstance(table, Table) else Table.open(table)
    what = f"lookup_join with table {opened.name!r}"
    if how not in HOWS:
        raise ConfigurationError(f"{what}: how must be one of {', '.join(HOWS)}, got {how!r}")
    pairs = _pairs(on)
    selected = _selected(opened.schema, pairs, select)
    _check_names(df, pairs, selected, what)
    enrichment = Enrichment(opened.path, opened.uuid, pairs, selected, how, where, snapshot)
    enrichment.check(opened, what)
    added = spark_schema(opened.schema, row_kind=False)
    fields = [StructField(name, added[name].dataType, True, added[name].metadata) for name in selected]
    if ROW_KIND_COLUMN in df.columns:
        return _upserts(df, enrichment, fields, tuple(upsert_key), what)
    if upsert_key:
        raise ConfigurationError(
            f"{what}: upsert_key is for changelogs, got a stream without {ROW_KIND_COLUMN!r}; leave it out"
        )
    return df.mapInArrow(enrichment, StructType([*df.schema.fields, *fields]))


def _pairs(on: On) -> tuple[tuple[str, str], ...]:
    parts = [on] if isinstance(on, str) else on
    return tuple((part, part) if isinstance(part, str) else (part[0], part[1]) for part in parts)


def _selected(
    schema: TableSchema, pairs: Sequence[tuple[str, str]], select: Sequence[str] | None
) -> tuple[str, ...]:
    if select is None:
        keys = {own for _, own in pairs}
        return tuple(name for name in schema.names if name not in keys)
    for name in select:
        schema.type_of(name, "select")
    return tuple(select)


def _check_names(df: DataFrame, pairs: Sequence[tuple[str, str]], selected: Sequence[str], what: str) -> None:
    if missing := [name for name, _ in pairs if name not in df.columns]:
        raise SchemaError(
            f"{what}: on must name columns of the stream, got {missing[0]!r}; its columns are "
            f"{', '.join(df.columns)}"
        )
    names = [*df.columns, *selected]
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise SchemaError(
            f"{what}: the result must have each column once, got {repeated!r} twice; rename it in the "
            "stream, or leave it out of select"
        )


def _upserts(
    df: DataFrame, enrichment: Enrichment, fields: list[StructField], key: tuple[str, ...], what: str
) -> DataFrame:
    """The result over a changelog: rows that replace each other by key."""
    if not key:
        raise ConfigurationError(
            f"{what}: a row of a changelog that is taken away would look up another version of the table; "
            "give upsert_key, the columns by which a sink replaces rows, or join the changes of both tables, "
            "catalog.read_changes, for results that follow both"
        )
    enrichment.check_finds_one_row(what)
    columns = [field for field in df.schema.fields if field.name != ROW_KIND_COLUMN]
    schema = TableSchema(
        tuple(Column(f.name, types.from_json(f.dataType.jsonValue()), f.nullable) for f in columns), key
    )
    folding = UpsertEnrichment(enrichment, schema)
    own = [StructField(f.name, f.dataType, f.name not in key, f.metadata) for f in columns]
    kind = StructField(ROW_KIND_COLUMN, df.schema[ROW_KIND_COLUMN].dataType, False)
    together = df.repartition(df.sparkSession.sparkContext.defaultParallelism, *map(_quoted, key))
    found = together.mapInArrow(folding, StructType([*own, *fields, kind]))
    mark = UpsertKey(tuple((name,) for name in key), of="lookup_join", is_append=True).to_text()
    names = [_quoted(name) for name in found.columns[:-1]]
    return found.select(*names, F.col(ROW_KIND_COLUMN).alias(ROW_KIND_COLUMN, metadata={UPSERTS_MARK: mark}))


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
