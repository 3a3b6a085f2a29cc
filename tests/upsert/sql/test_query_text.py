"""Queries over tables of a catalog: which tables they read, what of them, and what Spark gets to see."""

from datetime import datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from upsert.errors import SchemaError
from upsert.schema import TableSchema
from upsert.sql.columns import parse_columns
from upsert.sql.parser import parse
from upsert.sql.predicates import alternatives, pushed
from upsert.sql.query import AsOf, AsOfKind, ChangesBetween, QueryText
from upsert.types import TIMESTAMP


def over(text: str, *views: str | None) -> str:
    return QueryText.of(text).over(views).text


@pytest.mark.parametrize(
    ("text", "tables"),
    [
        ("SELECT 1", []),
        ("VALUES (1, 'a')", []),
        ("TABLE t", ["t"]),
        ("SELECT * FROM db.t", ["db.t"]),
        ("SELECT * FROM `db`.`t`", ["db.t"]),
        ("SELECT * FROM main.db.t", ["main.db.t"]),
        ("SELECT * FROM u JOIN more.main.db.t", ["u", "more.main.db.t"]),
        ("SELECT (SELECT max(a) FROM u) FROM t WHERE EXISTS (SELECT 1 FROM v)", ["u", "t", "v"]),
        ("SELECT * FROM t a, t b", ["t", "t"]),
        ("SELECT * FROM t UNION ALL SELECT * FROM u", ["t", "u"]),
        ("WITH w AS (SELECT * FROM t) SELECT * FROM w", ["t"]),
        ("WITH t AS (SELECT * FROM t) SELECT * FROM t", ["t"]),
        ("WITH a AS (SELECT 1), b AS (SELECT * FROM a) SELECT * FROM b JOIN T", ["T"]),
        ("WITH w AS (SELECT 1) SELECT * FROM (SELECT * FROM w) x", []),
        ("WITH w AS (SELECT 1) SELECT * FROM db.w", ["db.w"]),
        ("SELECT a FROM t LATERAL VIEW explode(x) e AS a", ["t"]),
        ("SELECT 'FROM x' FROM t -- FROM y", ["t"]),
        ("FROM t SELECT a", ["t"]),
        ("WITH w AS (TABLE t) (TABLE w) UNION ALL TABLE u MINUS TABLE db.`v x`", ["t", "u", "db.v x"]),
        ("SELECT 1 FROM (VALUES (1) UNION ALL TABLE t ORDER BY 1 LIMIT 1) JOIN (VALUES (2))", ["t"]),
        ("VALUES (1) AS w(a) |> JOIN t |> WHERE EXISTS (TABLE u |> SELECT b)", ["t", "u"]),
        ("SELECT (table), table FROM t WHERE (table IS NULL) OR (table IN (1))", ["t"]),
        ("SELECT table.a FROM (SELECT a, b FROM t) table GROUP BY a", ["t"]),
        (
            "SELECT * FROM f(TABLE(t) PARTITION BY a ORDER BY (b DESC, c)), g(TABLE(u) SORT BY b, x => 1)",
            ["t", "u"],
        ),
        (
            "WITH RECURSIVE w(n) MAX RECURSION LEVEL 9 AS (SELECT 1 UNION SELECT n FROM w JOIN t) TABLE w",
            ["t"],
        ),
        (
            "SELECT * FROM t PIVOT (max(a) || '' AS x, (SELECT 1 FROM u) * sum(a) FOR b IN (1, 2 AS two))",
            ["t", "u"],
        ),
        ("SELECT a >>> 2, CAST(NULL AS ARRAY<ARRAY<ARRAY<INT>>>) FROM t", ["t"]),
        (
            "SELECT corr(DISTINCT a, b), any_value(a, true), any_value(b, (SELECT 1 FROM u)), now(1) FROM t",
            ["u", "t"],
        ),
    ],
)
def test_tables_of_a_query_are_found_but_not_the_names_of_with(text: str, tables: list[str]) -> None:
    assert [reference.name for reference in QueryText.of(text).references] == tables


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT t.a FROM t", "SELECT t.a FROM `v` AS `t`"),
        ("SELECT x.a FROM t AS x", "SELECT x.a FROM `v` AS x"),
        ("SELECT x.a FROM db.t x", "SELECT x.a FROM `v` x"),
        ("SELECT db.t.a, t.b FROM db.t", "SELECT t.a, t.b FROM `v` AS `t`"),
        ("SELECT `ä`.* FROM `ä`", "SELECT `ä`.* FROM `v` AS `ä`"),
        ("TABLE t", "SELECT * FROM `v` AS `t`"),
        (
            "SELECT * FROM f(TABLE(t) ORDER BY a)",
            "SELECT * FROM f(TABLE(SELECT * FROM `v` AS `t`) ORDER BY a)",
        ),
        ("SELECT a FROM t /*+ OPTIONS('scan.mode'='latest') */ AS x", "SELECT a FROM `v`  AS x"),
        ("SELECT a FROM t /*+ OPTIONS('k'='v') */ WHERE a", "SELECT a FROM `v` AS `t`  WHERE a"),
        ("SELECT /*+ BROADCAST(t) */ a FROM t", "SELECT /*+ BROADCAST(t) */ a FROM `v` AS `t`"),
        ("SELECT a FROM t FOR SYSTEM_TIME AS OF p.proctime AS u", "SELECT a FROM `v`  AS u"),
        ("SELECT a FROM t FOR SYSTEM_VERSION AS OF 3", "SELECT a FROM `v` AS `t` "),
        ("SELECT PROCTIME() FROM t x", "SELECT current_timestamp() FROM `v` x"),
        (
            "SELECT TUMBLE_START(s, INTERVAL '5' MINUTE), a FROM t x GROUP BY TUMBLE(s, INTERVAL 5 MINUTE)",
            "SELECT `window`(s, '5 MINUTE').start, a FROM `v` x GROUP BY `window`(s, '5 MINUTE')",
        ),
        (
            "SELECT tumble_end(x.ts, INTERVAL 10 SECONDS) FROM t x",
            "SELECT `window`(x.ts, '10 SECONDS').end FROM `v` x",
        ),
        (
            "SELECT w.a FROM TABLE(TUMBLE(TABLE db.t, DESCRIPTOR(ts), INTERVAL '1' DAY)) w",
            (
                "SELECT w.a FROM (SELECT * EXCEPT (`:window`), `:window`.start AS window_start, "
                "`:window`.end AS window_end, `:window`.end - INTERVAL '0.001' SECOND AS window_time "
                "FROM (SELECT *, `window`(ts, '1 DAY') AS `:window` FROM `v` AS `t`)) w"
            ),
        ),
        (
            "SELECT HOP_END(s, INTERVAL 1 MINUTE, INTERVAL 1 HOUR), SESSION(s, INTERVAL '9' DAY) FROM t x",
            "SELECT `window`(s, '1 HOUR', '1 MINUTE').end, session_window(s, '9 DAY') FROM `v` x",
        ),
        (
            (
                "SELECT 1 FROM HOP(TABLE t, DESCRIPTOR(ts), INTERVAL '1' MINUTE, INTERVAL '5' MINUTE, "
                "INTERVAL 3 SECOND)"
            ),
            (
                "SELECT 1 FROM (SELECT * EXCEPT (`:window`), `:window`.start AS window_start, "
                "`:window`.end AS window_end, `:window`.end - INTERVAL '0.001' SECOND AS window_time "
                "FROM (SELECT *, `window`(ts, '5 MINUTE', '1 MINUTE', '3 SECOND') AS `:window` "
                "FROM `v` AS `t`))"
            ),
        ),
        (
            "SELECT 1 FROM TABLE(TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '1' DAY, INTERVAL '8' HOUR))",
            (
                "SELECT 1 FROM (SELECT * EXCEPT (`:window`), `:window`.start AS window_start, "
                "`:window`.end AS window_end, `:window`.end - INTERVAL '0.001' SECOND AS window_time "
                "FROM (SELECT *, `window`(ts, '1 DAY', '1 DAY', '8 HOUR') AS `:window` FROM `v` AS `t`))"
            ),
        ),
        ("SELECT hop, session, cumulate FROM t x", "SELECT hop, session, cumulate FROM `v` x"),
        (
            "SELECT 'PROCTIME()' AS `TUMBLE`, s.tumble FROM t s",
            "SELECT 'PROCTIME()' AS `TUMBLE`, s.tumble FROM `v` s",
        ),
        ("SELECT date_add(d,1),  'it''s' FROM t x", "SELECT date_add(d,1),  'it''s' FROM `v` x"),
        ("SELECT c.a FROM table_changes(db.t, 3, 'x') AS c", "SELECT c.a FROM `v` AS c"),
        (
            "SELECT table_changes.a FROM TABLE_CHANGES('db.t', 3 ) WHERE a > 1",
            "SELECT table_changes.a FROM `v` AS `table_changes` WHERE a > 1",
        ),
    ],
)
def test_only_tables_and_words_of_flink_are_exchanged(text: str, expected: str) -> None:
    assert over(text, "v") == expected


