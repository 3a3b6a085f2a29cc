"""Tables that lie elsewhere: their definitions, what the catalog does with them, and two DDLs at once."""

import json
import os
import stat
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from upsert import types
from upsert.catalog.catalog import Catalog
from upsert.catalog.connectors.definition import Definition, connect, definition_in
from upsert.catalog.connectors.kafka import KafkaConnector
from upsert.catalog.connectors.mirror import Mirror
from upsert.catalog.run.definitions import is_materialized_view
from upsert.errors import (
    ConfigurationError,
    CorruptTableError,
    SchemaError,
    TableExistsError,
    TableNotFoundError,
)
from upsert.kafka import frames
from upsert.managed.datasource import UpsertTableSource
from upsert.schema import Column, TableSchema
from upsert.store import Table
from upsert.stream_keys import KEYS_MARK, UniqueKeys

COLUMNS = "word STRING, n BIGINT, ts TIMESTAMP METADATA FROM 'timestamp' VIRTUAL"
OPTIONS = {
    "topic": "words",
    "properties.bootstrap.servers": "localhost:9092",
    "properties.sasl.password": "hunter2",
    "key.format": "raw",
    "value.format": "raw",
    "value.fields-include": "EXCEPT_KEY",
}


def with_clause(**changes: str | None) -> str:
    options = {"connector": "upsert-kafka", **OPTIONS, **changes}
    return ", ".join(f"'{key}' = '{value}'" for key, value in options.items() if value is not None)


def words(name: str = "words", **changes: str | None) -> str:
    return f"CREATE TABLE {name} ({COLUMNS}, PRIMARY KEY (word) NOT ENFORCED) WITH ({with_clause(**changes)})"


def definition_file(catalog: Catalog, name: str = "words") -> Path:
    return Path(catalog.warehouse) / name / "table.json"


def connected(catalog: Catalog, name: str = "words") -> KafkaConnector:
    folder = os.path.join(catalog.warehouse, name)
    definition = definition_in(folder)
    assert definition is not None
    found = connect(name, definition, folder)
    assert isinstance(found, KafkaConnector)
    return found


def test_definition_keeps_what_the_statement_said(catalog: Catalog) -> None:
    catalog.sql(words())
    definition = definition_in(os.path.join(catalog.warehouse, "words"))
    assert definition == Definition(
        "upsert-kafka",
        TableSchema(
            (
                Column("word", pa.string(), nullable=False),
                Column("n", pa.int64()),
                Column("ts", types.TIMESTAMP, metadata="timestamp", virtual=True),
            ),
            ("word",),
        ),
        OPTIONS,
        definition.uuid if definition else "",
    )


def test_passwords_are_for_the_owner_alone(catalog: Catalog) -> None:
    catalog.sql(words())
    assert stat.S_IMODE(definition_file(catalog).stat().st_mode) == 0o600
    assert "hunter2" not in repr(definition_in(str(definition_file(catalog).parent)))
    assert "hunter2" not in repr(connected(catalog))


def test_state_lies_beside_the_definition_unless_it_is_told_otherwise(catalog: Catalog) -> None:
    catalog.sql(words())
    catalog.sql(words("elsewhere", **{"State.Path": "/data/state"}))
    assert connected(catalog).table.values["state.path"] == os.path.join(catalog.warehouse, "words", "state")
    assert connected(catalog, "elsewhere").table.values["state.path"] == "/data/state"


def test_warehouse_may_be_moved(catalog: Catalog, tmp_path: Path) -> None:
    catalog.sql(words())
    os.rename(catalog.warehouse, tmp_path / "moved")
    moved = Catalog(tmp_path / "moved")
    assert connected(moved).table.values["state.path"] == str(tmp_path / "moved" / "words" / "state")


def test_both_kinds_of_tables_are_listed(catalog: Catalog) -> None:
    catalog.sql(words())
    catalog.sql("CREATE TABLE orders (id BIGINT)")
    assert catalog.tables() == ("orders", "words")


