"""Words of Flink in a query become those of Spark, and nothing else does."""

import pytest

from upsert.sql.dialect import Revision
from upsert.sql.flink_words import spark_words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("t CROSS JOIN UNNEST(t.b) AS u (s)", "t CROSS JOIN LATERAL UNNEST(t.b) AS u (s)"),
        ("t LEFT JOIN unnest(b) u ON TRUE", "t LEFT JOIN LATERAL unnest(b) u ON TRUE"),
        ("t, UNNEST(f(b, c)) AS u(s) WHERE s > 1", "t, LATERAL UNNEST(f(b, c)) AS u(s) WHERE s > 1"),
        ("t, UNNEST(b) WITH ORDINALITY AS u (s, n)", "t, LATERAL UNNEST(b) WITH ORDINALITY AS u (s, n)"),
        ("t JOIN UNNEST(array(1, `b`)) u", "t JOIN LATERAL UNNEST(array(1, `b`)) u"),
        ("t RIGHT JOIN UNNEST(array(1, 2)) AS u (s) ON u.s = t.a", None),
        ("t, LATERAL UNNEST(t.b) AS u (s)", None),
        ("UNNEST(array(1)) AS u (s)", None),
        ("(SELECT a, UNNEST(b) AS s FROM (SELECT 1))", None),
        ("(SELECT a, UNNEST(b) FROM (SELECT 1))", None),
        ("t JOIN unnest ON unnest.a = t.a", None),
    ],
)
def test_unnest_sees_the_tables_before_it(text: str, expected: str | None) -> None:
    query = f"SELECT * FROM {text}"
    assert Revision(query).edited(spark_words(query)).text == f"SELECT * FROM {expected or text}"
