"""Plans over few rows in Arrow: what Spark gives, to the letter, or nothing, and then Spark is asked."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from deltajoin.expressions import Call, Condition, Field, Ref
from planner.plan.arrow_steps import Joined
from planner.spark.catalyst import Catalyst, JavaObject
from planner.spark.few_rows import OneTask
from planner.spark.small_plan import SmallPlan
from planner.spark.template import Template
from upsert.spark.java import class_name
from upsert.store.rows.computed import InArrow, Input, NotInArrowError, Rows, Step
from upsert.views.session import small_session

pytestmark = pytest.mark.spark

COLUMNS: Mapping[str, Sequence[tuple[str, pa.DataType]]] = {
    "t": [
        ("i", pa.int32()),
        ("j", pa.int64()),
        ("d", pa.decimal128(12, 2)),
        ("e", pa.decimal128(15, 4)),
        ("w", pa.decimal128(38, 6)),
        ("p", pa.decimal128(5, 2)),
        ("s", pa.string()),
        ("q", pa.string()),
        ("b", pa.bool_()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us")),
        ("kind", pa.string()),
        ("f", pa.float64()),
    ],
    "u": [("k", pa.int32()), ("x", pa.decimal128(12, 2)), ("z", pa.string()), ("n", pa.int64())],
}
TEXTS = ("", "a", "ab", "PROMO%b", "é\n😀x", " a ", "13-1", "31", None)
DECIMALS = ("0", "0.01", "-0.01", "0.05", "1", "-1", "99.99", "3.33", "7", "-250.50")
NUMBERS = (0, 1, -1, 2, 3, 7, 100, -2147483648, 2147483647)


def random_rows(random_: Random, count: int) -> dict[str, pa.Table]:
    """Rows of the two tables, with NULLs in each column."""
    return {
        name: pa.table(
            {column: values(random_, type_, column, count) for column, type_ in columns},
        )
        for name, columns in COLUMNS.items()
    }


def values(random_: Random, type_: pa.DataType, name: str, count: int) -> pa.Array:
    def one() -> Any:
        if random_.random() < 0.15:
            return None
        match type_:
            case _ if name == "kind":
                return random_.choice(("+I", "-U", "+U", "-D"))
            case _ if pa.types.is_decimal(type_):
                whole = Decimal(random_.choice(DECIMALS))
                return whole * random_.choice((1, 1000, 10**20)) if type_.precision == 38 else whole
            case _ if pa.types.is_integer(type_):
                return random_.choice(NUMBERS)
            case _ if pa.types.is_string(type_):
                return random_.choice(TEXTS)
            case _ if pa.types.is_boolean(type_):
                return random_.random() < 0.5
            case _ if pa.types.is_date(type_):
                return date(random_.choice((1, 1969, 1996, 2024)), random_.randint(1, 12), 28)
            case _ if pa.types.is_timestamp(type_):
                return datetime(2024, 3, random_.randint(1, 31), 1, 2, 3, 4)
        return random_.choice((0.0, -0.0, 1.5, float("nan"), float("-inf")))

    return pa.array([one() for _ in range(count)], type_)


def number(random_: Random, deep: int) -> str:
    """A decimal expression."""
    if deep == 0 or random_.random() < 0.2:
        return random_.choice(
            ("d", "e", "p", "0.06", "1.25BD", "cast(i AS DECIMAL(10, 0))", "coalesce(d, 0)")
        )
    one, other = (number(random_, deep - 1) for _ in range(2))
    match random_.randrange(9):
        case 0 | 1:
            return f"({one} * {other})"
        case 2:
            return f"({one} + {other})"
        case 3:
            return f"({one} - {other})"
        case 4:
            return f"-({one})"
        case 5:
            return f"CASE WHEN {condition(random_, deep - 1)} THEN {one} ELSE 0 END"
        case 6:
            return f"CASE WHEN {other} <> 0 THEN {one} / {other} END"
        case 7:
            return f"abs({one})"
    return f"coalesce({one}, {other})"


def whole(random_: Random, deep: int) -> str:
    """An expression of an integer."""
    if deep == 0 or random_.random() < 0.3:
        return random_.choice(
            (
                "i",
                "j",
                "1",
                "0L",
                "year(day)",
                "length(s)",
                "month(day)",
                "i % 7",
                "pmod(j, 3)",
                "datediff(day, day)",
            )
        )
    one, other = (whole(random_, deep - 1) for _ in range(2))
    match random_.randrange(4):
        case 0:
            return f"({one} {random_.choice('+-')} {other})"
        case 1:
            return f"CASE WHEN {condition(random_, deep - 1)} THEN {one} WHEN b THEN {other} END"
        case 2:
            return f"if({condition(random_, deep - 1)}, {one}, {other})"
    return f"coalesce({one}, {other})"


def text(random_: Random) -> str:
    plain = ("s", "q", "kind", "concat(s, q)", "substring(s, 1, 2)", "coalesce(s, 'none')", "least(s, q)")
    return random_.choice((*plain, "trim(s)", "lower(kind)", "cast(i AS STRING)", "cast(day AS STRING)"))


def condition(random_: Random, deep: int) -> str:
    if deep > 0 and random_.random() < 0.5:
        one, other = (condition(random_, deep - 1) for _ in range(2))
        return random_.choice((f"({one} AND {other})", f"({one} OR {other})", f"(NOT {one})"))
    compare = random_.choice(("=", "<", "<=", ">", ">=", "<>", "<=>"))
    match random_.randrange(9):
        case 0:
            return f"{number(random_, 1)} {compare} {number(random_, 1)}"
        case 1:
            return f"{whole(random_, 1)} {compare} {whole(random_, 1)}"
        case 2:
            return f"{text(random_)} {compare} {text(random_)}"
        case 3:
            return f"day {compare} DATE'1996-01-01'"
        case 4:
            return random_.choice(("s LIKE 'PROMO%'", "s LIKE '%a%'", "s NOT LIKE '%1%b%'", "q LIKE 'a_'"))
        case 5:
            return random_.choice(("kind IN ('+I', '+U')", "i IN (1, 2, NULL)", "s IN ('a', '31')"))
        case 6:
            return random_.choice(("s IS NULL", "d IS NOT NULL", "b", "isnan(f)"))
        case 7:
            return f"day BETWEEN DATE'1995-01-01' AND DATE'1996-12-31' AND d BETWEEN 0.05 AND {7}"
    return f"at {compare} TIMESTAMP_NTZ'2024-03-15 00:00:00'"


def columns(random_: Random) -> str:
    """What a query without groups gives."""
    made = [
        *(number(random_, 3) for _ in range(5)),
        *(whole(random_, 2) for _ in range(2)),
        text(random_),
        condition(random_, 2),
        "xxhash64(s, i, day, e)",
        "f",
    ]
    return ", ".join(f"{one} AS c{number_}" for number_, one in enumerate(made))


def functions(random_: Random) -> str:
    signed = f"sum(CASE WHEN kind IN ('+I', '+U') THEN {number(random_, 2)} ELSE -d END)"
    made = [
        random_.choice((signed, f"sum({number(random_, 2)})", "sum(w)", "sum(p)", "sum(i)")),
        "sum(CASE WHEN kind IN ('+I', '+U') THEN 1L ELSE -1L END)",
        random_.choice(("count(*)", "count(s)", "count(DISTINCT i)", "count(i, s)")),
        f"sum(d) FILTER (WHERE {condition(random_, 1)})",
        random_.choice(("min(d)", "max(s)", "min(day)", "max(i)", "max(at)", "min(b)")),
        f"CASE WHEN count(*) > 2 THEN sum({number(random_, 1)}) END",
        random_.choice(("avg(d)", "avg(e)", "sum(d) / count(*)", "100.00 * sum(d) / sum(abs(e) + 1)")),
    ]
    return ", ".join(f"{one} AS a{number_}" for number_, one in enumerate(made))


def query(random_: Random) -> str:
    where = f"WHERE {condition(random_, 2)}" if random_.random() < 0.7 else ""
    match random_.randrange(7):
        case 0 | 1:
            return f"SELECT {columns(random_)} FROM t {where}"
        case 2:
            return f"SELECT {functions(random_)} FROM t {where}"
        case 3:
            by = random_.choice(("i", "s, day", "year(day), b", "substring(s, 1, 1)", "at, p", "d"))
            having = random_.choice(("", "HAVING count(*) > 1"))
            return f"SELECT {by}, {functions(random_)} FROM t {where} GROUP BY {by} {having}"
        case 4:
            kind = random_.choice(("JOIN", "LEFT JOIN"))
            on = random_.choice(("i = k", "i = k AND s = z", "j = n AND d > x", "d > x"))
            return f"SELECT i, d, s, x, z, coalesce(x, 0) * 2 AS y FROM t {kind} u ON {on} {where}"
        case 5:
            word = random_.choice(("", "NOT "))
            on = random_.choice(("k = i", "k = i AND x < d"))
            return f"SELECT i, d, s FROM t WHERE {word}EXISTS (SELECT 1 FROM u WHERE {on})"
    order = random_.choice(("d DESC, s, i, j", "s NULLS LAST, d, i, j", "day, d DESC NULLS FIRST, i, j"))
    rows = f"(SELECT i, j, d, s, day FROM t {where} UNION ALL SELECT k, n, x, z, NULL FROM u)"
    return f"SELECT DISTINCT * FROM {rows} ORDER BY {order} LIMIT {random_.choice((1, 3, 50))}"


def small_plan(spark: SparkSession, text: str, rows: Mapping[str, pa.Table]) -> tuple[SmallPlan, list[str]]:
    """The plan of a query over some tables, and the names of the tables that its inputs are."""
    for name, each in rows.items():
        spark.createDataFrame(each).createOrReplaceTempView(name)
    df = spark.sql(text)
    catalyst = Catalyst(df)

    def input_of(node: JavaObject) -> JavaObject | None:
        return node if class_name(node) == "LocalRelation" else None

    template = Template(catalyst, lambda: catalyst.analyzed(df), input_of)
    leaves = [(leaf, catalyst.struct(catalyst.output(leaf))) for leaf in template.inputs]
    names = ["t" if "kind" in schema.names else "u" for _, schema in leaves]
    return SmallPlan(catalyst, template, leaves, OneTask(small_session(spark))), names


def counted(rows: pa.Table) -> Counter[str]:
    return Counter(map(repr, rows.to_pylist()))


@pytest.fixture
def is_ansi(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[bool]:
    """Whether arithmetic is ANSI SQL's, for a test."""
    spark.conf.set("spark.sql.ansi.enabled", str(request.param).lower())
    yield bool(request.param)
    spark.conf.unset("spark.sql.ansi.enabled")


