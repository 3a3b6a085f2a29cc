"""Which queries over Spark Connect are planned from their text: without a server, and without a stream."""

from types import SimpleNamespace
from typing import Any

import pytest

from planner import PlanError
from planner.connect.text import _Text
from upsert.errors import SchemaError
from upsert.sql.query import QueryText


def text_of(query: str) -> _Text:
    streams: Any = {
        name: SimpleNamespace(columns=[*columns, "_row_kind"], isStreaming=True)
        for name, columns in {"a": ("id", "k", "both"), "b": ("k", "n"), "w": ("k", "where")}.items()
    }
    parsed = QueryText.of(query)
    return _Text(parsed, parsed.references, [streams[one.name] for one in parsed.references])


def test_a_star_of_a_table_is_all_its_columns() -> None:
    text = text_of("SELECT A.*, n FROM a JOIN b ON a.k = b.k")
    assert text.items == ("A.*", "`b`.n")
    assert [ref.column for ref in text._columns() if ref is not None] == ["id", "k", "both", "n"]


def test_a_column_called_where_begins_no_condition() -> None:
    text = text_of("SELECT w.where AS x FROM w WHERE w.k > 1 AND w.where - 1 > 0")
    assert text.where == "w.k > 1 AND w.where - 1 > 0"


@pytest.mark.parametrize(
    ("query", "part"),
    [
        ("SELECT id FROM a TABLESAMPLE (10 PERCENT)", "'a TABLESAMPLE"),
        ("SELECT id FROM b JOIN a UNPIVOT (v FOR name IN (id, both)) ON a.k = b.k", "'a UNPIVOT"),
        ("SELECT id FROM a AS a (k, id, both)", "'a AS a"),
        ("SELECT * EXCEPT (k) FROM a", "'* EXCEPT"),
        ("SELECT id, struct(*) AS s FROM a", "'STRUCT(*)', a star within"),
        ("SELECT id FROM a WHERE hash(*) > 0", "'HASH(*)', a star within"),
        ("SELECT k, count(a.*) AS n FROM a GROUP BY k", "a query with GROUP"),
        ("SELECT id, inline(both) FROM a", "'INLINE(both)'"),
        ("SELECT id, Inline_Outer(both) FROM a", "'INLINE_OUTER(both)'"),
        ("SELECT id, stack(2, 1, 2) FROM a", "'STACK(2, 1, 2)'"),
        ("SELECT id, json_tuple(both, k, k) FROM a", "'JSON_TUPLE(both, k, k)'"),
        ("FROM a SELECT id", "a query that begins with FROM"),
        ("SELECT both.* FROM a", "'both.*', which is of no table,"),
    ],
)
def test_what_a_table_or_a_star_has_besides_is_refused(query: str, part: str) -> None:
    with pytest.raises(PlanError) as refused:
        _ = text_of(query).items
    assert f"over Spark Connect {part}" in str(refused.value)


@pytest.mark.parametrize("kind", ["SEMI", "LEFT SEMI", "ANTI", "LEFT ANTI"])
def test_columns_of_a_semi_join_s_other_table_are_known_in_its_on_alone(kind: str) -> None:
    text = text_of(f"SELECT k, both FROM a {kind} JOIN b ON a.k = b.k WHERE k > 1")
    assert text.items == ("`a`.k", "`a`.both")
    assert text.where == "`a`.k > 1"
    with pytest.raises(
        SchemaError, match=r"column 'b\.n' is in no table of the query; there are a\.id, a\.k"
    ):
        _ = text_of(f"SELECT b.n FROM a {kind} JOIN b ON a.k = b.k").items
