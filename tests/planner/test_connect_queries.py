"""What a text is planned as over Spark Connect is the same query: Spark is asked both, over the same rows."""

from collections.abc import Mapping, Sequence
from functools import reduce
from random import Random
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from deltajoin.expressions import Ref
from deltajoin.spec import MAX_TABLES, output_name, present_name
from deltajoin.tree import null_supplied, visible
from planner import PlanError
from planner.connect.explained import Told
from planner.connect.groups import groups_of
from planner.connect.nested import Piece, pieces
from planner.connect.select import Inputs, Select
from planner.connect.sums import summed
from planner.connect.text import _present, _Rows, _with_tables
from planner.connect.touched import Touched
from planner.refusals import Refused
from planner.settings import Settings
from tests.deltajoin.core.trees import sql_of
from upsert.errors import SchemaError
from upsert.schema import TableSchema
from upsert.sql.query import QueryText
from upsert.store.table import Table

COLUMNS = ("id", "k", "m", "f")
SCHEMA = pa.schema({"id": pa.int64(), "k": pa.int64(), "m": pa.int64(), "f": pa.float64()})
QUERIES = (
    # USING and NATURAL
    "SELECT * FROM a JOIN b USING (k)",
    "SELECT a.id, k, b.* FROM a LEFT JOIN b USING (k)",
    "SELECT *, k + 1 AS q, a.k AS own, b.k FROM a RIGHT JOIN b USING (k)",
    "SELECT *, k, a.k AS own, b.k AS other FROM a FULL JOIN b USING (k)",
    "SELECT a.*, b.* FROM a FULL OUTER JOIN b USING (k) WHERE k > 0 OR k IS NULL",
    "SELECT * FROM a LEFT SEMI JOIN b USING (k)",
    "SELECT *, k FROM a ANTI JOIN b USING (m, k)",
    "SELECT *, b.*, a.* FROM a JOIN b USING (m, k)",
    "SELECT * FROM a NATURAL JOIN b",
    "SELECT a.*, * FROM a NATURAL LEFT JOIN (SELECT k, id AS other FROM b) b",
    "SELECT *, a.*, b.*, c.* FROM a JOIN b USING (k) LEFT JOIN c USING (k)",
    "SELECT *, a.*, b.*, c.* FROM a LEFT JOIN b USING (k, m) RIGHT JOIN c USING (k, m)",
    "SELECT *, b.*, c.* FROM a RIGHT JOIN b USING (k) FULL JOIN c USING (k)",
    "SELECT *, b.k FROM a FULL JOIN b USING (k) LEFT JOIN c ON c.k = b.k",
    "SELECT k FROM (SELECT K AS k, id FROM a) a JOIN b USING (K)",
    # <=> and other conditions in ON
    "SELECT a.id, b.id FROM a, b WHERE a.k = b.k AND a.m < 2",
    "SELECT a.id, b.id, c.f FROM a, b, c WHERE a.k = b.k AND (b.m = c.m AND a.m >= c.m)",
    "SELECT a.id, c.f FROM a CROSS JOIN c WHERE a.k = c.k AND NOT a.f > 1",
    "SELECT a.id, c.f FROM a CROSS JOIN c WHERE a.id <=> c.k",
    "SELECT a.id, b.id, c.id FROM a, b LEFT JOIN c ON b.k = c.k WHERE a.k = b.k",
    "SELECT a.id FROM a RIGHT JOIN b ON a.k = b.k, c WHERE a.m = c.m",
    "SELECT a.id, b.id FROM a JOIN b ON a.id <=> b.k",
    "SELECT a.id, b.id FROM a LEFT JOIN b ON b.id <=> a.k",
    "SELECT a.id, b.id FROM a JOIN b ON a.k = b.k AND a.m <=> b.m",
    "SELECT a.id, b.id FROM a LEFT JOIN b ON a.k = b.k AND a.m <=> b.m",
    "SELECT a.id, b.id FROM a RIGHT JOIN b ON a.k = b.k AND a.m IS NULL",
    "SELECT a.id, b.id FROM a FULL JOIN b ON a.k = b.k AND (a.m < b.m OR b.f > 0)",
    "SELECT a.id, b.id FROM a LEFT JOIN b ON (a.k = b.k AND b.m IN (1, 2)) AND b.f BETWEEN 0 AND 1",
    "SELECT id FROM a LEFT SEMI JOIN b ON a.k = b.k AND a.m <> b.m",
    "SELECT id FROM a ANTI JOIN b ON a.k = b.k AND b.m > 0 WHERE m > 0",
    "SELECT a.id, b.id, c.id FROM a JOIN b ON a.k = b.k AND coalesce(a.m, 1) = 1 LEFT JOIN c ON c.k = a.k",
    "SELECT a.id, b.id, c.id FROM a JOIN b ON a.k = b.k AND a.m > b.m FULL JOIN c ON c.k = a.k",
    "SELECT a.id, b.id FROM a JOIN b ON pmod(a.k, 2) = 1 AND a.k = b.k WHERE if(b.m > 0, a.m, 0) < 2",
    (
        "SELECT a.id, `left` FROM a JOIN (SELECT k AS `left`, m FROM b) b ON a.k = b.left LEFT JOIN c ON c.k "
        "= a.k"
    ),
    # IN and EXISTS
    """SELECT a.id + 1 AS q, a.* FROM a WHERE m > 0 AND f < 2
       AND (a.k, a.m) IN (SELECT k, m FROM b WHERE f > 0) AND k IN (SELECT DISTINCT m FROM c)""",
    """SELECT id FROM a WHERE (NOT EXISTS (SELECT * FROM b x WHERE a.k = x.k AND x.m > a.m))
       AND (id > 0 OR m = 1)""",
    "SELECT id FROM a WHERE id NOT IN (SELECT b.id FROM b WHERE b.k = a.k) AND m > 0",
    """SELECT id FROM a WHERE NOT (NOT EXISTS (SELECT 1 FROM b WHERE k = a.k AND a.m > 0))
       AND NOT (a.id NOT IN (SELECT k FROM c))""",
    """SELECT a.id, c.id AS i FROM a, c WHERE a.k = c.k
       AND EXISTS (SELECT 1 FROM b, a d WHERE b.k = d.k AND b.m <=> c.id AND d.f < a.f)""",
    """SELECT a.id, b.id AS i FROM a FULL JOIN b ON a.k = b.k
       WHERE NOT EXISTS (SELECT 1 FROM c WHERE c.k = b.k AND c.m = a.m)""",
    """WITH w AS (SELECT k, m FROM b WHERE m > 0) SELECT id FROM a
       WHERE k IN (WITH v AS (SELECT * FROM w) SELECT k FROM v WHERE v.m <> a.m
                   AND v.k NOT IN (9) AND EXISTS (SELECT 1 FROM c WHERE c.m = v.m))""",
    """SELECT x.id FROM a LEFT JOIN (SELECT * FROM b WHERE k IN (SELECT k FROM c WHERE f > 0) AND m > 0) x
       ON x.m = a.m""",
    """SELECT x.n FROM (SELECT id, m + 1 AS n FROM a WHERE k IN (SELECT k FROM b) AND id > 0) x
       WHERE NOT EXISTS (SELECT 1 FROM c WHERE c.id = x.id AND c.m > 0)""",
    """SELECT id, 'IN (SELECT' AS w FROM a /* WHERE x IN (SELECT */ WHERE
       k IN -- (SELECT\n(\nSELECT /*+ BROADCAST(b) */ k FROM b) AND m >= 0 -- (""",
    # queries as tables
    (
        "WITH x AS (SELECT id, k, m + 1 AS n FROM a WHERE m > 0), y AS (SELECT k, -m AS o FROM b) SELECT n, "
        "o FROM x JOIN y ON x.k = y.k WHERE n > o"
    ),
    (
        "WITH x AS (SELECT * FROM a), y AS (SELECT id AS i, k FROM x WHERE m IS NOT NULL) SELECT x.id, y.* "
        "FROM x LEFT JOIN y ON x.id = y.k"
    ),
    "SELECT a.id, y.n, y.w FROM a LEFT JOIN (SELECT k, coalesce(m, 9) AS n, 'w' AS w FROM b) y ON a.k = y.k",
    (
        "SELECT a.id, y.n FROM a LEFT JOIN (SELECT k, coalesce(m, 9) AS n FROM b WHERE m > 0 OR m IS NULL) y "
        "ON a.k = y.k AND a.m <> y.k"
    ),
    "SELECT n, a.* FROM (SELECT k, coalesce(m, 9) AS n FROM b WHERE NOT m = 1) y RIGHT JOIN a USING (k)",
    (
        "SELECT n, o FROM (SELECT k, coalesce(m, 9) AS n FROM b) x FULL JOIN (SELECT k, 1 AS o FROM c WHERE "
        "m > 0) y ON x.k = y.k"
    ),
    (
        "SELECT a.id, y.* FROM a LEFT JOIN (SELECT b.k, coalesce(c.m, 9) AS n, c.f FROM b LEFT JOIN c ON b.k "
        "= c.k) y ON a.k = y.k"
    ),
    (
        "SELECT a.id, y.* FROM a JOIN (SELECT b.k, c.m + 1 AS n FROM b RIGHT JOIN c ON b.k = c.k WHERE c.m > "
        "0) y ON a.k = y.k"
    ),
    (
        "SELECT a.id, y.n FROM a JOIN (SELECT b.k, b.m AS n FROM b, c WHERE b.k = c.k AND b.m > c.m) y ON "
        "a.k = y.k"
    ),
    (
        "SELECT a.id, y.n FROM a LEFT JOIN (SELECT b.k, b.m AS n FROM b, c WHERE b.k = c.k AND b.m > c.m) y "
        "ON a.k = y.k"
    ),
    "SELECT id FROM a LEFT SEMI JOIN (SELECT b.k FROM b JOIN c USING (k) WHERE c.f > 0) y ON a.k = y.k",
    (
        "SELECT id FROM a LEFT ANTI JOIN (SELECT k FROM (SELECT k, m FROM b WHERE m > 0) z WHERE m < 2) y "
        "USING (k)"
    ),
    (
        "SELECT o.id, i.id FROM (SELECT * FROM a WHERE m > 0) o, (SELECT * FROM a) i WHERE o.k = i.k AND "
        "o.id < i.id"
    ),
    (
        "SELECT x.n, y.n FROM (SELECT a.k, b.m + 1 AS n FROM a LEFT JOIN b ON a.k = b.k) x LEFT JOIN (SELECT "
        "a.k, a.m IS NULL AS n FROM a FULL JOIN b ON a.k = b.k WHERE a.id >= 0) y ON x.k = y.k"
    ),
    "SELECT x.* FROM (SELECT b.*, c.f + 1 AS g FROM b JOIN c ON b.k = c.k) x JOIN a b ON b.k = x.k",
    (
        "SELECT x.q, x.k FROM (SELECT k, y.n + 1 AS q FROM (SELECT k, coalesce(m, 5) AS n FROM b) y) x RIGHT "
        "JOIN a ON x.k = a.k"
    ),
    (
        "SELECT a.id, y.c FROM a JOIN (SELECT b.id, c.id AS c FROM b LEFT JOIN c ON b.k = c.k AND c.m > 5) y "
        "ON a.id = y.id AND a.m <=> y.c"
    ),
    "SELECT n FROM (\nSELECT k, m AS n FROM b\n) x\nJOIN a USING (k) JOIN (\nSELECT k FROM c) y ON m = y.k",
    # names of its own
    "SELECT to_json(struct(k, a.m)) AS j, to_json((K, 1)) AS t FROM a FULL JOIN b USING (k)",
    "SELECT a.k, b.k AS own FROM (SELECT k, struct(id AS k) AS a FROM b) b JOIN c a USING (k)",
    "SELECT size(filter(array(a.m, 1), K -> k > 0)) AS n FROM a JOIN b USING (id, k)",
    "SELECT a.id + 1 AS x, x * 2 AS y, y - x FROM a JOIN b ON a.k = b.k",
    "SELECT /*+ BROADCAST(b) */ a.id FROM a JOIN b ON a.k = b.k",
    "SELECT a.m AS id, a.id AS m, a.id + 1 AS q FROM a JOIN b ON a.k = b.k",
)


