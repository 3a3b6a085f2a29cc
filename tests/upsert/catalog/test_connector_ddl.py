"""Statements for tables over Kafka, and what each of them means or why it is refused.

`connector_tables.txt` holds the cases: the examples of FLIP-149 and FLIP-107, tables that Flink's own tests
use (UK, MD), and Flink's validation matrix (VA).
"""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from upsert import types
from upsert.catalog.connectors.definition import Definition, connect
from upsert.catalog.connectors.kafka import KafkaConnector
from upsert.errors import ConfigurationError, SchemaError
from upsert.kafka.table import KafkaTable
from upsert.sql.parser import parse
from upsert.sql.statements import CreateTable

CASES = Path(__file__).with_name("connector_tables.txt")


def cases() -> Iterator[tuple[str, str, str]]:
    for text in CASES.read_text().split("# title: ")[1:]:
        title, _, rest = text.partition("\n")
        statement, _, expected = rest.partition("\n----\n")
        yield title, statement, expected.strip()


def described(text: str) -> str:
    """What a statement means: where its columns lie, and which metadata it reads and writes."""
    try:
        statement = parse(text)
        assert isinstance(statement, CreateTable)
        options = dict(statement.options)
        definition = Definition(options.pop("connector"), statement.schema, options)
        connected = connect(statement.name, definition, "/warehouse/t")
    except (ConfigurationError, SchemaError) as error:
        return f"refused: {error}"
    assert isinstance(connected, KafkaConnector)
    return "\n".join(lines(connected.table))


def lines(table: KafkaTable) -> Iterator[str]:
    kind = "changes" if table.is_changelog else "rows"
    yield f"{table.connector} of {', '.join(table.topics or ())}, {kind}"
    for part in filter(None, (table.key, table.value)):
        yield f"{part.side} {part.format_name}: {', '.join(map(column, part.fields))}"
    for found in table.metadata(writing=False):
        field = column(pa.field(found.column.name, found.column.type))
        yield f"{field} <- {found.key.key}{' VIRTUAL' if found.column.virtual else ''}"
    try:
        table.metadata(writing=True)
    except SchemaError as error:
        yield f"not written: {error}"


def column(field: pa.Field) -> str:
    return f"{field.name} {types.sql_name(field.type)}{'' if field.nullable else ' NOT NULL'}"


@pytest.mark.parametrize(("statement", "expected"), [pytest.param(s, e, id=t) for t, s, e in cases()])
def test_statement_means_what_its_case_says(statement: str, expected: str) -> None:
    assert described(statement) == expected
