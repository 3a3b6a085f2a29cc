"""Words of the language as names without quotes, which Spark takes where no other word can stand."""

import pytest
from sqlglot import exp

from upsert.errors import SchemaError
from upsert.sql import dialect
from upsert.sql.dialect import query_tree
from upsert.sql.parser import parse
from upsert.sql.query import QueryText

WORDS = (
    *("alter", "any", "Call", "case", "create", "cross", "cube", "describe", "drop", "else", "except"),
    *("execute", "explain", "fetch", "for", "grant", "having", "if", "ilike", "inner", "insert", "intersect"),
    *("into", "join", "lateral", "like", "limit", "load", "lock", "minus", "offset", "outer", "qualify"),
    *("rename", "revoke", "rollback", "ROLLUP", "serdeproperties", "show", "tablesample", "then", "uncache"),
    *("union", "using", "values", "window"),
)
"""Those of Spark's keywords that sqlglot takes for no names; the others have passed before."""

QUERIES = (
    "SELECT {0} FROM t",
    "SELECT t.{0}, {0} AS x, id AS {0}, max({0}), [{0}], - {0} FROM t",
    "SELECT id FROM t WHERE {0} = 1 AND 2 > {0} OR NOT {0} IS NULL AND {0} IN (3) ORDER BY id",
    "SELECT {0}, count(*) FROM t WHERE id BETWEEN {0} AND 7 GROUP BY {0} HAVING {0} > 1 ORDER BY {0} DESC",
    "SELECT CASE WHEN a THEN {0} ELSE {0} END FROM t WHERE {0} LIKE 'a%'",
    "SELECT a.{0} FROM {0} AS a JOIN {0} ON a.{0} = {0}.{0} WHERE EXISTS (SELECT 1 FROM {0})",
    "SELECT * FROM {0}, u WHERE {0}.id < u.{0}",
    "SELECT {0}.* FROM d.{0} JOIN {0} USING (id, {0}) WHERE {0} BETWEEN 1 AND 2",
    "SELECT sum(a) OVER (PARTITION BY {0} ORDER BY {0}) FROM t",
)


@pytest.mark.parametrize("word", WORDS)
def test_a_word_alone_is_a_name(word: str) -> None:
    for query in QUERIES:
        assert tree(query.format(word)) == tree(query.format(f"`{word}`"))


def tree(query: str) -> exp.Expr:
    """What sqlglot reads, without a difference of names in quotes."""
    found = query_tree(query, "query")
    for name in found.find_all(exp.Identifier):
        name.set("quoted", False)
    return found


STATEMENTS = [
    "CREATE TABLE {0} ({0} INT, PRIMARY KEY ({0}) NOT ENFORCED)",
    "INSERT INTO {0} ({0}) VALUES (1)",
    "UPDATE {0} SET {0} = {0} WHERE {0} = 1",
    "DELETE FROM {0} WHERE {0} IS NULL",
    "MERGE INTO {0} t USING {0} AS s ON t.{0} = s.{0} WHEN MATCHED AND s.{0} > 1 THEN UPDATE SET {0} = s.{0}",
    "MERGE INTO t USING u ON t.{0} = u.{0} WHEN NOT MATCHED THEN INSERT ({0}) VALUES (u.{0})",
    "ALTER TABLE {0} RENAME COLUMN {0} TO x",
]


@pytest.mark.parametrize("word", WORDS)
def test_statements_may_name_a_column_or_a_table_so(word: str) -> None:
    for text in STATEMENTS:
        assert type(parse(text.format(word))) is type(parse(text.format(f"`{word}`")))


OTHERS = [
    "SELECT CASE a WHEN -1 THEN 2 ELSE -1 END, CASE WHEN NOT a THEN b END, IF(a, b, c) FROM t",
    "SELECT * EXCEPT (a) FROM t WHERE a = ANY (SELECT b FROM u) AND a NOT LIKE 'x' AND c LIKE ANY ('a')",
    "SELECT a FROM VALUES (1), (2) AS v(a) UNION (VALUES (3)) EXCEPT SELECT 1 INTERSECT ALL (SELECT 2)",
    "SELECT sum(a) OVER (RANGE BETWEEN 1 PRECEDING AND 2 FOLLOWING) FROM t WINDOW w AS (PARTITION BY a)",
    "SELECT a, count(*) FROM t GROUP BY CUBE (a) HAVING count(*) > 1 ORDER BY a LIMIT 3 OFFSET 2",
    "SELECT * FROM t LEFT OUTER JOIN u USING (a) CROSS JOIN v, LATERAL (SELECT 1) JOIN LATERAL f(a) ON b",
    "SELECT * FROM t TABLESAMPLE (9 PERCENT) LATERAL VIEW OUTER explode(a) e AS b WHERE a IS DISTINCT FROM b",
    "SELECT CASE LEFT(a, 1) WHEN 'x' THEN 1 END, (CASE limit WHEN 1 THEN 2 END)",
    "SELECT CASE desc WHEN 1 THEN 2 END, CASE end = asc WHEN true THEN 3 END, f(CASE left WHEN 4 THEN 5 END)",
    "VALUES LEFT('ab', 1), 'c'",
    "SELECT a FROM VALUES .5, 1 AS v(a)",
    "SELECT substring(a FROM 1 FOR 2), trim(BOTH FROM b), CAST(c AS MAP<STRING, ARRAY<INT>>) FROM t",
]


@pytest.mark.parametrize("query", OTHERS)
def test_elsewhere_it_is_what_it_was(query: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = query_tree(query, "query")
    monkeypatch.setattr(dialect, "_let_words_be_names", lambda _: None)
    assert query_tree(query, "query") == now


@pytest.mark.parametrize("name", ["range", "list"])
def test_a_type_that_spark_lacks_is_a_column(name: str) -> None:
    assert tree(f"SELECT a FROM t WHERE {name} < 5") == tree(f"SELECT a FROM t WHERE `{name}` < 5")


def test_case_is_a_name_beside_case() -> None:
    query = (
        "SELECT case, CASE WHEN {0} = 1 AND a THEN {0} END FROM t WHERE {0} < 2 AND CASE a WHEN 1 THEN b END"
    )
    assert tree(query.format("case")) == tree(query.format("`case`"))


@pytest.mark.parametrize(
    "query",
    [
        "SELECT a FROM t JOIN ON t.a = u.a",
        "SELECT a FROM t ORDER BY a LIMIT",
        "SELECT CASE WHEN a THEN ELSE b END FROM t",
        "SELECT a FROM t UNION LAL SELECT b FROM u",
    ],
)
def test_a_word_that_the_query_needs_is_not_said_to_be_a_name(query: str) -> None:
    with pytest.raises(SchemaError) as refused:
        query_tree(query, "query")
    assert "as a name" not in str(refused.value)


def test_the_parts_of_a_union_may_have_a_column_called_so() -> None:
    query = QueryText.of("SELECT union FROM t UNION ALL SELECT b FROM union WHERE union > 1")
    parts = ["SELECT union FROM t", "SELECT b FROM union WHERE union > 1"]
    assert [part.text for part in query.united] == parts
