"""`CALL`: arguments by place and by name, what each procedure does to a table, and what is refused."""

import os
import time
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from upsert import Catalog, Table, Version
from upsert.catalog import query_records
from upsert.catalog.results import Rows
from upsert.catalog.run.jobs import SparkNeededError
from upsert.catalog.run.procedures import PROCEDURES, Environment, bound
from upsert.errors import ConfigurationError, SchemaError, TableNotFoundError, UpsertError
from upsert.schema import TableSchema
from upsert.sql.parser import parse
from upsert.sql.statements import Argument, Call


def row(*values: int) -> pa.Table:
    return pa.table({name: pa.array([n], pa.int32()) for name, n in zip(("id", "n"), values, strict=True)})


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    catalog = Catalog(tmp_path / "warehouse")
    catalog.sql("CREATE DATABASE shop")
    options = "'num-sorted-run.compaction-trigger' = '99'"
    catalog.sql(f"CREATE TABLE shop.stock (id INT, n INT, PRIMARY KEY (id) NOT ENFORCED) WITH ({options})")
    for n in range(4):
        catalog.table("shop.stock").write(
            pa.table({"id": pa.array([1], pa.int32()), "n": pa.array([n], pa.int32())})
        )
    return catalog


@pytest.fixture
def table(catalog: Catalog) -> Table:
    return catalog.table("shop.stock")


def called(catalog: Catalog, text: str) -> list[dict[str, Any]]:
    result = catalog.sql(f"CALL {text}")
    assert isinstance(result, Rows)
    found: list[dict[str, Any]] = result.rows.to_pylist()
    return found


def test_arguments_are_given_by_place_and_by_name() -> None:
    named = "n => 1.5, d => DATE '2020-01-02', t => TIMESTAMP 'x', b => TRUE"
    statement = parse(f"CALL sys.some(shop.`stock`, 'a''b', -3, {named})")
    assert isinstance(statement, Call)
    assert statement.procedure == "some"
    assert [(one.name, str(one.value)) for one in statement.arguments] == [
        (None, "shop.stock"),
        (None, "a'b"),
        (None, "-3"),
        ("n", "1.5"),
        ("d", "2020-01-02"),
        ("t", "x"),
        ("b", "True"),
    ]
    assert parse("call SYSTEM.Compact( )") == Call("compact")


def test_without_a_session_a_time_names_its_zone() -> None:
    """So that it is the same time in both; where there is a session, it is of that one's zone."""
    nine = datetime(2020, 10, 1, 9, tzinfo=UTC).timestamp()
    procedure, environment = PROCEDURES["remove_orphan_files"], Environment(None, nine + 60)

    def age_of(time: str) -> object:
        given = [Argument(None, "t"), Argument(None, time)]
        return bound(procedure, given, "CALL remove_orphan_files", environment)[1]["older_than"]

    assert age_of("2020-10-01 09:00:00Z") == age_of("2020-10-01 11:00:00+02:00") == 60.0
    with pytest.raises(SparkNeededError, match="must name its zone where there is no Spark session"):
        age_of("2020-10-01 09:00:00")
    with pytest.raises(ConfigurationError, match="must be a time that has been"):
        age_of("soon")


def test_values_are_converted_and_missing_ones_have_their_default() -> None:
    hour_ago = datetime(2020, 10, 1, 7, tzinfo=UTC)
    environment = Environment("Europe/Berlin", (hour_ago + timedelta(hours=1)).timestamp())
    given = [Argument("older_than", "2020-10-01 09:00:00"), Argument("table", "t")]
    expected = ("t", {"retain_last": None, "older_than": 3600.0})
    assert bound(PROCEDURES["expire_snapshots"], given, "CALL", environment) == expected
    assert bound(PROCEDURES["check"], [Argument(None, "t"), Argument(None, None)], "CALL", environment) == (
        "t",
        {"deep": False},
    )