def test_a_table_that_is_left_to_spark_stays_as_it_is() -> None:
    assert over("SELECT * FROM a JOIN b.c", None, "v") == "SELECT * FROM a JOIN `v` AS `c`"


def test_changes_of_a_table_have_two_states() -> None:
    text = (
        "SELECT * FROM table_changes(a.`b`, 3, NULL) JOIN table_changes('t', 'x', TIMESTAMP '2020-01-01') c"
    )
    first, second = QueryText.of(text).references
    version = AsOfKind.VERSION
    assert (first.name, first.changes) == ("a.b", ChangesBetween(AsOf(version, "3", is_number=True)))
    end = AsOf(AsOfKind.TIMESTAMP, "2020-01-01")
    assert (second.name, second.changes) == ("t", ChangesBetween(AsOf(version, "x"), end))
    assert second.position == "line 1, column 50"


def test_hint_and_state_belong_to_the_table_before_them() -> None:
    text = """SELECT * FROM a /*+ OPTIONS('scan.mode' = 'latest', 'it''s' = ';') */
        LEFT JOIN b FOR SYSTEM_TIME AS OF a.p ON a.x = b.x
        JOIN c FOR SYSTEM_VERSION AS OF 7 JOIN d FOR SYSTEM_VERSION AS OF 'tag'
        JOIN e FOR SYSTEM_TIME AS OF TIMESTAMP '2020-01-01 00:00:00'
        JOIN f FOR SYSTEM_TIME AS OF PROCTIME()"""
    references = QueryText.of(text).references
    assert [dict(r.options) for r in references] == [{"scan.mode": "latest", "it's": ";"}, {}, {}, {}, {}, {}]
    assert [r.as_of for r in references] == [
        None,
        AsOf(AsOfKind.PROCESSING, "p"),
        AsOf(AsOfKind.VERSION, "7", is_number=True),
        AsOf(AsOfKind.VERSION, "tag"),
        AsOf(AsOfKind.TIMESTAMP, "2020-01-01 00:00:00"),
        AsOf(AsOfKind.PROCESSING, ""),
    ]
    assert references[1].position == "line 2, column 19"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SELECT FROM WHERE", "query: expected table name, found 'WHERE' at line 1, column 13"),
        ("SELECT a\nFROM t\nWHERE a b c", "found 'b' at line 3, column 9"),
        (
            "SELECT a,\n  FROM t",
            "query: expected a column or a value after ',', found 'FROM' at line 2, column 3; as",
        ),
        (
            "SELECT 1 FROM (SELECT FROM t)",
            "expected a column or a value after 'SELECT', found 'FROM' at line 1, column 23",
        ),
        ("SELECT PROCTIME(), a b c FROM t", "found 'c' at line 1, column 24"),
        ("SELECT a FROM (SELECT", "query: expecting ), found"),
        ("SELECT a FROM VALUES (1 2)", "query: expecting ), found '2' at line 1, column 25"),
        ("SELECT a FROM (VALUES (1) UNION SELECT a FROM t x y)", "found 'y' at line 1, column 51"),
        ("SELECT 'a FROM t", "query: the text has an open quote or comment"),
        (
            "SELECT '@v1'\nFROM s.t@v12 AS t JOIN u",
            "must be written t VERSION AS OF 12, or TIMESTAMP AS OF '…', found t@v12 at line 2, column 8",
        ),
        ("SELECT a FROM `t`@3", "must be written t VERSION AS OF 3, or TIMESTAMP AS OF '…', found t@3 at"),
        (
            "WITH w AS (SELECT 1) INSERT INTO t SELECT * FROM w",
            "expected WITH in the query of INSERT, the source of MERGE, or a subquery of UPDATE or DELETE",
        ),
        ("SELECT a >> > 2 FROM t", "found '>' at line 1, column 13"),
        ("SELECT a FROM t; SELECT b", "query: expected a query, found 'SELECT a FROM t; SELECT b'"),
        (
            "SELECT a /*+ OPTIONS('k'='v') */ FROM t",
            "must stand right after the name of a table, found one at line 1, column 10",
        ),
        ("SELECT a FROM t /*+ OPTIONS('k') */", "query: expected =, found ')' at line 1, column 32"),
        ("SELECT a FROM t /*+ OPTIONS('k'='1', 'k'='2') */", "option 'k' is given twice"),
        (
            "SELECT TUMBLE(ts) FROM t",
            "TUMBLE has a column and INTERVAL of the size, with commas in between, found 'TUMBLE' at line 1",
        ),
        (
            "SELECT HOP(ts, INTERVAL '1' DAY) FROM t",
            "HOP has a column and INTERVAL of the slide, INTERVAL of the size",
        ),
        ("SELECT HOP_PROCTIME(ts) FROM t", "take _ROWTIME, or PROCTIME() itself, found 'HOP_PROCTIME'"),
        ("SELECT TUMBLE(ts, 5) FROM t", "expected INTERVAL 'number' unit, found '5' at line 1, column 19"),
        ("SELECT TUMBLE(ts, INTERVAL '1' MONTH) FROM t", "expected INTERVAL 'number' unit, found 'INTERVAL'"),
        (
            "SELECT * FROM TABLE(TUMBLE(TABLE t, ts, INTERVAL '1' DAY))",
            "expected TUMBLE(TABLE name, DESCRIPTOR",
        ),
        (
            "SELECT * FROM t FOR SYSTEM_TIME AS OF now() - 1",
            "expected FOR SYSTEM_TIME AS OF a processing time",
        ),
        (
            "SELECT * FROM t FOR SYSTEM_VERSION AS OF a",
            "query: table 't' at line 1, column 15: expected FOR SYSTEM",
        ),
        ("SELECT * FROM table_changes(t)", "expected table_changes(table, from [, to]), found ')' at line 1"),
        ("SELECT * FROM table_changes(t, 1, 2, 3)", "expected table_changes(table, from [, to]), found ')'"),
        (
            "SELECT * FROM table_changes((TABLE t), 1)",
            "expected table_changes(table, from [, to]), found '('",
        ),
        ("SELECT * FROM table_changes(t, 1", "expected table_changes(table, from [, to]), found '1'"),
        (
            "SELECT * FROM table_changes(db.t, now())",
            "table 't' at line 1, column 15: table_changes takes as from and to a snapshot's id, a 'tag",
        ),
    ],
)
def test_what_is_no_query_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(SchemaError) as error:
        QueryText.of(text)
    assert message in str(error.value)


