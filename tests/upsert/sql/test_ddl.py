"""DDL text to statements: what is understood, what is refused, and how the refusal reads."""

import pickle
import re
from collections.abc import Callable

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlglot.dialects.spark import Spark
from sqlglot.tokens import Token

import upsert.schema
from upsert import types
from upsert.conditions.expressions import Condition, Ref
from upsert.errors import ConfigurationError, SchemaError
from upsert.schema import Column, Index, Length, TableSchema
from upsert.sql.columns import metadata_from_comment, parse_columns
from upsert.sql.parser import parse
from upsert.sql.show_create import create_text
from upsert.sql.statements import (
    AlterTable,
    CreateTable,
    DropTable,
    Explain,
    Insert,
    Merge,
    Statement,
    StatementSet,
    Update,
)
from upsert.store.alterations import (
    AddField,
    Alteration,
    DropCheck,
    DropColumn,
    DropField,
    MoveColumn,
    RenameColumn,
    RenameField,
    SetComment,
    SetDefault,
    SetNullable,
    WidenColumn,
    WidenPart,
)


def create(text: str) -> CreateTable:
    statement = parse(text)
    assert isinstance(statement, CreateTable)
    return statement


def test_every_clause_is_read() -> None:
    statement = create(
        """
        create table if not exists orders (  -- a comment
            order_id BIGINT COMMENT 'the customer''s',
            day DATE NOT NULL,
            product STRING,
            amount DECIMAL(12, 2),
            CONSTRAINT pk PRIMARY KEY (day, order_id) NOT ENFORCED,
            INDEX (product),
            INDEX by_amount (amount, product)
        ) COMMENT 'all of them' PARTITIONED BY (day) WITH ('bucket' = '2', 'change-tracking' = 'false');
        """
    )
    assert statement == CreateTable(
        "orders",
        TableSchema(
            (
                Column("order_id", pa.int64(), nullable=False, comment="the customer's"),
                Column("day", pa.date32(), nullable=False),
                Column("product", pa.string()),
                Column("amount", pa.decimal128(12, 2)),
            ),
            ("day", "order_id"),
            (Index("INDEX_product", ("product",)), Index("by_amount", ("amount", "product"))),
            ("day",),
            "all of them",
        ),
        {"bucket": "2", "change-tracking": "false"},
        if_not_exists=True,
    )


def test_key_of_one_column_may_stand_beside_it() -> None:
    expected = create("CREATE TABLE t (a INT, b INT, PRIMARY KEY (a) NOT ENFORCED)")
    assert create("CREATE TABLE t (a INT PRIMARY KEY NOT ENFORCED, b INT)") == expected
    assert create("CREATE TABLE t (a INT CONSTRAINT pk PRIMARY KEY NOT ENFORCED NOT NULL, b INT)") == expected


def test_no_word_is_reserved_for_columns() -> None:
    words = ("index", "primary", "constraint", "watermark", "unique", "select", "comment")
    columns = ", ".join(f"{word} INT" for word in words)
    statement = create(f"CREATE TABLE t ({columns}, INDEX (index), INDEX primary (primary))")
    assert statement.schema.names == words
    assert [str(index) for index in statement.schema.indexes] == [
        "INDEX INDEX_index (index)",
        "INDEX primary (primary)",
    ]


def test_column_named_index_may_have_a_type_with_parameters() -> None:
    assert create("CREATE TABLE t (index DECIMAL(10))").schema.type_of("index") == pa.decimal128(10, 0)


def test_metadata_column_holds_the_key_of_its_name_unless_another_is_given() -> None:
    """The statements of FLIP-107."""
    text = """
        CREATE TABLE t (
            i INT,
            s STRING,
            timestamp TIMESTAMP(3) WITH LOCAL TIME ZONE METADATA,
            myOffset INT METADATA FROM 'offset' VIRTUAL COMMENT 'read only',
            headers MAP<STRING, BYTES> METADATA,
            topic STRING NOT NULL METADATA VIRTUAL,
            metadata STRING METADATA FROM 'value.source.properties',
            d DOUBLE
        )
    """
    assert create(text).schema.columns == (
        Column("i", pa.int32()),
        Column("s", pa.string()),
        Column("timestamp", types.TIMESTAMP, metadata="timestamp"),
        Column("myOffset", pa.int32(), comment="read only", metadata="offset", virtual=True),
        Column("headers", pa.map_(pa.string(), pa.binary()), metadata="headers"),
        Column("topic", pa.string(), nullable=False, metadata="topic", virtual=True),
        Column("metadata", pa.string(), metadata="value.source.properties"),
        Column("d", pa.float64()),
    )


def test_words_of_metadata_are_names_of_columns_too() -> None:
    words = ("metadata", "virtual", "from")
    columns = ", ".join(f"{word} INT" for word in words)
    assert create(f"CREATE TABLE t ({columns})").schema.physical == tuple(
        Column(w, pa.int32()) for w in words
    )


COLUMNS = "word STRING, n BIGINT, ts TIMESTAMP METADATA FROM 'timestamp' VIRTUAL"


def test_columns_alone_are_read_as_within_create_table() -> None:
    inside = create(f"CREATE TABLE t ({COLUMNS}, PRIMARY KEY (word) NOT ENFORCED)").schema
    assert parse_columns(COLUMNS, ["word"]) == inside
    assert parse_columns(COLUMNS + ", PRIMARY KEY (word) NOT ENFORCED") == inside
    assert parse_columns(COLUMNS) == create(f"CREATE TABLE t ({COLUMNS})").schema


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (" ", "columns: expected at least one column, found an empty text"),
        ("-- nothing", "columns: expected at least one word, found an empty text"),
        ("a INT,", "columns: expected a column, PRIMARY KEY or INDEX, found the end of the text"),
        ("a INT)", "columns: expected , or the end of the text, found ')' at line 1, column 6"),
        ("a INT b INT", "columns: expected NOT NULL, METADATA [FROM 'key'] [VIRTUAL], PRIMARY KEY"),
        ("a INT; b INT", "columns: expected one statement at a time"),
        ("a INT, a INT", "columns: column 'a' is declared twice"),
        ("a INT COMMENT 'x", "columns: the text has an open quote or comment"),
        ("a BLOB", "columns: expected a column type"),
        (
            "a INT, INDEX (a)",
            "columns: only managed tables have an INDEX, got INDEX INDEX_a (a); leave it out",
        ),
    ],
)
def test_columns_alone_are_refused_with_the_place(text: str, message: str) -> None:
    with pytest.raises(SchemaError) as error:
        parse_columns(text)
    assert message in str(error.value)