@pytest.mark.parametrize(
    ("seeds", "is_ansi"),
    [
        (range(8), True),
        (range(8, 10), False),
        pytest.param(range(1_000, 1_400), True, marks=pytest.mark.long),
        pytest.param(range(1_400, 1_500), False, marks=pytest.mark.long),
    ],
    ids=["some", "without ANSI mode", "many", "many without ANSI mode"],
    indirect=["is_ansi"],
)
def test_random_plans_in_arrow_give_what_spark_gives(
    spark: SparkSession, seeds: Sequence[int], is_ansi: bool
) -> None:
    in_arrow, refused = 0, Counter[str]()
    for seed in seeds:
        random_ = Random(seed)
        rows = random_rows(random_, random_.choice((0, 1, 40)))
        text_ = query(random_)
        plan, names = small_plan(spark, text_, rows)
        if plan.why_spark:
            refused[plan.why_spark] += 1
            continue
        assert plan.in_arrow is not None
        given = [rows[name] for name in names]
        try:
            found = plan.in_arrow.rows(given)
        except NotInArrowError as cause:
            refused[str(cause)[:60]] += 1
            continue
        in_arrow += 1
        asked = spark.sql(text_).toArrow()
        assert counted(found) == counted(asked), f"seed {seed}: {text_}"
        assert found.schema.types == asked.schema.types, f"seed {seed}: {text_}"
    assert in_arrow >= len(seeds) * 0.6, (is_ansi, refused)