def test_places_are_those_of_the_whole_statement() -> None:
    text = "INSERT INTO t\nSELECT PROCTIME(), a FROM\n  u"
    query = QueryText.of(text, text.index("SELECT"))
    assert query.references[0].position == "line 3, column 3"
    revised = query.over(["v"])
    assert revised.text == "             \nSELECT current_timestamp(), a FROM\n  `v` AS `u`"
    assert text[revised.original(revised.text.index("a FROM")) :].startswith("a FROM")


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("SELECT a, t.B FROM t WHERE c > 1 ORDER BY d", [{"a", "b", "c", "d", "t"}]),
        ("SELECT * FROM t", [None]),
        ("SELECT count(*) FROM t", [{"t"}]),
        ("SELECT t.*, u.a FROM t JOIN u USING (id)", [None, {"a", "id", "t", "u"}]),
        ("SELECT x.a FROM (SELECT * FROM t) x JOIN u ON x.b = u.b", [None, {"x", "a", "t", "b", "u"}]),
        ("SELECT a FROM t NATURAL JOIN u", [None, None]),
        ("SELECT struct(*) FROM t", [None]),
        ("SELECT * FROM (SELECT a FROM t)", [{"a", "t"}]),
        ("SELECT a FROM t WHERE EXISTS (SELECT * FROM u WHERE b = 1)", [{"a", "b", "t", "u"}] * 2),
        ("SELECT t.* FROM t WHERE EXISTS (SELECT u.* FROM u WHERE b = 1)", [None, {"b", "t", "u"}]),
        ("SELECT 1 FROM t WHERE EXISTS (SELECT DISTINCT * FROM u OFFSET 1)", [{"t", "u"}, None]),
        ("SELECT 1 FROM t WHERE EXISTS (SELECT * FROM u GROUP BY ALL OFFSET 1)", [{"t", "u"}, None]),
        ("SELECT 1 FROM t WHERE EXISTS (SELECT * FROM u UNION SELECT * FROM u)", [{"t", "u"}, None, None]),
        ("SELECT 1 FROM t WHERE EXISTS (SELECT * FROM (SELECT * FROM u) x)", [{"t", "x", "u"}, None]),
        ("SELECT date_trunc(x, d), date_add(a, b) FROM t", [{"x", "d", "a", "b", "t"}]),
        ("SELECT `B`, 'c', a.`id` /* u */ FROM t -- x", [{"b", "a", "id", "t"}]),
    ],
)
def test_columns_that_a_query_may_need_of_a_table(text: str, columns: list[set[str] | None]) -> None:
    names = {"a", "b", "c", "d", "id", "t", "u", "x"}
    found = [one.columns for one in QueryText.of(text).references]
    assert [None if words is None else words & names for words in found] == columns