def test_two_primary_keys_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"given twice, by PRIMARY KEY \(a\) .* as 'a, b'; give one"):
        parse_columns("a INT PRIMARY KEY NOT ENFORCED, b INT", ["a", "b"])
    with pytest.raises(SchemaError, match="columns: PRIMARY KEY: unknown column 'c'; columns are a"):
        parse_columns("a INT", ["c"])


@pytest.mark.parametrize(
    ("comment", "declared"),
    [
        ("METADATA", (None, False)),
        ("METADATA VIRTUAL", (None, True)),
        (" metadata  from 'timestamp' ", ("timestamp", False)),
        ("METADATA FROM 'value.source''s' VIRTUAL", ("value.source's", True)),
        ("metadata of the trip", None),
        ("metadata from the producer", None),
        ("METADATA: what the producer said", None),
        ("", None),
    ],
)
def test_comment_may_declare_metadata(comment: str, declared: tuple[str | None, bool] | None) -> None:
    assert metadata_from_comment(comment) == declared


@pytest.mark.parametrize(
    "comment", ["METADATA FROM timestamp", "METADATA VIRTUAL FROM 'a'", "METADATA FROM 'a"]
)
def test_comment_that_begins_like_a_declaration_is_not_passed_over(comment: str) -> None:
    with pytest.raises(SchemaError, match=r"must read METADATA \[FROM 'key'\] \[VIRTUAL\], got"):
        metadata_from_comment(comment)


def test_drop_table_is_read() -> None:
    assert parse("DROP TABLE t") == DropTable("t")
    assert parse("drop table if exists `t`;") == DropTable("t", if_exists=True)


def test_a_column_says_its_length_and_its_default() -> None:
    text = """CREATE TABLE t (
        id VARCHAR(10) PRIMARY KEY NOT ENFORCED, b CHAR(2) NOT NULL DEFAULT 'x' COMMENT 'c',
        c DECIMAL(5, 2) DEFAULT -1.5 CHECK (c < 0), d DATE DEFAULT current_date(),
        e CHARACTER(3) DEFAULT concat('a', 'b'), f DECIMAL(38, 38) DEFAULT -{digits} CHECK (f >= -{digits}),
        CONSTRAINT both CHECK (c < 1 AND b <> 'no') ENFORCED, CHECK (c < 2))"""
    digits = f"0.{'9' * 38}"
    schema = create(text.format(digits=digits)).schema
    assert [(c.sql_type, c.nullable, c.default, c.comment) for c in schema.columns] == [
        ("VARCHAR(10)", False, None, None),
        ("CHAR(2)", False, "'x'", "c"),
        ("DECIMAL(5,2)", True, "-1.5", None),
        ("DATE", True, "current_date()", None),
        ("CHAR(3)", True, "concat('a', 'b')", None),
        ("DECIMAL(38,38)", True, f"-{digits}", None),
    ]
    assert [*map(str, schema.checks)] == [
        "CONSTRAINT CHECK_c CHECK (c < 0)",
        f"CONSTRAINT CHECK_f CHECK (f >= -{digits})",
        "CONSTRAINT both CHECK (c < 1 AND b <> 'no')",
        "CONSTRAINT CHECK_c_2 CHECK (c < 2)",
    ]
    again = parse(create_text("t", schema, {}))
    assert isinstance(again, CreateTable)
    assert again.schema == schema


def test_a_check_may_have_many_parts() -> None:
    text = " AND ".join(f"a <> {n}" for n in range(500))
    schema = create(f"CREATE TABLE t (a INT, CHECK ({text}))").schema
    assert TableSchema.from_json(schema.to_json()) == schema


