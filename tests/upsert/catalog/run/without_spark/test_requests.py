"""What statements ask of a table in an object store, and what the next one sees."""

import pytest

from tests.object_store import ObjectStore, counted
from upsert import Catalog
from upsert.store.files import writing
from upsert.store.metadata import looks

FRUIT = "CREATE TABLE fruit (id BIGINT, name STRING, PRIMARY KEY (id) NOT ENFORCED)"


@pytest.fixture
def catalog(s3: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    monkeypatch.delenv("SPARK_SUBMIT_OPTS", raising=False)  # which may say what the settings of a session are
    return Catalog(s3.warehouse)


@pytest.mark.parametrize(
    ("statement", "reads", "puts"),
    [
        ("INSERT INTO fruit VALUES (3, 'fig')", 5, 3),
        ("SELECT * FROM fruit", 6, 0),
        ("SELECT count(*) FROM fruit WHERE name = 'fig'", 6, 0),
        ("UPDATE fruit SET name = 'pear' WHERE id = 2", 6, 3),
        (
            "MERGE INTO fruit f USING (VALUES (2, 'fig')) s(i, n) ON f.id = i WHEN MATCHED THEN DELETE",
            6,
            3,
        ),
    ],
)
def test_the_steps_of_a_statement_look_once_at_a_table(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch, statement: str, reads: int, puts: int
) -> None:
    """An UPDATE of one row sent 46 requests, one after the other."""
    monkeypatch.setattr(writing, "SMALL_ROWS", 100)
    monkeypatch.setattr(looks, "LASTS_S", 60.0)  # on a busy machine a look would be too old
    catalog.sql(FRUIT)
    for id in (1, 2):
        catalog.sql(f"INSERT INTO fruit VALUES ({id}, 'apple')")
    asked = counted(monkeypatch)
    catalog.sql(statement)
    assert asked["put"] == puts
    assert asked.total() <= reads + puts  # one less where a session is active


def test_the_next_statement_sees_what_another_process_has_done(catalog: Catalog) -> None:
    other = Catalog(catalog.warehouse)
    for name in ("apple", "fig"):
        other.sql("DROP TABLE IF EXISTS fruit")
        other.sql(FRUIT)
        for id in (1, 2):
            other.sql(f"INSERT INTO fruit VALUES ({id}, '{name}')")
            found = catalog.sql("SELECT id, name FROM fruit").rows.to_pylist()
            assert found == [{"id": each, "name": name} for each in range(1, id + 1)]
