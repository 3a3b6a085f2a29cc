"""ORDER BY … LIMIT over a large table: only rows up to a line below the last one that is shown are kept."""

from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import planner
from planner.views.top_rows import _Ordered
from upsert import Catalog
from upsert.views.view import View

pytestmark = pytest.mark.spark

PLAYERS = """CREATE TABLE players
    (id INT, team INT, score DOUBLE, name STRING, at TIMESTAMP, PRIMARY KEY (id) NOT ENFORCED)
    WITH ('num-sorted-run.compaction-trigger' = '5')"""  # rows are counted as files have them

NAN = float("nan")


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    monkeypatch.setattr("planner.views.keep.WHOLE_ROWS", 0)
    monkeypatch.setattr("planner.views.keep.ORDERED_ROWS", 0)
    monkeypatch.setattr("planner.views.top_rows.LEAST_KEPT", 12)
    monkeypatch.setattr("planner.views.top_rows.MORE", 2)
    made = Catalog(tmp_path / "warehouse", optimize=planner.optimize)
    made.sql(PLAYERS)
    made.sql("CREATE TABLE teams (team INT, city STRING, PRIMARY KEY (team) NOT ENFORCED)")
    made.table("teams").write(
        pa.table({"team": pa.array([0, 1, 2], pa.int32()), "city": ["Ulm", "Bonn", "Aue"]})
    )
    return made


def player(id: int, random_: Random) -> dict[str, Any]:
    return {
        "id": id,
        "team": random_.randrange(4),
        "score": random_.choice([None, NAN, -0.0, 0.0, *(random_.uniform(-50, 50) for _ in range(30))]),
        "name": random_.choice([None, "", "ä", *(f"p{random_.randrange(300)}" for _ in range(20))]),
        "at": random_.choice([None, *(datetime.fromtimestamp(random_.randrange(10**9)) for _ in range(9))]),
    }


def write(catalog: Catalog, rows: list[dict[str, Any]], kind: str = "+U") -> None:
    table = catalog.table("players")
    table.write(pa.Table.from_pylist([{**row, "_row_kind": kind} for row in rows], schema_of(table)))


def schema_of(table: Any) -> pa.Schema:
    return table.snapshot().scan().schema.append(pa.field("_row_kind", pa.string()))


def shown(catalog: Catalog, query: str, spark: SparkSession) -> list[str]:
    return sorted(map(repr, catalog.sql(query, spark).rows.to_pylist()))


def rows_of(view: View) -> list[str]:
    return sorted(map(repr, view.table.snapshot().scan().to_pylist()))


def tops(view: View) -> list[str]:
    folder = Path(view.table.path, "stages")
    return sorted(one.name for one in folder.iterdir() if "-top-" in one.name) if folder.exists() else []


ORDERS = [
    "SELECT id, name FROM players ORDER BY score DESC, id LIMIT 5",
    "SELECT id, score + 1 AS s FROM players WHERE id > 3 ORDER BY score, id LIMIT 4",
    "SELECT id, at FROM players ORDER BY at DESC NULLS FIRST, id LIMIT 3 OFFSET 2",
    "SELECT id, city FROM players JOIN teams USING (team) ORDER BY name NULLS LAST, id LIMIT 5",
    """SELECT city, id FROM teams t
        JOIN (SELECT id, team FROM players ORDER BY name DESC, id LIMIT 6) p USING (team)""",
    "SELECT id FROM players ORDER BY id * 7 % 100, id LIMIT 5",
    """(SELECT id FROM players ORDER BY id * 7 % 100, id LIMIT 3)
        UNION ALL (SELECT id FROM players ORDER BY id * 7 % 100 DESC, id LIMIT 3)""",
]


