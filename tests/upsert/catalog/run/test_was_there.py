"""What CREATE TABLE IF NOT EXISTS says of a table that is there, and that stays as it was."""

from pathlib import Path

import pytest

from upsert import Catalog

MANAGED = """
    CREATE TABLE IF NOT EXISTS orders (
      id BIGINT, name VARCHAR(9) DEFAULT 'x', at TIMESTAMP, gross AS id * 2,
      version BIGINT METADATA FROM 'snapshot-id',
      PRIMARY KEY (id) NOT ENFORCED, INDEX (name), CHECK (id > 0),
      WATERMARK FOR at AS at - INTERVAL '5' SECOND
    ) COMMENT 'all' PARTITIONED BY (id) WITH ('bucket' = '2')
"""
TOPIC = """
    CREATE TABLE IF NOT EXISTS words (id BIGINT, word VARCHAR(9), PRIMARY KEY (id) NOT ENFORCED)
    WITH ('connector' = 'upsert-kafka', 'topic' = 'words', 'properties.bootstrap.servers' = 'h:1',
          'key.format' = 'json', 'value.format' = 'json', 'secret.properties.sasl.password' = 'pa55')
"""


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    found = Catalog(tmp_path)
    found.sql("SET 'table-storage.snapshot.num-retained.min' = '3'")
    return found


def said(catalog: Catalog, text: str) -> str:
    return repr(catalog.sql(text)).partition(": ")[2].removesuffix(">")


@pytest.mark.parametrize("create", [MANAGED, TOPIC])
def test_the_same_statement_says_no_more(catalog: Catalog, create: str) -> None:
    assert said(catalog, create) == "created"
    assert said(catalog, create) == "was there already"


@pytest.mark.parametrize(
    ("create", "before", "after", "told"),
    [
        (MANAGED, "id BIGINT,", "id BIGINT, level INT,", "has not `level` INT"),
        (MANAGED, ", INDEX (name)", "", "has INDEX `INDEX_name` (`name`)"),
        (MANAGED, "'2')", "'3')", "has 'bucket' = '2', not 'bucket' = '3'"),
        (MANAGED, " WITH ('bucket' = '2')", "", "has 'bucket' = '2'"),
        (TOPIC, "word VARCHAR(9)", "word STRING, n INT", "has not `n` INT"),
        (TOPIC, "'pa55'", "'pa55', 'bad-records' = 'skip'", "has not 'bad-records' = 'skip'"),
        (TOPIC, "'topic' = 'words'", "'topic' = 'w2'", "has 'topic' = 'words', not 'topic' = 'w2'"),
        (TOPIC, "pa55", "other", None),
    ],
)
def test_another_one_says_in_what(
    catalog: Catalog, create: str, before: str, after: str, told: str | None
) -> None:
    catalog.sql(create)
    found = said(catalog, create.replace(before, after, 1))
    if told is None:
        assert found == "was there already", "what is a secret is not told"
    else:
        assert found == f"was there already, and stays as it was: it {told}; ALTER TABLE changes it"


def test_a_column_that_was_added_by_hand_is_no_difference(catalog: Catalog) -> None:
    catalog.sql(MANAGED)
    catalog.sql("ALTER TABLE orders ADD COLUMN level INT")
    assert said(catalog, MANAGED.replace("id BIGINT,", "id BIGINT, level INT,")) == "was there already"
