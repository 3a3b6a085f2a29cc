"""Joins over signed rows, netted, against both whole results subtracted."""

import math
from collections import Counter
from random import Random
from typing import Any

import pyarrow as pa
import pyspark.sql.functions as F
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from deltajoin.spark.consolidate import consolidate_join, consolidate_rows

Rows = Counter[tuple[Any, ...]]
Signed = list[tuple[tuple[Any, ...], str]]
SCHEMA = pa.schema({"c0": pa.int64(), "c1": pa.string(), "c2": pa.float64()})


def joined(left: Rows, right: Rows) -> Rows:
    """Pairs of a multiset of (key, text) with one of (key, number)."""
    return Counter(
        {
            (key, text, number): n * m
            for (key, text), n in left.items()
            for (other, number), m in right.items()
            if key == other
        }
    )


def changed(random: Random, rows: Rows, value: Any) -> Signed:
    """A few rows that come, and some that go; the rows are those after it."""
    changes: Signed = []
    for _ in range(random.randrange(6)):
        there = list(rows.elements())
        if there and random.random() < 0.5:
            row = random.choice(there)
            rows[row] -= 1
            changes.append((row, random.choice(["-U", "-D"])))
        else:
            row = (random.randrange(3), value(random))
            rows[row] += 1
            changes.append((row, random.choice(["+I", "+U"])))
    return changes


def netted(pairs: list[tuple[tuple[Any, ...], str, str]]) -> Rows:
    """What the rows of a join with the kinds of both sides come to, in two batches of input."""
    schema = SCHEMA.append(pa.field("_kind_0", pa.string())).append(pa.field("_kind_1", pa.string()))
    lists = [{**dict(zip(SCHEMA.names, row, strict=True)), "_kind_0": a, "_kind_1": b} for row, a, b in pairs]
    half = len(lists) // 2
    batches = [pa.RecordBatch.from_pylist(part, schema) for part in (lists[:half], lists[half:])]
    net: Rows = Counter()
    for batch in consolidate_rows(batches):
        for row in batch.to_pylist():
            kind = row.pop("_row_kind")
            net[tuple(row.values())] += 1 if kind == "+I" else -1
            assert kind in ("+I", "-D")
            assert net[tuple(row.values())] * (1 if kind == "+I" else -1) > 0, "never a row and its opposite"
    return net


@given(st.randoms(use_true_random=False))
def test_rows_of_each_micro_batch_are_the_difference_of_the_joins(random: Random) -> None:
    """As Spark joins streams: every new row with all rows of the other side that ever came."""
    left: Rows = Counter()
    right: Rows = Counter()
    kept: tuple[Signed, Signed] = ([], [])
    for _ in range(4):
        before = joined(left, right)
        of_left = changed(random, left, lambda r: r.choice("ab"))
        of_right = changed(random, right, lambda r: r.choice([1.5, None]))
        met = [(a, b) for a in of_left for b in (*kept[1], *of_right)]
        met += [(a, b) for a in kept[0] for b in of_right]
        kept[0].extend(of_left)
        kept[1].extend(of_right)
        pairs = [((*a, b[1]), one, other) for (a, one), (b, other) in met if a[0] == b[0]]
        after = joined(left, right)
        wanted = {row: after[row] - before[row] for row in after | before if after[row] != before[row]}
        assert netted(pairs) == wanted


def test_rows_that_cancel_are_equal_in_every_value() -> None:
    """NaN equals NaN, NULL equals NULL; -0.0 is another value than 0.0."""
    rows = [(1, None, math.nan), (1, None, 0.0)]
    assert netted([(rows[0], "+I", "+I"), ((1, None, math.nan), "-U", "+I")]) == {}
    assert netted([(rows[1], "+I", "+I"), ((1, None, 0.0), "+I", "-D")]) == {}
    given = [(rows[1], "+I", "+I"), ((1, None, -0.0), "+I", "-D")]
    batch = pa.RecordBatch.from_pylist(
        [{"c0": 1, "c2": row[2], "_kind_0": a, "_kind_1": b} for row, a, b in given]
    )
    assert repr([row for net in consolidate_rows([batch]) for row in net.to_pylist()]) == repr(
        [{"c0": 1, "c2": 0.0, "_row_kind": "+I"}, {"c0": 1, "c2": -0.0, "_row_kind": "-D"}]
    )


def test_nothing_comes_of_nothing() -> None:
    assert list(consolidate_rows([])) == []


@pytest.mark.spark
def test_columns_of_one_name_and_of_types_without_a_hash(spark: SparkSession) -> None:
    values = (
        "(1, map('a', 1, 'b', 2), '+I', 1.5, '+I')",
        "(1, map('b', 2, 'a', 1), '-U', 1.5, '+I')",
        "(2, map(), '-D', NULL, '-D')",
        "(3, map('a', 1), '+U', 2.5, '-D')",
    )
    rows = spark.sql(f"SELECT * FROM VALUES {', '.join(values)} AS t(x, m, k, x, l)")
    net = consolidate_join(rows, [2, 4], shards=2)
    assert net.columns == ["c0", "c1", "c2", "_row_kind"]
    found = {tuple(row) for row in net.select("c0", F.size("c1"), "c2", "_row_kind").collect()}
    assert {(c0, size, kind) for c0, size, _, kind in found} == {(2, 0, "+I"), (3, 1, "-D")}
