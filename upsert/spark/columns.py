"""A table's columns as Spark has them: their schema, what fits a table, the bucket of a row.

Spark checks no schema when a Python source is written, so it is checked here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.types import ArrayType, DataType, MapType, NullType, StringType, StructField, StructType

from upsert import nested, types
from upsert.errors import CorruptTableError, SchemaError
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.schema import Column, TableSchema
from upsert.spark.version import PYSPARK, SUPPORTED, TIME_DIGITS
from upsert.store.alterations import AddColumn, AddField, Alteration, WidenColumn, WidenPart, altered
from upsert.store.commit.change import check_is_no_view
from upsert.store.rows.conform import is_same_but_for_width
from upsert.store.table import Table
from upsert.stream_keys import UPSERTS_MARK, UpsertKey


def spark_schema(schema: TableSchema, *, row_kind: bool, upserts: bool = False) -> StructType:
    """The table's columns as a Spark schema, comments included; ``_row_kind`` last where asked for.

    Where the rows are upserts without ``-U``, ``_row_kind`` bears a mark that says by which key.

    >>> table = TableSchema.of({"id": pa.int64(), "name": pa.string()}, primary_key=["id"])
    >>> spark_schema(table, row_kind=True).simpleString()
    'struct<id:bigint,name:string,_row_kind:string>'
    """
    fields = [
        {
            "name": column.name,
            "type": column.spark_type,
            "nullable": column.may_be_null,
            "metadata": {"comment": column.comment} if column.comment else {},
        }
        for column in schema.columns
    ]
    if row_kind:
        names = tuple((name,) for name in schema.primary_key)
        key = UpsertKey(names, of="a stream with 'changelog' = 'upsert'", is_append=True)
        mark = {UPSERTS_MARK: key.to_text()} if upserts else {}
        kind = {"name": ROW_KIND_COLUMN, "type": "string", "nullable": False, "metadata": mark}
        fields.append(kind)
    return StructType.fromJson({"type": "struct", "fields": fields})


def check_spark_has(asked: StructType, version: str = PYSPARK) -> None:
    """Refuse columns of a type that tables can have and a version of Spark cannot: it says less of why.

    Raises:
        SchemaError: a column is, or has within it, a TIME of more digits.

    >>> check_spark_has(spark_schema(TableSchema.of({"at": pa.time64("us")}), row_kind=False), "4.2")
    """
    most, lacked = TIME_DIGITS[version], types.time_of(types.MAX_TIME_PRECISION)
    if most == types.MAX_TIME_PRECISION:
        return
    for field in asked.fields:
        if lacked in types.within(types.from_json(field.dataType.jsonValue())):
            raise SchemaError(
                f"column {field.name!r}: a TIME in Spark {version} has at most {most} digits of a second, "
                f"got {type_name(field.dataType)}; leave the column out, or take PySpark {SUPPORTED[-1]}"
            )


def read_columns(asked: StructType, schema: TableSchema, *, of: str) -> tuple[str, ...]:
    """Names of the table's columns that a read gives: any of the table's, in any order, of its types.

    What is ``asked`` for is the table's own schema, or what the user gave with ``.schema(…)``.

    Raises:
        SchemaError: a column is unknown or repeated, has another type, or is NOT NULL where NULL may be.
    """
    declared = {field.name: field for field in spark_schema(schema, row_kind=True)}
    known = set[str]()
    for field in asked.fields:
        own = declared.get(field.name)
        if own is None:
            raise SchemaError(
                f"{of}: unknown column {field.name!r} in .schema(…); columns are {', '.join(declared)}"
            )
        if field.name in known:
            raise SchemaError(f"{of}: .schema(…) names column {field.name!r} twice")
        known.add(field.name)
        if field.dataType != own.dataType or (own.nullable and not field.nullable):
            raise SchemaError(
                f"{of}: column {field.name!r} is {_described(own.dataType, own.nullable)}, "
                f".schema(…) says {_described(field.dataType, field.nullable)}; leave it out, or correct it"
            )
    names = tuple(name for name in asked.names if name != ROW_KIND_COLUMN)
    if not names:
        raise SchemaError(f"{of}: .schema(…) must name at least one column of the table")
    return names


def _described(type_: DataType, nullable: bool) -> str:
    return type_name(type_) + ("" if nullable else " NOT NULL")


def type_name(type_: DataType) -> str:
    """A type of Spark's in the words in which messages name those of tables.

    >>> from pyspark.sql.types import IntegerType, NullType, StructType
    >>> type_name(StructType().add("a", IntegerType())), type_name(NullType())
    ('STRUCT<a: INT>', 'VOID')
    """
    try:
        return types.sql_name(types.from_json(type_.jsonValue()))
    except CorruptTableError:  # a type that no table can have
        return type_.simpleString().upper()


def check_fits(given: StructType, schema: TableSchema, *, of: str, known: Collection[str] = ()) -> None:
    """Refuse a query whose columns are not those of the table, by name and type, in any order.

    ``_row_kind`` may be there, ``known`` columns may be missing: their values come from elsewhere. Types may
    differ in width only, and a nullable column may go into a NOT NULL one: then the store checks every value.

    Raises:
        SchemaError: a column is missing, unknown, repeated or of another type; nothing was written.
    """
    expected = {column.name: column.type for column in schema.columns}
    names = [name for name in given.names if name != ROW_KIND_COLUMN]
    if len(set(given.names)) != len(given.names):
        raise SchemaError(f"{of}: the query names a column twice: {', '.join(given.names)}; rename one")
    if missing := [name for name in expected if name not in names and name not in known]:
        cased = {name.lower(): name for name in names if name not in expected}
        if found := next(((cased[name.lower()], name) for name in missing if name.lower() in cased), None):
            raise SchemaError(
                f"{of}: the query's column {found[0]!r} must be written as that of the table, {found[1]!r}; "
                f"rename it, as in df.withColumnRenamed({found[0]!r}, {found[1]!r})"
            )
        raise SchemaError(
            f"{of}: the query lacks column(s) {', '.join(missing)}; add them, NULL where nothing is known"
        )
    if unknown := [name for name in names if name not in expected]:
        raise SchemaError(
            f"{of}: the query has column(s) {', '.join(unknown)} that the table lacks; "
            f"drop or rename them; its columns are {', '.join(expected)}"
        )
    for field in given.fields:
        wanted = expected.get(field.name, pa.string())
        if not fits(field.dataType, wanted):
            name = types.sql_name(wanted)
            raise SchemaError(
                f"{of}: column {field.name!r} must be {name}, got {type_name(field.dataType)}; "
                f"write CAST({field.name} AS {name}) in the query"
            )


def merge_schema(table: Table, given: StructType, known: Collection[str] = ()) -> None:
    """Add the columns of a query that a table lacks, and widen those that have a wider type in the query.

    All in one alteration: added columns are nullable, and stand last. Nothing is changed where there is none.
    ``known`` columns may be missing, see ``check_fits``.

    Raises:
        SchemaError: a type is none that a table can have, or ALTER TABLE does not take the change.
        ConfigurationError: the table is a materialized view.
    """
    check_is_no_view(table.definition, table.name)
    changes = _merging(table, given)
    check_fits(given, altered(table.definition, changes).schema, of=f"table {table.name!r}", known=known)
    try:
        table.alter(*changes)
    except SchemaError:
        table.published.latest()
        if (left := _merging(table, given)) == changes:
            raise
        table.alter(*left)  # another writer has added some of them


def _merging(table: Table, given: StructType) -> list[Alteration]:
    of, schema = f"table {table.name!r}: 'merge-schema'", table.schema
    placed = {*schema.primary_key, *schema.partitioned_by, *table.options.bucket_key}
    found: list[Alteration] = []
    for field in given.fields:
        if field.name == ROW_KIND_COLUMN or isinstance(field.dataType, NullType):
            continue
        if field.name not in schema.names:
            found.append(AddColumn(replace(column_of(field, of), nullable=True)))
            continue
        present, type_ = schema.type_of(field.name), stored_type(field, of)
        if field.name not in placed and types.widens(present, type_):
            found.append(WidenColumn(field.name, type_))
        else:
            found += _merging_parts((field.name,), present, type_)
    return found


def _merging_parts(path: tuple[str, ...], present: pa.DataType, given: pa.DataType) -> Iterator[Alteration]:
    """Fields that structs of a column lack, and parts of it that have a wider type in a query."""
    if pa.types.is_list(present) and pa.types.is_list(given):
        pairs = {nested.ELEMENT: (present.value_type, given.value_type)}
    elif pa.types.is_map(present) and pa.types.is_map(given):
        pairs = {nested.VALUE: (present.item_type, given.item_type)}
    elif pa.types.is_struct(present) and pa.types.is_struct(given):
        there = {field.name: field.type for field in present}
        pairs = {field.name: (there.get(field.name), field.type) for field in given}
    else:
        return
    for name, (old, new) in pairs.items():
        if old is None:
            yield AddField((*path, name), new)
        elif types.widens(old, new):
            yield WidenPart((*path, name), new)
        else:
            yield from _merging_parts((*path, name), old, new)


def fits(given: DataType, wanted: pa.DataType) -> bool:
    """Whether values of a type of Spark's can be stored in a column, whose type may differ in width only."""
    if isinstance(given, NullType):
        return True
    try:
        return is_same_but_for_width(types.from_json(given.jsonValue()), wanted)
    except CorruptTableError:  # a type that no table can have, like INTERVAL
        return False