def test_tags_are_made_and_deleted(catalog: Catalog, table: Table) -> None:
    assert called(catalog, "create_tag('shop.stock', 'now')") == [{"tag_name": "now", "snapshot_id": 4}]
    again = called(catalog, "create_tag(tag => 'old', snapshot => 2, table => shop.stock)")
    assert again == [{"tag_name": "old", "snapshot_id": 2}]
    assert [(tag.name, tag.snapshot.id) for tag in table.tags()] == [("old", 2), ("now", 4)]
    assert called(catalog, "delete_tag(shop.stock, 'now')") == [{"tag_name": "now"}]
    assert [tag.name for tag in table.tags()] == ["old"]


def test_rows_of_an_older_snapshot_come_back(catalog: Catalog, table: Table) -> None:
    found = called(catalog, "rollback_to(table => 'shop.stock', snapshot => 1)")
    assert found == [{"previous_snapshot_id": 4, "current_snapshot_id": 5}]
    assert table.snapshot().scan().to_pylist() == [{"id": 1, "n": 0}]


def test_rows_of_an_older_snapshot_come_back_by_a_statement(catalog: Catalog, table: Table) -> None:
    called(catalog, "create_tag(shop.stock, 'old', 1)")
    done = catalog.sql("ALTER TABLE shop.stock ROLLBACK TO 'old'")
    assert repr(done) == "<ALTER TABLE shop.stock ROLLBACK TO old: rolled back, snapshot 5>"
    assert table.snapshot().scan().to_pylist() == [{"id": 1, "n": 0}]
    assert "rows are those of the snapshot" in repr(catalog.sql("ALTER TABLE shop.stock ROLLBACK TO 5"))
    with pytest.raises(ConfigurationError, match="between 0 and the latest, 5, got 9"):
        catalog.sql("ALTER TABLE shop.stock ROLLBACK TO 9")
    with pytest.raises(SchemaError, match="expected a snapshot, or a 'tag', found 'old'"):
        catalog.sql("ALTER TABLE shop.stock ROLLBACK TO old")


def test_snapshots_expire_by_number_and_by_time(catalog: Catalog, table: Table) -> None:
    count = "expired_snapshots_count"
    old = "older_than => TIMESTAMP '2020-01-01 00:00:00Z'"
    assert called(catalog, f"expire_snapshots(shop.stock, 2, {old})") == [{count: 0}]
    time.sleep(0.002)  # times are milliseconds
    now = datetime.now(UTC)
    assert called(
        catalog, f"expire_snapshots(shop.stock, retain_last => 2, older_than => TIMESTAMP '{now}')"
    ) == [{count: 2}]
    assert [info.id for info in table.history() if info.changes_rows] == [3, 4]


def test_files_are_merged_and_orphans_deleted(catalog: Catalog, table: Table) -> None:
    (merged,) = called(catalog, "compact(shop.stock)")
    assert (merged["previous_file_count"], merged["file_count"]) == (4, 1)
    assert merged["snapshot_id"] == table.snapshot().id
    assert called(catalog, "compact(shop.stock)") == [
        {"snapshot_id": None, "previous_file_count": 1, "file_count": 1}
    ]
    table.stage(row(9, 9), order="rows")
    assert called(catalog, "remove_orphan_files('shop.stock')") == [{"deleted_file_count": 0}]
    time.sleep(0.01)
    now = datetime.now(UTC)
    (found,) = called(catalog, f"remove_orphan_files('shop.stock', TIMESTAMP '{now}')")
    assert found["deleted_file_count"] > 0


def test_partitions_expire(catalog: Catalog) -> None:
    days = "CREATE TABLE days (day STRING, id INT, PRIMARY KEY (day, id) NOT ENFORCED) PARTITIONED BY (day)"
    catalog.sql(f"{days} WITH ('partition.timestamp-formatter' = 'yyyyMMdd')")
    today = f"{datetime.now(UTC):%Y%m%d}"
    catalog.table("days").write(pa.table({"day": ["20200101", today], "id": pa.array([1, 2], pa.int32())}))
    assert called(catalog, "expire_partitions(days, '100000 d')") == []
    assert called(catalog, "expire_partitions('days', expiration_time => '2 d')") == [
        {"expired_partition": "day=20200101"}
    ]
    with pytest.raises(
        ConfigurationError, match="'expiration_time' must be a duration in quotes, like '7 d'"
    ):
        called(catalog, "expire_partitions(days, 'soon')")
    with pytest.raises(ConfigurationError, match="needs an age, got none"):
        called(catalog, "expire_partitions(days)")