@pytest.mark.parametrize("connector", ["ktable", "UPSERT-KAFKA", "kafka"])
def test_connector_has_the_names_that_users_know(catalog: Catalog, connector: str) -> None:
    changes = {"key.fields": "word"} if connector == "kafka" else {}
    catalog.sql(words(connector=connector, **changes))
    assert connected(catalog).table.is_upsert == (connector != "kafka")
    assert connected(catalog).sink_key == (() if connector == "kafka" else ("word",))


def test_column_that_names_the_topic_is_a_part_of_what_rows_replace_each_other_by(catalog: Catalog) -> None:
    options = with_clause(topic="words;others", **{"value.format": "json"})
    columns = "word STRING, n BIGINT, place STRING METADATA FROM 'topic'"
    catalog.sql(f"CREATE TABLE words ({columns}, PRIMARY KEY (word) NOT ENFORCED) WITH ({options})")
    assert connected(catalog).sink_key == ("word", "place")


def test_table_elsewhere_is_no_store(catalog: Catalog) -> None:
    catalog.sql(words())
    path = str(definition_file(catalog).parent)
    source = UpsertTableSource({"path": path})
    with pytest.raises(ConfigurationError, match="'words' must be a managed table or have a mirror"):
        catalog.table("words")
    for act in (lambda: Table.open(path), source.schema):
        with pytest.raises(
            ConfigurationError,
            match=r"'words' must be a managed table, got one of the connector 'upsert-kafka'",
        ):
            act()


def tea(n: int) -> pa.Table:
    return pa.table({"word": ["tea"], "n": [n], "ts": [datetime(2020, 1, 1, tzinfo=UTC)]})


def begin_mirror(catalog: Catalog, name: str) -> Mirror:
    """The mirror of a table, with a row that its query would have brought."""
    found = catalog.connected(name)
    assert found is not None
    assert found.mirror is not None
    Table.create(found.mirror.path, found.mirror.schema).write(tea(1))
    return found.mirror


@pytest.mark.parametrize(
    "act",
    [
        lambda table: table.write(tea(2)),
        lambda table: table.overwrite(tea(2)),
        lambda table: table.delete([("word", "=", "tea")]),
        lambda table: table.rollback_to(0),
    ],
)
def test_rows_of_a_mirror_are_changed_by_its_query_alone(
    catalog: Catalog, act: Callable[[Table], object]
) -> None:
    """They were in no topic, and stayed in the mirror."""
    catalog.sql(words())
    mirror = begin_mirror(catalog, "words")
    table = catalog.table("words")
    with pytest.raises(ConfigurationError, match="others; write them with INSERT INTO words"):
        act(table)
    table.compact()
    table.tag("first")
    assert table.snapshot().scan(["word", "n"]).to_pylist() == [{"word": "tea", "n": 1}]
    Table.open(mirror.path).write(tea(3))


@pytest.mark.parametrize("name", ["words", "d.words"])
def test_a_mirror_is_one_table_in_the_eyes_of_all_catalogs(
    catalog: Catalog, tmp_path: Path, name: str
) -> None:
    catalog.sql("CREATE DATABASE d")
    catalog.sql(words(name))
    begin_mirror(catalog, name)
    other = Catalog(tmp_path / "other")
    other.sql(f"CREATE CATALOG first WITH ('warehouse' = '{catalog.warehouse}')")
    shown = name if "." in name else f"default.{name}"
    assert other.table(f"first.{shown}").snapshot().scan(["n"]).to_pylist() == [{"n": 1}]


@pytest.mark.parametrize("name", ["words", "d.words"])
def test_a_mirror_goes_along_when_its_table_is_renamed(catalog: Catalog, name: str) -> None:
    catalog.sql("CREATE DATABASE d")
    catalog.sql(words(name))
    begin_mirror(catalog, name)
    renamed = name.replace("words", "terms")
    catalog.sql(f"ALTER TABLE {name} RENAME TO {renamed}")
    assert catalog.table(renamed).snapshot().scan(["n"]).to_pylist() == [{"n": 1}]