def random_rows(random: Random) -> list[tuple[Any, ...]]:
    values = (None, 0, 1, 2)
    rows = ((random.choice(values), random.choice(values), random.choice((None, 0.5, 1.5))) for _ in range(6))
    return [(number, *row) for number, row in enumerate(rows) if random.random() < 0.8]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """Empty tables, whose definitions the planner reads."""
    folder = tmp_path_factory.mktemp("queries")
    schema = TableSchema.of(dict(zip(SCHEMA.names, SCHEMA.types, strict=True)), primary_key=["id"])
    made = {}
    for name in "abc":
        made[name] = str(folder / name)
        Table.create(made[name], schema)
    return made


def stream_of(path: str) -> Any:
    """The changes of a table, as a message to a server says it."""
    proto = pytest.importorskip("pyspark.sql.connect.proto")
    read = proto.Relation()
    read.read.data_source.format = "upsert-table"
    read.read.data_source.paths.append(path)
    plan = SimpleNamespace(to_proto=lambda _: SimpleNamespace(root=read))
    session = SimpleNamespace(client=None)
    return SimpleNamespace(
        columns=[*COLUMNS, "_row_kind"], isStreaming=True, _plan=plan, sparkSession=session
    )


def selects_of(query: str, folders: Mapping[str, str]) -> list[Select]:
    """The joins that a query is, where a table of it is a UNION ALL."""
    parsed = QueryText.of(query)
    tables = {one.position: (one, stream_of(folders[one.name])) for one in parsed.references}
    inputs = Inputs(tables, lambda parts: pytest.fail(str(parts)))
    return [Select(one, inputs) for one in inputs.branches(*pieces(parsed))]


