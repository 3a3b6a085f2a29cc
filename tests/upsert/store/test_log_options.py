"""Options of a log: their defaults, what they resolve to, and what is refused with the reason."""

import pickle
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from upsert.catalog.session import SessionOptions
from upsert.errors import ConfigurationError
from upsert.schema import TableSchema
from upsert.sql.show_create import create_text
from upsert.store import paths
from upsert.store.alterations import ResetOptions, SetOptions, altered
from upsert.store.log.files import LogBeginning, claim, is_home
from upsert.store.log_options import LogOptions
from upsert.store.metadata import table_file
from upsert.store.metadata.definition import Definition
from upsert.store.table_options import TableOptions

COLUMNS = {"id": pa.int64(), "v": pa.string()}
KEYED = TableSchema.of(COLUMNS, primary_key=["id"])
MULTISET = TableSchema.of(COLUMNS)
KAFKA = {"log.system": "kafka", "log.kafka.bootstrap.servers": "b:1"}


def log(schema: TableSchema = KEYED, **options: str) -> LogOptions:
    return TableOptions.parse(KAFKA | options, schema).log


def test_a_table_has_no_log_unless_it_says_so() -> None:
    defaults = TableOptions.parse({}, KEYED).log
    assert (defaults.system, defaults.is_kafka) == ("none", False)
    of_session = {"log.kafka.bootstrap.servers": "b:1", "log.consistency": "eventual"}
    assert TableOptions.parse(of_session, MULTISET).log == defaults


def test_defaults_are_those_of_flip_188() -> None:
    found = log()
    assert (found.consistency, found.key_format, found.format) == ("transactional", "json", "debezium-json")
    assert (found.changelog_mode, log(MULTISET).changelog_mode) == ("upsert", "all")
    assert (found.scan, found.scan_timestamp_ms, found.retention_ms) == ("full", None, None)


def test_a_table_with_a_key_may_have_all_changes_in_its_log() -> None:
    """The store knows the row before, so V4's limit to inputs that have it does not hold here."""
    assert log(**{"log.changelog-mode": "all"}).changelog_mode == "all"


def test_properties_of_the_client_are_passed_on_and_not_shown() -> None:
    given = {"log.kafka.sasl.password": "pa55", "log.kafka.security.protocol": "SASL_SSL"}
    found = log(**given)
    assert found.properties == {
        "bootstrap.servers": "b:1",
        "sasl.password": "pa55",
        "security.protocol": "SASL_SSL",
    }
    assert "pa55" not in repr(found)
    assert pickle.loads(pickle.dumps(found)) == found


@pytest.mark.parametrize(
    ("schema", "options", "message"),
    [
        (MULTISET, {"log.consistency": "eventual"}, "'eventual' needs a PRIMARY KEY"),
        (MULTISET, {"log.changelog-mode": "upsert"}, "'upsert' needs a PRIMARY KEY"),
        (
            KEYED,
            {"log.consistency": "eventual", "log.changelog-mode": "all"},
            "'all' needs 'log.consistency' = 'transactional'",
        ),
        (
            KEYED,
            {"log.consistency": "eventual", "merge-engine": "first-row"},
            "got 'merge-engine' or 'sequence.field'",
        ),
        (KEYED, {"log.format": "json"}, "must be a format of changes, got 'json'"),
        (KEYED, {"log.format": "jsonn"}, "unknown format 'jsonn'"),
        (KEYED, {"log.key.format": "debezium-json"}, "must be a format of rows"),
        (KEYED, {"log.key.format": "avro-confluent"}, "a format with defaults for all of its options"),
        (KEYED, {"log.format": "debezium-avro-confluent"}, "whose own a log cannot set; set 'debezium-json'"),
        (KEYED, {"log.scan": "from-timestamp"}, "needs 'log.scan.timestamp-mills'"),
        (KEYED, {"log.kafka.topic": "no/topic"}, "a topic's name"),
        (
            KEYED,
            {"log.kafka.isolation.level": "read_uncommitted"},
            "must be 'read_committed', got 'read_unco",
        ),
        (KEYED, {"log.retention": "soon"}, "a duration"),
        (KEYED, {"log.system": "pulsar"}, "one of none, kafka"),
    ],
)
def test_what_does_not_fit_is_refused(schema: TableSchema, options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        log(schema, **options)


def test_a_log_needs_brokers() -> None:
    with pytest.raises(ConfigurationError, match=r"'table-storage.log.kafka.bootstrap.servers'"):
        TableOptions.parse({"log.system": "kafka"}, KEYED)


def test_a_session_has_options_of_logs_for_all_its_tables() -> None:
    session = SessionOptions()
    session["table-storage.log.system"] = "kafka"
    session["table-storage.log.kafka.bootstrap.servers"] = "b:1"
    session["table-storage.log.kafka.sasl.password"] = "pa55"
    given = session.with_defaults({"log.consistency": "eventual"})
    found = TableOptions.parse(given, KEYED).log
    assert (found.system, found.is_eventual, found.properties["sasl.password"]) == ("kafka", True, "pa55")
    for key in ("log.scan", "log.kafka.topic"):
        with pytest.raises(ConfigurationError, match="belongs to a single table"):
            session[f"table-storage.{key}"] = "full"


def test_a_password_of_the_client_is_its_owners_alone(tmp_path: Path) -> None:
    """The topic is not made: it is the file that is asked for."""
    options = KAFKA | {"log.kafka.sasl.password": "pa55"}
    table_file.create(str(tmp_path / "t"), KEYED, options)
    assert (tmp_path / "t" / "table.json").stat().st_mode & 0o077 == 0
    assert "pa55" not in repr(table_file.read(str(tmp_path / "t")))
    assert "pa55" not in create_text("t", KEYED, options)


def test_what_has_written_the_log_cannot_change() -> None:
    old = Definition(0, KEYED, {**KAFKA, "log.kafka.topic": "t", "log.kafka.a.b": "1"})
    for key, value in {"log.changelog-mode": "all", "log.kafka.topic": "u"}.items():
        with pytest.raises(ConfigurationError, match=f"option '{key}' cannot change, for the table's log"):
            altered(old, [SetOptions({key: value})])
    changed = altered(old, [SetOptions({"log.retention": "1 d"}), ResetOptions(("log.kafka.a.b",))])
    assert changed.options.log.retention_ms == 86_400_000
    assert changed.options.log.properties == {"bootstrap.servers": "b:1"}


def test_what_a_table_says_of_a_log_with_a_password_is_its_owners_alone(tmp_path: Path) -> None:
    for properties, mode in (({"client.id": "x"}, 0o644), ({"sasl.password": "pa55"}, 0o600)):
        LogBeginning("t", properties=properties).write(str(tmp_path), "0" * 32)
        path = tmp_path / paths.log_file("t")
        assert path.stat().st_mode & 0o777 & ~0o022 == mode


def test_table_that_replaces_another_one_in_its_folder_says_too_that_it_is_the_home_of_its_log(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "orders"
    for uuid in ("a1", "b2"):
        folder.mkdir()
        claim(str(folder), uuid)
        copy = shutil.copytree(folder, tmp_path / f"copy-{uuid}")
        assert (is_home(str(folder), uuid), is_home(str(copy), uuid)) == (True, False)
        shutil.rmtree(folder)
