"""A topic belongs to the table it was made for: not to a copy of its folder, and not to a later topic."""

import os
import shutil
from pathlib import Path

import pytest

from tests.upsert.log.followed import Followed, content
from tests.upsert.log.log_content import KEYED, assert_log_is_the_table, new_table, rows
from upsert.catalog.catalog import Catalog
from upsert.errors import RecordsExpiredError
from upsert.kafka.client import admin
from upsert.kafka.client.connection import Connection
from upsert.log.offset import LOG
from upsert.store.alterations import SetOptions
from upsert.store.commit.append import LeftoverWarning
from upsert.store.table import Table
from upsert.testing import LocalKafka

pytestmark = pytest.mark.kafka

OFF = SetOptions({"log.system": "none"})


@pytest.fixture
def table(kafka: LocalKafka, tmp_path: Path) -> Table:
    """A table of a warehouse, with a log and two rows."""
    table = new_table(tmp_path / "orders", kafka.bootstrap_servers, KEYED)
    table.write(rows(("+I", 1, "a"), ("+I", 2, "a")))
    return table


def has_topic(table: Table) -> bool:
    log = table.options.log
    assert log.topic is not None
    return log.topic in admin.topics(Connection(log.properties), [log.topic])


def test_dropping_a_copy_leaves_the_topic_of_the_original(table: Table, tmp_path: Path) -> None:
    shutil.copytree(table.path, tmp_path / "copy")
    with pytest.warns(LeftoverWarning, match="topic 'orders-.*' of its log stays"):
        Catalog(tmp_path).sql("DROP TABLE `copy`")
    assert not (tmp_path / "copy").exists()
    table.write(rows(("+U", 1, "b")))
    assert_log_is_the_table(table)
    Catalog(tmp_path).sql("DROP TABLE orders")
    assert not has_topic(table)


def test_a_copy_that_gives_its_log_up_leaves_the_topic_and_may_get_another(
    table: Table, kafka: LocalKafka, tmp_path: Path
) -> None:
    copy = Table.open(shutil.copytree(table.path, tmp_path / "copy"))
    with pytest.warns(LeftoverWarning, match="stays"):
        copy.alter(OFF)
    assert has_topic(table)
    copy.alter(SetOptions({"log.system": "kafka", "log.kafka.bootstrap.servers": kafka.bootstrap_servers}))
    copy = Table.open(copy.path)
    copy.write(rows(("+U", 1, "b")))
    assert copy.options.log.topic != table.options.log.topic
    Catalog(tmp_path).sql("DROP TABLE `copy`")
    assert (has_topic(copy), has_topic(table)) == (False, True)


def test_a_folder_that_was_moved_takes_its_topic_along(table: Table, tmp_path: Path) -> None:
    os.rename(table.path, tmp_path / "moved")
    Catalog(tmp_path).sql("ALTER TABLE moved RENAME TO again")
    Catalog(tmp_path).sql("DROP TABLE again")
    assert not has_topic(table)


def test_a_table_of_an_older_release_takes_its_topic_along(table: Table, tmp_path: Path) -> None:
    (tmp_path / "orders" / "log" / "home").unlink()
    Catalog(tmp_path).sql("DROP TABLE orders")
    assert not has_topic(table)


def test_a_topic_that_was_made_again_is_noticed_wherever_it_ends(table: Table) -> None:
    """The reader was stopped meanwhile, and the new topic has grown past its place."""
    query = Followed(table)
    query.drain()
    log = table.options.log
    assert log.topic is not None
    connection = Connection(log.properties)
    admin.delete_topic(connection, log.topic)
    admin.create_topic(connection, log.topic, table.options.bucket)
    for number in range(8):
        table.write(rows(*(("+U", key, f"{number}") for key in range(1, 9))))
    query.restart_without_replay()
    with pytest.raises(RecordsExpiredError, match=r"topic .orders-.*. with the id .* was deleted"):
        query.drain()


def test_a_checkpoint_of_an_older_release_goes_on_and_has_the_id_from_then_on(table: Table) -> None:
    query = Followed(table)
    query.drain()
    del query.offset[LOG]["topic_id"]
    query.restart_without_replay()
    table.write(rows(("+U", 1, "b"), ("-D", 2, None)))
    query.drain()
    assert query.rows == content(table)
    assert query.offset[LOG]["topic_id"] is not None
