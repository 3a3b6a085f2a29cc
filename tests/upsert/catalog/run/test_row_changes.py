"""DELETE and UPDATE: their queries, rows that Spark finds, and conflicts with others."""

import traceback
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException, PythonException
from pyspark.sql import DataFrame, SparkSession

from upsert.catalog.catalog import Catalog
from upsert.catalog.results import Frame
from upsert.catalog.run import insert, row_changes, rows_found
from upsert.catalog.run.jobs import SparkNeededError
from upsert.errors import (
    CheckViolatedError,
    CommitConflictError,
    ConfigurationError,
    LogNotPublishedError,
    SchemaError,
    SnapshotExpiredError,
    UpsertError,
)
from upsert.managed import frames
from upsert.schema import Column
from upsert.sql.parser import parse
from upsert.sql.statements import Delete, Update
from upsert.store.alterations import AddColumn
from upsert.store.predicate import where_to_json
from upsert.store.read.snapshot import Snapshot


class TestParser:
    @pytest.mark.parametrize(
        ("text", "columns", "query"),
        [
            (
                "UPDATE t SET a = b + 1, c = upper(c)\nWHERE b IN (SELECT b FROM u)",
                ("a", "c"),
                (
                    "SELECT *,  b + 1 AS `:new_value_0`,  upper(c) AS `:new_value_1` FROM `v0` AS `t` "
                    "\nWHERE b IN (SELECT b FROM `v1` AS `u`)"
                ),
            ),
            (
                "UPDATE db.`t` /*+ OPTIONS('change-tracking' = 'false') */ SET `a` = (1, 2);",
                ("a",),
                "SELECT *,  (1, 2) AS `:new_value_0` FROM `v0` AS `t`",
            ),
            (
                "UPDATE db.t AS o SET o.a = o.b IS DISTINCT FROM 1, o.b = 2 WHERE o.b > 0",
                ("a", "b"),
                (
                    "SELECT *,  o.b IS DISTINCT FROM 1 AS `:new_value_0`,  2 AS `:new_value_1` "
                    "FROM `v0` AS `o`  WHERE o.b > 0"
                ),
            ),
            (
                "UPDATE db.t SET db.t.a = t.b",
                ("a",),
                "SELECT *,  t.b AS `:new_value_0` FROM `v0` AS `t`",
            ),
            (
                "UPDATE t SET a = CASE WHEN b THEN PROCTIME() END",
                ("a",),
                "SELECT *,  CASE WHEN b THEN current_timestamp() END AS `:new_value_0` FROM `v0` AS `t`",
            ),
        ],
    )
    def test_update_has_the_query_of_its_rows(self, text: str, columns: tuple[str, ...], query: str) -> None:
        statement = parse(text)
        assert isinstance(statement, Update)
        assert statement.columns == columns
        views = [f"v{n}" for n in range(len(statement.rows.references))]
        assert statement.rows.over(views).text.strip() == query

    def test_delete_has_the_query_of_its_rows(self) -> None:
        statement = parse("DELETE FROM /*+ OPTIONS('change-tracking' = 'false') */ t\nWHERE length(a) > 1")
        assert isinstance(statement, Delete)
        assert statement.rows is not None
        assert statement.options == {"change-tracking": "false"}
        text = statement.rows.over(["v"]).text
        assert text.split() == ["SELECT", "*", "FROM", "`v`", "AS", "`t`", "WHERE", "length(a)", ">", "1"]

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("UPDATE t\nSET a 1", "UPDATE t: expected =, found '1' at line 2, column 7"),
            ("UPDATE t SET a =", "expected an expression"),
            ("UPDATE t SET a = 1 + WHERE b", "the expression is incomplete, found '+' at line 1, column 20"),
            ("UPDATE t", "expected SET"),
            ("UPDATE t SET a = 1 HAVING b", "found 'HAVING' at line 1, column 20"),
            ("UPDATE t SET b.a = 1", "a field of a struct gets a value with the whole struct, found 'b'"),
            ("UPDATE t o SET t.a = 1", "expected a column; "),
            ("UPDATE t SET a = u.a FROM u WHERE t.b = u.b", "MERGE INTO takes those of another table"),
            ("DELETE FROM t USING u WHERE t.b = u.b", "use WHERE … IN (SELECT …), or MERGE INTO"),
            ("DELETE FROM t AS o", "expected WHERE, found 'AS'"),
        ],
    )
    def test_what_is_no_statement_is_refused_with_its_place(self, text: str, message: str) -> None:
        with pytest.raises(SchemaError) as error:
            parse(text)
        assert message in str(error.value)