def test_snapshot_of_a_topic_is_refused(catalog: Catalog) -> None:
    catalog.sql(words())
    with pytest.raises(ConfigurationError, match="a table with a connector has no snapshots, got 3"):
        catalog.read(None, "words", snapshot=3)  # type: ignore[arg-type]


def test_snapshot_of_a_table_that_is_only_looked_up_is_refused(catalog: Catalog) -> None:
    options = "'connector' = 'http', 'url' = 'http://127.0.0.1:9'"
    catalog.sql(f"CREATE TABLE rates (cur STRING, PRIMARY KEY (cur) NOT ENFORCED) WITH ({options})")
    with pytest.raises(ConfigurationError, match="a table with a connector has no snapshots, got 3"):
        catalog.read(None, "rates", snapshot=3)  # type: ignore[arg-type]


def test_managed_table_has_no_writer_in_update_mode(catalog: Catalog) -> None:
    catalog.sql("CREATE TABLE orders (id BIGINT)")
    with pytest.raises(
        ConfigurationError, match="write_upsert needs a table of the connector 'upsert-kafka'"
    ):
        catalog.write_upsert(None, "orders")  # type: ignore[arg-type]


class Frame:
    """As much of a streaming DataFrame as the catalog looks at."""

    isStreaming = True  # noqa: N815 - Spark's own name
    sparkSession = SimpleNamespace(sparkContext=SimpleNamespace(_jsc="running"))  # noqa: N815
    columns = ("word", "n", "_row_kind")
    schema = (
        StructType()
        .add("word", "string")
        .add("n", "long")
        .add("_row_kind", "string", metadata={KEYS_MARK: UniqueKeys(((("word",),),)).to_text()})
    )


