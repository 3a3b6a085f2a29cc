"""Several warehouses in one session: names of three parts, USE CATALOG; without Spark."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from upsert.catalog.catalog import Catalog
from upsert.catalog.results import Rows
from upsert.catalog.run.jobs import Job
from upsert.errors import ConfigurationError, SchemaError, TableNotFoundError
from upsert.sql.parser import parse
from upsert.sql.statements import CreateCatalog, ShowDatabases, ShowTables, UseCatalog, UseDatabase

TABLE = "(id BIGINT, PRIMARY KEY (id) NOT ENFORCED)"


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    found = Catalog(tmp_path / "first")
    found.sql(f"CREATE CATALOG archive WITH ('warehouse' = '{tmp_path}/second')")
    return found


def column(catalog: Catalog, text: str) -> list[Any]:
    shown = catalog.sql(text)
    assert isinstance(shown, Rows)
    found: list[Any] = shown.rows.column(0).to_pylist()
    return found


def test_names_of_three_parts_reach_every_catalog(catalog: Catalog, tmp_path: Path) -> None:
    catalog.sql("CREATE DATABASE archive.old")
    catalog.sql(f"CREATE TABLE archive.old.orders {TABLE}")
    catalog.sql("CREATE TABLE main.default.orders LIKE archive.old.orders")
    catalog.table("archive.old.orders").write(pa.table({"id": [1]}))
    assert (tmp_path / "second" / "old.db" / "orders").is_dir()
    assert catalog.table("orders").snapshot().scan().num_rows == 0
    assert column(catalog, "SHOW CATALOGS") == ["archive", "main"]
    assert column(catalog, "SHOW DATABASES FROM archive") == ["default", "old"]
    assert column(catalog, "SHOW TABLES FROM archive.old") == ["orders"]
    assert repr(catalog.sql("DROP TABLE archive.old.orders")) == "<DROP TABLE archive.old.orders: dropped>"
    catalog.sql("DROP DATABASE archive.old")


def test_what_changes_nothing_says_so(catalog: Catalog) -> None:
    for name, options in (("DATABASE shop", ""), ("CATALOG attic", " WITH ('warehouse' = 'attic')")):
        kind = name.replace(" ", " {} ")
        statements = (
            f"CREATE {kind.format('IF NOT EXISTS')}{options}",
            f"CREATE {kind.format('IF NOT EXISTS')}{options}",
            f"DROP {kind.format('IF EXISTS')}",
            f"DROP {kind.format('IF EXISTS')}",
        )
        assert [repr(catalog.sql(statement)) for statement in statements] == [
            f"<CREATE {name}: created>",
            f"<CREATE {name}: was there already>",
            f"<DROP {name}: dropped>",
            f"<DROP {name}: was not there>",
        ]


def test_catalog_in_use_is_where_short_names_are_looked_up(catalog: Catalog) -> None:
    catalog.sql(f"CREATE TABLE here {TABLE}")
    catalog.sql("USE CATALOG archive")
    assert column(catalog, "SHOW CURRENT CATALOG") == ["archive"]
    catalog.sql(f"CREATE TABLE there {TABLE}")
    assert catalog.tables() == ("there",)
    with pytest.raises(TableNotFoundError):
        catalog.table("here")
    assert catalog.table("main.default.here").name == "here"
    catalog.sql("USE main.default")
    assert catalog.tables() == ("here",)
    catalog.sql("DROP CATALOG archive")
    with pytest.raises(ConfigurationError, match="catalogs are main, got 'archive'"):
        catalog.table("archive.default.there")


def test_job_keeps_its_checkpoint_beside_its_table_whatever_catalog_is_in_use(catalog: Catalog) -> None:
    catalog.sql(f"CREATE TABLE archive.default.t {TABLE}")
    catalog.sql("SET 'pipeline.name' = 'job'")
    one = Job.of(catalog.context, "archive.default.t", "INSERT", "0123456789")
    catalog.sql("USE CATALOG archive")
    assert Job.of(catalog.context, "t", "INSERT", "0123456789").checkpoint == one.checkpoint


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("CREATE CATALOG c WITH ('type' = 'deltajoin')", "option 'warehouse' is required"),
        (
            "CREATE CATALOG c WITH ('warehouse' = '/w', 'type' = 'hive')",
            "'type' must be one of deltajoin",
        ),
        ("CREATE CATALOG archive WITH ('warehouse' = '/w')", "catalog 'archive' exists already"),
        ("USE CATALOG archives", "did you mean 'archive'"),
        ("DROP CATALOG main", "neither the one in use nor the one of the session can be dropped"),
        ("ALTER TABLE t RENAME TO archive.default.t", "a new name must lie in the same catalog"),
    ],
)
def test_what_is_not_possible_is_refused(catalog: Catalog, text: str, message: str) -> None:
    catalog.sql(f"CREATE TABLE t {TABLE}")
    with pytest.raises(ConfigurationError) as error:
        catalog.sql(text)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "create catalog if not exists c with ('warehouse'='/w')",
            CreateCatalog("c", {"warehouse": "/w"}, if_not_exists=True),
        ),
        ("USE CATALOG c", UseCatalog("c")),
        ("USE catalog", UseDatabase("catalog")),
        ("USE c.db", UseDatabase("c.db")),
        ("SHOW DATABASES IN c", ShowDatabases(catalog="c")),
        ("SHOW TABLES IN c.db LIKE 'a%'", ShowTables("c.db", "a%")),
    ],
)
def test_statement_is_read(text: str, expected: object) -> None:
    assert parse(text) == expected


def test_text_that_is_no_statement_is_refused_with_its_place() -> None:
    with pytest.raises(SchemaError, match="expected WITH, found 'USING' at line 2, column 1"):
        parse("CREATE CATALOG c\nUSING x")