@pytest.mark.parametrize(
    "text",
    [
        "SELECT id FROM t WHERE id = 1 -- note \\\n AND n = 2",
        "SELECT id FROM t WHERE id = 1 -- note \r AND n = 2 -- \\\n AND n = 3",
        "SELECT `-- \\\n a`, '-- \\\n' FROM /* -- \\\n */ t WHERE id = 1",
    ],
)
def test_a_comment_ends_where_spark_s_does(text: str) -> None:
    (reference,) = QueryText.of(text).references
    found = [(one.column, one.values[0].name) for one in reference.where]
    assert found == [("id", "1"), *([("n", "2")] if "\r" in text else [])]


@pytest.mark.parametrize(
    "text",
    [
        "SELECT identifier('a') FROM t WHERE b = 1",
        "SELECT a FROM t WHERE identifier(:c) > 2 AND b = 1",
        "SELECT * FROM t PIVOT (sum(a) FOR b IN (1, 2)) WHERE b = 1",
        "SELECT c FROM t UNPIVOT (c FOR d IN (a, b)) WHERE b = 1",
        "SELECT a FROM t NATURAL JOIN u WHERE t.b = 1",
        "SELECT TRANSFORM (a) USING 'cat' AS (x STRING) FROM t WHERE b = 1",
        "SELECT a FROM t TABLESAMPLE (10 PERCENT) WHERE b = 1",
        "FROM t |> WHERE b = 1 |> SELECT a",
    ],
)
def test_of_a_query_that_is_not_understood_all_is_read(text: str) -> None:
    found = QueryText.of(text)
    assert {(one.columns, one.where) for one in found.references} == {(None, ())}
    assert set(found.reads) == {None}


