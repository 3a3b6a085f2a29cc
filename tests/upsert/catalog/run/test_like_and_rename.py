"""CREATE TABLE … LIKE, ALTER TABLE … RENAME TO, and changes of what a table declares, through SQL."""

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from upsert.catalog.catalog import Catalog
from upsert.catalog.results import Rows
from upsert.catalog.run.jobs import Job
from upsert.catalog.warehouse import Warehouse
from upsert.errors import ConfigurationError, SchemaError, TableExistsError, TableNotFoundError

SOURCE = """
    CREATE TABLE source (
        day STRING, twice AS id * 2, id BIGINT, version BIGINT METADATA FROM 'snapshot-id', at TIMESTAMP,
        PRIMARY KEY (day, id) NOT ENFORCED, INDEX (at), WATERMARK FOR at AS at - INTERVAL '5' SECOND
    ) COMMENT 'the first' PARTITIONED BY (day) WITH ('bucket' = '3', 'write-only' = 'true')"""


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    found = Catalog(tmp_path / "warehouse")
    found.sql(SOURCE)
    return found


def names(catalog: Catalog, table: str) -> list[str]:
    described = catalog.sql(f"DESCRIBE {table}")
    assert isinstance(described, Rows)
    return [row["name"] for row in described.rows.to_pylist()]


def text(catalog: Catalog, table: str) -> str:
    shown = catalog.sql(f"SHOW CREATE TABLE {table}")
    assert isinstance(shown, Rows)
    found: str = shown.rows.column(0)[0].as_py()
    return found


class TestLike:
    def test_all_but_rows_and_comment_is_taken_over(self, catalog: Catalog) -> None:
        catalog.sql("CREATE TABLE copy LIKE source")
        first, second = text(catalog, "source"), text(catalog, "copy")
        assert second == first.replace("`source`", "`copy`").replace("COMMENT 'the first'\n", "")

    def test_statement_adds_columns_and_indexes_and_replaces_options(self, catalog: Catalog) -> None:
        catalog.sql(
            "CREATE TABLE copy (more INT, INDEX (more)) COMMENT 'c' WITH ('bucket' = '2') LIKE source"
        )
        table = catalog.table("copy")
        assert names(catalog, "copy") == ["day", "twice", "id", "version", "at", "more"]
        assert [index.name for index in table.schema.indexes] == ["INDEX_at", "INDEX_more"]
        assert dict(table.definition.given) == {"bucket": "2", "write-only": "true"}
        assert table.schema.comment == "c"

    def test_features_are_left_out_or_replaced_by_name(self, catalog: Catalog) -> None:
        catalog.sql(
            "CREATE TABLE copy (twice AS id + id, PRIMARY KEY (id) NOT ENFORCED) LIKE source "
            "(EXCLUDING ALL OVERWRITING GENERATED)"
        )
        table = catalog.table("copy")
        assert names(catalog, "copy") == ["day", "twice", "id", "at"]
        assert [c.expression for c in table.schema.computed] == ["id + id"]
        assert (table.schema.primary_key, table.schema.partitioned_by) == (("id",), ())
        assert (table.schema.indexes, table.schema.watermark, dict(table.definition.given)) == ((), None, {})

    @pytest.mark.parametrize(
        ("statement", "message"),
        [
            (
                "(id INT) LIKE source",
                "column 'id' is declared here and in 'source'; leave it out",
            ),
            ("(twice AS 1) LIKE source", "or write EXCLUDING or OVERWRITING GENERATED"),
            ("(PRIMARY KEY (id) NOT ENFORCED) LIKE source", "or write EXCLUDING CONSTRAINTS"),
            ("(WATERMARK FOR at AS at) LIKE source", "or write EXCLUDING or OVERWRITING WATERMARKS"),
            ("WITH ('bucket' = '1') LIKE source (INCLUDING OPTIONS)", "option 'bucket' is declared here"),
            ("LIKE source (EXCLUDING OPTIONS INCLUDING OPTIONS)", "found 'OPTIONS' at line 1, column 60"),
            ("LIKE source (OVERWRITING CONSTRAINTS)", "or one of GENERATED, METADATA, OPTIONS, WATERMARKS"),
            (
                "LIKE source (EXCLUDING GENERATED EXCLUDING CONSTRAINTS) x",
                "expected the end of the statement",
            ),
        ],
    )
    def test_what_is_said_twice_or_is_no_feature_is_refused(
        self, catalog: Catalog, statement: str, message: str
    ) -> None:
        with pytest.raises(SchemaError) as error:
            catalog.sql(f"CREATE TABLE copy {statement}")
        assert message in str(error.value)
        assert str(error.value).count("table 'copy'") < 2

    def test_source_must_be_there_and_the_name_free(self, catalog: Catalog) -> None:
        with pytest.raises(TableNotFoundError, match="did you mean 'source'"):
            catalog.sql("CREATE TABLE copy LIKE sourse")
        with pytest.raises(TableExistsError):
            catalog.sql("CREATE TABLE source LIKE source")
        catalog.sql("CREATE TABLE IF NOT EXISTS source LIKE source")