def test_reads_and_writes_reach_the_connector(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog.sql(words())
    optimized, frame = Frame(), Frame()
    told: list[Any] = []

    def optimize(df: Any, sink_key: Sequence[str] = ()) -> Any:
        told.append((df, tuple(sink_key)))
        return optimized

    monkeypatch.setattr(frames, "read", lambda spark, table: (spark, table.name))
    monkeypatch.setattr(frames, "read_changes", lambda spark, table, **options: (spark, table.name, options))
    monkeypatch.setattr(frames, "write_changes", lambda df, table: ("changes", df, table.name))
    monkeypatch.setattr(frames, "write_upsert", lambda df, table: ("upsert", df, table.name))
    optimizing: Any = Catalog(catalog.warehouse, optimize=optimize)
    name = "table 'words'"
    assert optimizing.read("spark", "words") == ("spark", name)
    assert optimizing.read_changes("spark", "words", changelog="upsert") == (
        "spark",
        name,
        {"changelog": "upsert"},
    )
    assert optimizing.write_changes(frame, "words") == ("changes", optimized, name)
    assert optimizing.write_upsert(frame, "words") == ("upsert", optimized, name)
    assert told == [(frame, ("word",))] * 2


def test_only_upsert_topics_are_written_in_update_mode(catalog: Catalog) -> None:
    catalog.sql(words(connector="kafka", **{"key.fields": "word"}))
    with pytest.raises(ConfigurationError, match="needs the connector 'upsert-kafka', got 'kafka'"):
        catalog.write_upsert(Frame(), "words")  # type: ignore[arg-type]


def test_rows_without_kinds_are_written_only_by_who_can_read_their_plan(catalog: Catalog) -> None:
    catalog.sql(words())
    frame = Frame()
    frame.columns = ("word", "n", "n")
    writer: Any = catalog
    for write in (writer.write_changes, writer.write_upsert):
        with pytest.raises(ConfigurationError, match=r"must have the column '_row_kind'.*planner\.optimize"):
            write(frame, "words")


def test_drop_removes_definition_and_state(catalog: Catalog) -> None:
    catalog.sql(words())
    state = definition_file(catalog).parent / "state" / "query"
    state.mkdir(parents=True)
    (state / "images").write_bytes(b"1")
    catalog.sql("DROP TABLE words")
    assert os.listdir(catalog.warehouse) == []
    assert catalog.tables() == ()
    with pytest.raises(TableNotFoundError):
        catalog.read_changes(None, "words")  # type: ignore[arg-type]


def test_name_is_taken_by_a_table_of_either_kind(catalog: Catalog) -> None:
    managed = "CREATE TABLE {} (id BIGINT)"
    catalog.sql(words("a"))
    catalog.sql(managed.format("b"))
    before = [definition_file(catalog, name).read_bytes() for name in "ab"]
    for statement in (words("a"), words("b"), managed.format("a"), managed.format("b")):
        with pytest.raises(TableExistsError):
            catalog.sql(statement)
        catalog.sql(statement.replace("TABLE", "TABLE IF NOT EXISTS"))
    assert [definition_file(catalog, name).read_bytes() for name in "ab"] == before


def test_dropped_name_may_be_used_by_the_other_kind(catalog: Catalog) -> None:
    catalog.sql(words("t"))
    catalog.sql("DROP TABLE t")
    catalog.sql("CREATE TABLE t (id BIGINT)")
    assert catalog.table("t").snapshot().scan().num_rows == 0
    catalog.sql("DROP TABLE t")
    catalog.sql(words("t"))
    assert connected(catalog, "t").table.only_topic == "words"


def test_what_is_replaced_or_dropped_meanwhile_is_no_materialized_view(catalog: Catalog) -> None:
    """DROP TABLE asks when it has found the name: by then it may be another table's, or none's."""
    catalog.sql(words())
    catalog.sql("CREATE TABLE managed (id BIGINT)")
    named = [catalog.context.databases.resolve(name) for name in ("words", "managed", "gone")]
    assert not any(map(is_materialized_view, named))


def test_one_of_many_creators_wins_and_its_whole_statement_is_kept(catalog: Catalog) -> None:
    """Rounds of eight: connector tables, managed tables and drops of one name at the same time."""
    managed = "CREATE TABLE t (id BIGINT)"

    def attempt(statement: str) -> bool:
        try:
            catalog.sql(statement)
        except (TableExistsError, TableNotFoundError):
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        for number in range(20):
            creators = [words("t", topic=f"topic-{number}-{i}") if i % 2 else managed for i in range(6)]
            won = list(threads.map(attempt, [*creators, *["DROP TABLE IF EXISTS t"] * (2 * (number % 2))]))
            if number % 2 == 0:
                assert won.count(True) == 1
                winner = creators[won.index(True)]
                definition = definition_in(os.path.join(catalog.warehouse, "t"))
                assert (definition is None) == (winner == managed)
                assert definition is None or f"'{definition.options['topic']}'" in winner
            catalog.sql("DROP TABLE IF EXISTS t")
    assert catalog.tables() == ()


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        (
            words(connector="kinesis"),
            "table 'words': unknown connector 'kinesis'; connectors are upsert-kafka, ",
        ),
        (words(connector="upsert_kafka"), "unknown connector 'upsert_kafka'; did you mean 'upsert-kafka'"),
        (words(connector="filesystem"), "unknown connector 'filesystem'; use the format, as 'parquet'"),
        (words(connector="postgres-cdc"), "use 'kafka' with 'format' = 'debezium-json'"),
        (words(topic=None), "table 'words': one of the options 'topic' and 'topic-pattern' must be set"),
        (words(topics="a"), "table 'words': unknown option 'topics'; did you mean 'topic'"),
        (words(connector="kafka"), "options 'key.format' and 'key.fields' must be given together"),
        (
            words().replace(" NOT ENFORCED)", " NOT ENFORCED, UNIQUE INDEX (n))"),
            "table 'words': UNIQUE INDEX INDEX_n (n) must not be UNIQUE, because that is not checked when",
        ),
        (
            words().replace(" NOT ENFORCED)", " NOT ENFORCED, INDEX (ts))"),
            "index 'INDEX_ts': column 'ts' must be a physical column",
        ),
        (
            words(connector="kafka", **{"key.format": None}).replace(
                "PRIMARY KEY (word) NOT ENFORCED", "INDEX (word)"
            ),
            "table 'words': the connector 'kafka' has no INDEX without 'upsert-kafka', or a PRIMARY KEY ",
        ),
        (
            words(connector="kafka", **{"key.format": None, "mirror.bucket": "4"}).replace(
                ", PRIMARY KEY (word) NOT ENFORCED", ""
            ),
            "options that begin with 'mirror.' need 'upsert-kafka', or a PRIMARY KEY and a format of ",
        ),
        (words(**{"mirror.buckets": "4"}), "options 'mirror.*': unknown option 'buckets'; did you mean"),
        (words(**{"mirror.path": "/tmp/x"}), "options 'mirror.*': unknown option 'path'"),
        (
            words().replace(" WITH", " PARTITIONED BY (word) WITH"),
            "the connector 'upsert-kafka' has no PARTITIONED BY",
        ),
        (
            words().replace("'timestamp'", "'timestmp'"),
            "column 'ts': unknown metadata key 'timestmp'; did you mean 'timestamp'",
        ),
        (words().replace("n BIGINT", "n BIGINT, m INT"), "raw: a value must be one column, got n, m"),
        (words().replace("ts TIMESTAMP", "ts BOOLEAN"), "cannot be cast to BOOLEAN; declare it as TIMESTAMP"),
    ],
)
def test_table_that_is_not_possible_leaves_nothing(catalog: Catalog, statement: str, message: str) -> None:
    for text in (statement, statement.replace("TABLE", "TABLE IF NOT EXISTS")):
        with pytest.raises((ConfigurationError, SchemaError)) as error:
            catalog.sql(text)
        assert message in str(error.value)
        assert "hunter2" not in str(error.value)
    assert not os.path.exists(catalog.warehouse)


