"""ALTER TABLE of topics and of other tables with a connector: what it changes, keeps and refuses."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.upsert.formats.protobuf_messages import descriptor_options, file_of
from upsert import Catalog
from upsert.catalog.connectors.definition import Definition, define, definition_in
from upsert.catalog.connectors.kafka import KafkaConnector
from upsert.errors import ConfigurationError, SchemaError
from upsert.schema import Column, TableSchema
from upsert.store import Table
from upsert.store.alterations import AddColumn

USERS = (
    "CREATE TABLE users (id BIGINT, region STRING, level INT, loud AS UPPER(region), "
    "at TIMESTAMP METADATA FROM 'timestamp' VIRTUAL, WATERMARK FOR at AS at, PRIMARY KEY (id) NOT ENFORCED, "
    "INDEX (region)) WITH ('connector' = 'upsert-kafka', 'topic' = 'users', "
    "'properties.bootstrap.servers' = 'localhost:1', 'key.format' = 'json', 'value.format' = 'json')"
)


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    catalog = Catalog(tmp_path)
    catalog.sql(USERS)
    return catalog


def connected(catalog: Catalog) -> KafkaConnector:
    found = catalog.connected("users")
    assert isinstance(found, KafkaConnector)
    return found


def begun_mirror(catalog: Catalog) -> Table:
    mirror = connected(catalog).mirror
    assert mirror is not None
    table = Table.create(mirror.path, mirror.schema, mirror.options)
    at = pa.array([0], table.schema.type_of("at"))
    table.write(pa.table({"id": [1], "region": ["Berlin"], "level": pa.array([3], pa.int32()), "at": at}))
    return table


def shown(catalog: Catalog) -> str:
    return str(catalog.sql("SHOW CREATE TABLE users"))


def test_a_followed_delta_table_gets_no_column_that_kept_rows_would_lack(catalog: Catalog) -> None:
    columns = {"id": pa.int64(), "region": pa.string()}
    schema = TableSchema.of(columns, primary_key=["id"]).index("region")
    definition = Definition("delta", schema, {"path": "/tmp/orders"})
    path = catalog.databases.resolve("orders").path
    define(path, definition)
    with pytest.raises(SchemaError, match="'level' cannot be added to a Delta table with a key"):
        catalog.sql("ALTER TABLE orders ADD COLUMN level INT")
    assert definition_in(path) == definition


def test_columns_watermark_comment_and_options_change(catalog: Catalog) -> None:
    for change in (
        "ADD COLUMN name STRING COMMENT 'of the user' AFTER id",
        "ADD (place BIGINT METADATA FROM 'offset' VIRTUAL, quiet AS LOWER(name))",
        "DROP WATERMARK",
        "DROP COLUMN at",
        "DROP COLUMN loud",
        "DROP INDEX INDEX_region",
        "DROP COLUMN region",
        "COMMENT 'people'",
        "ALTER COLUMN level COMMENT 'of trust'",
        "SET ('max-rows-per-trigger' = '7', 'value.json.ignore-parse-errors' = 'true')",
        "SET ('maxOffsetsPerTrigger' = '8')",
        "RESET ('value.json.ignore-parse-errors')",
    ):
        catalog.sql(f"ALTER TABLE users {change}")
    assert shown(catalog) == (
        "CREATE TABLE `users` (\n  `id` BIGINT NOT NULL,\n  `name` STRING COMMENT 'of the user',\n"
        "  `level` INT COMMENT 'of trust',\n  `place` BIGINT METADATA FROM 'offset' VIRTUAL,\n"
        "  `quiet` AS LOWER(name),\n  PRIMARY KEY (`id`) NOT ENFORCED\n)\nCOMMENT 'people'\nWITH (\n"
        "  'connector' = 'upsert-kafka',\n  'topic' = 'users',\n"
        "  'properties.bootstrap.servers' = 'localhost:1',\n  'key.format' = 'json',\n"
        "  'value.format' = 'json',\n  'maxOffsetsPerTrigger' = '8'\n)"
    )
    assert connected(catalog).table.values["max-rows-per-trigger"] == 8
    assert connected(catalog).table.values["state.version"] == 4


def test_state_stays_where_it_is_and_ids_of_columns_are_used_once(catalog: Catalog) -> None:
    """A hidden table of a sink names the columns of the rows that it keeps by these ids."""
    before = connected(catalog).table.values["state.path"]
    ids = []
    for _ in range(3):
        catalog.sql("ALTER TABLE users ADD COLUMN x INT")
        ids.append(catalog.schema("users").column("x").id)
        catalog.sql("ALTER TABLE users DROP COLUMN x")
    assert len(set(ids)) == 3
    assert connected(catalog).table.values["state.path"] == before


def test_the_mirror_follows_and_keeps_its_rows(catalog: Catalog) -> None:
    mirror = begun_mirror(catalog)
    catalog.sql("ALTER TABLE users ADD (name STRING, place BIGINT METADATA FROM 'offset' VIRTUAL)")
    catalog.sql("ALTER TABLE users ADD INDEX (name)")
    catalog.sql("ALTER TABLE users DROP COLUMNS (loud, level)")
    catalog.sql("ALTER TABLE users SET ('mirror.snapshot.num-retained.max' = '20', 'mirror.bucket' = '3')")
    table = catalog.table("users")
    assert table.uuid == mirror.uuid
    assert table.definition.given == {"snapshot.num-retained.max": "20", "bucket": "3"}
    assert [index.columns for index in table.schema.indexes] == [("region",), ("name",)]
    (row,) = table.snapshot().scan().to_pylist()
    assert {key: value for key, value in row.items() if key != "at"} == {
        "id": 1, "region": "Berlin", "name": None, "place": None
    }  # fmt: skip


def test_a_mirror_with_rows_follows_a_column_with_a_default(catalog: Catalog) -> None:
    """The advice was to delete its rows. Its records have a value for each column, so it needs none."""
    begun_mirror(catalog)
    catalog.sql("ALTER TABLE users ADD COLUMN rank INT DEFAULT 7")
    (row,) = catalog.table("users").snapshot().scan(columns=["id", "rank"]).to_pylist()
    assert row == {"id": 1, "rank": None}
    assert "`rank` INT DEFAULT 7" in shown(catalog)


def test_a_mirror_that_a_crash_has_left_ahead_is_brought_back(catalog: Catalog) -> None:
    mirror = begun_mirror(catalog)
    mirror.alter(AddColumn(Column("name", pa.string())))
    catalog.sql("ALTER TABLE users ADD COLUMN name STRING AFTER id")
    assert set(catalog.table("users").schema.names) == {"id", "name", "region", "level", "at"}
    mirror.alter(AddColumn(Column("other", pa.string())))
    catalog.sql("ALTER TABLE users COMMENT 'of our own'")
    assert set(catalog.table("users").schema.names) == {"id", "name", "region", "level", "at"}


REFUSED: dict[str, tuple[type[Exception], str]] = {
    "SET ('topic' = 'others')": (
        ConfigurationError,
        "option 'topic' cannot change, because the state of queries",
    ),
    "SET ('format' = 'avro')": (ConfigurationError, "option 'format' cannot change"),
    "SET ('connector' = 'kafka')": (ConfigurationError, "option 'connector' cannot change"),
    "RESET ('value.format')": (ConfigurationError, "option 'value.format' cannot change"),
    "RESET ('state.ttl')": (ConfigurationError, "needs one that is set, got 'state.ttl'; set are topic"),
    "SET ('max-rows' = '7')": (ConfigurationError, "unknown option 'max-rows'"),
    "SET ('scan.startup.mode' = 'latest-offset')": (ConfigurationError, "scan.startup.mode"),
    "SET ('mirror.bucket-key' = 'id')": (ConfigurationError, "option 'bucket-key' cannot change"),
    "ADD COLUMN x INT NOT NULL": (SchemaError, "is NOT NULL, and stored rows"),
    "ADD COLUMN loud INT": (SchemaError, "there is a column of this name"),
    "ADD COLUMN region INT": (SchemaError, "there is a column of this name"),
    "ADD COLUMN x INT METADATA FROM 'nonsense'": (SchemaError, "nonsense"),
    "DROP COLUMN id": (SchemaError, "PRIMARY KEY needs it"),
    "DROP COLUMN at": (SchemaError, "at"),
    "DROP COLUMN region": (SchemaError, "region"),
    "DROP COLUMN nothing": (SchemaError, "unknown column 'nothing'"),
    "ALTER COLUMN level FIRST": (SchemaError, "must keep its place"),
    "ALTER COLUMN nope FIRST": (SchemaError, "unknown column 'nope'"),
    "RENAME COLUMN nope TO l": (SchemaError, "unknown column 'nope'"),
    "MODIFY COLUMN nope BIGINT": (SchemaError, "unknown column 'nope'"),
    "RENAME COLUMN level TO l": (SchemaError, "must keep its name and type"),
    "ALTER COLUMN level SET NOT NULL": (SchemaError, "must stay NOT NULL or nullable as it is"),
    "MODIFY COLUMN level BIGINT": (SchemaError, "for another type create another table"),
    "ADD UNIQUE INDEX (level)": (SchemaError, "must not be UNIQUE"),
}


@pytest.mark.parametrize("change", REFUSED)
def test_what_would_change_the_meaning_of_kept_rows_is_refused(catalog: Catalog, change: str) -> None:
    error, said = REFUSED[change]
    begun_mirror(catalog)
    before = shown(catalog)
    with pytest.raises(error, match=said):
        catalog.sql(f"ALTER TABLE users {change}")
    assert shown(catalog) == before
    assert catalog.table("users").schema.names == ("id", "region", "level", "at")


def test_other_connectors_are_altered_too(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path)
    where = "'connector' = 'http', 'url' = 'http://example.com', 'header.authorization' = 'Bearer pa55w0rd'"
    catalog.sql(
        f"CREATE TABLE rates (cur STRING, rate DOUBLE, PRIMARY KEY (cur) NOT ENFORCED) WITH ({where})"
    )
    catalog.sql("ALTER TABLE rates SET ('lookup.cache' = 'PARTIAL', 'lookup.partial-cache.max-rows' = '9')")
    catalog.sql("ALTER TABLE rates ADD COLUMN day DATE")
    with pytest.raises(ConfigurationError, match=r"has no effect with 'lookup\.cache' = 'NONE'"):
        catalog.sql("ALTER TABLE rates RESET ('lookup.cache')")
    connected: Any = catalog.connected("rates")
    assert connected.table.lookup.cache.max_keys == 9
    assert connected.table.schema.names == ("cur", "rate", "day")
    folder = catalog.databases.resolve("rates").path
    definition = definition_in(folder)
    assert definition is not None
    assert definition.options["header.authorization"] == "Bearer pa55w0rd"


def test_a_descriptor_file_that_is_gone_can_be_replaced_by_another_one(tmp_path: Path) -> None:
    """As can whatever else keeps a table from being used."""
    file = file_of("Order\nint64 id = 1\nstring word = 2")
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
        path = descriptor_options(folder, file, "Order")["descriptor-file"]
    catalog = Catalog(tmp_path / "warehouse")
    catalog.sql(
        "CREATE TABLE orders (id BIGINT, word STRING) WITH ('connector' = 'kafka', 'topic' = 'orders', "
        "'properties.bootstrap.servers' = 'localhost:1', 'format' = 'protobuf', "
        f"'protobuf.descriptor-file' = '{first}/messages.desc', 'protobuf.message-name' = 'shop.Order')"
    )
    (first / "messages.desc").unlink()
    with pytest.raises(ConfigurationError, match="must be a file that can be read"):
        catalog.connected("orders")
    with pytest.raises(ConfigurationError, match="must be a file that can be read"):
        catalog.sql("ALTER TABLE orders ADD COLUMN price DOUBLE")
    catalog.sql(f"ALTER TABLE orders SET ('protobuf.descriptor-file' = '{path}')")
    assert catalog.connected("orders") is not None
    Path(path).unlink()
    assert "DROP TABLE orders" in str(catalog.sql("DROP TABLE orders"))
