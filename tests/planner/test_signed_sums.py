"""Sums of floating-point numbers that come and go: those of what is left, as exact as a DOUBLE is."""

import math
import random
import sys
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path

import pyarrow as pa
import pyspark.sql.functions as F
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import planner
from planner.plan.expressions import Aggregation, Column
from planner.plan.nodes import Measure
from planner.signed_sums import FIXED_POINTS, FixedPoint, Sums, result_of
from upsert import Catalog
from upsert.errors import MissingStateError, own_errors_first

pytestmark = pytest.mark.spark

ODD = [
    *(0.0, -0.0, 1.0, -1.0, 0.1, 12.34, 1e17, -1e17, 1e308, -1e308, 1e-308, 5e-324, -5e-324),
    *(2.0**power for power in (-1074, -1042, -1022, -50, 31, 32, 53, 63, 1023)),
    *(sys.float_info.max, -sys.float_info.max, sys.float_info.min),
]
GROUPS = 300


def number(draw: random.Random) -> float:
    """Of any size, the denormal ones too, and often one that is hard."""
    if draw.random() < 0.4:
        return draw.choice(ODD)
    return math.ldexp(draw.random() - 0.5, draw.randint(-1080, 1024))


def exact(values: list[float]) -> float:
    """The sum without any rounding but the last one."""
    total = sum(map(Fraction, values))
    try:
        return float(total)
    except OverflowError:
        return math.inf if total > 0 else -math.inf


def summed(rows: DataFrame, type_: str) -> Mapping[int, float]:
    """The sum of `v` by `g`, as the planner makes it."""
    value, sums = Column(-1, "v", type_), Sums()
    result = result_of(Measure(Aggregation("Sum", (value,), (type_,)), (value,)), sums)
    for sql, name in sums.parts.items():
        rows = rows.withColumn(name, F.expr(sql))
    kept = rows.groupBy("g").agg(*(F.expr(sql).alias(name) for sql, name in sums.names.items()))
    for sql, name in sums.derived.items():
        kept = kept.withColumn(name, F.expr(sql))
    return {row.g: row.x for row in kept.select("g", F.expr(result.value).alias("x")).collect()}


def is_close(found: float, wanted: float) -> bool:
    return found == wanted or (math.isfinite(wanted) and abs(found - wanted) <= math.ulp(wanted))


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 12))])
def test_a_sum_is_within_one_unit_in_the_last_place(spark: SparkSession, seed: int) -> None:
    """Of what is left, whatever else came and went, in whatever order."""
    draw = random.Random(seed)
    rows, wanted = [], {}
    for group in range(GROUPS):
        left = [number(draw) for _ in range(draw.randint(1, 20))]
        left += [-value for value in left if draw.random() < 0.5] if group % 3 == 0 else []
        gone = [number(draw) for _ in range(draw.randint(0, 20))]
        changes = [(v, "+I") for v in (*left, *gone)] + [(v, "-D") for v in gone]
        draw.shuffle(changes)
        rows += [(group, value, kind) for value, kind in changes]
        wanted[group] = exact(left)
    # multiples of one unit with few digits, of any size, from the least to the largest: no bit is lost
    doubles = {}
    for group, power in enumerate(range(-1074, 1023 - 40, 7), GROUPS):
        left = [math.ldexp(draw.randint(-(2**40), 2**40), power) for _ in range(5)]
        rows += [(group, value, "+U") for value in left]
        doubles[group] = exact(left)
    found = summed(spark.createDataFrame(rows, "g INT, v DOUBLE, _row_kind STRING"), "double")
    assert [(g, found[g], wanted[g]) for g in wanted if not is_close(found[g], wanted[g])] == []
    assert sum(found[g] != wanted[g] for g in wanted) < GROUPS / 20
    assert {group: found[group] for group in doubles} == doubles, "a sum that is a DOUBLE is exact"


def test_floats_have_few_limbs(spark: SparkSession) -> None:
    largest, least = 3.4028234663852886e38, 1.401298464324817e-45
    groups = [[largest, largest, -largest, least], [least, -least], [least, least], [0.5, 2.0**24, 1.0]]
    rows = [(group, value, "+I") for group, values in enumerate(groups) for value in values]
    rows += [
        (group, value, kind) for group in range(4) for value in (largest, 1e-40) for kind in ("+I", "-D")
    ]
    given = spark.createDataFrame(rows, "g INT, v DOUBLE, _row_kind STRING")
    found = summed(given.withColumn("v", F.col("v").cast("float")), "float")
    assert found == {group: exact(values) for group, values in enumerate(groups)}