def test_without_a_session_a_time_needs_a_zone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session would read it in its own zone, so a guess might delete other rows than the session does."""
    monkeypatch.setattr(row_changes, "configured", lambda *_: None)
    catalog = Catalog(tmp_path)
    catalog.sql("CREATE TABLE seen (id INT, at TIMESTAMP, PRIMARY KEY (id) NOT ENFORCED)")
    hours = [datetime(2020, 10, 1, hour, tzinfo=UTC) for hour in (7, 9)]
    catalog.table("seen").write(pa.table({"id": pa.array([1, 2], pa.int32()), "at": hours}))
    with pytest.raises(SparkNeededError, match="TIMESTAMP with a zone, as '2020-10-01 08:00:00Z', got "):
        catalog.sql("DELETE FROM seen WHERE at < TIMESTAMP '2020-10-01 08:00:00'")
    catalog.sql("DELETE FROM seen WHERE at < TIMESTAMP '2020-10-01 08:00:00Z'")
    assert catalog.table("seen").snapshot().scan()["id"].to_pylist() == [2]


FIELDS = ("s.id = 7", "t.t.id = 7", "default.t.t.id = 7", "t.s.id IN (7)", "NOT main.default.t.t.id <> 7")
"""Conditions of one row, by a field called as the key of another row."""


@pytest.fixture
def fields(tmp_path: Path) -> Catalog:
    """A table with a column of its own name, whose fields are called as its key."""
    catalog = Catalog(tmp_path / "w")
    catalog.sql(
        "CREATE TABLE t (id INT, t STRUCT<id: INT>, s STRUCT<id: INT>, PRIMARY KEY (id) NOT ENFORCED)"
    )
    inner = [{"id": 7}, {"id": 8}, {"id": 9}]
    catalog.table("t").write(pa.table({"id": [1, 2, 7], "t": inner, "s": inner}))
    return catalog


def ids(catalog: Catalog) -> list[int]:
    return sorted(catalog.table("t").snapshot().scan(columns=["id"])["id"].to_pylist())


def test_a_column_may_be_called_like_a_statement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A condition that begins with it was read as that statement, and refused."""
    monkeypatch.delenv("SPARK_SUBMIT_OPTS")
    catalog = Catalog(tmp_path)
    columns = "id INT, comment STRING, set INT, refresh INT, PRIMARY KEY (id) NOT ENFORCED"
    catalog.sql(f"CREATE TABLE t ({columns}, CHECK (set > 0), CHECK (refresh < set))")
    catalog.sql("INSERT INTO t VALUES (1, 'a', 2, 1), (2, 'b', 3, 1), (3, 'b', 4, 1)")
    catalog.sql("DELETE FROM t WHERE comment = 'a'")
    catalog.sql("UPDATE t SET refresh = set - 1 WHERE set = 4")
    found = catalog.table("t").snapshot().scan(columns=["id", "refresh"]).to_pylist()
    assert sorted(row["id"] * 10 + row["refresh"] for row in found) == [21, 33]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("DELETE FROM t WHERE inner - 1 = 1", "inner"),
        ("UPDATE t SET id = cross * 2", "cross"),
        ("SELECT id AS a FROM t grant", "grant"),
        ("SELECT id outer FROM t", "outer"),
    ],
)
def test_a_keyword_that_needs_quotes_is_told(text: str, name: str) -> None:
    with pytest.raises(SchemaError, match=f"; as a name it is written `{name}`$"):
        parse(text)


