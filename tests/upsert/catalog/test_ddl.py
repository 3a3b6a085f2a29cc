"""DDL text to statements: what is understood, what is refused, and how the refusal reads."""

import pickle

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from upsert import types
from upsert.catalog.ddl import parse
from upsert.catalog.statements import CreateTable, DropTable, Statement
from upsert.errors import SchemaError
from upsert.schema import Column, Index, TableSchema


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


def test_drop_table_is_read() -> None:
    assert parse("DROP TABLE t") == DropTable("t")
    assert parse("drop table if exists `t`;") == DropTable("t", if_exists=True)


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
        (
            "STRUCT<a: INT NOT NULL, `b c` DATE>",
            pa.struct([pa.field("a", pa.int32(), nullable=False), pa.field("b c", pa.date32())]),
        ),
    ],
)
def test_spark_type_becomes_its_arrow_type(name: str, type_: pa.DataType) -> None:
    assert create(f"CREATE TABLE t (a {name})").schema.type_of("a").equals(type_)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("a VARCHAR(10)", "lengths are not checked here; use STRING"),
        ("a CHAR(10)", "lengths are not checked here; use STRING"),
        ("a INTERVAL", "use a number of a stated unit"),
        ("a BYTES", "use BINARY"),
        ("a VARIANT", "expected a column type, one of BOOLEAN, "),
        ("a TIMESTAMP(3)", "type TIMESTAMP has no parameters in Spark"),
        ("a DECIMAL(39)", "needs 1 ≤ precision ≤ 38"),
        ("a DECIMAL(2, 3)", "scale ≤ precision"),
        ("a DECIMAL(10, -1)", "expected a number, found '-' at line 1, column 31"),
        ("a ARRAY<INT, INT>", "ARRAY<element> has one type"),
        ("a MAP<INT>", "MAP<key, value> has two types"),
        ("a STRUCT<b: INT COMMENT 'x'>", "comments of struct fields are not kept"),
        ("a", "expected a column type"),
        ("", "expected a column, PRIMARY KEY or INDEX, found ')' at line 1, column 17"),
        ("a INT,", "expected a column, PRIMARY KEY or INDEX"),
        ('"a" INT', "expected a column, PRIMARY KEY or INDEX, found 'a'"),
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
        ("_row_kind STRING", "column name '_row_kind' is reserved"),
        ("a INT, b AS a + 1", "computed columns are not supported yet"),
        ("a INT GENERATED ALWAYS AS (1)", "computed columns are not supported yet"),
        ("a INT METADATA FROM 'offset'", "METADATA columns are not supported yet"),
        ("a TIMESTAMP, WATERMARK FOR a AS a", "WATERMARK is not supported yet"),
        ("a INT DEFAULT 3", "DEFAULT values are not supported yet"),
        ("a INT, UNIQUE (a)", "UNIQUE is not supported"),
        ("a INT, CONSTRAINT c CHECK (a > 1)", "CHECK is not supported"),
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
        ("AS SELECT 1", "CREATE TABLE … AS SELECT is not supported yet"),
        ("USING parquet", "USING is not supported: every table of the catalog is a managed table"),
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
        ("SELECT 1", "SELECT"),
        ("INSERT INTO t VALUES (1)", "INSERT INTO"),
        ("INSERT OVERWRITE TABLE t SELECT 1", "INSERT OVERWRITE TABLE"),
        ("ALTER TABLE t ADD COLUMN a INT", "ALTER TABLE"),
        ("CREATE OR REPLACE TEMPORARY VIEW v AS SELECT 1", "CREATE OR REPLACE TEMPORARY VIEW"),
        ("CREATE OR REPLACE TABLE t (a INT)", "CREATE OR REPLACE TABLE"),
        ("DROP VIEW v", "DROP VIEW"),
        ("DROP TEMPORARY TABLE t", "DROP TEMPORARY TABLE"),
        ("SHOW TABLES", "SHOW"),
        ("DESCRIBE t", "DESCRIBE"),
    ],
)
def test_other_statements_are_refused_by_name(text: str, name: str) -> None:
    with pytest.raises(SchemaError) as error:
        parse(text)
    supported = "the catalog carries out CREATE TABLE and DROP TABLE"
    assert str(error.value) == f"{name} is not supported yet: {supported}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a statement, found an empty text"),
        (" ; -- nothing", "expected a statement, found an empty text"),
        ("'text'", "expected CREATE TABLE or DROP TABLE, found 'text' at line 1, column 1"),
        ("DROP TABLE a; DROP TABLE b", "expected one statement at a time, so that none is left half done"),
        ("DROP TABLE a PURGE", "DROP TABLE: expected nothing after the name, found 'PURGE'"),
        ("DROP TABLE a.b", "a catalog has no databases"),
        ("CREATE TABLE 'a' (a INT)", "expected the name of a table, found 'a'"),
        ("CREATE TABLE `` (a INT)", "expected the name of a table, found ''"),
        ("CREATE TABLE t LIKE u", "CREATE TABLE … LIKE is not supported yet"),
        ("CREATE TABLE t", "expected (, found the end of the text"),
        ("CREATE TABLE t (a INT", "found the end of the text"),
        ("CREATE TABLE t (\n  a INT,\n  b BLOB)", "found 'BLOB' at line 3, column 5"),
        ("CREATE TABLE t (a INT COMMENT 'x)", "the statement has an open quote or comment"),
    ],
)
def test_text_that_is_no_statement_is_refused(text: str, message: str) -> None:
    with pytest.raises(SchemaError) as error:
        parse(text)
    assert message in str(error.value)


NAMES = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=6).filter(
    lambda name: name != "_row_kind"
)
TEXTS = st.text(st.characters(exclude_categories=("C",)), max_size=8)
COMMENTS = st.none() | TEXTS
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
    columns = tuple(Column(name, draw(TYPES), draw(st.booleans()), draw(COMMENTS)) for name in names)
    scalars = [c.name for c in columns if types.is_scalar(c.type)]
    some = st.permutations(scalars).flatmap(lambda order: st.integers(0, len(order)).map(lambda n: order[:n]))
    key = draw(some)
    partitions = draw(st.permutations(key))[: draw(st.integers(0, len(key)))] if key else draw(some)
    indexed = draw(st.dictionaries(NAMES, some, max_size=2))
    indexes = tuple(Index(name, tuple(of)) for name, of in indexed.items() if of)
    schema = TableSchema(columns, tuple(key), indexes, tuple(partitions), draw(COMMENTS))
    options = draw(st.dictionaries(NAMES, TEXTS, max_size=2))
    return CreateTable(draw(NAMES), schema, options, draw(st.booleans()))


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
    return f"{quoted(column.name)} {type_text(column.type)}{'' if column.nullable else ' NOT NULL'}{comment}"


def names_text(names: tuple[str, ...]) -> str:
    return f"({', '.join(map(quoted, names))})"


def statement_text(statement: CreateTable) -> str:
    schema = statement.schema
    elements = [column_text(column) for column in schema.columns]
    elements += [f"PRIMARY KEY {names_text(schema.primary_key)} NOT ENFORCED"] if schema.primary_key else []
    elements += [f"INDEX {quoted(index.name)} {names_text(index.columns)}" for index in schema.indexes]
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
