"""Views of tables that came back older than the view: all rows again, and nothing of what the table was."""

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import planner
from tests.object_store import ObjectStore, counted
from upsert import Catalog
from upsert.schema import TableSchema
from upsert.store import Table
from upsert.store.metadata import looks
from upsert.store.metadata.history import _shared
from upsert.store.metadata.looks import looking_once
from upsert.store.metadata.stands_for import StandsFor
from upsert.views.progress import report, uuids_of

QUERY = "SELECT item, count(*) AS c, sum(n) AS n FROM sales GROUP BY item"


def sell(catalog: Catalog, *ids: int, n: int) -> None:
    ones = pa.array([n] * len(ids), pa.int32())
    rows = pa.table({"id": pa.array(ids, pa.int32()), "item": ["fig"] * len(ids), "n": ones})
    catalog.table("sales").write(rows)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("is_planned", "commits"), [(True, 2), (False, 0), pytest.param(True, 0, marks=pytest.mark.long)]
)
def test_a_view_is_right_after_one_of_its_tables_came_back_older(
    tmp_path: Path, spark: SparkSession, is_planned: bool, commits: int
) -> None:
    catalog = Catalog(tmp_path / "warehouse", optimize=planner.optimize if is_planned else None)
    catalog.sql("CREATE TABLE sales (id INT, item STRING, n INT, PRIMARY KEY (id) NOT ENFORCED)")
    sell(catalog, 1, 2, n=1)
    path = Path(catalog.table("sales").path)
    shutil.copytree(path, tmp_path / "copy")
    view = catalog.create_view("v", QUERY, spark=spark)
    for id in (3, 4):
        sell(catalog, id, n=10)
        view.refresh()
    assert view.is_current
    shutil.rmtree(path)
    shutil.copytree(tmp_path / "copy", path)
    for id in range(commits):
        sell(catalog, 100 + id, n=100)
    assert not view.is_current
    view.refresh()
    assert view.is_current
    wanted = [{"item": "fig", "c": 2 + commits, "n": 2 + 100 * commits}]
    assert catalog.table("v").snapshot().scan().to_pylist() == wanted
    sell(catalog, 200, n=1000)
    view.refresh()
    wanted = [{"item": "fig", "c": 3 + commits, "n": 1002 + 100 * commits}]
    assert catalog.table("v").snapshot().scan().to_pylist() == wanted


@pytest.mark.spark
def test_a_refresh_that_fails_then_leaves_the_view_as_it_is(tmp_path: Path, spark: SparkSession) -> None:
    """It was told that the view could not be created."""
    catalog = Catalog(tmp_path / "warehouse")
    catalog.sql("CREATE TABLE sales (id INT, item STRING, n INT, PRIMARY KEY (id) NOT ENFORCED)")
    sell(catalog, 1, n=1)
    path = Path(catalog.table("sales").path)
    shutil.copytree(path, tmp_path / "copy")
    sell(catalog, 2, n=1)
    view = catalog.create_view("v", "SELECT id, 10 DIV n AS part FROM sales", spark=spark)
    shutil.rmtree(path)
    shutil.copytree(tmp_path / "copy", path)
    sell(catalog, 3, n=0)
    with pytest.raises(PySparkException, match="DIVIDE_BY_ZERO") as raised:
        view.refresh()
    assert raised.value.__notes__ == ["while view 'v' was refreshed; it is as it was before"]


@pytest.mark.spark
def test_what_a_failed_refresh_has_planned_is_planned_again_when_its_hidden_tables_are_gone(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each refresh of this process ended with a TableNotFoundError of a hidden table."""
    catalog = Catalog(tmp_path / "warehouse", optimize=planner.optimize)
    catalog.sql("CREATE TABLE sales (id INT, item STRING, n INT, PRIMARY KEY (id) NOT ENFORCED)")
    sell(catalog, *range(9), n=1)
    path = Path(catalog.table("sales").path)
    shutil.copytree(path, tmp_path / "copy")
    sell(catalog, 10, n=10)
    view = catalog.create_view("v", QUERY, spark=spark)
    sell(catalog, 11, n=100)
    monkeypatch.setattr("upsert.views.refresh.reach", None)
    with pytest.raises(TypeError):
        view.refresh()
    monkeypatch.undo()
    shutil.rmtree(path)
    shutil.copytree(tmp_path / "copy", path)
    view.refresh()
    assert catalog.table("v").snapshot().scan().to_pylist() == [{"item": "fig", "c": 9, "n": 9}]


@pytest.mark.spark
def test_the_query_of_a_view_goes_on_after_a_table_came_back_older(
    tmp_path: Path, spark: SparkSession
) -> None:
    """Also where the newest snapshot has the number that it had."""
    catalog = Catalog(tmp_path / "warehouse", optimize=planner.optimize)
    catalog.sql("CREATE TABLE sales (id INT, item STRING, n INT, PRIMARY KEY (id) NOT ENFORCED)")
    sell(catalog, 1, n=1)
    path = Path(catalog.table("sales").path)
    shutil.copytree(path, tmp_path / "copy")
    view = catalog.create_view("v", QUERY, spark=spark)
    sell(catalog, 2, n=10)
    view.start({"availableNow": True}).awaitTermination()
    shutil.rmtree(path)
    shutil.copytree(tmp_path / "copy", path)
    sell(catalog, 3, n=100)
    view.start({"availableNow": True}).awaitTermination()
    assert catalog.table("v").snapshot().scan().to_pylist() == [{"item": "fig", "c": 2, "n": 101}]


def test_a_view_of_a_snapshot_that_expires_meanwhile_does_without_its_uuid(tmp_path: Path) -> None:
    """Its rows are computed by then; what a look a moment ago has told may have expired, too."""
    schema = TableSchema.of({"id": pa.int64()}, primary_key=["id"])
    table = Table.create(tmp_path / "t", schema, {"write-only": "true"})
    for id in range(4):
        table.write(pa.table({"id": [id]}))
    table.expire(keep=2)
    published = table.published
    with looking_once():
        Table.open(table.path)
        _shared.clear()  # as another process, which knows nothing of this one
        for id in range(4):
            Table.open(table.path).write(pa.table({"id": [id]}))
        Table.open(table.path).expire(keep=1)
        _shared.clear()
        _shared.put((published.folder, published.uuid), published)
        published._infos.clear()
        bases = {"t": (table.path, table.uuid)}
        assert published.seen.oldest > 1
        assert uuids_of({"t": 1}, bases) is None
        versions = {"t": published.latest().data_version}
        assert uuids_of(versions, bases) == {"t": published.seen.identity}


def test_what_a_view_tells_of_itself_asks_an_object_store_once_for_each_table(
    s3: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each micro-batch of its query tells; whether a table has the view's snapshot is no further question."""
    monkeypatch.setattr(looks, "LASTS_S", 3600.0)
    schema = TableSchema.of({"id": pa.int64()}, primary_key=["id"])
    view, *tables = (Table.create(s3.folder(), schema) for _ in range(3))
    for table in tables:
        table.write(pa.table({"id": [1]}))
    bases = {table.uuid: (table.path, table.uuid) for table in tables}
    versions = dict.fromkeys(bases, 1)
    view.commit([], stands_for=StandsFor(versions, 0, uuids=uuids_of(versions, bases)))
    asked = counted(monkeypatch)
    report("none", tables[0], {})
    alone = asked.total()
    asked.clear()
    Table.open(tables[0].path)
    once = asked.total()
    asked.clear()
    report("v", view, bases)
    assert asked.total() == alone + len(bases) * once