QUERIES = [str(uuid.UUID(int=n)) for n in range(3)]


def keep(folder: Path, days_ago: float) -> None:
    """A table that a query keeps, and has changed last some days ago."""
    table = Table.create(folder, TableSchema.of({"id": pa.int32()}, ["id"]))
    table.write(pa.table({"id": pa.array([1], pa.int32())}))
    at = time.time() - days_ago * 86_400
    for file in folder.rglob("*"):
        os.utime(file, (at, at))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_a_query_keeps_of_a_sink_is_forgotten_by_its_age(catalog: Catalog, table: Table) -> None:
    old, young, running = QUERIES
    folder = Path(table.path) / "materialized"
    for id, days in ((old, 40), (young, 2), (running, 40)):
        keep(folder / id, days)
    (folder / ".dropped-by a killed process").mkdir()
    record = query_records.QueryRecord(
        running, running, "job", query_records.this_driver(), "running", 1, time.time_ns() // 10**6
    )
    query_records.write(catalog.warehouse, record)
    month = datetime.now(UTC) - timedelta(days=30)
    call = f"forget_queries('shop.stock', TIMESTAMP '{month:%Y-%m-%d %H:%M:%S}Z')"
    assert called(catalog, call) == [{"query_id": old}]
    assert names(folder) == [young, running]
    assert called(catalog, call) == []
    assert table.check(deep=True) == ()


def test_what_a_query_keeps_of_a_topic_is_forgotten_with_all_its_partitions(tmp_path: Path) -> None:
    """The mirror and the checkpoint beside it are no queries' state."""
    catalog = Catalog(tmp_path)
    catalog.sql(
        "CREATE TABLE users (id BIGINT, PRIMARY KEY (id) NOT ENFORCED) WITH ('connector' = 'upsert-kafka', "
        "'topic' = 'users', 'properties.bootstrap.servers' = 'localhost:1', 'key.format' = 'json', "
        "'value.format' = 'json')"
    )
    state = Path(catalog.databases.resolve("users").path) / "state"
    assert called(catalog, "forget_queries(users, TIMESTAMP '2020-10-01 00:00:00Z')") == []
    keep(state / QUERIES[0] / "0" / "3-a", 40)
    keep(state / QUERIES[0] / "0" / "4-a", 2)
    keep(state / QUERIES[1] / "0" / "3-a", 40)
    keep(state / "materialized" / QUERIES[2], 40)
    keep(state / "checkpoints", 40)
    month = datetime.now(UTC) - timedelta(days=30)
    call = f"forget_queries(users, older_than => TIMESTAMP '{month:%Y-%m-%d %H:%M:%S}Z')"
    assert called(catalog, call) == [{"query_id": QUERIES[1]}, {"query_id": QUERIES[2]}]
    assert names(state) == [QUERIES[0], "checkpoints", "materialized"]