def test_decimals_are_cast_to_fewer_digits(spark: SparkSession) -> None:
    rows = random_rows(Random(3), 60)
    text_ = "SELECT cast(e AS DECIMAL(9, 1)) AS e, cast(w AS DECIMAL(38, 8)) AS w, w > sum_ AS more FROM t "
    text_ += "JOIN (SELECT sum(x) * 0.0001000000 AS sum_ FROM u)"
    plan, names = small_plan(spark, text_, rows)
    assert plan.why_spark == ""
    assert plan.in_arrow is not None
    found = plan.in_arrow.rows([rows[name] for name in names])
    assert counted(found) == counted(spark.sql(text_).toArrow())


def test_an_error_is_spark_s(spark: SparkSession) -> None:
    rows = random_rows(Random(1), 20)
    plan, _ = small_plan(spark, "SELECT i + 1 AS more FROM t", rows)
    assert plan.why_spark == ""
    with pytest.raises(PySparkException, match="ARITHMETIC_OVERFLOW"):
        plan.computed([rows["t"]])
    few = rows["t"].slice(0, 0)
    assert plan.computed([few]).num_rows == 0


BORDERS = {
    "t": pa.table(
        {
            "kind": pa.array(["+I"] * 3),
            "i": pa.array([1, 2, 3], pa.int32()),
            "j": pa.array([2**63 - 1, 1, -1], pa.int64()),
            "w": pa.array(map(Decimal, ("9" * 38, "-1", "-" + "9" * 38)), pa.decimal128(38, 0)),
            "z": pa.array([Decimal("0." + "3" * 38)] * 3, pa.decimal128(38, 38)),
            "f": pa.array([0.0, -0.0, 1.5], pa.float64()),
            "day": pa.array([0, 20_000_000, -20_000_000], pa.int32()).cast(pa.date32()),
            "s": pa.array([b"\x80\x80", b"a\xc3", b"ab"], pa.binary()).view(pa.string()),
        }
    )
}


