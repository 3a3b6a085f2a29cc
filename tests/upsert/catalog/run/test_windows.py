"""Windows of time in queries: Flink's words for them give what Spark's windows, or plain arithmetic, give."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.upsert.catalog.run.test_sql_queries import Session

pytestmark = pytest.mark.spark


def write(sql: Session, name: str, **columns: list[Any]) -> None:
    table = sql.catalog.table(name)
    table.write(pa.table(columns, schema=table.schema.arrow))


@pytest.fixture
def sql(spark: SparkSession, tmp_path: Path) -> Session:
    return Session(spark, tmp_path / "warehouse")


def test_rows_are_grouped_by_windows_of_time(sql: Session) -> None:
    sql("CREATE TABLE clicks (at TIMESTAMP, n INT)")
    times = [datetime(2020, 10, 1, 8, *at, tzinfo=UTC) for at in ((1, 0), (4, 59), (5, 0))]
    write(sql, "clicks", at=times, n=[1, 2, 4])
    grouped = sql.rows(
        "SELECT date_format(TUMBLE_START(at, INTERVAL '5' MINUTE), 'mm'), "
        "date_format(TUMBLE_END(at, INTERVAL '5' MINUTE), 'mm'), sum(n) FROM clicks "
        "GROUP BY TUMBLE(at, INTERVAL '5' MINUTE) ORDER BY 1"
    )
    assert grouped == [("00", "05", 3), ("05", "10", 4)]
    assigned = sql.rows(
        "SELECT date_format(window_start, 'mm'), max(w.n) FROM "
        "TABLE(TUMBLE(TABLE clicks, DESCRIPTOR(at), INTERVAL '5' MINUTES)) AS w GROUP BY ALL ORDER BY 1"
    )
    assert assigned == [("00", 2), ("05", 4)]
    slide = "INTERVAL '5' MINUTE, INTERVAL '10' MINUTE"
    grouped_hops = f"SELECT HOP_START(at, {slide}) AS s, sum(n) FROM clicks GROUP BY HOP(at, {slide})"
    table_of_hops = f"TABLE(HOP(TABLE clicks, DESCRIPTOR(at), {slide}))"
    assigned_hops = f"SELECT window_start AS s, sum(n) FROM {table_of_hops} GROUP BY 1"
    for text in (grouped_hops, assigned_hops):
        hops = sorted((start.minute, n) for start, n in sql.rows(text))
        assert hops == [(0, 7), (5, 4), (55, 3)]
    gap = "INTERVAL '2' MINUTE"
    sessions = sql.rows(
        f"SELECT date_format(SESSION_START(at, {gap}), 'mm:ss'), "
        f"date_format(SESSION_END(at, {gap}), 'mm:ss'), sum(n) "
        f"FROM clicks GROUP BY SESSION(at, {gap}) ORDER BY 1"
    )
    assert sessions == [("01:00", "03:00", 1), ("04:59", "07:00", 6)]


def test_tables_of_windows_that_grow_and_of_sessions(sql: Session) -> None:
    """Beside plain arithmetic, and beside the groups of Spark's sessions."""
    sql("CREATE TABLE taps (card INT, at TIMESTAMP, n INT)")
    taps = [(n % 3, n * n % 71, n) for n in range(40)]
    times = [datetime(2020, 3, 29, 0, minute % 60, tzinfo=UTC) for _, minute, _ in taps]
    cards, numbers = [card for card, *_ in taps], [n for *_, n in taps]
    write(sql, "taps", card=[*cards, 1], at=[*times, None], n=[*numbers, 99])
    sizes = "INTERVAL '5' MINUTE, INTERVAL '20' MINUTE, INTERVAL '2' MINUTE"
    found = sql.rows(
        "SELECT n, minute(window_start), minute(window_end), second(window_time) FROM "
        f"TABLE(CUMULATE(TABLE taps, DESCRIPTOR(at), {sizes})) WHERE n IS NOT NULL"
    )
    expected = []
    for _, tapped, n in taps:
        start = (tapped % 60 - 2) // 20 * 20 + 2
        ends = (end for end in (start + 5, start + 10, start + 15, start + 20) if end > tapped % 60)
        expected += [(n, start % 60, end % 60, 59) for end in ends]
    assert sorted(found) == sorted(expected)

    gap = "INTERVAL '2' MINUTE"
    grouped = sql.rows(
        f"SELECT card, SESSION_START(at, {gap}), SESSION_END(at, {gap}), SESSION_ROWTIME(at, {gap}), "
        f"sum(n), count(*) FROM taps GROUP BY card, SESSION(at, {gap})"
    )
    assigned = sql.rows(
        "SELECT card, window_start, window_end, window_time, sum(n), count(*) FROM "
        f"TABLE(SESSION(TABLE taps PARTITION BY card, DESCRIPTOR(at), {gap})) GROUP BY ALL"
    )
    assert sorted(assigned) == sorted(grouped)
    assert sum(count for *_, count in grouped) == len(taps) > len(grouped) > 3
    [(whole,)] = sql.rows(
        "SELECT count(DISTINCT window_start) FROM SESSION(TABLE taps, DESCRIPTOR(at), INTERVAL 1 DAY)"
    )
    assert whole == 1