@pytest.mark.long
def test_a_stream_keeps_what_a_large_number_hid(spark: SparkSession, tmp_path: Path) -> None:
    """Through the state, micro-batch by micro-batch; NaN and infinities leave nothing behind either."""
    catalog = Catalog(tmp_path / "warehouse", optimize=planner.optimize)
    catalog.sql("CREATE TABLE t (id BIGINT, g INT, x DOUBLE, y FLOAT, PRIMARY KEY (id) NOT ENFORCED)")
    catalog.sql("CREATE TABLE sums (g INT, s DOUBLE, a DOUBLE, y DOUBLE, PRIMARY KEY (g) NOT ENFORCED)")
    catalog.read_changes(spark, "t").createOrReplaceTempView("t")
    df = spark.sql(
        "SELECT g, sum(x) AS s, avg(x) AS a, sum(y) AS y FROM t GROUP BY g HAVING sum(x) > 0.5 OR g > 0"
    )
    steps = (
        {1: (0, 1e17), 2: (0, 1.0), 3: (1, 1e308), 4: (1, 1e-308), 5: (1, 5e-324), 6: (2, 0.25)},
        {1: None, 3: (1, math.nan), 6: (2, math.inf), 7: (2, -0.25)},
        {3: (1, -1e308), 6: (2, -math.inf), 8: (1, 1e308), 9: (2, math.inf)},
        {3: None, 8: None, 6: (2, 0.5), 9: None},
    )
    writer = catalog.write_changes(df, "sums").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.start()
    rows: dict[int, tuple[int, float]] = {}
    for step in steps:
        rows |= {key: row for key, row in step.items() if row is not None}
        gone = [key for key, row in step.items() if row is None]
        columns = {
            "id": list(step),
            "g": pa.array([rows[key][0] for key in step], pa.int32()),
            "x": [rows[key][1] for key in step],
            "y": pa.array([rows[key][0] * 0.1 for key in step], pa.float32()),
            "_row_kind": ["-D" if key in gone else "+U" for key in step],
        }
        catalog.table("t").write(pa.table(columns))
        for key in gone:
            del rows[key]
        query.processAllAvailable()
        wanted = {}
        for group in {group for group, _ in rows.values()}:
            x = [value for g, value in rows.values() if g == group]
            total = math.fsum(x) if all(map(math.isfinite, x)) else sum(x)
            y = exact([float(pa.scalar(group * 0.1, pa.float32()).as_py())] * len(x))
            wanted[group] = repr((total, total / len(x), y))
        found = catalog.table("sums").snapshot().scan().to_pylist()
        assert {row["g"]: repr((row["s"], row["a"], row["y"])) for row in found} == wanted
    query.stop()


def test_a_checkpoint_with_other_state_is_refused(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of an older release, which kept one DOUBLE: Spark compares the fields before it reads a row."""
    catalog = Catalog(tmp_path / "warehouse", optimize=planner.optimize)
    catalog.sql("CREATE TABLE t (id BIGINT, y FLOAT, PRIMARY KEY (id) NOT ENFORCED)")
    catalog.sql("CREATE TABLE sums (k INT, s DOUBLE, PRIMARY KEY (k) NOT ENFORCED)")
    catalog.read_changes(spark, "t").createOrReplaceTempView("t")
    df = spark.sql("SELECT 1 AS k, sum(y) AS s FROM t")

    def run(number: int) -> None:
        catalog.table("t").write(pa.table({"id": [number], "y": pa.array([0.5], pa.float32())}))
        writer = catalog.write_changes(df, "sums").option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()

    with monkeypatch.context() as older:
        older.setitem(FIXED_POINTS, "float", FixedPoint(150, 1))
        run(1)
    with pytest.raises(StreamingQueryException, match="STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE") as refused:
        run(2)
    with (
        pytest.raises(MissingStateError, match=r"a sum of DOUBLE as one number"),
        own_errors_first(),
    ):
        raise refused.value