SCHEMA = parse_columns(
    "id BIGINT, n INT, name STRING, price DOUBLE, cost DECIMAL(10, 2), day DATE, at TIMESTAMP, ok BOOLEAN, "
    "small FLOAT, exact DECIMAL(38, 30), took INTERVAL DAY TO SECOND"
)


DIGITS = "12345678.999999999999999999999999999999"
"""More than Python's arithmetic keeps."""


def where(text: str, number: int = 0) -> list[list[object]]:
    return [list(each) for each in pushed(QueryText.of(text).references[number].where, SCHEMA, "UTC")]


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("id = 5", [["id", "=", 5]]),
        ("5 < ID AND name <> 'x'", [["id", ">", 5], ["name", "!=", "x"]]),
        ("id BETWEEN -1 AND 2", [["id", ">=", -1], ["id", "<=", 2]]),
        ("name IN ('a', 'b') AND NOT id IN (1)", [["name", "in", ["a", "b"]], ["id", "not in", [1]]]),
        ("name IS NULL AND (n IS NOT NULL)", [["name", "is null", None], ["n", "is not null", None]]),
        ("ok = TRUE", [["ok", "=", True]]),
        ("small = 16777216 AND price = 16777217", [["small", "=", 2.0**24], ["price", "=", 2.0**24 + 1]]),
        ("cost = 12 AND exact < 12345678.5", [["cost", "=", 12], ["exact", "<", Decimal("12345678.5")]]),
        (f"exact IN (-{DIGITS}, 1)", [["exact", "in", [Decimal(f"-{DIGITS}"), Decimal(1)]]]),
    ],
)
def test_comparisons_with_literals_are_pushed(condition: str, expected: list[list[object]]) -> None:
    assert where(f"SELECT * FROM t WHERE {condition}") == expected


