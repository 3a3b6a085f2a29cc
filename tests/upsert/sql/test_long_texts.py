"""Texts that are long or deep: read in a time that grows with them, or refused; never an endless search."""

import subprocess
import sys
from collections.abc import Callable
from functools import partial

import pyarrow as pa
import pytest
from sqlglot.dialects.spark import Spark

from tests.forked_python import forked_program
from upsert.errors import SchemaError
from upsert.schema import TableSchema
from upsert.sql.dialect import CatalogDialect, QueryDialect, _read, _tokens, tokens_of
from upsert.sql.parser import parse
from upsert.sql.statements import Select, SetOption
from upsert.sql.tokens import hints_in, without_hints
from upsert.store import Table

N = 2_000
DEEP = {
    "array": f"CREATE TABLE t (id BIGINT, v {'ARRAY<' * N}INT{'>' * N}, PRIMARY KEY (id) NOT ENFORCED)",
    "row": f"CREATE TABLE t (id BIGINT, v {'ROW<f ' * N}INT{'>' * N}, PRIMARY KEY (id) NOT ENFORCED)",
    "map": f"CREATE TABLE t (id BIGINT, v {'MAP<INT, ' * N}INT{'>' * N}, PRIMARY KEY (id) NOT ENFORCED)",
    "computed": f"CREATE TABLE t (id BIGINT, v AS {'(' * N}id{')' * N}, PRIMARY KEY (id) NOT ENFORCED)",
    "brackets": f"SELECT {'(' * N}1{')' * N}",
    "not": f"SELECT {'NOT ' * N} true FROM t",
    "delete": f"DELETE FROM t WHERE {'(' * N}a = 1{')' * N}",
    "update": f"UPDATE t SET a = {'(' * N}1{')' * N} WHERE b = 1",
    "merge": f"MERGE INTO t USING s ON {'(' * N}t.a = s.a{')' * N} WHEN MATCHED THEN DELETE",
    "insert": f"INSERT INTO t SELECT {'ARRAY[' * N}1{']' * N}",
    "partition": f"SHOW PARTITIONS t PARTITION (a = {'(' * N}1{')' * N})",
    "primary key": f"CREATE TABLE t (id BIGINT, PRIMARY KEY {'(' * N}id{')' * N} NOT ENFORCED)",
}


@pytest.mark.parametrize("text", DEEP.values(), ids=DEEP.keys())
def test_what_is_nested_too_deeply_is_refused(text: str) -> None:
    with pytest.raises(SchemaError):
        parse(text)


COMMENT = "/* a * b ** / c **/ -- d\n"


def test_statements_after_many_comments_are_read() -> None:
    assert parse(COMMENT * N + "SET 'a' = 'b'") == SetOption("a", "b")
    assert isinstance(parse(COMMENT * N + "SELECT 1"), Select)
    with pytest.raises(SchemaError, match="SEX is not supported"):
        parse(COMMENT * N + "SEX")
    with pytest.raises(SchemaError):
        parse("/* a *" * N + "SET 'a' = 'b'")


@pytest.mark.parametrize(
    "text",
    ["SET 'a" + "''" * N, "SET " + "a" * N + "!", "SET a" + " " * N + "!"],
)
def test_long_assignments_are_refused(text: str) -> None:
    with pytest.raises(SchemaError):
        parse(text)


@pytest.mark.parametrize("dialect", [CatalogDialect(), QueryDialect()])
def test_words_among_empty_lines_are_where_sqlglot_finds_them(dialect: Spark) -> None:
    for white in ("", " ", "\n", "\n\n  "):
        for words in ("SELECT a\n  FROM t -- b\n;", "/* a\n */\r\nSELECT 'b\n' \n", "", "\t\n a", "a --\n  "):
            text = white + words
            own, expected = (
                [*map(repr, read(text))] for read in (partial(_tokens, dialect), dialect.tokenize)
            )
            assert own == expected, text


def test_many_hints_are_read_one_by_one() -> None:
    text = "t" + ", t /*+ OPTIONS('a' = 'b') */" * 2_000
    assert len(hints_in(text, "query")) == 2_000
    assert without_hints(text, "query", len(text)).split() == ["t,", *["t", ","] * 1_999, "t"]
    with pytest.raises(SchemaError, match="line 2, column 15"):
        hints_in("t,\nt /*+ OPTIONS(a) */", "query")