def select_of(query: str, folders: Mapping[str, str], *, is_joined: bool = False) -> Select:
    parsed = QueryText.of(query)
    tables = {one.position: (one, stream_of(folders[one.name])) for one in parsed.references}

    def rows(parts: Sequence[Piece]) -> DataFrame:
        raise AssertionError(parts)

    (piece,) = pieces(parsed)
    return Select(piece, Inputs(tables, rows), is_joined=is_joined)


def joined(spark: SparkSession, select: Select) -> DataFrame:
    """The rows of the tree of a SELECT, as the source of a join gives them."""
    for leaf in select.leaves:
        name = str(leaf.path).rsplit("/", 1)[-1]
        spark.table(name).createOrReplaceTempView(f"t{leaf.number}")
    tree = select.tree
    columns = [output_name(number, name) for number in sorted(visible(tree)) for name in COLUMNS]
    flags = [f"coalesce(p{number}, false) AS {present_name(number)}" for number in _present(select)]
    assert null_supplied(tree).issuperset(_present(select))
    return spark.sql(f"SELECT {', '.join([*columns, *flags])} FROM ({sql_of(tree)})")


def content(df: DataFrame) -> tuple[list[str], list[str]]:
    return df.columns, sorted(map(repr, map(tuple, df.collect())))