@pytest.mark.parametrize(
    "condition",
    [
        "id = '5'",  # Spark casts the text
        "id = 1.5",
        "n > 1e3",
        "name = 1",
        "price > 1.0",  # NaN is larger for Spark
        "price <> 1.0",
        "cost = 1.001",
        "cost = 1e1",  # a DOUBLE
        "small = 16777217",  # another FLOAT without ANSI mode
        "exact = 123456789",  # of both Spark makes decimals with fewer digits behind the point
        "took > INTERVAL '-106751991 04:00:54.775808' DAY TO SECOND",  # longer than those of Arrow
        "day = '2020-01-01'",
        "at > '2020-01-01'",
        "id = n",
        "id = 1 OR n = 2",
        "upper(name) = 'X'",
        "id IN (SELECT 1)",
        "unknown = 1",
        "id + 1 = 2",
        "name LIKE 'a%'",
    ],
)
def test_what_spark_may_judge_otherwise_is_not_pushed(condition: str) -> None:
    assert where(f"SELECT * FROM t WHERE {condition}") == []


@pytest.mark.parametrize(
    "text",
    [
        "SELECT * FROM t TABLESAMPLE (5 ROWS) WHERE id = 1",
        "SELECT * FROM t PIVOT (sum(n) FOR name IN ('a', 'b')) WHERE id = 1",
        "SELECT * FROM (SELECT * FROM t) WHERE id = 1",
        "SELECT id FROM t GROUP BY id HAVING id = 1",
        "SELECT id FROM t AS x (n, id, name, price, cost, day, at, ok, small, exact) WHERE id = 1",
    ],
)
def test_condition_on_other_rows_than_the_tables_is_not_pushed(text: str) -> None:
    assert where(text) == []


