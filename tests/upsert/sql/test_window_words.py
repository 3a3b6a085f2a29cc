"""Tables of windows that grow, and of sessions: the text that Spark gets for them, and what is refused."""

import pytest

from upsert.errors import SchemaError
from upsert.sql.query import QueryText

SPARK = [
    (
        (
            "SELECT 1 FROM CUMULATE(TABLE db.t, DESCRIPTOR(ts), INTERVAL '1' HOUR, INTERVAL '1' DAY, "
            "INTERVAL '90' MINUTE)"
        ),
        (
            "SELECT 1 FROM (SELECT * EXCEPT (`:window`, `:hop`), `:window`.start AS window_start, "
            "`:hop`.end AS window_end, `:hop`.end - INTERVAL '0.001' SECOND AS window_time "
            "FROM (SELECT *, `window`(ts, '1 DAY', '1 HOUR', '1800000 MILLISECOND') AS `:hop` "
            "FROM (SELECT *, `window`(ts, '1 DAY', '1 DAY', '5400000 MILLISECOND') AS `:window` "
            "FROM `v` AS `t`)) WHERE `:hop`.end <= `:window`.end)"
        ),
    ),
    (
        "SELECT s.a FROM SESSION(TABLE t PARTITION BY (a, `b`), DESCRIPTOR(ts), INTERVAL '9' DAY) s",
        (
            "SELECT s.a FROM (SELECT `:row`.*, `:window`.start AS window_start, "
            "`:window`.end AS window_end, `:window`.end - INTERVAL '0.001' SECOND AS window_time "
            "FROM (SELECT `:window`, explode(`:rows`) AS `:row` "
            "FROM (SELECT session_window(`:row`.ts, '9 DAY') AS `:window`, "
            "collect_list(`:row`) AS `:rows` FROM (SELECT struct(*) AS `:row` FROM `v` AS `t` ) "
            "GROUP BY `:row`.a, `:row`.`b`, session_window(`:row`.ts, '9 DAY')))) s"
        ),
    ),
]


@pytest.mark.parametrize(("text", "expected"), SPARK)
def test_a_table_of_windows_becomes_a_query(text: str, expected: str) -> None:
    assert QueryText.of(text).over(["v"]).text.strip() == expected


def test_a_session_needs_all_rows_whatever_the_query_leaves_out() -> None:
    text = "SELECT a FROM SESSION(TABLE t PARTITION BY a, DESCRIPTOR(ts), INTERVAL '9' DAY) WHERE a > 3"
    [reference] = QueryText.of(text).references
    assert (reference.columns, reference.where) == (None, ())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "SELECT *\nFROM TABLE(CUMULATE(TABLE t, DESCRIPTOR(ts), INTERVAL '2' DAY, INTERVAL '3' DAY))",
            "the size of CUMULATE must be a multiple of its step, found 'INTERVAL' at line 2, column 46",
        ),
        (
            "SELECT CUMULATE_END(ts, INTERVAL '1' DAY, INTERVAL '2' DAY) FROM t",
            "a row has several such windows, so they are a table; write FROM TABLE(CUMULATE(TABLE name",
        ),
        (
            "SELECT *\nFROM SESSION(TABLE t PARTITION BY a b, DESCRIPTOR(ts), INTERVAL '1' DAY)",
            "expected PARTITION BY column, …, found 'a' at line 2, column 35",
        ),
        (
            "SELECT *\nFROM SESSION(TABLE t, DESCRIPTOR(ts), INTERVAL '1' DAY, INTERVAL '1' HOUR)",
            "SESSION has no offset, found 'INTERVAL' at line 2, column 39",
        ),
        (
            "SELECT * FROM HOP(TABLE t PARTITION BY a, DESCRIPTOR(ts), INTERVAL '1' DAY, INTERVAL '1' DAY)",
            "expected HOP(TABLE name, DESCRIPTOR(column), INTERVAL of the slide",
        ),
    ],
)
def test_what_is_no_table_of_windows_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(SchemaError) as error:
        QueryText.of(text)
    assert message in str(error.value)


def test_sessions_of_a_table_do_not_stream() -> None:
    QueryText.of("SELECT 1 FROM t GROUP BY SESSION(ts, INTERVAL '9' DAY)").check_can_stream()
    query = QueryText.of("SELECT 1\nFROM SESSION(TABLE t, DESCRIPTOR(ts), INTERVAL '9' DAY)")
    with pytest.raises(SchemaError, match=r"needs 'execution\.runtime-mode' = 'batch'.* at line 2, column 6"):
        query.check_can_stream()