def views(spark: SparkSession, random: Random) -> None:
    for name in "abc":
        rows = pa.Table.from_pylist(
            [dict(zip(COLUMNS, row, strict=True)) for row in random_rows(random)], SCHEMA
        )
        spark.createDataFrame(rows).createOrReplaceTempView(name)


def key_of(select: Select, names: list[str]) -> list[list[int]]:
    """By which columns of the result, by their places, its rows are said to be told apart; [] if by none."""
    given: dict[Ref, list[str]] = {}
    for output, name in zip(select.outputs, names, strict=True):
        if output.ref is not None and names.count(name) == 1:
            given.setdefault(output.ref, []).append(name)
    keys = _Rows(select, None, Settings(), Told())._keys(given).keys
    return [[names.index(name) for name in part] for key in keys for part in key]


def difference(spark: SparkSession, select: Select, query: str) -> Any:
    """What Spark gives for what a text is planned as, and for the text, where these differ; else None."""
    planned = _with_tables(joined(spark, select), select, [])
    for condition in select.filters:
        planned = planned.where(condition)
    planned = planned.selectExpr(*(one.text for one in select.outputs))
    collected = planned.collect()
    names, rows = planned.columns, sorted(map(repr, map(tuple, collected)))
    if (wanted := content(spark.sql(query))) != (names, rows):
        return query, wanted, (names, rows)
    if key := key_of(select, names):
        keys = [tuple(tuple(row[place] for place in part) for part in key) for row in collected]
        if len(set(keys)) < len(keys):
            return query, key, rows
    return None


@pytest.mark.spark
@pytest.mark.parametrize("query", QUERIES)
def test_a_text_is_planned_as_the_same_query(
    query: str, spark: SparkSession, folders: Mapping[str, str]
) -> None:
    views(spark, Random(query))
    assert difference(spark, select_of(query, folders), query) is None