def test_a_sampled_table_has_its_alias_where_spark_wants_it() -> None:
    text = (
        "SELECT * FROM db.t FOR SYSTEM_VERSION AS OF 3 TABLESAMPLE (10 PERCENT) REPEATABLE (3), "
        "u TABLESAMPLE (BUCKET 1 OUT OF 2), w TABLESAMPLE (5 ROWS) AS x"
    )
    assert QueryText.of(text).over(["a", "b", "c"]).text == (
        "SELECT * FROM `a`  TABLESAMPLE (10 PERCENT) REPEATABLE (3) AS `t`, "
        "`b` TABLESAMPLE (BUCKET 1 OUT OF 2) AS `u`, `c` TABLESAMPLE (5 ROWS) AS x"
    )


def test_in_a_join_only_what_is_false_of_null_is_pushed() -> None:
    text = "SELECT * FROM t LEFT JOIN u ON t.id = u.id WHERE u.n = 1 AND t.n = 2 AND u.name IS NULL AND ok"
    assert (where(text), where(text, 1)) == ([["n", "=", 2]], [["n", "=", 1]])
    assert where("SELECT * FROM t JOIN u USING (id) WHERE n = 1") == []


def test_condition_of_delete_becomes_alternatives() -> None:
    tree = QueryText.of("SELECT * FROM t WHERE NOT (id = 1 OR name = 'a') OR n IN (1, 2)").tree
    found = alternatives(tree.args["where"].this, SCHEMA, "UTC", "DELETE FROM t", "main.default.t")
    assert found == [[("id", "!=", 1), ("name", "!=", "a")], [("n", "in", [1, 2])]]


@pytest.mark.parametrize(
    ("operator", "opposite"),
    [("=", "!="), ("<>", "="), ("<", ">="), (">", "<="), ("<=", ">"), (">=", "<")],
)
def test_of_a_comparison_that_must_not_hold_the_opposite_must(operator: str, opposite: str) -> None:
    tree = QueryText.of(f"SELECT * FROM t WHERE NOT n {operator} 1").tree
    found = alternatives(tree.args["where"].this, SCHEMA, "UTC", "DELETE FROM t", "main.default.t")
    assert found == [[("n", opposite, 1)]]


@pytest.mark.parametrize(
    ("zone", "utc"),
    [
        ("Europe/Berlin", "06:30"),
        ("+02:00", "06:30"),
        ("-3", "11:30"),
        ("UTC+5:30", "03:00"),
        ("GMT-00:00:30", "08:30:30"),
        ("Z", "08:30"),
        ("PST", None),  # Java's, and Spark's own matter
        (None, None),
    ],
)
def test_time_is_one_of_the_sessions_zone_however_that_is_written(zone: str | None, utc: str | None) -> None:
    schema = TableSchema.of({"at": TIMESTAMP})
    tree = QueryText.of("SELECT * FROM t WHERE at < TIMESTAMP '2020-10-01 08:30:00'").tree
    condition = tree.args["where"].this
    if utc is not None:
        wanted = datetime.fromisoformat(f"2020-10-01 {utc}+00:00")
        assert alternatives(condition, schema, zone, "DELETE FROM t", "main.default.t") == [
            [("at", "<", wanted)]
        ]
        return
    with pytest.raises(SchemaError, match=r"needs literals of its type, TIMESTAMP.*, got CAST\('2020"):
        alternatives(condition, schema, zone, "DELETE FROM t", "main.default.t")


