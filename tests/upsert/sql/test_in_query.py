"""``WHERE column IN (SELECT …)``: what is taken apart, and what is not."""

import pytest

from upsert.sql.in_query import in_query
from upsert.sql.parser import parse
from upsert.sql.statements import Delete, Update


def found(text: str) -> list[str] | None:
    statement = parse(text)
    assert isinstance(statement, Delete | Update)
    assert statement.rows is not None
    one = in_query(statement.rows)
    if one is None:
        return None
    return [one.column, one.rows.text, " ".join(one.over_given.worded.text.split())]


def test_the_query_and_the_one_around_it() -> None:
    assert found(
        "UPDATE t AS x SET n = n + 1, v = ')' WHERE n > 1 AND (x.ID IN (SELECT k /* ) */ FROM s))"
    ) == [
        "ID",
        "SELECT k /* ) */ FROM s",
        (
            "SELECT *, n + 1 AS `:new_value_0`, ')' AS `:new_value_1` FROM t AS `x` "
            "WHERE n > 1 AND (x.ID IN (SELECT * FROM `:given` ))"
        ),
    ]
    assert found(
        "DELETE FROM db.t WHERE db.t.id IN (WITH a AS (SELECT 1) SELECT * FROM a WHERE v = ')')"
    ) == [
        "id",
        "WITH a AS (SELECT 1) SELECT * FROM a WHERE v = ')'",
        "SELECT * FROM db.t WHERE db.t.id IN (SELECT * FROM `:given` )",
    ]


@pytest.mark.parametrize(
    "where",
    [
        "id NOT IN (SELECT k FROM s)",
        "id IN (SELECT k FROM s) OR n = 1",
        "NOT id IN (SELECT k FROM s)",
        "(id, n) IN (SELECT k, n FROM s)",
        "id + 1 IN (SELECT k FROM s)",
        "other.id IN (SELECT k FROM s)",
        "id IN (1, 2)",
        "id IN (SELECT k FROM s WHERE n = ?)",
        "EXISTS (SELECT 1 FROM s)",
    ],
)
def test_other_conditions_are_not_taken_apart(where: str) -> None:
    assert found(f"DELETE FROM t WHERE {where}") is None