SUMMED = (
    "SELECT k, count(*) AS n, sum(m) AS s FROM a GROUP BY k",
    "SELECT id % 2 AS p, avg(m), avg(f), avg(id) FROM a GROUP BY id % 2",
    "SELECT k IS NULL AS x, count_if(m > 0), bool_and(m > 0), bool_or(m > 0) FROM a GROUP BY 1",
    "SELECT k, count(a.m) AS n, sum(a.f * b.m) AS s FROM a FULL JOIN b USING (k) WHERE k > 0 GROUP BY k",
    "SELECT coalesce(a.m, b.m) AS c, count(*) FROM a LEFT JOIN b ON a.k = b.k GROUP BY c",
    "SELECT DISTINCT k FROM a",
    "SELECT DISTINCT k, a.m, b.f FROM a FULL JOIN b USING (k)",
    "SELECT a.k, K + 1 AS n, -- the (\n count(*) -- and (\n, sum(m) -- )\n FROM a GROUP BY k, k + 1 -- by",
    "SELECT /*+ BROADCAST(a) */ DISTINCT a.k + 1 AS x, b.m FROM a, b WHERE a.k = b.k",
    # what is made of sums
    """SELECT a.k, K + 1 AS l, concat('n', count(*) /* ( */ * -- count(
       2), sum( m ) + SUM(m) AS s, round(avg(m), 1), count(*) FILTER (WHERE m > 0) AS n, 'w' AS w,
       size(filter(array(count(*), 1), k -> k > 1)) AS z FROM a GROUP BY k""",
    "SELECT k IS NULL AS x, 6 DIV sum(m) AS q, count(*) AS n FROM a GROUP BY 1, k IS NULL HAVING sum(m) > 0",
    "SELECT nvl(a.m, b.m) AS c, count(*) n FROM a FULL JOIN b USING (k) GROUP BY 1 HAVING n > 1 AND C > 0",
    "SELECT 'all' AS w, count(*) AS n, sum(m) FILTER (WHERE (m < 2)) + 1 AS s FROM a HAVING n > 1",
)


@pytest.mark.spark
@pytest.mark.parametrize("query", SUMMED)
def test_sums_of_changes_are_those_of_the_rows_that_stay(
    query: str, spark: SparkSession, folders: Mapping[str, str]
) -> None:
    views(spark, Random(query))
    select = select_of(query, folders, is_joined=True)
    rows = _with_tables(joined(spark, select), select, [])
    for condition in select.filters:
        rows = rows.where(condition)
    kinds = spark.sql("SELECT explode(array('+I', '+I', '-D')) AS _row_kind")
    found = summed(rows.crossJoin(kinds), groups_of(select), "")
    assert isinstance(found, DataFrame)
    names, got = content(found.where("_row_kind = '+U'").drop("_row_kind"))
    wanted = content(spark.sql(query))[1]
    assert (len(names), got) == (len(select.outputs), wanted)


@pytest.mark.spark
def test_a_sum_that_would_stay_null_is_refused_without_ansi_mode(
    spark: SparkSession, folders: Mapping[str, str]
) -> None:
    rows = spark.sql("SELECT struct(1 AS k, CAST(1 AS DECIMAL(29, 0)) AS m) AS a, '+I' AS _row_kind")
    groups = groups_of(select_of("SELECT k, sum(m) AS s FROM a GROUP BY k", folders))
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        found = summed(rows, groups, "")
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")
    assert isinstance(found, Refused)
    assert found.reason == "Sum(`a`.m) of DECIMAL(29,0), which stays NULL when it has overflown,"
    assert found.remedy.startswith("write CAST(… AS DECIMAL(28, 0)), or set spark.sql.ansi.enabled")


def test_groups_by_lookups_are_of_the_rows_that_each_where_leaves(folders: Mapping[str, str]) -> None:
    query = """WITH w AS (SELECT * FROM a WHERE f > 1)
               SELECT q, max_by(id, n) AS x FROM (SELECT id, k AS q, m AS n FROM w WHERE id < 5 AND k > 0) y
               WHERE n > 2 GROUP BY q"""
    select = select_of(query, folders, is_joined=True)
    spec = Touched(select, groups_of(select)).spec(2, is_loud=True)
    assert (spec.groups, str(spec.measures[0])) == (("k",), "max_by(id, m)")
    assert str(spec.where) == "((t0.f > 1.0) and (t0.id < 5) and (t0.k > 0) and (t0.m > 2))"


