"""Spark's variables in statements: each is read as Spark reads it."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.upsert.catalog.queried import rows
from upsert.catalog.catalog import Catalog
from upsert.catalog.run.jobs import SparkNeededError
from upsert.errors import ConfigurationError
from upsert.spark.settings import copy_of
from upsert.spark.variables import with_variables

pytestmark = pytest.mark.spark

SETTINGS = {
    "x": "fig",
    "column": "name",
    "within": "<${x}>",
    "own": "a ${own}",
    "t": "fruit",
    "empty": "",
    "sign": r"\1 \\ $1",
}
TEXTS = [
    "${x}, ${nothing}, ${empty}, ${column}s",
    "${spark:x} ${hivevar:x} ${hiveconf:x}",
    "${env:HOME} ${system:user.name} ${env:NO_SUCH_NAME} ${system:no.such.name}",
    "${other:x} ${a b} ${} ${ $x {x} ${x ${${x}} ${x}}",
    "${within}${within} ${sign}",
]


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    return copy_of(spark, SETTINGS)


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_is_the_one_that_spark_reads(session: SparkSession, text: str) -> None:
    (row,) = session.sql(f"SELECT r'{text}'").collect()
    assert with_variables(text, session) == row[0]
    session.conf.set("spark.sql.variable.substitute", "false")
    assert with_variables(text, session) == text == session.sql(f"SELECT r'{text}'").collect()[0][0]


def test_a_variable_that_names_itself_is_refused(session: SparkSession) -> None:
    with pytest.raises(ConfigurationError, match="must not name it again"):
        with_variables("SELECT '${own}'", session)


@pytest.fixture
def catalog(session: SparkSession, tmp_path: Path) -> Catalog:
    catalog = Catalog(tmp_path / "warehouse")
    catalog.sql("CREATE TABLE fruit (id INT, name STRING, PRIMARY KEY (id) NOT ENFORCED)")
    catalog.sql("INSERT INTO ${t} VALUES (1, '${x}'), (2, 'kiwi'), (3, '${nothing}')", session)
    return catalog


def test_queries_and_changes_of_rows_agree_on_variables(catalog: Catalog, session: SparkSession) -> None:
    assert rows(catalog, session, "SELECT id FROM fruit WHERE name = '${x}'") == [(1,)]
    assert rows(catalog, session, "SELECT ${column} FROM ${t} WHERE name = '${nothing}'") == [("",)]
    catalog.sql("DELETE FROM fruit WHERE name = '${x}'", session)
    catalog.sql("UPDATE ${t} SET name = '${x}' WHERE ${column} = 'kiwi'", session)
    assert rows(catalog, session, "SELECT * FROM fruit") == [(2, "fig"), (3, "")]


def test_what_is_kept_has_the_values_of_its_time(catalog: Catalog, session: SparkSession) -> None:
    catalog.sql(
        "CREATE TABLE kept (id INT, name STRING DEFAULT '${x}', PRIMARY KEY (id) NOT ENFORCED)", session
    )
    query = "SELECT id FROM fruit WHERE name = '${x}'"
    catalog.create_view("figs", query, spark=session)
    session.conf.set("x", "kiwi")
    catalog.sql("INSERT INTO kept (id) VALUES (1)", session)
    catalog.sql("INSERT INTO fruit VALUES (4, 'fig'), (5, 'kiwi')", session)
    catalog.sql("REFRESH MATERIALIZED VIEW figs", session)
    assert rows(catalog, session, "SELECT * FROM kept") == [(1, "fig")]
    assert rows(catalog, session, "SELECT * FROM figs") == [(1,), (4,)]


def test_a_view_of_an_earlier_release_is_read_as_spark_reads_it(
    catalog: Catalog, session: SparkSession
) -> None:
    """Its text has kept the variables, as one that is created where there are none."""
    session.conf.set("spark.sql.variable.substitute", "false")
    for kind in ("VIEW", "MATERIALIZED VIEW"):
        catalog.sql(f"CREATE {kind} {kind[0]} AS SELECT id, name FROM fruit WHERE name = '${{x}}'", session)
    session.conf.set("spark.sql.variable.substitute", "true")
    catalog.sql("INSERT INTO fruit VALUES (4, 'fig')", session)
    catalog.sql("REFRESH MATERIALIZED VIEW M", session)
    for name in "VM":
        assert rows(catalog, session, f"SELECT id FROM {name}") == [(1,), (4,)]


def test_without_a_session_no_variable_has_a_value(
    catalog: Catalog, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SparkSession, "getActiveSession", classmethod(lambda _: None))
    with pytest.raises(SparkNeededError, match=r"SQL with '\$\{…\}': needs a Spark session"):
        catalog.sql("DELETE FROM fruit WHERE name = '${x}'")
    catalog.sql("CREATE TABLE told (id INT) COMMENT 'as ${file:secrets} has it'")
    assert catalog.table("told").schema.comment == "as ${file:secrets} has it"
