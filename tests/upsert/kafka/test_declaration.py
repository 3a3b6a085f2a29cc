"""A table from what a Spark query says: columns as text, as a schema, and as a catalog passes them on."""

import pickle
import re

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    DayTimeIntervalType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from upsert import types
from upsert.errors import ConfigurationError, SchemaError
from upsert.kafka.declaration import check_asked, declared, given_options, struct_of
from upsert.kafka.options import PLAIN, UPSERT
from upsert.kafka.table import KafkaTable
from upsert.schema import Column, TableSchema

GIVEN = {
    "topic": "t",
    "kafka.bootstrap.servers": "localhost:9092",
    "key.format": "json",
    "value.format": "json",
    "properties.sasl.password": "hunter2",
}
COLUMNS = "word STRING, n BIGINT, ts TIMESTAMP METADATA FROM 'timestamp' VIRTUAL"
SCHEMA = TableSchema(
    (
        Column("word", pa.string()),
        Column("n", pa.int64()),
        Column("ts", types.TIMESTAMP, metadata="timestamp", virtual=True),
    ),
    ("word",),
)


SPARK_TYPES = {
    "STRING": StringType(),
    "BIGINT": LongType(),
    "INT": IntegerType(),
    "TIMESTAMP": TimestampType(),
}


def struct(text: str) -> StructType:
    """Fields from text like `n BIGINT, o BIGINT COMMENT text`; StructType.fromDDL needs a session."""
    found = StructType()
    for part in text.split(", "):
        declaration, _, comment = part.partition(" COMMENT ")
        name, type_ = declaration.split()
        found.add(name, SPARK_TYPES[type_], metadata={"comment": comment} if comment else None)
    return found


BY_SCHEMA = struct(
    "word STRING, n BIGINT, ts TIMESTAMP COMMENT METADATA FROM 'timestamp' VIRTUAL, _row_kind STRING"
)
WAYS: dict[str, tuple[dict[str, str], StructType | None]] = {
    "columns and primary-key": ({"columns": COLUMNS, "primary-key": "word"}, None),
    "columns with the key in them": ({"columns": f"{COLUMNS}, PRIMARY KEY (word) NOT ENFORCED"}, None),
    "keys of options in lower case or not": ({"Columns": COLUMNS, "PRIMARY-KEY": "word"}, None),
    "a schema": ({"primary-key": "word"}, BY_SCHEMA),
}


@pytest.mark.parametrize("way", WAYS)
def test_all_ways_declare_the_same_table(way: str) -> None:
    given, asked = WAYS[way]
    assert declared(UPSERT, GIVEN | given, asked).schema == SCHEMA


def test_a_table_declares_itself_again_with_its_name() -> None:
    table = KafkaTable.of(UPSERT, SCHEMA, GIVEN, name="words")
    again = declared(UPSERT, given_options(table))
    assert (again.name, again.schema, again.values) == ("table 'words'", table.schema, table.values)
    assert pickle.loads(pickle.dumps(again)) == again


def test_secrets_have_names_that_spark_masks() -> None:
    """Spark prints the options of a stream in its plans, but not of names that speak of secrets."""
    masks = re.compile("(?i)secret|password|token|access[.]?key")  # its default
    secrets = {"properties.ssl.key.pem": "pem", "kafka.sasl.oauthbearer.config": "own"}
    table = KafkaTable.of(UPSERT, SCHEMA, GIVEN | secrets)
    options = given_options(table)
    assert {value for name, value in options.items() if masks.search(name)} == {"hunter2", "pem", "own"}
    again = declared(UPSERT, options)
    assert (again.properties, again.schema) == (table.properties, table.schema)
    assert given_options(again) == options


def test_changes_end_with_their_kind_and_rows_have_none() -> None:
    changes = declared(UPSERT, GIVEN | {"columns": COLUMNS, "primary-key": "word"})
    assert struct_of(changes).simpleString() == ("struct<word:string,n:bigint,ts:timestamp,_row_kind:string>")
    assert not struct_of(changes)["_row_kind"].nullable
    rows = declared(PLAIN, GIVEN | {"columns": COLUMNS, "key.fields": "word"})
    assert struct_of(rows).names == ["word", "n", "ts"]


def test_a_read_may_choose_among_the_columns() -> None:
    table = declared(UPSERT, GIVEN | {"columns": COLUMNS, "primary-key": "word"})
    check_asked(struct("n BIGINT, _row_kind STRING"), table)
    with pytest.raises(SchemaError, match="unknown column 'm'"):
        check_asked(struct("m BIGINT, _row_kind STRING"), table)
    rows = declared(PLAIN, GIVEN | {"columns": COLUMNS, "key.fields": "word"})
    with pytest.raises(SchemaError, match="must not name '_row_kind'"):
        check_asked(struct("n BIGINT, _row_kind STRING"), rows)


KIND = StructField("_row_kind", StringType())
REFUSALS: dict[str, tuple[dict[str, str], StructType | None, str]] = {
    "nothing": ({}, None, "the columns of the topic must be declared"),
    "an empty schema": ({}, StructType([KIND]), "the columns of the topic must be declared"),
    "no kinds": (
        {"primary-key": "word"},
        struct("word STRING, n INT"),
        "must end with the column _row_kind STRING",
    ),
    "kinds first": (
        {"primary-key": "word"},
        struct("_row_kind STRING, word STRING"),
        "must end with the column _row_kind STRING",
    ),
    "kinds as numbers": (
        {"primary-key": "word"},
        struct("word STRING, _row_kind INT"),
        "must end with the column _row_kind STRING",
    ),
    "a comment that is half a declaration": (
        {"primary-key": "word"},
        struct("word STRING, o BIGINT COMMENT METADATA FROM offset, _row_kind STRING"),
        "must read METADATA [FROM 'key'] [VIRTUAL]",
    ),
    "an interval": (
        {"primary-key": "word"},
        StructType([StructField("word", StringType()), StructField("i", DayTimeIntervalType()), KIND]),
        "column 'i': JSON has no form for the type INTERVAL DAY TO SECOND; make it a STRING",
    ),
    "two keys": (
        {"columns": f"{COLUMNS}, PRIMARY KEY (word) NOT ENFORCED", "primary-key": "n"},
        None,
        "given twice",
    ),
    "no key": ({"columns": COLUMNS}, None, "requires to define a PRIMARY KEY"),
    "no columns in the text": ({"columns": "word"}, None, "upsert-kafka: option 'columns': "),
    "no JSON": ({"columns": "{"}, None, "or the JSON form of a schema"),
    "another JSON": ({"columns": '{"a": 1}'}, None, "or the JSON form of a schema"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_declarations_that_are_refused(name: str) -> None:
    given, asked, message = REFUSALS[name]
    with pytest.raises((ConfigurationError, SchemaError)) as error:
        declared(UPSERT, GIVEN | given, asked)
    assert message in str(error.value)
    assert "hunter2" not in str(error.value)