@pytest.mark.parametrize(
    ("seed", "steps", "queries"),
    [
        (1, 3, [ORDERS[3]]),
        *(pytest.param(seed, 6, ORDERS, marks=pytest.mark.long) for seed in (1, 2, 3)),
    ],
    ids=["some", "all 1", "all 2", "all 3"],
)
def test_the_first_rows_are_right_whichever_come_and_go(
    catalog: Catalog, spark: SparkSession, seed: int, steps: int, queries: list[str]
) -> None:
    random_ = Random(seed)
    write(catalog, [player(id, random_) for id in range(120)])
    views = [catalog.create_view(f"v{number}", query, spark=spark) for number, query in enumerate(queries)]
    for step in range(steps):
        if step == steps // 2:  # all that is shown goes
            gone = {row["id"] for view in views for row in view.table.snapshot().scan(["id"]).to_pylist()}
        else:
            gone = set(random_.sample(range(200), 12))
        write(catalog, [player(id, random_) for id in gone], "-D")
        write(catalog, [player(random_.randrange(200), random_) for _ in range(3)])
        for view, query in zip(views, queries, strict=True):
            assert view.refresh()
            assert rows_of(view) == shown(catalog, query, spark), (step, query)
    for view, query in zip(views, queries, strict=True):
        assert tops(view), query
        kept = [refresh for name, refresh in view.refreshes.items() if "-top-" in name]
        assert any(refresh.by_changes for refresh in kept), query


EXTREMES = [
    "SELECT max(score) AS high FROM players",
    "SELECT min(score) AS low, min(score) + 1 AS more FROM players WHERE team > 0",
    "SELECT max(at) AS last FROM players JOIN teams USING (team)",
    "SELECT id, name FROM players WHERE name = (SELECT max(name) FROM players)",
]


@pytest.mark.parametrize(
    ("seed", "queries"),
    [(1, EXTREMES[3:]), *(pytest.param(seed, EXTREMES, marks=pytest.mark.long) for seed in (1, 2))],
    ids=["some", "all 1", "all 2"],
)
def test_extremes_of_all_rows_are_right_whichever_come_and_go(
    catalog: Catalog, spark: SparkSession, seed: int, queries: list[str]
) -> None:
    random_ = Random(seed)
    write(catalog, [player(id, random_) for id in range(120)])
    views = [catalog.create_view(f"v{number}", query, spark=spark) for number, query in enumerate(queries)]
    for step in range(4):
        players = catalog.table("players").snapshot().scan().to_pylist()
        gone = random_.sample(players, min(12, len(players)))
        if step == 1:  # the extremes of most go
            gone += sorted(players, key=lambda row: row["score"] or 0.0)[-20:]
            gone += [row for row in players if row["name"] == max(one["name"] or "" for one in players)]
        if step == 2:
            gone = players
        write(catalog, [row for number, row in enumerate(gone) if row not in gone[:number]], "-D")
        if step != 2:
            write(catalog, [player(random_.randrange(200), random_) for _ in range(9)])
        for view, query in zip(views, queries, strict=True):
            assert view.refresh()
            assert rows_of(view) == shown(catalog, query, spark), (step, query)
            assert len(tops(view)) == (step != 2), query  # without rows there is nothing to keep
            ways = [refresh.by_changes for name, refresh in view.refreshes.items() if "-top-" in name]
            assert step or ways == [True], query