@pytest.mark.parametrize(
    ("time", "zone"),
    [
        ("0001-01-01 00:00:00", "+02:00"),  # in UTC of the year before
        ("9999-12-31 23:59:59", "America/New_York"),
        ("9999-12-31 23:59:59-05:00", "UTC"),
        ("1930-01-01 00:00:00", "Europe/Amsterdam"),  # 00:19:32 ahead of UTC to Java, 00:00 to Python
        ("1980-07-01 00:00:00", "EET"),  # summer time to Java
    ],
)
def test_time_is_sparks_own_matter_where_python_may_take_it_for_another(time: str, zone: str) -> None:
    query = QueryText.of(f"SELECT * FROM t WHERE at < TIMESTAMP '{time}' AND id > 1")
    schema = TableSchema.of({"id": pa.int64(), "at": TIMESTAMP})
    assert pushed(query.references[0].where, schema, zone) == [("id", ">", 1)]


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("upper(name) = 'X'", "DELETE FROM t: expected comparisons of columns with literals"),
        ("regexp_replace(name, 'a') = 'X'", "found \"REGEXP_REPLACE(name, 'a') = 'X'\""),
        ("to_char(price, '9') = '1'", "DELETE FROM t: expected comparisons of columns with literals"),
        ("id = 'x'", "the comparison '=' of column 'id' needs literals of its type, BIGINT, got 'x'"),
        ("ID = 'x'", "the comparison '=' of column 'id' needs literals of its type, BIGINT, got 'x'"),
        (
            "Price != 0.1",
            "column 'price', of DOUBLE, must be compared by =, IN, < or <=, got '!=': to SQL NaN",
        ),
        ("NOT small IN (0.5)", "column 'small', of FLOAT, must be compared by =, IN, < or <=, got 'not in'"),
        ("unknown = 1", "DELETE FROM t: unknown column 'unknown'"),
    ],
)
def test_condition_that_delete_cannot_take_is_refused(
    condition: str, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    tree = QueryText.of(f"SELECT * FROM t WHERE {condition}").tree
    with pytest.raises(SchemaError) as error:
        alternatives(tree.args["where"].this, SCHEMA, "UTC", "DELETE FROM t", "main.default.t")
    assert message in str(error.value)
    assert not caplog.records


@pytest.mark.parametrize(
    "text",
    [
        "SELECT MAP(`a` 'a', X'62') FROM t",
        "SELECT date_trunc( JOIN b, a) FROM t",
        "SELECT * FROM table_changes(v, )",
    ],
)
def test_what_sqlglot_stumbles_over_is_refused(text: str) -> None:
    with pytest.raises(SchemaError, match="query: "):
        QueryText.of(text)


def test_a_hint_within_what_is_exchanged_is_refused() -> None:
    with pytest.raises(SchemaError, match=r"UPDATE t: a hint OPTIONS must .* column 23"):
        parse("UPDATE t SET a = b, n /*+ OPTIONS('x' = 'y') */ = 1 WHERE b")


def test_a_table_that_a_parameter_names_is_none_of_the_catalog_s() -> None:
    assert QueryText.of("SELECT * FROM :db.t JOIN :u").references == ()


def test_a_hint_of_an_insert_is_taken_or_refused_wherever_it_stands() -> None:
    hints = [f"/*+ OPTIONS('{key}' = '') */" for key in "abcd"]
    text = "INSERT INTO {} t {} BY NAME {} REPLACE WHERE id = 1 {} SELECT 1"
    assert "".join(parse(text.format(*hints)).options) == "abcd"
    with pytest.raises(SchemaError, match="a hint OPTIONS must stand right after the name of a table"):
        parse(f"INSERT INTO t REPLACE {hints[0]} WHERE id = 1 SELECT 1")


@pytest.mark.parametrize(
    "step",
    ["UNION ALL SELECT 1", "EXCEPT FROM u", "INTERSECT ALL BY NAME (SELECT id FROM u)", "UNION VALUES (1)"],
)
def test_a_step_may_unite_with_any_query(step: str) -> None:
    query = QueryText.of(f"FROM t |> {step} |> WHERE id = 1 |> AS x |> UNION (FROM v)")
    assert [one.name for one in query.references] == [
        "t",
        *(["u"] if "u" in step.split("FROM ")[-1] else []),
        "v",
    ]