def test_a_statement_with_many_checks_looks_at_each_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looked at all of those before it, too: 3000 took minutes."""
    looks, own = list[Condition](), upsert.schema.check_is_condition

    def looked(condition: Condition, type_of: Callable[[Ref], pa.DataType]) -> None:
        looks.append(condition)
        own(condition, type_of)

    read, tokenize = list[str](), Spark.tokenize

    def tokenized(dialect: Spark, text: str) -> list[Token]:
        read.append(text)
        return tokenize(dialect, text)

    monkeypatch.setattr("upsert.schema.check_is_condition", looked)
    monkeypatch.setattr(Spark, "tokenize", tokenized)
    text = f"CREATE TABLE t (a INT, {', '.join(f'CHECK (a <> {n})' for n in range(50))})"
    schema = create(text).schema
    assert [check.name for check in schema.checks[:3]] == ["CHECK_a", "CHECK_a_2", "CHECK_a_3"]
    assert len(looks) < 4 * len(schema.checks) == 200
    assert sum(map(len, read)) < 4 * len(text)  # not the blanks behind each of them


def test_what_needs_a_managed_table_is_refused_in_columns_of_a_topic() -> None:
    assert parse_columns("a VARCHAR(10)") == parse_columns("a STRING")
    for columns, what in (
        ("a CHAR(3)", "CHAR(3)"),
        ("a INT DEFAULT 1", "DEFAULT"),
        ("a INT CHECK (a > 0)", "CHECK (a > 0)"),
    ):
        with pytest.raises(SchemaError, match=f"columns: .*{re.escape(what)}.*needs a managed table"):
            parse_columns(columns)


@pytest.mark.parametrize(
    ("name", "type_"),
    [
        ("BOOLEAN", pa.bool_()),
        ("byte", pa.int8()),
        ("SHORT", pa.int16()),
        ("INTEGER", pa.int32()),
        ("long", pa.int64()),
        ("REAL", pa.float32()),
        ("DOUBLE", pa.float64()),
        ("TIMESTAMP", pa.timestamp("us", "UTC")),
        ("TIMESTAMP_LTZ", pa.timestamp("us", "UTC")),
        ("TIMESTAMP_NTZ", pa.timestamp("us")),
        ("DECIMAL", pa.decimal128(10, 0)),
        ("NUMERIC(5)", pa.decimal128(5, 0)),
        ("DEC(38, 38)", pa.decimal128(38, 38)),
        ("ARRAY<ARRAY<INT>>", pa.list_(pa.list_(pa.int32()))),
        ("MAP<STRING, BINARY>", pa.map_(pa.string(), pa.binary())),
        ("BYTES", pa.binary()),
        ("VARBINARY(16)", pa.binary()),
        ("VARCHAR(2147483647)", pa.string()),
        ("TIMESTAMP(3)", pa.timestamp("us")),
        ("TIMESTAMP WITHOUT TIME ZONE", pa.timestamp("us")),
        ("TIMESTAMP(6) WITHOUT TIME ZONE", pa.timestamp("us")),
        ("TIMESTAMP_LTZ(3)", pa.timestamp("us", "UTC")),
        ("TIMESTAMP(3) WITH LOCAL TIME ZONE", pa.timestamp("us", "UTC")),
        ("TIMESTAMP WITH LOCAL TIME ZONE", pa.timestamp("us", "UTC")),
        (
            "ARRAY<ROW<key STRING, value BYTES>>",
            pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])),
        ),
        ("ROW(a INT)", pa.struct([pa.field("a", pa.int32())])),
        (
            "STRUCT<a: INT NOT NULL, `b c` DATE>",
            pa.struct([pa.field("a", pa.int32(), nullable=False), pa.field("b c", pa.date32())]),
        ),
    ],
)
def test_type_of_spark_or_flink_becomes_its_arrow_type(name: str, type_: pa.DataType) -> None:
    assert create(f"CREATE TABLE t (a {name})").schema.type_of("a").equals(type_)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("a VARCHAR(10, 2)", "expected VARCHAR(length), no more numbers"),
        ("a VARCHAR(0)", "column 'a': VARCHAR(0) must have 1 to 2,147,483,647 characters"),
        ("a CHAR", "CHAR needs a length, as in CHAR(10)"),
        ("a ARRAY<CHAR(10)>", "what is inside of ARRAY, MAP and STRUCT has none; use STRING there"),
        (
            "a STRUCT<b VARCHAR(10)>",
            "a column has a length, what is inside of ARRAY, MAP and STRUCT has none",
        ),
        ("a INT DEFAULT 'x'", "column 'a': DEFAULT 'x' must be a value of INT"),
        ("a INT DEFAULT 0.5", "must be a value of INT"),
        ("a TINYINT DEFAULT 128", "must be a value of TINYINT"),
        ("a VARCHAR(2) DEFAULT 'abc'", "must fit into VARCHAR(2); write a shorter text"),
        ("a INT NOT NULL DEFAULT NULL", "must be a value, for the column is NOT NULL"),
        ("b INT, a INT DEFAULT b + 1", "must be one value for all rows of a statement, found 'b'"),
        ("a INT DEFAULT (SELECT 1)", "must be one value for all rows of a statement"),
        ("a DOUBLE DEFAULT rand()", "must be deterministic, found 'RAND()'"),
        ("a STRING DEFAULT", "expected an expression, found ')'"),
        ("a INT DEFAULT 1 +", "the expression is incomplete"),
        ("a INT CHECK (a > 0", "expected , or )"),
        ("a INT CHECK (a > 0) NOT ENFORCED", "a CHECK is enforced for every row; leave NOT ENFORCED out"),
        (
            "a INT CHECK (b > 0)",
            "CHECK (b > 0): unknown column 'b'; use a column that is stored, as a whole: a",
        ),
        ("a STRUCT<b: INT>, CHECK (a.b > 0)", "unknown column 'a.b'"),
        ("a INT, b AS a, CHECK (b > 0)", "unknown column 'b'"),
        ("a INT CHECK (a IN (SELECT 1))", "rows are checked without Spark, so not by 'a IN (SELECT 1)'"),
        ("a STRING CHECK (upper(a) = 'A')", "rows are checked without Spark, so not by 'UPPER(a)'"),
        ("a STRING CHECK (regexp_replace(a, 'b') = 'c')", "so not by \"REGEXP_REPLACE(a, 'b')\""),
        ("a STRING CHECK (a LIKE ANY ('x', 'y'))", "so not by \"ANY ('x', 'y')\""),
        ("a STRING CHECK (a LIKE 'x' ESCAPE '/')", "so not by"),
        ("a TIMESTAMP CHECK (a > '2020-01-01')", "is no TIMESTAMP (it must say its zone)"),
        ("a INT CHECK (a)", "CONSTRAINT CHECK_a CHECK (a): condition a: must be BOOLEAN, is INT"),
        (f"a INT CHECK ({' + '.join(['a'] * 70)} > 0)", "a condition must have at most 64 levels"),
        ("a INT CHECK (a = 'x')", "'x' is no INT; use a literal of that type"),
        ("a INT, b STRING, CHECK (a = b)", "INT and STRING do not compare; use values of one type"),
        (
            "a BOOLEAN, b BOOLEAN, CHECK (a = b IN (true))",
            "in 'a = b IN (TRUE)'; use brackets around each side",
        ),
        ("a BOOLEAN, b INT, CHECK (a = b < 3)", "in 'a = b < 3'; use brackets around each side"),
        ("a BOOLEAN, b INT, CHECK (b IN (1, 2) = a)", "in 'b IN (1, 2) = a'; use brackets"),
        (
            "a INT CHECK (a > 0), b INT, CONSTRAINT check_A CHECK (a > 0)",
            "constraint 'check_a' is declared twice",
        ),
        ("a INTERVAL YEAR", "use INT for months, and make_ym_interval in queries"),
        ("a INTERVAL SECOND TO DAY", "expected a field after SECOND, of DAY, HOUR, MINUTE and SECOND"),
        ("a ARRAY<INTERVAL DAY>", "other fields than DAY TO SECOND are of new columns"),
        ("a TIME(10)", "TIME(precision) needs precision ≤ 9"),
        ("a TIME WITH TIME ZONE", "a time of day has no zone"),
        ("a MONEY", "expected a column type, one of BOOLEAN, "),
        ("a INT(3)", "type INT has no parameters"),
        ("a TIMESTAMP(9)", "a precision of 9 cannot be stored: times have microseconds; use 6"),
        ("a TIMESTAMP WITH TIME ZONE", "cannot be stored; use TIMESTAMP WITH LOCAL TIME ZONE"),
        ("a TIMESTAMP_LTZ(3) WITHOUT TIME ZONE", "expected NOT NULL, METADATA"),
        ("a DECIMAL(39)", "needs 1 ≤ precision ≤ 38"),
        ("a DECIMAL(2, 3)", "scale ≤ precision"),
        ("a DECIMAL(10, -1)", "expected a number, found '-' at line 1, column 31"),
        ("a ARRAY<INT, INT>", "ARRAY<element> has one type"),
        ("a MAP<INT>", "MAP<key, value> has two types"),
        ("a STRUCT<b: INT COMMENT 'x'>", "comments of struct fields are not kept"),
        ("a", "expected a column type"),
        ("", "expected a column, PRIMARY KEY or INDEX, found ')' at line 1, column 17"),
        ("a INT,", "expected a column, PRIMARY KEY or INDEX"),
        ('"a" INT', "expected a column, PRIMARY KEY or INDEX, in backquotes, found 'a'"),
        ("a INT PRIMARY KEY", "expected PRIMARY KEY NOT ENFORCED"),
        ("a INT, PRIMARY KEY (a)", r"expected PRIMARY KEY (a) NOT ENFORCED"),
        ("a INT, PRIMARY KEY (a) ENFORCED", r"expected PRIMARY KEY (a) NOT ENFORCED, found 'ENFORCED'"),
        (
            "a INT PRIMARY KEY NOT ENFORCED, b INT PRIMARY KEY NOT ENFORCED",
            "declared twice; for a key of several columns write PRIMARY KEY (column, …) NOT ENFORCED",
        ),
        ("a INT, PRIMARY KEY (b) NOT ENFORCED", "table 't': PRIMARY KEY: unknown column 'b'; columns are a"),
        ("a INT, INDEX (b)", "table 't': index 'INDEX_b': unknown column 'b'; columns are a"),
        ("a ARRAY<INT>, INDEX (a)", "index 'INDEX_a': column 'a' must be of a scalar type, got ARRAY<INT>"),
        ("a INT, INDEX (a), INDEX (a)", "index 'INDEX_a' is declared twice"),
        ("a INT, a INT", "table 't': column 'a' is declared twice"),
        ("id INT, ID INT", "columns 'id' and 'ID' differ in case alone, which Spark does not tell apart"),
        ("id INT, Id AS id + 1", "columns 'id' and 'Id' differ in case alone"),
        ("a ARRAY<STRUCT<x INT, X INT>>", "column 'a': fields 'x' and 'X' differ in case alone"),
        ("_row_kind STRING", "column name '_row_kind' is reserved"),
        ("a INT GENERATED ALWAYS AS (1)", "GENERATED is not supported; write name AS expression"),
        ("a INT, b AS max(a)", "column 'b': a column is computed from its own row, found 'MAX(a)' at line 1"),
        ("a INT, b AS (SELECT 1)", "a column is computed from its own row"),
        ("a INT, b AS c + 1", "column 'b' AS c + 1: unknown column 'c'; columns are a"),
        ("a INT, b AS a +", "column 'b': the expression is incomplete, found"),
        ("a INT, b AS", "expected an expression, found ')'"),
        ("a INT, a AS 1", "column 'a' is declared twice"),
        ("b AS 1", "a table needs at least one column"),
        ("a METADATA", "expected a column type, one of"),
        ("a INT METADATA", "a table needs at least one column that is no METADATA column"),
        ("b INT, a INT METADATA FROM offset", "expected a metadata key in quotes, found 'offset'"),
        ("b INT, a INT VIRTUAL", "VIRTUAL belongs to METADATA; write METADATA [FROM 'key'] VIRTUAL"),
        ("b INT, a INT METADATA METADATA", "expected NOT NULL, METADATA"),
        (
            "b INT, a INT METADATA PRIMARY KEY NOT ENFORCED",
            "must be a physical column, got a METADATA column",
        ),
        ("a INT, WATERMARK FOR a AS a", "WATERMARK: column 'a' must be a TIMESTAMP, got INT"),
        (
            "a TIMESTAMP(3), WATERMARK FOR a AS a",
            "'a' must be a TIMESTAMP_LTZ(3) or TIMESTAMP",
        ),
        ("a INT, WATERMARK FOR b AS b", "WATERMARK: unknown column 'b'"),
        ("a TIMESTAMP, WATERMARK FOR a AS b", "WATERMARK FOR a must be a or a - INTERVAL 'number' unit"),
        ("a TIMESTAMP, WATERMARK FOR a AS a - 5", "expected INTERVAL, found '5'"),
        ("a TIMESTAMP, WATERMARK FOR a AS a - INTERVAL '1' MONTH", "expected a number of seconds, minutes"),
        ("a TIMESTAMP, WATERMARK FOR a AS a - INTERVAL '0.0001' SECOND", "expected a number of seconds"),
        ("a TIMESTAMP, WATERMARK FOR a AS a, WATERMARK FOR a AS a", "a table has one WATERMARK"),
        ("a INT, UNIQUE (a)", "UNIQUE belongs to an index; write UNIQUE INDEX (column, …)"),
        ("a INT UNIQUE", "a column is not UNIQUE by itself; add UNIQUE INDEX (column)"),
        ("a INT, UNIQUE INDEX (a)", "INDEX INDEX_a (a) needs a PRIMARY KEY"),
        ("a INT, FOREIGN KEY (a) REFERENCES b (a)", "foreign keys are not supported"),
    ],
)
def test_columns_that_cannot_be_had_are_refused(columns: str, message: str) -> None:
    with pytest.raises(SchemaError) as error:
        parse(f"CREATE TABLE t ({columns})")
    assert message in str(error.value)
    assert str(error.value).startswith("table 't': ")


@pytest.mark.parametrize(
    ("rest", "message"),
    [
        ("AS SELECT 1", "CREATE TABLE … AS SELECT takes its columns from its query"),
        ("USING parquet", "USING is not supported: use WITH ('connector' = 'name'), or neither"),
        ("LOCATION '/x'", "LOCATION is not supported"),
        ("TBLPROPERTIES ('a' = 'b')", "use WITH ('key' = 'value')"),
        ("COMMENT 'a' COMMENT 'b'", "each at most once, found 'COMMENT' at line 1, column 36"),
        ("COMMENT a", "expected a comment in quotes, found 'a'"),
        ("PARTITIONED BY a", "expected (, found 'a'"),
        ("PARTITIONED BY (b)", "PARTITIONED BY: unknown column 'b'"),
        ("PARTITIONED BY (bucket(3, a))", "expected , or ), found '('"),
        ("WITH (bucket = 2)", "expected the key of an option in quotes, found 'bucket'"),
        ("WITH ('bucket' = 2)", "expected the value of option 'bucket' in quotes, found '2'"),
        ("WITH ('a' = '1', 'a' = '2')", "option 'a' is given twice"),
        ("surplus", "expected COMMENT, PARTITIONED BY or WITH"),
    ],
)
def test_clauses_that_cannot_be_had_are_refused(rest: str, message: str) -> None:
    with pytest.raises(SchemaError) as error:
        parse(f"CREATE TABLE t (a INT) {rest}")
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("CREATE GLOBAL TEMPORARY VIEW v AS SELECT 1", "CREATE GLOBAL TEMPORARY VIEW"),
        ("ALTER FUNCTION f", "ALTER FUNCTION"),
    ],
)
def test_other_statements_are_refused_by_name(text: str, name: str) -> None:
    with pytest.raises(SchemaError) as error:
        parse(text)
    assert str(error.value).startswith(f"{name} is not supported: statements are CREATE TABLE, DROP TABLE, ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SELEC 1", "SELEC is no statement; did you mean SELECT?"),
        ("SHOW TABELS", "SHOW TABELS is no statement; did you mean SHOW TABLES?"),
        (
            "INSERT INTO t SELECT 1 ON CONFLICT DO NOTHING",
            "ON CONFLICT is not supported: 'merge-engine'",
        ),
        ("SELECT * FROM a JOIN b ON conflict = 1 GRUP BY x", "goes on like this, found 'GRUP' at line 1"),
        ("SHOW CREATE", "SHOW is no whole statement; there are SHOW MATERIALIZED VIEWS, SHOW VIEWS, "),
        ("CREATE", "CREATE is no whole statement; there are CREATE "),
        ("CREATE x", "CREATE is no whole statement; there are CREATE "),
        ("DROP TEMP x", "DROP TEMP is no whole statement; there are DROP TEMP VIEW, DROP TEMP TABLE, "),
        ("ALTER TABEL t COMPACT", "ALTER TABEL is no statement; did you mean ALTER TABLE?"),
        ("CREATE INDEX i ON t (a)", "CREATE INDEX is not supported; write ALTER TABLE t ADD INDEX (column)"),
        (
            "EXPLAIN ANALYZE SELECT 1",
            "EXPLAIN: there is one form, and FORMAT JSON; leave the word out",
        ),
        ("EXPLAIN CHANGELOG_MODE SELECT 1", "leave the word out, found 'CHANGELOG_MODE' at line 1, column 9"),
        ("EXPLAIN SHOW TABLES", "EXPLAIN: the statement must be SELECT, INSERT, MERGE, "),
        ("CREATE TABLE t a INT", "expected ( and the table's columns, COMMENT, PARTITIONED BY or WITH"),
        ("CREATE TABLE t (a INTT)", "expected a column type, such as INT, found 'INTT' at line 1"),
        ("CREATE TABLE t (a INT, PRIMARY KEY a)", "expected PRIMARY KEY (column, …) NOT ENFORCED, found 'a'"),
        ("OPTIMIZE t", "OPTIMIZE is not supported; write CALL compact('t')"),
        ("TRUNCATE t", "TRUNCATE is not supported; write TRUNCATE TABLE t"),
        ("", "statement: expected at least one word, found an empty text"),
        (" ; -- nothing", "statement: expected at least one word, found an empty text"),
        ("'text'", "expected a statement, one of CREATE TABLE, DROP TABLE, "),
        ("'text'", "found 'text' at line 1, column 1"),
        ("CREATE OR REPLACE TABLE t (a INT)", "only CREATE OR REPLACE TABLE … AS SELECT is supported"),
        ("CREATE TABLE a.b.c.d (a INT)", "found '.' at line 1, column 19"),
        ("CREATE TABLE `a.b` (a INT)", "a name must be 1 to 128 letters from A to Z, digits and _"),
        ("DROP TABLE a; DROP TABLE b", "expected one statement at a time, so that none is left half done"),
        ("DROP TABLE a PURGE", "DROP TABLE: expected the end of the statement, found 'PURGE'"),
        ("CREATE TABLE 'a' (a INT)", "expected the name of a table, in backquotes, found 'a'"),
        ("CREATE TABLE `` (a INT)", "expected the name of a table, found ''"),
        ("CREATE TABLE t LIKE", "expected the name of a table"),
        ("CREATE OR REPLACE TABLE t LIKE u", "only CREATE OR REPLACE TABLE … AS SELECT is supported"),
        ("CREATE TABLE t", "expected ( and the table's columns, or AS and a query, found the end"),
        ("CREATE TABLE t (a INT", "found the end of the text"),
        ("CREATE TABLE t (\n  a INT,\n  b BLOB)", "found 'BLOB' at line 3, column 5"),
        ("CREATE TABLE t (a INT COMMENT 'x)", "statement: the text has an open quote or comment"),
    ],
)
def test_text_that_is_no_statement_is_refused(text: str, message: str) -> None:
    with pytest.raises(SchemaError) as error:
        parse(text)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("RESTORE t TO VERSION AS OF 1", "write CALL rollback_to('t', snapshot)"),
        ("DESCRIBE HISTORY t", "write SELECT * FROM t$snapshots"),
        ("UNDROP TABLE t", "DROP TABLE has deleted the rows"),
        ("COPY INTO t FROM '/a'", "write INSERT INTO t SELECT * FROM parquet.`folder`"),
        ("LOAD DATA INPATH 'a' INTO TABLE t", "write INSERT INTO t SELECT * FROM parquet.`folder`"),
        ("CONVERT TO DELTA parquet.`/a`", "write CREATE TABLE t (PRIMARY KEY (id) NOT ENFORCED) AS SELECT"),
        ("COMMENT ON TABLE t IS 'a'", "write ALTER TABLE t COMMENT 'text'"),
        ("CREATE TABLE u SHALLOW CLONE t", "clones are not supported: use CREATE TABLE … LIKE"),
        ("CREATE TABLE t (a INT) CLUSTER BY (a)", "rows are sorted by the primary key; use INDEX (columns)"),
        ("CREATE TABLE t (a INT GENERATED ALWAYS AS IDENTITY)", "identity columns are not supported"),
        ("CREATE TABLE t (a INT GENERATED BY DEFAULT AS IDENTITY)", "identity columns are not supported"),
        ("CREATE TABLE t (a INT GENERATED ALWAYS AS (b))", "write name AS expression"),
        ("ALTER TABLE t SET TBLPROPERTIES ('a' = 'b')", "use SET ('key' = 'value')"),
        ("ALTER TABLE t UNSET TBLPROPERTIES ('a')", "use RESET ('key')"),
        ("ALTER TABLE t CHANGE COLUMN a b INT", "use RENAME COLUMN a TO b, or MODIFY a type"),
        (
            "ALTER TABLE t ALTER COLUMN a UP",
            "expected TYPE, COMMENT, SET or DROP DEFAULT, SET or DROP NOT NULL, FIRST or AFTER",
        ),
        ("ALTER TABLE t ALTER COLUMN a AFTER", "expected the name of a column"),
        ("ALTER TABLE t DROP PRIMARY KEY", "the primary key cannot change"),
        ("INSERT INTO t REPLACE USING (a) SELECT 1", "INSERT INTO t REPLACE WHERE condition query alone"),
        ("CREATE MATERIALIZED TABLE t AS SELECT 1", "write CREATE MATERIALIZED VIEW"),
        ("CREATE LIVE TABLE t AS SELECT 1", "write CREATE MATERIALIZED VIEW"),
        ("CREATE OR REPLACE DYNAMIC TABLE t AS SELECT 1", "write CREATE MATERIALIZED VIEW"),
        ("CREATE OR REFRESH STREAMING TABLE t AS SELECT 1", "then CREATE TABLE t AS"),
        ("CREATE OR REFRESH MATERIALIZED VIEW v AS SELECT 1", "write CREATE OR REPLACE MATERIALIZED VIEW"),
        ("CREATE MATERIALIZED VIEW v SCHEDULE EVERY 1 HOUR AS SELECT 1", "use REFRESH MATERIALIZED VIEW"),
        ("CREATE MATERIALIZED VIEW v REFRESH EVERY 1 HOUR AS SELECT 1", "use REFRESH MATERIALIZED VIEW"),
        ("REFRESH v", "write REFRESH MATERIALIZED VIEW v"),
        ("VACUUM live", "write CALL expire_snapshots('t')"),
        ("ALTER VIEW dynamic AS SELECT 1", "write CREATE OR REPLACE VIEW v AS query"),
        ("ALTER VIEW v AS SELECT 1", "write CREATE OR REPLACE VIEW v AS query"),
        ("CANCEL JOB 'a'", "write STOP JOB 'id'"),
        ("CREATE FUNCTION f AS 'a'", "write CREATE TEMPORARY FUNCTION"),
        ("SELECT * FROM t MATCH_RECOGNIZE (PARTITION BY a PATTERN (A))", "MATCH_RECOGNIZE is not supported"),
        (
            "SELECT 1 FROM HOP(DATA => TABLE t, SLIDE => DESCRIPTOR(a))",
            "arguments have no names; write HOP(TABLE",
        ),
        ("BEGIN TRANSACTION", "each statement is one commit"),
        ("COMMIT", "each statement is one commit"),
    ],
)
def test_what_other_systems_write_is_refused_with_what_is_written_here(text: str, remedy: str) -> None:
    with pytest.raises(SchemaError) as error:
        parse(text)
    assert remedy in str(error.value)


def test_explain_of_a_statement_set_may_leave_out_execute() -> None:
    found = parse("EXPLAIN STATEMENT SET BEGIN INSERT INTO t SELECT 1; INSERT INTO u SELECT 2; END")
    assert isinstance(found, Explain)
    assert isinstance(found.statement, StatementSet)
    assert [insert.name for insert in found.statement.inserts] == ["t", "u"]


NAMES = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=6).filter(
    lambda name: name != "_row_kind"
)
TEXTS = st.text(st.characters(exclude_categories=("C",)), max_size=8)
COMMENTS = st.none() | TEXTS
METADATA = st.just((None, False)) | st.tuples(TEXTS, st.booleans())
SCALARS = st.sampled_from(list(types.SCALARS.values())) | st.integers(1, 38).flatmap(
    lambda precision: st.integers(0, precision).map(lambda scale: pa.decimal128(precision, scale))
)


def nested(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    field = st.tuples(NAMES, inner, st.booleans())
    fields = st.lists(field, min_size=1, max_size=3, unique_by=lambda f: f[0])
    return st.one_of(
        inner.map(lambda element: pa.list_(pa.field("element", element))),
        st.tuples(inner, inner).map(lambda pair: pa.map_(pair[0], pa.field("value", pair[1]))),
        fields.map(lambda fs: pa.struct([pa.field(n, t, nullable=null) for n, t, null in fs])),
    )


TYPES = st.recursive(SCALARS, nested, max_leaves=4)


@st.composite
def statements(draw: st.DrawFn) -> CreateTable:
    names = draw(st.lists(NAMES, min_size=1, max_size=5, unique=True))
    first, *others = names
    columns = (
        Column(first, draw(TYPES), draw(st.booleans()), draw(COMMENTS)),
        *(Column(n, draw(TYPES), draw(st.booleans()), draw(COMMENTS), *draw(METADATA)) for n in others),
    )
    scalars = [c.name for c in columns if types.is_scalar(c.type) and c.metadata is None]
    intervals = {c.name for c in columns if c.type == types.INTERVAL}
    some = st.permutations(scalars).flatmap(lambda order: st.integers(0, len(order)).map(lambda n: order[:n]))
    key = draw(some)
    partitions = draw(st.permutations(key))[: draw(st.integers(0, len(key)))] if key else draw(some)
    partitions = [name for name in partitions if name not in intervals]
    indexed = draw(st.dictionaries(NAMES, some, max_size=2))
    indexes = tuple(
        Index(name, tuple(of), unique=bool(key) and draw(st.booleans())) for name, of in indexed.items() if of
    )
    schema = TableSchema(columns, tuple(key), indexes, tuple(partitions), draw(COMMENTS))
    options = draw(st.dictionaries(NAMES, TEXTS, max_size=2))
    return CreateTable(draw(NAMES.filter(lambda name: "." not in name)), schema, options, draw(st.booleans()))


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def text_literal(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"


def type_text(type_: pa.DataType) -> str:
    if pa.types.is_list(type_):
        return f"ARRAY<{type_text(type_.value_type)}>"
    if pa.types.is_map(type_):
        return f"MAP<{type_text(type_.key_type)}, {type_text(type_.item_type)}>"
    if pa.types.is_struct(type_):
        return f"STRUCT<{', '.join(field_text(field) for field in type_)}>"
    return types.sql_name(type_)


def field_text(field: pa.Field) -> str:
    return f"{quoted(field.name)}: {type_text(field.type)}{'' if field.nullable else ' NOT NULL'}"


def column_text(column: Column) -> str:
    comment = "" if column.comment is None else f" COMMENT {text_literal(column.comment)}"
    metadata = "" if column.metadata is None else f" METADATA FROM {text_literal(column.metadata)}"
    clauses = [
        "" if column.nullable else " NOT NULL",
        metadata,
        " VIRTUAL" if column.virtual else "",
        comment,
    ]
    return f"{quoted(column.name)} {type_text(column.type)}{''.join(clauses)}"


def names_text(names: tuple[str, ...]) -> str:
    return f"({', '.join(map(quoted, names))})"


def index_text(index: Index) -> str:
    return f"{'UNIQUE ' if index.unique else ''}INDEX {quoted(index.name)} {names_text(index.columns)}"


def statement_text(statement: CreateTable) -> str:
    schema = statement.schema
    elements = [column_text(column) for column in schema.columns]
    elements += [f"PRIMARY KEY {names_text(schema.primary_key)} NOT ENFORCED"] if schema.primary_key else []
    elements += [index_text(index) for index in schema.indexes]
    options = ", ".join(f"{text_literal(k)} = {text_literal(v)}" for k, v in statement.options.items())
    return " ".join(
        [
            "CREATE TABLE",
            "IF NOT EXISTS" if statement.if_not_exists else "",
            quoted(statement.name),
            f"({', '.join(elements)})",
            "" if schema.comment is None else f"COMMENT {text_literal(schema.comment)}",
            f"PARTITIONED BY {names_text(schema.partitioned_by)}" if schema.partitioned_by else "",
            f"WITH ({options})" if options else "",
        ]
    )


@given(statements())
def test_any_schema_written_as_ddl_is_read_back_as_itself(statement: CreateTable) -> None:
    assert parse(statement_text(statement)) == statement


WORDS = ("CREATE TABLE t (", "a", "INT", "ARRAY <", "INDEX", "(", ",", ")", ">", "'", "`", ";", "WITH")


@given(st.text(max_size=40) | st.lists(st.sampled_from(WORDS)).map(" ".join))
def test_any_other_text_is_refused_by_our_own_error(text: str) -> None:
    try:
        found: Statement | None = parse(text)
    except SchemaError:
        found = None
    assert found is None or isinstance(found, CreateTable | DropTable)


def test_statements_can_be_sent_to_another_process() -> None:
    statement = create("CREATE TABLE t (a INT) WITH ('bucket' = '2')")
    assert pickle.loads(pickle.dumps(statement)) == statement


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("ADD COLUMN a.b INT", (AddField(("a", "b"), pa.int32()),)),
        ("DROP COLUMN a.b", (DropField(("a", "b")),)),
        ("DROP COLUMNS (a.element.b, c)", (DropField(("a", "element", "b")), DropColumn("c"))),
        ("DROP a.b", (DropField(("a", "b")),)),
        ("DROP (`index`, c)", (DropColumn("index"), DropColumn("c"))),
        ("RENAME COLUMN a.b TO c", (RenameField(("a", "b"), "c"),)),
        ("RENAME a TO b", (RenameColumn("a", "b"),)),
        (
            "MODIFY (a BIGINT COMMENT 'n' AFTER b, c.d BIGINT)",
            (
                WidenColumn("a", pa.int64()),
                SetComment("a", "n"),
                MoveColumn("a", "b"),
                WidenPart(("c", "d"), pa.int64()),
            ),
        ),
        ("MODIFY watermark BIGINT", (WidenColumn("watermark", pa.int64()),)),
        ("ALTER COLUMN a.value.b TYPE BIGINT", (WidenPart(("a", "value", "b"), pa.int64()),)),
        ("MODIFY a.b BIGINT", (WidenPart(("a", "b"), pa.int64()),)),
        (
            "ADD COLUMNS (a.element.`b c` STRING, m.value.x DATE)",
            (AddField(("a", "element", "b c"), pa.string()), AddField(("m", "value", "x"), pa.date32())),
        ),
        ("ALTER COLUMN a TYPE VARCHAR(9)", (WidenColumn("a", pa.string(), Length(9)),)),
        ("MODIFY a STRING", (WidenColumn("a", pa.string()),)),
        ("ALTER COLUMN a SET DEFAULT 'x' || 'y'", (SetDefault("a", "'x' || 'y'"),)),
        ("ALTER COLUMN a DROP DEFAULT", (SetDefault("a", None),)),
        ("ALTER COLUMN a SET NOT NULL", (SetNullable("a", nullable=False),)),
        ("ALTER COLUMN a DROP NOT NULL", (SetNullable("a", nullable=True),)),
        ("MODIFY a INT NOT NULL", (WidenColumn("a", pa.int32()), SetNullable("a", nullable=False))),
        ("ALTER COLUMN a FIRST", (MoveColumn("a", ""),)),
        ("MODIFY a BIGINT AFTER b", (WidenColumn("a", pa.int64()), MoveColumn("a", "b"))),
        ("DROP CONSTRAINT IF EXISTS c", (DropCheck("c", if_exists=True),)),
    ],
)
def test_alter_table_says_what_changes(text: str, changes: tuple[Alteration, ...]) -> None:
    assert parse(f"ALTER TABLE t {text}") == AlterTable("t", changes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ADD COLUMN a.b INT NOT NULL", "existing rows have NULL in a field that is added; leave it out"),
        ("ADD COLUMN a.b INT FIRST", "a field of a struct has no comment, and becomes the last one"),
        ("ADD COLUMN a. INT NULL", "expected a column type"),
        ("ALTER COLUMN a.b SET DEFAULT 3", "expected TYPE: a part of a column has no comment, no DEFAULT"),
        (
            "ADD COLUMN x INT, ADD COLUMN y INT",
            "several changes are one list; write ADD (a type, b type), found ','",
        ),
        ("DROP COLUMN x, DROP COLUMN y", "write DROP COLUMNS (a, b), found ','"),
        ("MODIFY x BIGINT, y BIGINT", "write MODIFY (a type, b type), found ','"),
        ("RENAME COLUMN x TO y, z TO a", "write a statement for each change, found ','"),
        ("RENAME COLUMN a.b TO c.d", "expected the end of the statement, found '.'"),
        ("ADD COLUMN a INT CHECK (a > 0)", "CHECK (a > 0) is added by itself"),
        ("ADD CHECK (a > 0)", "a constraint gets a name; write ADD CONSTRAINT name CHECK (…)"),
        ("ADD CONSTRAINT p PRIMARY KEY (a)", "the primary key cannot change"),
        ("ALTER COLUMN a SET DEFAULT", "expected an expression, found the end of the text"),
    ],
)
def test_what_alter_table_cannot_do_is_refused(text: str, message: str) -> None:
    with pytest.raises(SchemaError) as error:
        parse(f"ALTER TABLE t {text}")
    assert message in str(error.value)


def test_values_may_be_defaults() -> None:
    update = parse("UPDATE t SET a = DEFAULT, b = `DEFAULT`, c = 'DEFAULT' WHERE d = 1")
    assert isinstance(update, Update)
    assert update.defaults == {"a"}
    assert update.rows.over(["v"]).text.split("FROM")[0] == (
        "SELECT *,  NULL AS `:new_value_0`,  `DEFAULT` AS `:new_value_1`,  'DEFAULT' AS `:new_value_2` "
    )
    merge = parse(
        "MERGE INTO t USING s ON t.a = s.a WHEN MATCHED THEN UPDATE SET b = default, c = s.b "
        "WHEN NOT MATCHED THEN INSERT (a, t.b, c) VALUES (a, DEFAULT, DEFAULT)"
    )
    assert isinstance(merge, Merge)
    assert [clause.defaults for clause in merge.clauses] == [{"b"}, {"b", "c"}]
    insert = parse("INSERT INTO t VALUES (1, DEFAULT, f(DEFAULT, 'DEFAULT')), (DEFAULT, '(', DEFAULT)")
    assert isinstance(insert, Insert)
    filled = insert.query.with_defaults(["10", "20", "30"]).worded.text.strip()
    assert filled == "VALUES (1, 20, f(DEFAULT, 'DEFAULT')), (10, '(', 30)"