@pytest.mark.long
def test_the_first_of_many_groups_are_kept(
    catalog: Catalog, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    random_ = Random(7)
    write(catalog, [player(id, random_) for id in range(120)])
    query = """SELECT name, city, sum(id) AS s FROM players JOIN teams USING (team)
        GROUP BY name, city ORDER BY s DESC, name, city LIMIT 4"""
    few = catalog.create_view("few", query, spark=spark)
    assert not tops(few)  # all groups are read
    monkeypatch.setattr("planner.views.keep.SHALLOW_ROWS", 0)
    view = catalog.create_view("best", query, spark=spark)
    for step in range(3):
        write(catalog, [player(random_.randrange(110, 130), random_) for _ in range(9)])
        write(catalog, [{"id": 119 - step}], "-D")
        assert view.refresh()
        assert rows_of(view) == shown(catalog, query, spark), step
        # how many groups there are is known after the first rows: then the tables are made
        assert step == 0 or all(refresh.by_changes for refresh in view.refreshes.values())
    (top,) = tops(view)
    assert f"table {top}" in view.explain()


def test_another_line_is_drawn_when_too_few_or_too_many_rows_are_left(
    catalog: Catalog, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("planner.views.top_rows.MOST_KEPT", 30)
    write(catalog, [{"id": id, "score": float(id)} for id in range(100)])
    query = "SELECT id FROM players ORDER BY score DESC LIMIT 3"
    view = catalog.create_view("best", query, spark=spark)
    (first,) = tops(view)
    assert "the first rows of an order, moved by a step of" in view.explain()
    write(catalog, [{"id": id} for id in range(91, 100)], "-D")
    assert view.refresh()
    assert tops(view) == [first]
    assert view.refreshes["best"].reason == "computed from its hidden tables"
    assert rows_of(view) == ["{'id': 88}", "{'id': 89}", "{'id': 90}"]
    write(catalog, [{"id": id} for id in range(89, 91)], "-D")
    assert view.refresh()
    (second,) = tops(view)  # and the first is gone
    assert second != first
    assert rows_of(view) == ["{'id': 86}", "{'id': 87}", "{'id': 88}"]
    write(catalog, [{"id": id, "score": float(id)} for id in range(100, 130)])
    assert view.refresh()
    (third,) = tops(view)
    assert third != second
    assert rows_of(view) == ["{'id': 127}", "{'id': 128}", "{'id': 129}"]
    again = Catalog(catalog.warehouse, optimize=planner.optimize)  # as another process: no line is drawn
    write(catalog, [{"id": 200, "score": 200.0}])
    assert again.view("best", spark).refresh()
    assert tops(view) == [third]
    assert rows_of(view) == ["{'id': 128}", "{'id': 129}", "{'id': 200}"]


def test_rows_that_are_alike_in_the_order_are_read_whole(
    catalog: Catalog, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("planner.views.top_rows.MOST_KEPT", 30)
    write(catalog, [{"id": id, "score": 1.0} for id in range(100)])
    view = catalog.create_view("best", "SELECT id FROM players ORDER BY score DESC, id LIMIT 3", spark=spark)
    assert not tops(view)
    by_task = catalog.create_view("by_task", "SELECT id FROM players SORT BY id LIMIT 3", spark=spark)
    assert not tops(by_task)
    write(catalog, [{"id": 0, "score": 0.5}])
    assert view.refresh()
    assert rows_of(view) == ["{'id': 1}", "{'id': 2}", "{'id': 3}"]


@pytest.mark.long
def test_results_that_are_alike_in_the_order_are_a_table_that_is_read_whole(
    catalog: Catalog, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("planner.views.top_rows.MOST_KEPT", 30)
    monkeypatch.setattr("planner.views.keep.SHALLOW_ROWS", 0)
    write(catalog, [{"id": id, "name": f"p{id}"} for id in range(100)])
    query = "SELECT name, count(*) AS n FROM players GROUP BY name ORDER BY n DESC, name LIMIT 3"
    view = catalog.create_view("most", query, spark=spark)
    for step in range(2):  # how many groups there are is known after the first rows
        again = Catalog(catalog.warehouse, optimize=planner.optimize)  # as another process
        write(catalog, [{"id": 200 + step, "name": f"p{step}"}])
        view = again.view("most", spark)
        assert view.refresh()
        assert rows_of(view) == shown(catalog, query, spark)
    assert not tops(view)
    hidden = [refresh for name, refresh in view.refreshes.items() if name != "most"]
    assert len(hidden) == 2  # the groups, and their results
    assert all(refresh.by_changes for refresh in hidden)


@pytest.mark.parametrize("are_nulls_first", [True, False])
@pytest.mark.parametrize("is_ascending", [True, False])
def test_up_to_a_line_are_all_rows_that_an_order_has_before_it(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, is_ascending: bool, are_nulls_first: bool
) -> None:
    monkeypatch.setattr("planner.views.top_rows.LEAST_KEPT", 5)
    day = datetime(2024, 1, 1)
    scores = [NAN, *(number / 4 for number in range(7)), 0.5, 1.0]
    times = [day + timedelta(microseconds=number) for number in (0, 1, 1, 2, 2, 3, 3, 4)]
    for type_, values in (("double", scores), ("timestamp", times)):
        rows = spark.createDataFrame([(one,) for one in [None, None, *values]], f"value {type_}")
        ordered = _Ordered.of(rows.withColumn("top", rows["value"]), is_ascending, are_nulls_first)
        assert ordered is not None
        line = ordered.line(shown=0)
        assert line is not None
        by = f"value {'ASC' if is_ascending else 'DESC'} NULLS {'FIRST' if are_nulls_first else 'LAST'}"
        sorted_rows = spark.sql(f"SELECT * FROM {{rows}} ORDER BY {by}", rows=rows)
        in_order = [repr(one) for (one,) in sorted_rows.collect()]
        found = [repr(one) for (one,) in ordered.up_to(line.key).collect()]
        least = len(in_order) - in_order[::-1].index(in_order[4])  # the fifth, and all that are like it
        assert least < len(in_order)
        assert sorted(found) == sorted(in_order[:least])