def bucket_expression(table: Table) -> str | None:
    """Spark SQL for the bucket of a row, within its partition; None where Spark cannot compute it.

    Without a primary key and a bucket key the bucket comes from a hash of the whole row that Spark does not
    have. Then any task writes to any bucket, and the commit folds what belongs together.
    """
    columns = table.options.bucket_key or table.schema.primary_key
    if table.options.bucket == 1:
        return "0"
    if not columns:
        return None
    listed = ", ".join(stored_text(types.quoted(name), table.schema.column(name)) for name in columns)
    return f"pmod(xxhash64({listed}), {table.options.bucket}L)"


def stored_text(value: str, column: Column) -> str:
    """Spark SQL for a value in the form in which a column stores it, where that is a text with a length.

    A text that is too long stays so, for the store to refuse it.

    >>> from upsert.schema import Length
    >>> stored_text("`c`", Column("c", pa.string(), length=Length(3)))
    'left(`c`, greatest(3, char_length(rtrim(`c`))))'
    """
    if (length := column.length) is None:
        return value
    most = f"greatest({length.characters}, char_length(rtrim({value})))"
    return f"rpad({value}, {most}, ' ')" if length.is_padded else f"left({value}, {most})"


def stored_type(field: StructField, of: str) -> pa.DataType:
    """The type in which a table stores a column of Spark's; a ``SchemaError`` where no table can have it."""
    got = field.dataType.simpleString().upper()
    refusal = f"{of}: column {field.name!r} must be of a type that a table can have, got {got}"
    if has_within(field.dataType, _has_collation):
        raise SchemaError(
            f"{refusal}: its texts are compared by their bytes; write CAST({field.name} AS "
            f"{_without_collation(field.dataType)}) in the query"
        )
    try:
        return types.from_json(field.dataType.jsonValue())
    except CorruptTableError:
        raise SchemaError(f"{refusal}; cast it") from None