@pytest.mark.parametrize(
    ("text", "why_spark", "why_now"),
    [
        ("SELECT i, f FROM t ORDER BY f, i LIMIT 1", "", ""),
        ("SELECT i, f FROM t ORDER BY f DESC, i DESC LIMIT 2", "", ""),
        ("SELECT year(day) AS y, month(day) AS m FROM t", "", ""),
        ("SELECT -w AS v FROM t WHERE i = 2", "", ""),
        ("SELECT sum(j) AS v FROM t WHERE i > 1", "", ""),
        ("SELECT kind, avg(w) AS v FROM t WHERE i = 2 GROUP BY kind", "", ""),
        ("SELECT i % 2 AS a, -j % 3 AS b, pmod(-i, 4) AS c, pmod(j, -7) AS d, 5 % -i AS e FROM t", "", ""),
        ("SELECT upper(kind || 'é' || 'x') AS a FROM t WHERE i = 0", "", ""),
        ("SELECT upper(kind || 'x') AS a, lower(kind || 'X') AS b FROM t", "", ""),
        (
            "SELECT trim(v) AS a, ltrim(v) AS b, rtrim(v) AS c FROM (SELECT ' ' || kind || 'é\n ' v FROM t)",
            "",
            "",
        ),
        (
            "SELECT cast(j AS STRING) AS a, cast(i > 1 AS STRING) AS b, cast(f > 0 AS STRING) AS c FROM t",
            "",
            "",
        ),
        ("SELECT cast(date_add(DATE'9999-12-20', 5 * i) AS STRING) AS a FROM t WHERE i < 3", "", ""),
        ("SELECT date_sub(DATE'2024-03-01', i) AS a, datediff(date_add(day, i), day) AS b FROM t", "", ""),
        (
            "SELECT greatest(i, 2, NULL) AS a, least(w, z, 0.5BD) AS b, greatest(kind, 'a') AS c FROM t",
            "",
            "",
        ),
        ("SELECT f / 2.5D AS a, 1.0D / (f + 1.0D) AS b, i / 3 AS c FROM t", "", ""),
        ("SELECT 1.0D / f AS v FROM t", "", "divided by zero"),
        ("SELECT i % (i - 2) AS v FROM t", "", "divided by zero"),
        ("SELECT upper(kind || 'é') AS v FROM t", "", "must be ASCII"),
        ("SELECT trim(s) AS v FROM t", "", "valid UTF-8"),
        ("SELECT cast(day AS STRING) AS v FROM t", "", "years 1 to 9999"),
        ("SELECT date_add(day, 2147483647) AS v FROM t", "", "must fit"),
        ("SELECT greatest(f, 1.0D) AS v FROM t", "integers, decimals", ""),
        ("SELECT cast(w AS STRING) AS v FROM t", "an integer, BOOLEAN or DATE", ""),
        ("SELECT -w AS v FROM t", "", "must fit"),
        ("SELECT abs(w) AS v FROM t", "", "must fit"),
        ("SELECT min(f) AS v FROM t", "0.0 and -0.0", ""),
        ("SELECT sum(j) AS v FROM t", "", "may overflow on the way"),
        ("SELECT kind, sum(w) AS v FROM t GROUP BY kind", "", "may overflow on the way"),
        ("SELECT kind, avg(w) AS v FROM t GROUP BY kind", "", "may overflow on the way"),
        ("SELECT try_sum(j) AS v FROM t", "Sum", ""),
        ("SELECT length(s) AS v FROM t", "", "valid UTF-8"),
        ("SELECT w * w AS v FROM t", "at most 76", ""),
        ("SELECT w + z AS v FROM t", "at most 76", ""),
        ("SELECT i, cast(X'C380' AS STRING) AS v, s < cast(X'C3A9' AS STRING) AS b FROM t", "", ""),
        ("SELECT kind || cast(X'80' AS STRING) AS v FROM t", "\ufffd", ""),
    ],
)
def test_what_is_not_surely_exact_is_left_to_spark(
    spark: SparkSession, text: str, why_spark: str, why_now: str
) -> None:
    plan, _ = small_plan(spark, text, BORDERS)
    assert bool(plan.why_spark) == bool(why_spark), plan.why_spark
    assert why_spark in plan.why_spark
    if plan.in_arrow is None:
        return
    if why_now:
        with pytest.raises(NotInArrowError, match=why_now):
            plan.in_arrow.rows([BORDERS["t"]])
        return
    assert plan.in_arrow.rows([BORDERS["t"]]).to_pylist() == spark.sql(text).toArrow().to_pylist()