def test_consumer_is_deleted_and_damage_is_found(catalog: Catalog, table: Table) -> None:
    table.hold("export", Version.complete(2))
    deleted = [called(catalog, "delete_consumer('shop.stock', 'export')") for _ in range(2)]
    assert [one["was_held"] for (one,) in deleted] == [True, False]
    assert table.consumers() == ()
    assert called(catalog, "check('shop.stock', deep => TRUE)") == []
    next(Path(table.path).glob("bucket-*/*.arrow")).unlink()
    found = called(catalog, "check('shop.stock')")
    assert found
    assert all(one["is_harmful"] for one in found)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        (
            "creat_tag('t')",
            ConfigurationError,
            "CALL: unknown procedure 'creat_tag'; did you mean 'create_tag'?",
        ),
        (
            "drop_partition('t', 'day=1')",
            ConfigurationError,
            "unknown procedure 'drop_partition'; write ALTER TABLE t DROP PARTITION (…)",
        ),
        (
            "fly('t')",
            ConfigurationError,
            "CALL: unknown procedure 'fly'; there are create_tag, delete_tag, ro",
        ),
        (
            "create_tag(shop.stock, tg => 'x')",
            ConfigurationError,
            "unknown argument 'tg'; did you mean 'tag'?",
        ),
        (
            "create_tag(shop.stock)",
            ConfigurationError,
            "argument 'tag' is missing; arguments are (table, tag [,",
        ),
        ("compact()", ConfigurationError, "argument 'table' is missing; arguments are (table)"),
        (
            "compact(shop.stock, 1)",
            ConfigurationError,
            "arguments are (table), got 2 of them; leave some out",
        ),
        ("compact('shop.stock', table => 't')", ConfigurationError, "argument 'table' is given twice"),
        ("create_tag(shop.stock, 7)", ConfigurationError, "'tag' must be the name of a tag in quotes, got 7"),
        (
            "rollback_to(shop.stock, 1.5)",
            ConfigurationError,
            "must be the id of a snapshot, or a tag in quotes",
        ),
        ("rollback_to(shop.stock, 9)", ConfigurationError, "between 0 and the latest, 4, got 9"),
        ("expire_snapshots(shop.stock, TRUE)", ConfigurationError, "must be a number of states, got True"),
        (
            "remove_orphan_files(shop.stock, TIMESTAMP '2999-01-01 00:00Z')",
            ConfigurationError,
            "'older_than' must be a time that has been, as TIMESTAMP 'date time', got '2999-01-01 00:00Z'",
        ),
        ("remove_orphan_files(shop.stock, 'soon')", ConfigurationError, "must be a time that has been"),
        ("compact(shop.stok)", TableNotFoundError, "did you mean 'stock'?"),
        (
            "compact(topic)",
            ConfigurationError,
            "CALL compact needs a managed table, got one with a connector",
        ),
        (
            "compact(table => shop.stock, 1)",
            SchemaError,
            "expected name => value, for an argument before it has",
        ),
        ("compact", SchemaError, "CALL compact: expected (, found the end of the text"),
        ("a.compact(shop.stock)", SchemaError, "CALL a: expected (, found '.' at line 1, column 7"),
        ("compact(shop.stock) now", SchemaError, "expected the end of the statement, found 'now'"),
    ],
)
def test_call_that_cannot_be_is_refused(
    catalog: Catalog, text: str, error: type[UpsertError], message: str
) -> None:
    catalog.sql("CREATE TABLE topic (id BIGINT) WITH ('connector' = 'parquet', 'path' = '/none')")
    with pytest.raises(error) as caught:
        catalog.sql(f"CALL {text}")
    assert message in str(caught.value)


@pytest.mark.parametrize("name", PROCEDURES)
def test_page_on_sql_says_what_a_procedure_takes_and_gives(name: str) -> None:
    one = PROCEDURES[name]
    columns = ", ".join(f"`{column}`" for column in one.columns)
    page = (Path(__file__).parents[4] / "docs" / "sql.md").read_text()
    assert f"| `{name}({one.signature})` | {one.about} | {columns} |\n" in page


def test_procedures_are_shown(catalog: Catalog) -> None:
    result = catalog.sql("SHOW PROCEDURES")
    assert isinstance(result, Rows)
    assert result.rows.column("procedure").to_pylist() == [*PROCEDURES]
    some = catalog.sql("SHOW PROCEDURES LIKE '%_tag'")
    assert isinstance(some, Rows)
    assert some.rows.select(["procedure", "arguments"]).to_pylist() == [
        {"procedure": "create_tag", "arguments": "table, tag [, snapshot]"},
        {"procedure": "delete_tag", "arguments": "table, tag"},
    ]
