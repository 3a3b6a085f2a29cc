"""What of a table a query may read, by the names in its text."""

import pytest

from upsert.sql.query import QueryText

PLAIN = [
    ("SELECT a, b AS c FROM t", {"a", "b"}),
    ("SELECT count(*) FROM t WHERE A > 1", {"a"}),
    ("SELECT x.a FROM t x JOIN u y ON x.b = y.c", {"a", "b"}),
    ("SELECT y.a FROM t x JOIN u y USING (b)", {"b"}),
    ("SELECT main.db.t.a, db.t.b FROM main.db.t", {"a", "b"}),
    ("SELECT a FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.c = t.b)", {"a", "b"}),
    ("SELECT a FROM t UNION ALL SELECT b FROM u", {"a"}),
    ("SELECT * FROM (SELECT a FROM t) q", {"a"}),
    ("WITH q AS (SELECT *, rank() OVER (ORDER BY b) AS n FROM t) SELECT a FROM q WHERE n = 1", {"a", "b"}),
    ("SELECT a FROM t LATERAL VIEW explode(b) e AS c", {"a", "b"}),
    ("SELECT transform(a, e -> e.b) AS d FROM t", {"a"}),
    ("SELECT date_trunc(b, a) FROM t", {"a", "b"}),
    ("SELECT get_json_object(a, '$.b[0].c[*]') FROM t", {"a"}),
    ("SELECT a:b.c[0]::STRING FROM t", {"a"}),
    ("SELECT CAST(a AS STRUCT<b: INT NOT NULL COMMENT 'x', c ARRAY<INT>>) FROM t", {"a"}),
    ("SELECT CAST(a AS STRING COLLATE UTF8_LCASE) FROM t", {"a"}),
    ("SELECT listagg(a, ',') WITHIN GROUP (ORDER BY b) FROM t", {"a", "b"}),
    ("SELECT a, rank() OVER (w) FROM t WINDOW w AS (PARTITION BY b ORDER BY c)", {"a", "b", "c"}),
]


@pytest.mark.parametrize(("text", "expected"), PLAIN)
def test_columns_are_read_by_their_names(text: str, expected: set[str]) -> None:
    reads = QueryText.of(text).reads[0]
    assert reads is not None
    assert {name for name in "abcd" if reads.may_have([name], ["a"])} == expected


@pytest.mark.parametrize(
    "text",
    [
        "SELECT a FROM t NATURAL JOIN u",
        "SELECT count(*) FROM (SELECT DISTINCT * FROM t)",
        "SELECT to_json(struct(*)) AS a FROM t",
        "SELECT * FROM t UNION ALL SELECT * FROM u",
        "SELECT a FROM (SELECT * FROM t) AS q(a, b)",
        "WITH q(a, b) AS (SELECT * FROM t) SELECT a FROM q",
        "SELECT 1 AS a WHERE 1 IN (SELECT * FROM t)",
        "SELECT * FROM t PIVOT (sum(a) FOR b IN (1, 2))",
        "SELECT * FROM t UNPIVOT (a FOR b IN (c, d))",
    ],
)
def test_where_positions_count_all_is_read(text: str) -> None:
    reads = QueryText.of(text).reads[0]
    assert reads is None


def test_a_star_reads_what_the_query_shows_or_names() -> None:
    (reads,) = QueryText.of("SELECT * FROM t WHERE b").reads
    assert reads is not None
    assert [reads.may_have([name], ["A", "x"]) for name in "abc"] == [True, True, False]
    (reads,) = QueryText.of("SELECT * EXCEPT (c) FROM t").reads
    assert reads is not None
    assert [reads.may_have([name], ["a"]) for name in "abc"] == [True, False, True]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT s.x FROM t", {"s", "s.x"}),
        ("SELECT t.s.x FROM t", {"s", "s.x"}),
        ("SELECT s FROM t", {"s", "s.x", "s.y", "s.z.w"}),
        ("SELECT s.* FROM t", {"s", "s.x", "s.y", "s.z.w"}),
        ("SELECT s['x'] FROM t", {"s", "s.x", "s.y", "s.z.w"}),
        ("SELECT s.z.w.v FROM t", {"s", "s.z.w"}),
        ("SELECT s.z FROM t s", {"s", "s.z.w"}),
        ("SELECT to_json(s) FROM t", {"s", "s.x", "s.y", "s.z.w"}),
        ("SELECT s[0].x FROM t", {"s", "s.x", "s.y", "s.z.w"}),
        ("SELECT `S`.`Y` FROM t", {"s", "s.y"}),
    ],
)
def test_fields_are_read_by_their_paths_or_with_what_they_lie_in(text: str, expected: set[str]) -> None:
    (reads,) = QueryText.of(text).reads
    assert reads is not None
    paths = ("s", "s.x", "s.y", "s.z.w", "other")
    assert {path for path in paths if reads.may_have(path.split("."), ())} == expected