def of_left_and_right(condition: Condition, rows: pa.Table, names: Sequence[str]) -> Joined:
    """Each row with each other one, for which a condition holds."""
    left, right = (
        Input(0, tuple((side + one.name, one.name, one.type) for one in rows.schema)) for side in "lr"
    )
    of_condition = (("lk",), ("rk",))
    return Joined(left, right, "inner", (), condition, of_condition, tuple(names), ("rk",))


def test_a_join_takes_little_memory() -> None:
    rows = pa.table({"k": pa.array(range(300), pa.int32()), "s": ["x" * 1000] * 300})
    is_less = Call("<", (Field(Ref(0, "lk")), Field(Ref(0, "rk"))))
    before = pa.total_allocated_bytes()
    found = of_left_and_right(is_less, rows, ["lk"]).rows([rows])
    assert found.count == 300 * 299 // 2
    assert pa.total_allocated_bytes() - before < 4 << 20
    is_same = Call("=", is_less.args)
    assert of_left_and_right(is_same, rows, ["lk", "ls"]).rows([rows]).count == 300
    wide = pa.table({"k": rows["k"], "s": ["x" * 2000] * 300})
    with pytest.raises(NotInArrowError, match="many bytes"):
        of_left_and_right(is_less, wide, ["lk", "ls"]).rows([wide])


class Fails(Step):
    """A step without memory."""

    def rows(self, inputs: Sequence[pa.Table]) -> Rows:
        raise MemoryError(f"no memory for {len(inputs)} tables")


def test_rows_of_other_types_and_what_has_no_memory_are_left_to_spark() -> None:
    rows = pa.table({"k": pa.array([1], pa.int32())})
    step = Input(0, (("1", "k", pa.int32()),))
    assert InArrow(step, ("1",), rows.schema).rows([rows]) == rows
    with pytest.raises(NotInArrowError, match="other types"):
        InArrow(step, ("1",), pa.schema({"k": pa.int64()})).rows([rows])
    with pytest.raises(NotInArrowError, match="no memory"):
        InArrow(Fails(), ("1",), rows.schema).rows([rows])