UNITED = (
    """SELECT id, u.q, u.n FROM a JOIN (SELECT k AS q, m + 1 AS n FROM b WHERE m > 0
       UNION ALL SELECT k, m FROM c
       UNION ALL SELECT b.k, c.m FROM b LEFT JOIN c ON b.k = c.k) u ON u.q = a.k""",
    """WITH u AS (SELECT * FROM a UNION ALL SELECT * FROM b WHERE f > 0),
            v AS (SELECT id, k FROM u WHERE m < 2)
       SELECT v.*, w.* FROM v LEFT JOIN c ON v.k = c.k AND c.m > 0
       JOIN (SELECT k, f FROM b UNION ALL SELECT m, f FROM c) w ON w.k = v.k WHERE w.f > v.id OR w.f < 1""",
    "SELECT c.id, u.k FROM c RIGHT JOIN (SELECT k FROM a UNION ALL SELECT m FROM b) u USING (k)",
)


@pytest.mark.spark
@pytest.mark.parametrize("query", UNITED)
def test_a_union_in_a_join_is_a_union_of_joins(
    query: str, spark: SparkSession, folders: Mapping[str, str]
) -> None:
    views(spark, Random(query))
    found = []
    for select in selects_of(query, folders):
        rows = _with_tables(joined(spark, select), select, [])
        for condition in select.filters:
            rows = rows.where(condition)
        found.append(rows)
    planned = reduce(DataFrame.unionByName, found).selectExpr(*(one.text for one in select.outputs))
    assert len(found) > 1
    assert content(planned) == content(spark.sql(query))


@pytest.mark.parametrize(
    ("query", "why"),
    [
        (
            "SELECT a.id FROM a LEFT JOIN (SELECT k FROM b UNION ALL SELECT k FROM c) u ON a.k = u.k",
            "a join with 'u', which is a query with UNION ALL, at the side of an outer, semi or anti join",
        ),
        (
            "SELECT a.id FROM a LEFT SEMI JOIN (SELECT k FROM b UNION ALL SELECT k FROM c) u ON a.k = u.k",
            "a join with 'u', which is a query with UNION ALL, at the side of an outer, semi or anti join",
        ),
        (
            "WITH u AS (SELECT k FROM b UNION ALL SELECT k FROM c) SELECT x.k FROM u x JOIN u y ON x.k = y.k",
            "a join with 'x', which is a query with UNION ALL, named twice or within IN or EXISTS,",
        ),
        (
            "SELECT a.id FROM a JOIN (SELECT k FROM b UNION ALL SELECT k, m FROM c) u ON a.k = u.k",
            "a join with 'u', which is a query with UNION ALL between queries of more and fewer columns,",
        ),
        (
            "SELECT a.id FROM a WHERE k IN (SELECT k FROM b UNION ALL SELECT k FROM c)",
            "IN (SELECT k FROM b) with UNION ALL, named twice or within IN or EXISTS,",
        ),
        # forms of a query
        ("SELECT id FROM a WHERE EXISTS (SELECT 1)", "'SELECT 1' cannot be planned; write IN and EXISTS in"),
        ("SELECT id FROM a WHERE k IN (FROM b SELECT k)", "a query that begins with FROM cannot be planned"),
        ("SELECT id FROM a WHERE EXISTS ((SELECT k FROM b))", "a query that is SUBQUERY cannot be planned"),
        # one NULL of the query leaves no row
        (
            "SELECT id FROM a WHERE id NOT IN (SELECT k FROM b)",
            "NOT IN (SELECT k FROM b) of columns that may",
        ),
        ("SELECT id FROM a WHERE k NOT IN (SELECT id FROM b)", "NOT IN (SELECT id FROM b) of columns that"),
        (
            "SELECT a.id FROM a WHERE id NOT IN (SELECT c.id FROM b LEFT JOIN c ON b.k = c.k)",
            "of columns that may be NULL, of which one NULL leaves no row, cannot be planned; declare",
        ),
        (
            "SELECT a.id FROM a RIGHT JOIN c USING (k) WHERE NOT (a.id IN (SELECT b.id FROM b))",
            "NOT IN (SELECT b.id FROM b) of columns that may be NULL",
        ),
    ],
)
def test_what_is_no_union_of_joins_and_no_match_is_refused(
    query: str, why: str, folders: Mapping[str, str]
) -> None:
    with pytest.raises(PlanError) as refused:
        selects_of(query, folders)
    assert why in str(refused.value)


