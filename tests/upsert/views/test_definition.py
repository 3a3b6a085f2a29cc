"""What a view's table says about its query, there and back."""

import pytest

from upsert.errors import CorruptTableError, SchemaError
from upsert.sql.parser import parse
from upsert.sql.statements import CreateView, DropView, RefreshView, ShowViews, SuspendView
from upsert.views.view import Base, ViewDefinition

VIEW = ViewDefinition(
    "SELECT 'it''s 🍐' AS t FROM a",
    "main",
    "default",
    "Europe/Berlin",
    True,
    (Base("a", "default.a", "u1", ("x", "y")), Base("d.a", "d.a", "u2")),
)


def test_a_definition_is_an_option_and_back() -> None:
    assert ViewDefinition.from_option(VIEW.to_option()) == VIEW


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"query": 1}', "[" * 5000])
def test_what_is_no_definition_is_told(text: str) -> None:
    with pytest.raises(CorruptTableError, match="must hold the definition of a view"):
        ViewDefinition.from_option(text)


def test_statements_about_views() -> None:
    created = parse(
        "CREATE OR REPLACE MATERIALIZED VIEW d.v PRIMARY KEY (a, b) COMMENT 'x' PARTITIONED BY (a) "
        "WITH ('bucket' = '2') AS SELECT a, b FROM t"
    )
    assert isinstance(created, CreateView)
    assert (created.name, created.primary_key, created.partitioned_by) == ("d.v", ("a", "b"), ("a",))
    assert (created.or_replace, created.if_not_exists, created.comment) == (True, False, "x")
    assert created.query.text == "SELECT a, b FROM t"
    keys = "PRIMARY KEY (a) NOT ENFORCED, INDEX (b)"
    keyed = parse(f"CREATE MATERIALIZED VIEW v ({keys}) AS SELECT a, b FROM t")
    assert isinstance(keyed, CreateView)
    assert (keyed.primary_key, keyed.indexes) == (("a",), (("b",),))
    assert parse("REFRESH MATERIALIZED VIEW v") == RefreshView("v")
    assert parse("ALTER MATERIALIZED VIEW v SUSPEND") == SuspendView("v", is_suspended=True)
    assert parse("ALTER MATERIALIZED VIEW v RESUME;") == SuspendView("v", is_suspended=False)
    assert parse("DROP MATERIALIZED VIEW IF EXISTS v") == DropView("v", if_exists=True)
    assert parse("SHOW MATERIALIZED VIEWS IN d LIKE 'a%'") == ShowViews("d", "a%")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("CREATE MATERIALIZED VIEW v", "view 'v': expected AS and a query"),
        ("CREATE MATERIALIZED VIEW v (a INT) AS SELECT 1", "takes its columns from its query"),
        ("CREATE MATERIALIZED VIEW v (UNIQUE INDEX (a)) AS SELECT a FROM t", "leave out UNIQUE"),
        ("CREATE MATERIALIZED VIEW v AS DELETE FROM t", "view 'v'"),
        ("ALTER MATERIALIZED VIEW v RENAME TO w", "expected SUSPEND, RESUME, SET, RESET or COMMENT"),
        ("REFRESH MATERIALIZED VIEW v w", "expected the end of the statement"),
        ("DROP MATERIALIZED VIEW", "DROP MATERIALIZED VIEW"),
    ],
)
def test_what_is_no_statement_is_told_with_its_place(text: str, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        parse(text)