def no_object(value: dict[str, Any]) -> Any:
    return [value]


def other_version(value: dict[str, Any]) -> Any:
    return value | {"format": 99}


def lacking(key: str) -> Callable[[dict[str, Any]], Any]:
    return lambda value: {name: value[name] for name in value if name != key}


def with_value(key: str, found: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda value: value | {key: found}


@pytest.mark.parametrize(
    "damage",
    [
        no_object,
        other_version,
        lacking("uuid"),
        lacking("schema"),
        lacking("options"),
        with_value("connector", 5),
        with_value("connector", None),
        with_value("options", ["topic"]),
        with_value("options", {"topic": 5}),
        with_value("schema", {"columns": []}),
        with_value("uuid", 7),
    ],
)
def test_damaged_definition_is_told_and_can_be_dropped(
    catalog: Catalog, damage: Callable[[dict[str, Any]], Any]
) -> None:
    catalog.sql(words())
    file = definition_file(catalog)
    value = json.loads(file.read_bytes())
    value.pop("checksum")  # as if an older release had written it
    file.write_text(json.dumps(damage(value)))
    with pytest.raises(CorruptTableError) as error:
        catalog.read(None, "words")  # type: ignore[arg-type]
    assert str(file) in str(error.value)
    assert "hunter2" not in str(error.value)
    catalog.sql("DROP TABLE words")
    assert catalog.tables() == ()


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"{", b"[" * 100_000, b"null"])
def test_file_that_is_no_json_is_told(catalog: Catalog, content: bytes) -> None:
    catalog.sql(words())
    definition_file(catalog).write_bytes(content)
    with pytest.raises(CorruptTableError, match=r"words/table\.json"):
        catalog.read(None, "words")  # type: ignore[arg-type]


def test_folder_that_cannot_be_written_is_told(catalog: Catalog) -> None:
    os.makedirs(os.path.dirname(catalog.warehouse), exist_ok=True)
    Path(catalog.warehouse).write_text("no folder")
    with pytest.raises(ConfigurationError, match="must be a folder that can be written"):
        catalog.sql(words())
