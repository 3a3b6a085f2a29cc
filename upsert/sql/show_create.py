"""A table's definition as the text of a CREATE TABLE that makes an equal one (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa

from upsert import types
from upsert.options import MASK, holds_secret
from upsert.schema import Column, ComputedColumn, TableSchema, Watermark
from upsert.types import quoted

_FRAME: Final = ("WITH (", ")")
"""Lines that say nothing by themselves."""
_UNITS: Final = (("DAY", 86_400_000), ("HOUR", 3_600_000), ("MINUTE", 60_000), ("SECOND", 1_000))


def create_text(name: str, schema: TableSchema, options: Mapping[str, str]) -> str:
    """The statement. Values of options that hold secrets are masked.

    >>> import pyarrow as pa
    >>> schema = TableSchema.of({"id": pa.int64(), "name": pa.string()}, primary_key=["id"]).index("name")
    >>> print(create_text("users", schema, {"bucket": "2"}))
    CREATE TABLE `users` (
      `id` BIGINT NOT NULL,
      `name` STRING,
      PRIMARY KEY (`id`) NOT ENFORCED,
      INDEX `INDEX_name` (`name`)
    )
    WITH (
      'bucket' = '2'
    )
    """
    lines = [f"CREATE TABLE {_name(name)} (", *_listed(_elements(schema)), *_clauses(schema, options)]
    return "\n".join(lines)


def view_text(name: str, schema: TableSchema, options: Mapping[str, str], query: str) -> str:
    """The statement that makes an equal materialized view; its columns are those of the query.

    >>> import pyarrow as pa
    >>> schema = TableSchema.of({"id": pa.int64(), "n": pa.int64()}, primary_key=["id"])
    >>> print(view_text("counts", schema, {}, "SELECT id, count(*) AS n FROM t GROUP BY id"))
    CREATE MATERIALIZED VIEW `counts` (
      PRIMARY KEY (`id`) NOT ENFORCED
    )
    AS SELECT id, count(*) AS n FROM t GROUP BY id
    """
    keys = _keys(schema)
    opened = [f"CREATE MATERIALIZED VIEW {_name(name)}" + (" (" if keys else "")]
    return "\n".join([*opened, *(_listed(keys) if keys else ()), *_clauses(schema, options), f"AS {query}"])


WAS_THERE: Final = "was there already"
"""What ``CREATE … IF NOT EXISTS`` says of what is there."""


def was_there(asked: str, found: str) -> str:
    r"""What ``CREATE TABLE IF NOT EXISTS`` says of a table that is there: also in what it is another one.

    Args:
        asked: the text of the statement's table, see `create_text`.
        found: that of the table that is there.

    >>> print(was_there("CREATE TABLE `t` (\n  `a` INT,\n  `b` INT\n)", "CREATE TABLE `t` (\n  `a` INT\n)"))
    was there already, and stays as it was: it has not `b` INT; ALTER TABLE changes it
    """
    wanted, has = ([line.strip().removesuffix(",") for line in text.splitlines()] for text in (asked, found))
    lacks = next((line for line in wanted if line not in has and line not in _FRAME), None)
    more = next((line for line in has if line not in wanted and line not in _FRAME), None)
    if lacks is None and more is None:
        return WAS_THERE
    told = f"has not {lacks}" if more is None else f"has {more}" + ("" if lacks is None else f", not {lacks}")
    return f"{WAS_THERE}, and stays as it was: it {told}; ALTER TABLE changes it"


def view_was_there(word: str, asked: str, found: str) -> str:
    r"""The same of a view by its query, whatever its white space is.

    >>> view_was_there("VIEW", "SELECT a\n  FROM t", "SELECT a FROM t")
    'was there already'
    >>> view_was_there("VIEW", "SELECT b FROM t", "SELECT a FROM t")
    'was there already, and stays as it was: its query is another one; CREATE OR REPLACE VIEW takes this one'
    """
    if asked.split() == found.split():
        return WAS_THERE
    return (
        f"{WAS_THERE}, and stays as it was: its query is another one; CREATE OR REPLACE {word} takes this one"
    )


def plain_view_text(name: str, schema: TableSchema, query: str, *, is_temporary: bool) -> str:
    """The statement that makes an equal view.

    >>> import pyarrow as pa
    >>> print(plain_view_text("v", TableSchema.of({"n": pa.int64()}), "SELECT 1", is_temporary=True))
    CREATE TEMPORARY VIEW `v` (
      `n`
    )
    AS SELECT 1
    """
    opened = f"CREATE {'TEMPORARY ' * is_temporary}VIEW {_name(name)} ("
    return "\n".join([opened, *_listed([*map(quoted, schema.names)]), *_clauses(schema, {}), f"AS {query}"])


def _name(name: str) -> str:
    return ".".join(map(quoted, name.split(".")))


def _listed(elements: Sequence[str]) -> list[str]:
    return [",\n".join(f"  {element}" for element in elements), ")"]


def _clauses(schema: TableSchema, options: Mapping[str, str]) -> list[str]:
    """What follows the parentheses."""
    lines = []
    if schema.comment is not None:
        lines.append(f"COMMENT {text(schema.comment)}")
    if schema.partitioned_by:
        lines.append(f"PARTITIONED BY ({_names(schema.partitioned_by)})")
    if options:
        shown = masked(options)
        pairs = ",\n".join(f"  {text(key)} = {text(value)}" for key, value in shown.items())
        lines.append(f"WITH (\n{pairs}\n)")
    return lines


def masked(options: Mapping[str, str]) -> dict[str, str]:
    """The options, secrets masked.

    >>> masked({"topic": "words", "properties.sasl.password": "pa55"})
    {'topic': 'words', 'properties.sasl.password': '***'}
    >>> masked({"avro-confluent.url": "https://me:pa55@registry"})
    {'avro-confluent.url': '***'}
    """
    return {key: MASK if holds_secret(key, value) else value for key, value in options.items()}


def text(value: str) -> str:
    r"""A text in quotes.

    >>> print(text("it's"))
    'it''s'
    """
    # only what the tokenizer of statements, or who shows lines, would read otherwise
    escaped = value.replace("\\", "\\\\").replace("'", "''").replace("\r", "\\r")
    return f"'{escaped}'"


def type_text(type_: pa.DataType) -> str:
    """A type as CREATE TABLE reads it; names of fields in backquotes, NOT NULL where it was said."""
    if pa.types.is_list(type_):
        return f"ARRAY<{type_text(type_.value_type)}>"
    if pa.types.is_map(type_):
        return f"MAP<{type_text(type_.key_type)}, {type_text(type_.item_type)}>"
    if pa.types.is_struct(type_) and type_ != types.VARIANT:
        fields = (
            f"{quoted(field.name)} {type_text(field.type)}{'' if field.nullable else ' NOT NULL'}"
            for field in type_
        )
        return f"STRUCT<{', '.join(fields)}>"
    return types.sql_name(type_)


def _type_of(column: Column) -> str:
    return type_text(column.type) if column.length is None and column.interval is None else column.sql_type


def _elements(schema: TableSchema) -> list[str]:
    computed = {column.name: column for column in schema.computed}
    found = [
        _computed(computed[name]) if name in computed else _column(schema.column(name))
        for name in declared_names(schema)
    ]
    if schema.watermark is not None:
        found.append(_watermark(schema.watermark))
    checks = (f"CONSTRAINT {quoted(check.name)} CHECK ({check.text})" for check in schema.checks)
    return [*found, *_keys(schema), *checks]


def _keys(schema: TableSchema) -> list[str]:
    key = [f"PRIMARY KEY ({_names(schema.primary_key)}) NOT ENFORCED"] if schema.primary_key else []
    indexes = (
        f"{'UNIQUE ' if index.unique else ''}INDEX {quoted(index.name)} ({_names(index.columns)})"
        for index in schema.indexes
    )
    return [*key, *indexes]


def _column(column: Column) -> str:
    parts = [quoted(column.name), _type_of(column)]
    parts += [] if column.nullable else ["NOT NULL"]
    parts += [] if column.default is None else [f"DEFAULT {column.default}"]
    if column.metadata is not None:
        parts += [f"METADATA FROM {text(column.metadata)}", *(["VIRTUAL"] if column.virtual else [])]
    return " ".join([*parts, *_comment(column.comment)])


def _computed(column: ComputedColumn) -> str:
    declared = f"AS {column.expression}"
    if column.metadata is not None and column.type is not None:
        declared = f"{type_text(column.type)} METADATA FROM {text(column.metadata)} VIRTUAL"
    return " ".join([quoted(column.name), declared, *_comment(column.comment)])


def _comment(comment: str | None) -> list[str]:
    return [] if comment is None else [f"COMMENT {text(comment)}"]


def _watermark(watermark: Watermark) -> str:
    name = quoted(watermark.column)
    delay = watermark.delay_ms
    if not delay:
        return f"WATERMARK FOR {name} AS {name}"
    unit, size = next(((unit, size) for unit, size in _UNITS if delay % size == 0), ("MILLISECOND", 1))
    return f"WATERMARK FOR {name} AS {name} - INTERVAL '{delay // size}' {unit}"


def _names(names: tuple[str, ...]) -> str:
    return ", ".join(map(quoted, names))


def declared_names(schema: TableSchema) -> list[str]:
    """All columns that a read gives, in the order of CREATE TABLE.

    >>> from upsert.sql.parser import parse
    >>> declared_names(parse("CREATE TABLE t (a INT, b AS a + 1, c STRING)").schema)
    ['a', 'b', 'c']
    """
    names = list(schema.names)
    for column in sorted(schema.computed, key=lambda one: one.place):
        names.insert(column.place, column.name)
    return names