FORMS = ("{} > 0", "{} = {}", "{} <> {}", "{} IS NULL", "{} IN (1, 2)", "NOT {} < {}", "{} <=> {}")
KINDS = ("", "INNER ", "LEFT ", "RIGHT ", "FULL ", "LEFT SEMI ", "ANTI ", ", ", "NATURAL ")


def random_condition(random: Random, columns: Sequence[str]) -> str:
    one, other = random.choice(columns), random.choice(columns)
    found = random.choice(FORMS).format(one, other)
    return f"({found} OR {random_condition(random, columns)})" if random.random() < 0.2 else found


def random_table(random: Random, depth: int) -> str:
    if depth <= 0 or random.random() < 0.4:
        return random.choice("abc")
    return f"({random_query(random, depth - 1, 2)})"


def random_match(random: Random, visible: Sequence[str], depth: int) -> str:
    """IN or EXISTS with a query that compares its columns with those of the query around."""
    outer, key = random.choice(visible), random.choice(("id", "k", "m"))
    own = [f"y{depth}.{name}" for name in COLUMNS[:3]]
    both = random_condition(random, [*own, f"{outer}.m"])
    of = f"FROM {random_table(random, depth - 1)} y{depth} WHERE {both}"
    negated = random.choice(("", "NOT "))
    if random.random() < 0.5:
        key, value = ("id", own[0]) if negated else (key, random.choice(own))  # no NULL may be among them
        return f"{outer}.{key} {negated}IN (SELECT {value} {of})"
    return f"{negated}EXISTS (SELECT * {of} AND {random.choice(own)} = {outer}.{key})"


def random_query(random: Random, depth: int = 2, most: int = 3) -> str:
    """A query over the tables, and over queries of the same columns."""
    aliases, visible = ["x0"], ["x0"]
    text = f"{random_table(random, depth)} x0"
    where = []
    for number in range(1, random.randint(1, most)):
        alias = f"x{number}"
        kind = random.choice(KINDS)
        table = f"{random_table(random, depth)} {alias}"
        keys = ("id", "k", "k", "k", "m")
        equal = f"{random.choice(visible)}.{random.choice(keys)} = {alias}.{random.choice(keys)}"
        equal = equal.replace(" =", " <=>") if random.random() < 0.2 else equal
        both = [f"{one}.{name}" for one in (*visible, alias) for name in COLUMNS[:3]]
        if kind == ", ":
            text += f", {table}"
            where.append(equal)
        elif kind != "NATURAL " and random.random() < 0.3:
            text += f" {kind}JOIN {table} USING ({random.choice(('k', 'k', 'k, m', 'id'))})"
        elif kind == "NATURAL ":
            text += (
                f" JOIN {table} USING (id, k, m, f)" if random.random() < 0.5 else f" NATURAL JOIN {table}"
            )
        else:
            more = f" AND {random_condition(random, both)}" if random.random() < 0.4 else ""
            text += f" {kind}JOIN {table} ON {equal}{more}"
        if kind not in ("LEFT SEMI ", "ANTI "):
            visible.append(alias)
        aliases.append(alias)
    columns = [f"{one}.{name}" for one in visible for name in COLUMNS[:3]]
    if random.random() < 0.3:
        where.append(random_match(random, visible, depth))
    if random.random() < 0.5:
        where.append(random_condition(random, columns))
    items = [f"{random.choice(columns)} AS {name}" for name in ("id", "k", "m")]
    if random.random() < 0.5:
        items[2] = f"coalesce({random.choice(columns)}, 7) AS m"
    items.append(f"{random.choice(visible)}.f{random.choice(('', ' + 1 AS f'))}")
    if depth == 2 and random.random() < 0.3:
        items = ["*", *(f"{one}.*" for one in visible)]
    elif depth == 2:
        items += [f"{one}.id AS i{one}" for one in visible]
    return f"SELECT {', '.join(items)} FROM {text}{' WHERE ' + ' AND '.join(where) if where else ''}"


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.parametrize("seed", range(40))
def test_random_texts_are_planned_as_the_same_queries(
    seed: int, spark: SparkSession, folders: Mapping[str, str]
) -> None:
    random, planned = Random(seed), 0
    views(spark, random)
    while planned < 4:
        query = random_query(random)
        try:
            select = select_of(query, folders, is_joined=True)
            select.outputs, select.tree  # noqa: B018
        except (PlanError, SchemaError):
            continue
        if len(select.leaves) > MAX_TABLES:
            continue
        assert difference(spark, select, query) is None
        planned += 1