def _without_collation(type_: DataType) -> str:
    """A type with texts that have no collation, as SQL names it."""
    return "STRING" if isinstance(type_, StringType) else re.sub(r" collate \w+", "", type_.simpleString())


def _has_collation(type_: DataType) -> bool:
    """Whether a type is that of texts with a collation."""
    return isinstance(type_, StringType) and not type_.isUTF8BinaryCollation()


def has_within(type_: DataType, is_one: Callable[[DataType], bool]) -> bool:
    """Whether a type is one of some, or contains one.

    >>> has_within(ArrayType(StringType()), lambda type_: isinstance(type_, StringType))
    True
    """
    match type_:
        case ArrayType():
            parts = [type_.elementType]
        case MapType():
            parts = [type_.keyType, type_.valueType]
        case StructType():
            parts = [field.dataType for field in type_.fields]
        case _:
            parts = []
    return is_one(type_) or any(has_within(part, is_one) for part in parts)


def column_of(field: StructField, of: str) -> Column:
    """The column of a table that has the values of one of Spark's; a ``SchemaError`` where there is none."""
    type_ = stored_type(field, of)
    fields = field.dataType.simpleString().removeprefix("interval ") if type_ == types.INTERVAL else None
    interval = None if fields == types.WHOLE_INTERVAL else fields
    return Column(field.name, type_, field.nullable, field.metadata.get("comment"), interval=interval)