class TestRename:
    def test_table_keeps_rows_and_identity_in_whatever_database(self, catalog: Catalog) -> None:
        table = catalog.table("source")
        table.write(pa.table({"day": ["x"], "id": [1], "at": pa.nulls(1, table.schema.type_of("at"))}))
        catalog.sql("CREATE DATABASE shop")
        assert "renamed to shop.sales" in repr(catalog.sql("ALTER TABLE source RENAME TO shop.sales"))
        catalog.sql("ALTER TABLE shop.sales RENAME TO bought")
        assert (catalog.tables(), catalog.tables("shop")) == ((), ("bought",))
        renamed = catalog.table("shop.bought")
        assert (renamed.uuid, renamed.snapshot().scan().num_rows) == (table.uuid, 1)
        catalog.sql(SOURCE)
        assert catalog.table("source").snapshot().scan().num_rows == 0

    def test_taken_and_impossible_names_are_refused(self, catalog: Catalog) -> None:
        catalog.sql("CREATE TABLE other LIKE source")
        for text_, error, message in (
            ("source RENAME TO other", TableExistsError, "exists already"),
            ("nix RENAME TO y", TableNotFoundError, "does not exist"),
            ("source RENAME TO elsewhere.default.y", ConfigurationError, "got 'elsewhere'"),
        ):
            with pytest.raises(error, match=message):
                catalog.sql(f"ALTER TABLE {text_}")
        assert catalog.tables() == ("other", "source")

    def test_name_is_free_though_others_wrote_while_its_table_went(self, catalog: Catalog) -> None:
        """As when tables change places: a writer had left folders, which were told as a table."""
        catalog.sql("CREATE TABLE next LIKE source")
        catalog.sql("ALTER TABLE source RENAME TO before")
        left = Path(catalog.warehouse, "source", "day=x", "bucket-0")
        left.mkdir(parents=True)
        catalog.sql("ALTER TABLE next RENAME TO source")
        assert sorted(os.listdir(catalog.warehouse)) == ["before", "source"]
        Path(catalog.warehouse, "next").mkdir()
        Path(catalog.warehouse, "next", "notes.txt").touch()
        with pytest.raises(ConfigurationError, match=r"got one with 'notes\.txt'; move them away"):
            catalog.sql("ALTER TABLE source RENAME TO next")
        assert catalog.tables() == ("before", "source")

    def test_writer_at_work_on_a_table_that_had_the_name_is_not_in_the_way(
        self, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It was told as a disk that failed: "Directory not empty"."""
        left = Path(catalog.warehouse, "target", "day=x", "bucket-0")
        left.mkdir(parents=True)
        throw_away = Warehouse.throw_away

        def throw_away_and_see_it_again(tables: Warehouse, path: str) -> None:
            throw_away(tables, path)
            monkeypatch.setattr(Warehouse, "throw_away", throw_away)
            left.mkdir(parents=True)

        monkeypatch.setattr(Warehouse, "throw_away", throw_away_and_see_it_again)
        catalog.sql("ALTER TABLE source RENAME TO target")
        assert (catalog.tables(), os.listdir(catalog.warehouse)) == (("target",), ["target"])

    def test_job_finds_its_checkpoint_under_the_new_name(self, catalog: Catalog) -> None:
        catalog.sql("SET 'pipeline.name' = 'job'")
        uuid = catalog.table("source").uuid
        before = Job.of(catalog.context, "source", "INSERT", uuid)
        Path(before.checkpoint).mkdir(parents=True)
        catalog.sql("ALTER TABLE source RENAME TO renamed")
        assert Job.of(catalog.context, "renamed", "INSERT", uuid).checkpoint == before.checkpoint

    @pytest.mark.parametrize("scheme", ["", "file:", "file://"])
    def test_job_finds_its_checkpoint_below_a_uri(
        self, scheme: str, catalog: Catalog, tmp_path: Path
    ) -> None:
        catalog.sql(f"SET 'checkpoint.location' = '{scheme}{tmp_path}/a%20b'")
        uuid = catalog.table("source").uuid
        before = Job.of(catalog.context, "source", "INSERT", uuid)
        assert not before.has_begun
        commits = Path(before.checkpoint.removeprefix(scheme), "commits")
        commits.mkdir(parents=True)
        (commits / "0").touch()
        catalog.sql("ALTER TABLE source RENAME TO renamed")
        after = Job.of(catalog.context, "renamed", "INSERT", uuid)
        assert (after.checkpoint, after.has_begun) == (before.checkpoint, True)

        dropped = Job.of(catalog.context, "dropped", "CREATE TABLE")
        Path(dropped.checkpoint.removeprefix(scheme), "offsets").mkdir(parents=True)
        with pytest.raises(ConfigurationError, match="is that of a dropped table"):
            dropped.refuse_left_checkpoint(catalog.context)


def test_declarations_are_altered_in_one_statement_each(catalog: Catalog) -> None:
    for change in (
        "ADD (v STRING COMMENT 'v', thrice AS id * 3, INDEX (v))",
        "ADD `bucket` INT METADATA VIRTUAL",
        "DROP INDEX INDEX_at",
        "MODIFY WATERMARK FOR at AS at - INTERVAL '1' MINUTE",
        "MODIFY id BIGINT COMMENT 'of a visit'",
        "ALTER COLUMN twice COMMENT 'doubled'",
        "DROP COLUMN version",
    ):
        catalog.sql(f"ALTER TABLE source {change}")
    shown = text(catalog, "source")
    for part in (
        "`twice` AS id * 2 COMMENT 'doubled'",
        "`id` BIGINT NOT NULL COMMENT 'of a visit'",
        "`thrice` AS id * 3",
        "`bucket` INT METADATA FROM 'bucket' VIRTUAL",
        "WATERMARK FOR `at` AS `at` - INTERVAL '1' MINUTE",
        "INDEX `INDEX_v` (`v`)",
    ):
        assert part in shown
    assert "version" not in shown
    catalog.sql("ALTER TABLE source DROP WATERMARK")
    catalog.sql("ALTER TABLE source ADD WATERMARK FOR at AS at")
    errors: dict[str, str] = {
        "ADD WATERMARK FOR at AS at": "there is one, for column 'at'; write MODIFY WATERMARK",
        "ADD PRIMARY KEY (id) NOT ENFORCED": "the primary key cannot change",
        "ADD UNIQUE at": "found 'at' at line 1, column 31",
    }
    for change, message in errors.items():
        with pytest.raises(SchemaError) as error:
            catalog.sql(f"ALTER TABLE source {change}")
        assert message in str(error.value), change


def test_index_that_was_added_serves_lookups(catalog: Catalog) -> None:
    table: Any = catalog.table("source")
    times = pa.array([1_000_000, 2_000_000], table.schema.type_of("at"))
    table.write(pa.table({"day": ["x", "y"], "id": [1, 2], "at": times}))
    catalog.sql("ALTER TABLE source ADD INDEX by_id (id)")
    found = catalog.table("source").snapshot().lookup(["id"], pa.table({"id": [2]}))
    assert found["day"].to_pylist() == ["y"]


def test_options_of_files_and_logs_of_the_session_go_to_new_tables_and_are_described(
    catalog: Catalog,
) -> None:
    catalog.sql("SET table-storage.file.format = parquet")
    catalog.sql("SET 'table-storage.log.retention' = '1 d'")
    catalog.sql("CREATE TABLE made (id INT)")
    assert dict(catalog.table("made").definition.given) == {"file.format": "parquet", "log.retention": "1 d"}
    described = catalog.sql("DESCRIBE TABLE EXTENDED made")
    assert isinstance(described, Rows)
    row = described.rows.to_pylist()[0]
    assert (row["file.format"], row["log.system"], row["log.kafka.topic"]) == ("parquet", "none", None)