NO_SPARK_SQL = [
    "id IN (7,, 8)",
    "id IN (7,)",
    "id BETWEEN 7 8",
    "id NOT NULL",
    "id : = 7",
    "id = 7 :",
    "id IS NOT + NULL",
    "id = 7 AND id !IN (1)",
]


@pytest.mark.parametrize("condition", NO_SPARK_SQL)
def test_a_condition_that_spark_refuses_deletes_nothing(
    fields: Catalog, condition: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_SUBMIT_OPTS")
    with pytest.raises((SchemaError, SparkNeededError)):
        fields.sql(f"DELETE FROM t WHERE {condition}")
    assert ids(fields) == [1, 2, 7]


@pytest.mark.spark
def test_spark_tells_what_is_wrong_with_a_condition(fields: Catalog, spark: SparkSession) -> None:
    for condition in NO_SPARK_SQL:
        with pytest.raises((SchemaError, PySparkException)):
            fields.sql(f"DELETE FROM t WHERE {condition}", spark)
        assert ids(fields) == [1, 2, 7], condition


@pytest.mark.parametrize("condition", [*FIELDS, "nope.id = 7", "x.t.id = 7"])
def test_without_a_session_a_field_is_no_column(
    fields: Catalog, condition: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A DELETE took the rows whose column is called as the field."""
    monkeypatch.setattr(row_changes, "configured", lambda given, _: given)
    with pytest.raises(SparkNeededError, match=r"must be a column of table|expected comparisons of"):
        fields.sql(f"DELETE FROM t WHERE {condition}")
    for name in ("t", "default.t", "main.default.T"):
        fields.sql(f"DELETE FROM t WHERE {name}.id = 2")
        assert ids(fields) == [1, 7]


@pytest.mark.spark
def test_a_field_is_found_by_spark(fields: Catalog, spark: SparkSession, subtests: pytest.Subtests) -> None:
    queries = (f"SELECT {place} AS place, id FROM t WHERE {one}" for place, one in enumerate(FIELDS))
    found = fields.sql(" UNION ALL ".join(queries), spark)
    assert isinstance(found, Frame)
    given = {FIELDS[row["place"]]: row["id"] for row in found.rows.to_pylist()}
    assert given == dict.fromkeys(FIELDS, 1)
    assert found.rows.num_rows == len(FIELDS)
    first = fields.table("t").snapshot().scan().sort_by("id").slice(0, 1)
    for condition in FIELDS:
        with subtests.test(condition):
            fields.sql(f"DELETE FROM t WHERE {condition}", spark)
            assert ids(fields) == [2, 7]
            fields.table("t").write(first)


@pytest.mark.spark
class TestRowsThatSparkFinds:
    @pytest.fixture
    def catalog(self, tmp_path: Path) -> Catalog:
        found = Catalog(tmp_path / "warehouse")
        found.sql(
            "CREATE TABLE users (id BIGINT, name STRING, size AS length(name), n INT NOT NULL, "
            "PRIMARY KEY (id) NOT ENFORCED) WITH ('bucket' = '2')"
        )
        found.table("users").write(
            pa.table(
                {"id": [1, 2, 3], "name": ["ann", "bob", "cecilia"], "n": pa.array([1, 2, 3], pa.int32())}
            )
        )
        return found

    def rows(self, catalog: Catalog, name: str = "users") -> list[tuple[Any, ...]]:
        return sorted(tuple(row.values()) for row in catalog.table(name).snapshot().scan().to_pylist())

    def test_any_condition_and_any_value(self, catalog: Catalog, spark: SparkSession) -> None:
        before = catalog.table("users").snapshot().id
        catalog.sql(
            "UPDATE users SET n = n * 10, name = upper(name) WHERE size < (SELECT max(size) FROM users)",
            spark,
        )
        assert self.rows(catalog) == [(1, "ANN", 10), (2, "BOB", 20), (3, "cecilia", 3)]
        catalog.sql("CREATE TABLE most (n INT)")
        catalog.table("most").write(pa.table({"n": pa.array([3], pa.int32())}))
        catalog.sql("UPDATE users SET n = (SELECT max(n) FROM most) WHERE id = 3", spark)
        catalog.sql("DELETE FROM users WHERE name LIKE '%B' OR size = 7", spark)
        assert self.rows(catalog) == [(1, "ANN", 10)]
        changes = catalog.table("users").changes(before, columns=["id", "n"])
        assert sorted(changes["_row_kind"].to_pylist()) == ["+U", "-D", "-D", "-U"]
        catalog.sql("CREATE TABLE words (word STRING, n INT)")
        catalog.table("words").write(
            pa.table({"word": ["a", "a", "b"], "n": pa.array([1, 1, 1], pa.int32())})
        )
        catalog.sql("UPDATE words SET n = n + 1 WHERE upper(word) = 'A'", spark)
        assert self.rows(catalog, "words") == [("a", 2), ("a", 2), ("b", 1)]
        catalog.sql("DELETE FROM words WHERE n % 2 = 0", spark)
        assert self.rows(catalog, "words") == [("b", 1)]

    def test_a_table_may_have_an_alias(self, catalog: Catalog, spark: SparkSession) -> None:
        catalog.sql("CREATE TABLE shops (id INT, at STRUCT<id: INT>, n INT, PRIMARY KEY (id) NOT ENFORCED)")
        shops = catalog.table("shops")
        rows = [{"id": id, "at": {"id": other}, "n": 0} for id, other in ((1, 3), (2, 1), (3, 2), (4, 4))]
        shops.write(pa.Table.from_pylist(rows, schema=shops.schema.arrow))
        catalog.sql("DELETE FROM shops AS at WHERE at.id = 4", spark)
        catalog.sql("DELETE FROM shops AS s WHERE at.id = 3", spark)
        assert self.rows(catalog, "shops") == [(2, {"id": 1}, 0), (3, {"id": 2}, 0)]
        catalog.sql("UPDATE shops AS s SET s.n = s.at.id + 10 WHERE s.at.id = 2", spark)
        exists = "EXISTS (SELECT 1 FROM users AS u WHERE u.id = s.id AND u.name = 'bob')"
        catalog.sql(f"DELETE FROM shops s WHERE {exists}", spark)
        assert self.rows(catalog, "shops") == [(3, {"id": 2}, 12)]
        with pytest.raises(SchemaError, match="is in no table of the query"):
            catalog.sql("DELETE FROM shops s WHERE shops.id = 3", spark)

    @pytest.mark.parametrize(
        ("where", "named", "gone"),
        [
            ("id IN (SELECT k FROM other) AND n > 1", [("id", "in", [2, 3]), ("n", ">", 1)], [2, 3]),
            ("u.NAME IN (SELECT s FROM other)", [("name", "in", ["", "ann", "bo"])], [1]),
            ("id IN (SELECT k FROM other WHERE k > 9)", [("id", "in", [])], []),
            ("name IN (SELECT s FROM other WHERE k = u.n + 1)", None, [1]),
        ],
    )
    @pytest.mark.parametrize("few", [-1, 100])
    def test_values_of_a_small_query_name_the_rows_that_are_read(
        self,
        catalog: Catalog,
        spark: SparkSession,
        monkeypatch: pytest.MonkeyPatch,
        few: int,
        where: str,
        named: list[Any] | None,
        gone: list[int],
    ) -> None:
        told: list[Any] = []
        monkeypatch.setattr(rows_found, "LARGE_TARGET", 0)
        monkeypatch.setattr(rows_found, "FEW_ROWS", few)

        def noted(where: list[tuple[str, str, Any]]) -> str:
            told.append(
                [(*one, sorted(value) if isinstance(value, list) else value) for *one, value in where]
            )
            return where_to_json(where)

        monkeypatch.setattr(rows_found, "where_to_json", noted)
        catalog.sql("CREATE TABLE other (k SMALLINT, s STRING)")
        values = {"k": pa.array([2, 3, 3, None], pa.int16()), "s": ["ann", None, "", "bo"]}
        catalog.table("other").write(pa.table(values))
        statement = "DELETE FROM users AS u" if len(gone) % 2 else "UPDATE users AS u SET n = -n"
        catalog.sql(f"{statement} WHERE {where}", spark)
        assert told == ([] if named is None else [named])
        left = {row[0] for row in self.rows(catalog) if row[2] > 0}
        assert left == {1, 2, 3} - {*gone}

    @pytest.mark.parametrize(("way", "few"), [("write_few", 100), ("write", -1)])
    def test_row_that_others_changed_meanwhile_is_looked_at_again(
        self, catalog: Catalog, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, way: str, few: int
    ) -> None:
        tries, other = [], 2
        own = getattr(frames, way)
        monkeypatch.setattr(rows_found, "FEW_ROWS", few)

        def write(df: DataFrame, path: str, options: dict[str, str]) -> Snapshot | None:
            tries.append(options)
            if len(tries) == 1:
                changed = {"id": [other], "name": ["robert"], "n": pa.array([5], pa.int32())}
                catalog.table("users").write(pa.table(changed))
            done: Snapshot | None = own(df, path, options)
            return done

        monkeypatch.setattr(frames, way, write)
        done = catalog.sql("UPDATE users SET n = n + 1 WHERE length(name) = 3", spark)
        assert (len(tries), str(done)) == (2, "<UPDATE users: updated, snapshot 3: 1 row>")
        assert self.rows(catalog) == [(1, "ann", 2), (2, "robert", 5), (3, "cecilia", 3)]
        tries, other = [], 4
        done = catalog.sql("DELETE FROM users WHERE length(name) = 7", spark)
        assert (len(tries), str(done)) == (1, "<DELETE FROM users: deleted, snapshot 5: 1 row>")
        monkeypatch.setattr(row_changes, "ATTEMPTS", 1)
        tries, other = [], 2
        with pytest.raises(CommitConflictError, match="other writers changed them 1 times"):
            catalog.sql("DELETE FROM users WHERE length(name) = 6", spark)

    @pytest.mark.parametrize(("way", "few"), [("write_few", 100), ("write", -1)])
    def test_a_statement_whose_table_is_altered_meanwhile_begins_again(
        self, catalog: Catalog, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, way: str, few: int
    ) -> None:
        tries, own = list[int](), getattr(frames, way)
        monkeypatch.setattr(rows_found, "FEW_ROWS", few)

        def write(df: DataFrame, path: str, options: dict[str, str]) -> Snapshot | None:
            tries.append(1)
            if len(tries) == 1:
                catalog.table("users").alter(AddColumn(Column("x", pa.int32())))
            done: Snapshot | None = own(df, path, options)
            return done

        monkeypatch.setattr(frames, way, write)
        catalog.sql("UPDATE users SET n = n + 1 WHERE soundex(name) = 'B100'", spark)
        assert self.rows(catalog) == [(1, "ann", 1, None), (2, "bob", 3, None), (3, "cecilia", 3, None)]
        assert len(tries) == 2

    @pytest.mark.parametrize(("is_committed", "tries", "n"), [(True, 1, 2), (False, 2, 2)])
    def test_what_another_process_has_committed_is_not_done_again_for_what_its_log_says(
        self,
        catalog: Catalog,
        spark: SparkSession,
        monkeypatch: pytest.MonkeyPatch,
        is_committed: bool,
        tries: int,
        n: int,
    ) -> None:
        """Of an error in a process of Spark Connect there is only the text, with its causes."""
        own, seen = frames.write, list[int]()

        def write(df: DataFrame, path: str, options: dict[str, str]) -> Snapshot | None:
            seen.append(1)
            if len(seen) > 1 or is_committed:
                done: Snapshot | None = own(df, path, options)
            if len(seen) > 1:
                return done
            try:
                try:
                    raise SnapshotExpiredError("changes must be published before they expire")
                except SnapshotExpiredError as cause:
                    if is_committed:
                        raise LogNotPublishedError("committed as snapshot 2") from cause
                    catalog.table("users").write(
                        pa.table({"id": [7], "name": ["u"], "n": pa.array([0], pa.int32())})
                    )
                    raise
            except UpsertError:
                raise PythonException(traceback.format_exc()) from None

        monkeypatch.setattr(rows_found, "FEW_ROWS", -1)
        monkeypatch.setattr(frames, "write", write)
        with pytest.raises(LogNotPublishedError) if is_committed else nullcontext():
            catalog.sql("UPDATE users SET n = n + 1 WHERE length(name) = 3", spark)
        assert len(seen) == tries
        assert self.rows(catalog)[0] == (1, "ann", n)

    @pytest.mark.parametrize(
        ("text", "error", "message"),
        [
            ("UPDATE users SET id = 1", SchemaError, "column 'id' is one of the PRIMARY KEY"),
            ("UPDATE users SET size = 1", SchemaError, "column 'size' is computed when it is read"),
            ("UPDATE users SET nix = 1", SchemaError, "unknown column 'nix'"),
            ("UPDATE users SET n = 1, N = 2", SchemaError, "column 'n' gets two values"),
            ("UPDATE users SET n = 'x'", SchemaError, "column 'n' must be INT, got STRING; write CAST"),
            ("UPDATE users\nSET n = nix + 1", SchemaError, "at line 2, column 9"),
            ("DELETE FROM users\nWHERE upper(nix) = 'X'", SchemaError, "at line 2, column 13"),
            ("UPDATE nix SET n = 1", Exception, "table 'nix' does not exist"),
        ],
    )
    def test_what_cannot_be_changed_is_refused(
        self, catalog: Catalog, spark: SparkSession, text: str, error: type[Exception], message: str
    ) -> None:
        with pytest.raises(error) as raised:
            catalog.sql(text, spark)
        assert message in str(raised.value)
        assert catalog.table("users").snapshot().id == 1

    def test_table_that_combines_rows_is_refused(self, catalog: Catalog, spark: SparkSession) -> None:
        catalog.sql(
            "CREATE TABLE sums (id INT, n INT, PRIMARY KEY (id) NOT ENFORCED) "
            "WITH ('merge-engine' = 'partial-update')"
        )
        with pytest.raises(ConfigurationError, match="the last row of a key replaces the others"):
            catalog.sql("UPDATE sums SET n = 1", spark)


MERGES = "/*+ OPTIONS('merge-schema' = 'true') */"


class TestReplaceWhere:
    @pytest.mark.parametrize(
        ("key", "condition", "query", "replaced"),
        [
            ("id", "day = 1", "SELECT 2L, 1, 'b' UNION ALL SELECT 4L, 1, 'd'", lambda row: row[1] == 1),
            (
                "id",
                "t.day IS NOT DISTINCT FROM 1",
                "VALUES (4L, 1, 'x'), (4L, 1, 'y')",
                lambda row: row[1] == 1,
            ),
            (
                "id",
                "code = 'c   ' OR id < 2",
                "SELECT 1L, 7, 'z'",
                lambda row: row[2] == "c   " or row[0] < 2,
            ),
            # a row of the query replaces the one of its key as any INSERT does
            ("id", "day > 1", "SELECT id - 1, day, code FROM t WHERE day > 1", lambda row: row[0] > 1),
            ("id", "day = 9", "SELECT 9L, 9, 'z'", lambda row: row[1] == 9),
            (
                "",
                "day = 1",
                "SELECT * FROM VALUES (1L, 1, 'a'), (5L, 1, 'e'), (5L, 1, 'e')",
                lambda row: row[1] == 1,
            ),
        ],
    )
    def test_rows_that_satisfy_the_condition_are_exchanged(
        self, spark: SparkSession, tmp_path: Path, key: str, condition: str, query: str, replaced: Any
    ) -> None:
        catalog = Catalog(tmp_path / "w")
        primary = f", PRIMARY KEY ({key}) NOT ENFORCED" if key else ""
        catalog.sql(f"CREATE TABLE t (id BIGINT, day INT, code CHAR(4){primary})")
        catalog.sql("INSERT INTO t VALUES (1, 1, 'a'), (2, 1, 'b'), (3, 2, 'c')", spark)
        before = [(1, 1, "a   "), (2, 1, "b   "), (3, 2, "c   ")]
        rows = [(one[0], one[1], one[2].ljust(4)) for one in catalog.sql(query, spark).df.collect()]
        new = {one[0]: one for one in rows}.values() if key else rows  # of a list the last row counts
        done = catalog.sql(f"INSERT INTO t REPLACE WHERE {condition} {query}", spark)
        assert str(done) == "<INSERT INTO t: replaced, snapshot 2>"
        expected = sorted([*(row for row in before if not replaced(row)), *new])
        table = catalog.table("t")
        found = [tuple(row.values()) for row in table.snapshot().scan().to_pylist()]
        assert sorted(found) == expected
        # a row that stays as it is, is no change
        changed = {tuple(row.values())[:3] for row in table.changes(1).to_pylist()}
        assert changed == set(before) ^ set(expected) or not key

    def test_rows_that_do_not_satisfy_the_condition_and_other_forms_are_refused(
        self, spark: SparkSession, tmp_path: Path
    ) -> None:
        catalog = Catalog(tmp_path / "w")
        catalog.sql("CREATE TABLE t (id BIGINT, day INT, twice AS day * 2, PRIMARY KEY (id) NOT ENFORCED)")
        catalog.sql(
            "CREATE TABLE s (id BIGINT, n INT, PRIMARY KEY (id) NOT ENFORCED) WITH ('sequence.field' = 'n')"
        )
        catalog.sql("INSERT INTO t VALUES (1, 1)", spark)
        of_row = "the condition of REPLACE WHERE must be of the row alone"
        form = "REPLACE is supported as INSERT INTO t REPLACE WHERE"
        for text, reason in {
            "INTO t REPLACE WHERE day = 1 VALUES (2, 1), (3, 2)": r"got \{.id.:3,.day.:2\}; correct the rows",
            "INTO t REPLACE WHERE day > NULL SELECT 2, 1": "the condition must be true of each row",
            "INTO t REPLACE WHERE id IN (SELECT id FROM s) SELECT 2, 1": of_row,
            "INTO t REPLACE WHERE id = :id SELECT 2, 1": of_row,
            "INTO t REPLACE WHERE twice = 2 SELECT 2, 1": "must be of stored columns, got 'twice'",
            "INTO t REPLACE WHERE day SELECT 2, 1": '"day" .* is not a boolean',
            "INTO t REPLACE WHERE day = 1 OR nope = 1 SELECT 2, 1": "'nope' is in no table .* column 40",
            "INTO t REPLACE WHERE id < 0 TABLE t": "the query must give 2 columns .* got 3",
            f"INTO t {MERGES} REPLACE WHERE id < 9 SELECT 2, 1, 3": "the one option is 'change-tracking'",
            "INTO t REPLACE WHERE SELECT 2, 1": "expected a condition, found 'SELECT'",
            "INTO t REPLACE WHERE id = 1": "expected a query",
            "INTO t REPLACE USING (id) SELECT 2, 1": form,
            "OVERWRITE t REPLACE WHERE id = 1 SELECT 2, 1": form,
            "INTO s REPLACE WHERE id = 1 SELECT 1, 1": "'merge-engine' or 'sequence.field'",
        }.items():
            with pytest.raises(UpsertError, match=reason):
                catalog.sql(f"INSERT {text}", spark)
        in_a_set = "INSERT INTO t VALUES (2, 1); INSERT INTO t REPLACE WHERE day = 1 TABLE t;"
        with pytest.raises(ConfigurationError, match="reads tables as they are when it is its turn"):
            catalog.sql(f"EXECUTE STATEMENT SET BEGIN {in_a_set} END", spark)
        assert catalog.table("t").snapshot().info.definition == 0
        catalog.sql("ALTER TABLE t ADD COLUMN note STRING")
        with pytest.raises(CheckViolatedError, match=r'got {"id":1,"day":1,"note":"é{300,400}…; correct'):
            catalog.sql("INSERT INTO t REPLACE WHERE day = 2 SELECT 1, 1, repeat('é', 999)", spark)
        catalog.sql("SET 'execution.runtime-mode' = 'streaming'")
        with pytest.raises(ConfigurationError, match="a stream cannot overwrite"):
            catalog.sql("INSERT INTO t REPLACE WHERE day = 1 SELECT id, 1 FROM t", spark)
        assert catalog.table("t").snapshot().info.data_version == 1

    def test_a_row_that_others_changed_meanwhile_is_replaced_as_it_is_then(
        self, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        catalog = Catalog(tmp_path / "w")
        catalog.sql("CREATE TABLE t (id BIGINT, day BIGINT, PRIMARY KEY (id) NOT ENFORCED)")
        table, tries, own = catalog.table("t"), list[int](), frames.write
        table.write(pa.table({"id": [1, 2], "day": [1, 1]}))

        def write(df: DataFrame, path: str, options: dict[str, str]) -> Snapshot | None:
            tries.append(1)
            if len(tries) == 1:
                table.write(pa.table({"id": [1], "day": [2]}))
            return own(df, path, options)

        monkeypatch.setattr(frames, "write", write)
        catalog.sql("INSERT INTO t REPLACE WHERE day = 1 SELECT id + 10, day FROM t WHERE day = 1", spark)
        assert len(tries) == 2
        assert sorted(tuple(row.values()) for row in table.snapshot().scan().to_pylist()) == [(1, 2), (12, 1)]

    def test_a_table_that_is_altered_while_its_rows_are_found_is_changed_as_it_is_then(
        self, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        catalog = Catalog(tmp_path / "w")
        catalog.sql("CREATE TABLE t (id BIGINT, day BIGINT, PRIMARY KEY (id) NOT ENFORCED)")
        catalog.sql("INSERT INTO t VALUES (1, 1), (2, 2), (3, 3), (4, 4)")

        def found(*args: Any) -> rows_found.FoundRows:
            rows = own(*args)
            if len(names := catalog.table("t").schema.names) == before:
                catalog.sql(f"ALTER TABLE t ADD COLUMN c{len(names)} INT")
            return rows

        for module, statement in (
            (row_changes, "UPDATE t SET day = 7 WHERE conv(id, 10, 10) = 1"),
            (row_changes, "DELETE FROM t WHERE conv(id, 10, 10) = 2"),
            (insert, "INSERT INTO t BY NAME REPLACE WHERE conv(id, 10, 10) = 3 SELECT 3 AS id, 9 AS day"),
        ):
            own, before = rows_found.rows_found, len(catalog.table("t").schema.names)
            with monkeypatch.context() as patch:
                patch.setattr(module, "rows_found", found)
                catalog.sql(statement, spark)
            assert len(catalog.table("t").schema.names) == before + 1
        rows = catalog.table("t").snapshot().scan(["id", "day"]).sort_by("id").to_pylist()
        assert [tuple(row.values()) for row in rows] == [(1, 7), (3, 9), (4, 4)]