def test_a_whole_number_of_too_many_digits_is_refused() -> None:
    for text in ("9" * N, "\u00b2"):
        with pytest.raises(SchemaError):
            parse(f"CREATE TABLE t (id DECIMAL({text}, 1), PRIMARY KEY (id) NOT ENFORCED)")


def test_a_pattern_of_many_parts_is_matched_in_a_time_that_ends(tmp_path: object) -> None:
    """In a process of its own, which is ended when it takes too long: a search that goes back never ends."""
    program = f"""
from upsert import Catalog
catalog = Catalog({str(tmp_path)!r})
name = "a" * 100
catalog.sql(f"CREATE TABLE {{name}} (id BIGINT, PRIMARY KEY (id) NOT ENFORCED)")
for pattern, count in (("%a" * 40 + "%b", 0), ("%a" * 40 + "%", 1), ("a_%", 1), ("A%", 0), ("a.%", 0)):
    found = catalog.sql(f"SHOW TABLES LIKE '{{pattern}}'")
    assert found.rows.num_rows == count, pattern
"""
    subprocess.run(forked_program("-c", program), check=True, timeout=120)


@pytest.mark.parametrize("format_", ["arrow", "parquet", "orc", "avro"])
def test_a_type_that_a_format_cannot_read_back_is_refused_when_a_table_is_made(
    tmp_path: object, format_: str
) -> None:
    """The deepest type that is taken is written and read, in files and on the way to them."""
    kinds = {
        "list": (lambda inner: pa.list_(pa.field("element", inner)), lambda value: [value]),
        "struct": (lambda inner: pa.struct([pa.field("f", inner)]), lambda value: {"f": value}),
        "map": (lambda inner: pa.map_(pa.string(), inner), lambda value: [("k", value)]),
    }
    for kind, (nest, wrap) in kinds.items():
        if (format_, kind) == ("orc", "struct"):
            continue  # refused for another reason
        limit = 31 if kind == "map" else 49 if (format_, kind) == ("parquet", "list") else 63
        type_, value = pa.int64(), 1
        for _ in range(limit):
            type_, value = nest(type_), wrap(value)
        schema = TableSchema.of({"id": pa.int64(), "v": type_}, primary_key=["id"])
        table = Table.create(f"{tmp_path}/{kind}", schema, {"file.format": format_})
        table.commit([table.stage_raw(pa.table({"id": [1], "v": pa.array([value], type_)}))])
        assert table.snapshot().scan()["v"].to_pylist() == [value]
        deeper = TableSchema.of({"id": pa.int64(), "v": nest(type_)}, primary_key=["id"])
        with pytest.raises(SchemaError, match="levels deep"):
            Table.create(f"{tmp_path}/deeper", deeper, {"file.format": format_})


@pytest.mark.parametrize("nest", [pa.list_, lambda inner: pa.map_(inner, pa.int64())], ids=["list", "map"])
def test_a_type_of_more_levels_than_python_goes_down_is_refused(
    nest: Callable[[pa.DataType], pa.DataType],
) -> None:
    type_ = pa.int64()
    for _ in range(sys.getrecursionlimit()):
        type_ = nest(type_)
    with pytest.raises(SchemaError, match="levels deep"):
        TableSchema.of({"id": pa.int64(), "v": type_}, primary_key=["id"])


def test_a_text_whose_words_are_kept_weighs_too() -> None:
    """Each part of a statement set is read in a text as long as the set, all around it white."""
    _read.cache.clear()
    tokens_of(" " * 100_000 + "SELECT 1", "query")
    assert 100_000 < _read.cache.currsize < 101_000 < _read.cache.maxsize


def test_of_many_short_texts_the_words_of_the_last_ones_are_kept() -> None:
    """A driver that executes a statement with other values each second would fill what is for long texts."""
    for number in range(1_100):
        tokens_of(f"SELECT {number} FROM t", "query")
    assert len(_read.cache) <= 1_000
