"""Which queries over Spark Connect are planned from their text: without a server, and without a stream."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from planner import PlanError
from planner.connect.calls import group_name, result_name
from planner.connect.groups import groups_of
from planner.connect.nested import Piece, pieces
from planner.connect.select import Inputs, Select
from upsert.errors import SchemaError
from upsert.sql.query import QueryText

LOOKUP = "JOIN b FOR SYSTEM_TIME AS OF PROCTIME()"


def text_of(query: str) -> Select:
    streams: Any = {
        name: SimpleNamespace(columns=[*columns, "_row_kind"], isStreaming=True)
        for name, columns in {"a": ("id", "k", "both"), "b": ("k", "n"), "w": ("k", "where")}.items()
    }
    parsed = QueryText.of(query)
    (piece,) = pieces(parsed)
    tables = {one.position: (one, streams[one.name]) for one in parsed.references}
    return Select(piece, Inputs(tables, lambda parts: _columns_of(parts, tables)))


def _columns_of(parts: Sequence[Piece], tables: Any) -> Any:
    (piece,) = parts
    outputs = Select(piece, Inputs(tables, lambda parts: _columns_of(parts, tables))).outputs
    return SimpleNamespace(columns=[one.name for one in outputs], isStreaming=True)


def items(text: Select) -> list[str]:
    return [one.text for one in text.outputs]


def test_a_star_of_a_table_is_all_its_columns() -> None:
    text = text_of("SELECT A.*, n FROM a JOIN b ON a.k = b.k")
    assert items(text) == ["`a`.`id`", "`a`.`k`", "`a`.`both`", "`b`.n"]
    assert [one.ref.column for one in text.outputs if one.ref is not None] == ["id", "k", "both", "n"]


def test_a_column_called_where_begins_no_condition() -> None:
    text = text_of("SELECT w.where AS x FROM w WHERE w.k > 1 AND w.where - 1 > 0")
    assert text.filters == ["w.k > 1 AND w.where - 1 > 0"]


def test_a_condition_in_on_ends_before_the_words_of_the_next_join() -> None:
    text = text_of(
        "SELECT id FROM a JOIN b ON a.k = b.k AND a.id > n LEFT OUTER JOIN w ON w.k = n WHERE id > 0"
    )
    assert text.filters == ["a.k = b.k AND a.id > `b`.n", "`a`.id > 0"]


def test_a_value_may_be_used_by_its_name_behind_it() -> None:
    text = text_of("SELECT id + 1 AS x, x * 2 AS y FROM a")
    assert items(text) == ["`a`.id + 1 AS x", "x * 2 AS y"]


@pytest.mark.parametrize(
    "query",
    [
        "SELECT x * 2 AS y, id + 1 AS x FROM a",
        "SELECT id + 1 AS x FROM a WHERE x > 1",
        "SELECT id AS x, y.k FROM a x JOIN b y ON x.k = y.k WHERE x > 1",
        "SELECT id + 1 AS a, a * 2 AS y FROM a",
        "SELECT z.y FROM b JOIN (SELECT k, id + 1 AS x, x * 2 AS y FROM a) z ON b.k = z.k",
        "SELECT DISTINCT id + 1 AS x, x * 2 AS y FROM a",
    ],
)
def test_a_name_of_a_value_that_cannot_be_used_is_said_to_be_one(query: str) -> None:
    with pytest.raises(SchemaError, match="is in no table of the query, but an alias of its SELECT; write"):
        items(text_of(query))


@pytest.mark.parametrize(
    ("query", "groups", "items"),
    [
        ("SELECT k, count(*) AS n FROM a GROUP BY k", ["`a`.k"], [("k", "`a`.k"), ("n", None)]),
        (
            "SELECT k, count(*) /* of all */ FROM a -- by k\nGROUP BY k",
            ["`a`.k"],
            [("k", "`a`.k"), ("count(1)", None)],
        ),
        (
            "SELECT id % 10 AS x, sum( both * (id + 1) ) s FROM a WHERE k > 0 GROUP BY id  %  10",
            ["`a`.id  %  10"],
            [("x", "`a`.id  %  10"), ("s", "`a`.both * (`a`.id + 1)")],
        ),
        (
            "SELECT if(id > 1, 'x', 'y') AS x, a.k, count(f(both)) FROM a GROUP BY 1, a.k",
            ["if(`a`.id > 1, 'x', 'y')", "a.k"],
            None,
        ),
        (
            "SELECT id AS x, count(both) AS n FROM a GROUP BY X",
            ["`a`.id"],
            [("x", "`a`.id"), ("n", "`a`.both")],
        ),
        ("SELECT id AS k, count(*) AS n FROM a GROUP BY k", None, "'id', which is not in GROUP BY,"),
        ("SELECT id + 1, count(*) AS n FROM a GROUP BY id + 1L", None, "'id', which is not in GROUP BY,"),
        ("SELECT id, count(*) AS n FROM a GROUP BY id, k", None, "leaves out `a`.k, by which it groups"),
        ("SELECT id, count(*) AS n FROM a GROUP BY 3", None, "GROUP BY 3, of 2 items,"),
        ("SELECT id, count(*) AS n FROM a GROUP BY 1.0", None, "GROUP BY 1.0, of 2 items,"),
        ("SELECT a.K, count(*) AS n FROM a GROUP BY k", ["`a`.k"], [("K", "`a`.k"), ("n", None)]),
        (
            "SELECT k, sum(id) AS k FROM a GROUP BY 1",
            None,
            "a query of groups with several columns 'k' cannot be planned; name them by AS",
        ),
        ("SELECT DISTINCT a.k, b.k FROM a JOIN b ON a.id = b.n", None, "several columns 'k'"),
        (
            "SELECT k, count(*) AS n FROM a GROUP BY k HAVING k > both",
            None,
            "'both', which is not in GROUP BY,",
        ),
        (
            "SELECT k, count(*) AS id FROM a GROUP BY k HAVING id > 1",
            None,
            "a HAVING by 'id', which is an alias and",
        ),
        ("SELECT *, count(*) AS n FROM a GROUP BY k", None, "'*' in a query of groups"),
        ("SELECT a.*, count(*) AS n FROM a GROUP BY k", None, "'a.*', which is not in GROUP BY,"),
        (
            "SELECT k, struct(count(*)) AS n FROM a GROUP BY k",
            None,
            "'STRUCT(COUNT(*) AS col1)' of groups",
        ),
        (
            "SELECT k, first(id) AS n FROM a GROUP BY k",
            None,
            "'FIRST(id)' cannot be planned; keep it as a mat",
        ),
        ("SELECT k, max(DISTINCT id) AS n FROM a GROUP BY k", None, "'MAX(DISTINCT id)' cannot be planned"),
        (
            "SELECT k, count(*) FILTER (WHERE max(id) > 1) FROM a GROUP BY k",
            None,
            "'MAX(id)' cannot be planned",
        ),
        ("SELECT k, to_json(struct(K)) AS n FROM a GROUP BY k", None, "'STRUCT(K AS K)' of groups"),
        (
            "SELECT k, max_by(id, both) + 1 AS n FROM a GROUP BY k",
            ["`a`.k"],
            [("k", "`a`.k"), ("n", None)],
        ),
        (
            "SELECT k, max_by(id, both, 2) FROM a GROUP BY k",
            None,
            "'MAX_BY(id, both)' cannot be planned",  # sqlglot leaves the number out
        ),
        (
            "SELECT k, collect_set(id) WITHIN GROUP (ORDER BY k) FROM a GROUP BY k",
            None,
            "'COLLECT_SET(id)' cannot be planned",
        ),
        ("SELECT DISTINCT count(*) FROM a", None, "'COUNT(*)' cannot be planned"),
        ("SELECT id FROM a WHERE count(*) > 1", None, "'COUNT(*)' cannot be planned"),
        ("SELECT id, count(*) AS n FROM a", None, "'id', which is not in GROUP BY,"),
        ("SELECT k, sum(max(id)) AS n FROM a GROUP BY k", None, "'SUM(MAX(id))' cannot be planned"),
        ("SELECT k, count(id, both) AS n FROM a GROUP BY k", None, "'COUNT(id, both)' cannot be planned"),
        ("SELECT k, count(*) AS n FROM a GROUP BY ROLLUP (k)", None, "a query with GROUP"),
    ],
)
def test_groups_are_by_the_values_of_group_by(query: str, groups: Any, items: Any) -> None:
    if groups is None:
        with pytest.raises(PlanError) as refused:
            groups_of(text_of(query))
        assert items in str(refused.value)
    else:
        found = groups_of(text_of(query))
        assert list(found.by) == groups
        named = {group_name(place): text for place, text in enumerate(found.by)}
        named |= {result_name(place): call.given for place, call in enumerate(found.calls)}
        assert items is None or [(one.name, named.get(one.value)) for one in found.items] == items


@pytest.mark.parametrize(
    ("query", "part"),
    [
        ("SELECT id FROM a TABLESAMPLE (10 PERCENT)", "'a TABLESAMPLE"),
        ("SELECT a.id FROM a JOIN range(3) r ON a.id = r.id", "'RANGE(3)"),
        ("SELECT id FROM b JOIN a UNPIVOT (v FOR name IN (id, both)) ON a.k = b.k", "'a UNPIVOT"),
        ("SELECT id FROM a AS a (k, id, both)", "'a AS a"),
        ("SELECT * EXCEPT (k) FROM a", "'* EXCEPT"),
        ("SELECT id, struct(*) AS s FROM a", "'STRUCT(*)', a star within"),
        ("SELECT id FROM a WHERE hash(*) > 0", "'HASH(*)', a star within"),
        ("SELECT k, count(a.*) AS n FROM a GROUP BY k", "'COUNT(a.*)'"),
        ("SELECT id, inline(both) FROM a", "'INLINE(both)'"),
        ("SELECT id, Inline_Outer(both) FROM a", "'INLINE_OUTER(both)'"),
        ("SELECT id, stack(2, 1, 2) FROM a", "'STACK(2, 1, 2)'"),
        ("SELECT id, json_tuple(both, k, k) FROM a", "'JSON_TUPLE(both, k, k)'"),
        ("FROM a SELECT id", "a query that begins with FROM"),
        ("SELECT both.* FROM a", "'both.*', which is of no table,"),
        ("SELECT 1 AS one", "a query without FROM"),
        (
            "SELECT DISTINCT k FROM a GROUP BY k",
            "a query with DISTINCT cannot be planned; keep it as a materialized view",
        ),
        (
            "SELECT id FROM a WHERE id = 1 OR k IN (SELECT k FROM b)",
            "'(SELECT k FROM b)' cannot be planned; write IN and EXISTS in WHERE, with AND alone around them",
        ),
        ("SELECT id FROM a WHERE k IN ((SELECT k FROM b))", "'((SELECT k FROM b))' cannot be planned"),
        (
            "SELECT id FROM a WHERE EXISTS (SELECT 1 FROM b)",
            "EXISTS (SELECT 1 FROM b), which compares no col",
        ),
        (
            "SELECT id FROM a WHERE NOT EXISTS (SELECT 1 FROM b WHERE b.k > a.k)",
            "NOT EXISTS (SELECT 1 FROM b WHERE b.k > a.k), which compares no column of it with one",
        ),
        (
            "SELECT id FROM a WHERE k + 1 IN (SELECT k FROM b)",
            "IN (SELECT k FROM b), which compares what is computed, cannot be planned; store what",
        ),
        (
            "SELECT id FROM a WHERE k IN (SELECT k, n FROM b)",
            "IN (SELECT k, n FROM b) of 2 columns for 1 cannot",
        ),
        (
            "SELECT id FROM a WHERE k IN (SELECT k FROM b GROUP BY k)",
            "IN (SELECT k FROM b GROUP BY k) with GROUP BY, cannot be planned; write its groups into a",
        ),
        (
            f"SELECT id FROM a WHERE k IN (SELECT k FROM w {LOOKUP} USING (k))",
            "IN (SELECT k FROM w JOIN b FOR SYSTEM_TIME AS OF PROCTIME() USING (k)) with FOR SYSTEM_TIME AS",
        ),
        ("SELECT id FROM a LIMIT 3", "a query with LIMIT cannot be planned; keep it as a materialized view"),
        ("SELECT id FROM a ORDER BY id", "a query with ORDER BY cannot be planned; leave it out, rows"),
        (
            "SELECT id, x FROM a LATERAL VIEW explode(both) e AS x",
            "a query with LATERAL VIEW cannot be planned; keep it as a materialized view",
        ),
        (
            "SELECT id, row_number() OVER (ORDER BY k) AS n FROM a",
            "'ROW_NUMBER() OVER (ORDER BY k)' cannot be planned; keep it as a materialized view",
        ),
        (
            "SELECT id, now() AS t FROM a",
            "now(), which is not of the row alone, cannot be planned; write the value into the table",
        ),
        (
            "SELECT id FROM a JOIN b ON abs(a.k) = b.k",
            "'JOIN b ON ABS(a.k) = b.k', whose ON must compare columns of both sides by =,",
        ),
        (
            "SELECT id FROM a JOIN b ON regexp_replace(a.k, 'x') = b.k",
            "\"JOIN b ON REGEXP_REPLACE(a.k, 'x') = b.k\", whose ON must compare columns of both sides by =,",
        ),
        (
            "SELECT id FROM a UNION SELECT k FROM b",
            "a query that is UNION cannot be planned; keep it as a materialized view",
        ),
        (
            "SELECT id FROM a JOIN (SELECT k FROM w UNION ALL SELECT k FROM w) x USING (k)",
            "a join with 'x', which is a query with UNION ALL,",
        ),
        (
            "SELECT a.id FROM a JOIN (SELECT k, count(*) AS c FROM b GROUP BY k) x USING (k)",
            "a join with 'x', which is a query with GROUP BY,",
        ),
        (
            "SELECT a.id FROM a JOIN (SELECT k, n + 1 FROM b) x USING (k)",
            "a join with 'x', which is a query in which '`b`.n + 1' has no name",
        ),
        (
            "SELECT a.id FROM a JOIN (SELECT k, n AS K FROM b) x USING (k)",
            "a query of 'x', which has several columns 'k',",
        ),
        ("SELECT a.id FROM a JOIN (SELECT k + 1 AS k FROM b) x USING (k)", "'JOIN `query 1` AS x USING (k)'"),
        (
            f"SELECT id FROM a NATURAL JOIN (SELECT k FROM w {LOOKUP} USING (k)) x",
            "a join with 'x', which is a query with FOR SYSTEM_TIME AS OF,",
        ),
        (
            f"SELECT a.id FROM a LEFT {LOOKUP} ON a.k = b.k AND b.n > 1",
            "'LEFT JOIN b TIMESTAMP AS OF CURRENT_TIMESTAMP() ON a.k = b.k AND b.n > 1', whose ON must",
        ),
        ("SELECT a.id FROM a, b WHERE a.k > b.k", "'CROSS JOIN b', whose ON must compare"),
        (
            "SELECT a.id FROM a, b RIGHT JOIN w ON b.k = w.k WHERE a.k = b.k",
            "'CROSS JOIN b' before a RIGHT or FULL JOIN",
        ),
        (
            "SELECT a.id FROM a FULL JOIN b USING (k) JOIN w USING (k)",
            "'JOIN w USING (k)', which compares what is computed",
        ),
        ("SELECT x.id FROM (a JOIN b ON a.k = b.k) x", "'(a JOIN b"),
        (
            "SELECT k FROM (SELECT a.k, b.k FROM a, b WHERE a.k = b.k)",
            "a query of 'query 1', which has several",
        ),
        (
            "WITH x AS (SELECT id FROM a) SELECT id FROM x VERSION AS OF 1",
            "a state of 'x', which is a query,",
        ),
        ("WITH x (i) AS (SELECT id FROM a) SELECT i FROM x", "a query with WITH"),
    ],
)
def test_what_a_table_or_a_star_has_besides_is_refused(query: str, part: str) -> None:
    with pytest.raises(PlanError) as refused:
        items(text_of(query))
    assert f"over Spark Connect {part}" in str(refused.value)


@pytest.mark.parametrize("kind", ["SEMI", "LEFT SEMI", "ANTI", "LEFT ANTI"])
def test_columns_of_a_semi_join_s_other_table_are_known_in_its_on_alone(kind: str) -> None:
    text = text_of(f"SELECT k, both FROM a {kind} JOIN b ON a.k = b.k WHERE k > 1")
    assert items(text) == ["`a`.k", "`a`.both"]
    assert text.filters == ["`a`.k > 1"]
    with pytest.raises(
        SchemaError, match=r"column 'b\.n' is in no table of the query; there are a\.id, a\.k"
    ):
        items(text_of(f"SELECT b.n FROM a {kind} JOIN b ON a.k = b.k"))
