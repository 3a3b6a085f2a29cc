"""MERGE INTO: the query that the statement is, and the changes that it commits; DuckDB is the oracle."""

import os
import random
import re
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.sql import DataFrame, SparkSession

from upsert.catalog.catalog import Catalog
from upsert.catalog.run import merge as run_merge
from upsert.catalog.run import rows_found
from upsert.catalog.run.without_spark.merge import merged
from upsert.errors import ChangelogError, ConfigurationError, SchemaError
from upsert.managed import frames
from upsert.sql.merge_into import over_given_source, with_tables
from upsert.sql.parameters import bound
from upsert.sql.parser import parse
from upsert.sql.statements import Merge, MergeAction, MergeClause, MergeRows

SEED = int(os.environ.get("SEED", "0"))


def merge(text: str) -> Merge:
    statement = parse(text)
    assert isinstance(statement, Merge)
    return statement


class TestParser:
    def test_statement_has_the_query_of_both_rows_and_of_its_values(self) -> None:
        statement = merge(
            "MERGE INTO db.t /*+ OPTIONS('change-tracking' = 'false') */ AS a\n"
            "USING (SELECT * FROM u /*+ OPTIONS('scan.mode' = 'latest') */) b ON a.id = b.k\n"
            "WHEN MATCHED AND CASE WHEN b.x THEN true END THEN UPDATE SET a.v = b.v, n = a.n + 1\n"
            "WHEN NOT MATCHED THEN INSERT (id, v) VALUES (k, transform(xs, x -> x + y));"
        )
        assert statement.options == {"change-tracking": "false"}
        assert [(one.name, dict(one.options)) for one in statement.rows.references] == [
            ("db.t", {}),
            ("u", {"scan.mode": "latest"}),
        ]
        named = with_tables(statement, {"k", "xs", "y"}, frozenset)
        text = named.rows.over(["V0", "V1"]).text
        assert " ".join(text.split()) == (
            "FROM (SELECT *, true AS `:in_target` FROM `V0` AS `t`) AS `a` "
            "RIGHT OUTER JOIN (SELECT *, true AS `:in_source` FROM (SELECT * FROM `V1` AS `u` ) b) "
            "AS `b` "
            "ON a.id = b.k SELECT STRUCT(`a`.*) AS `:target`, STRUCT(`b`.*) AS `:source`, "
            "CASE WHEN `:in_target` AND `:in_source` THEN coalesce(( CASE WHEN b.x THEN true END "
            "), false) ELSE false END AS `:clause_0`, "
            "CASE WHEN `:clause_0` THEN ( b.v) END AS `:clause_0_0`, "
            "CASE WHEN `:clause_0` THEN ( a.n + 1) END AS `:clause_0_1` , "
            "coalesce(`:in_source` AND `:in_target` IS NULL, false) AS `:clause_1`, "
            "CASE WHEN `:clause_1` THEN (`b`.k) END AS `:clause_1_0`, "
            "CASE WHEN `:clause_1` THEN ( transform(`b`.xs, x -> x + `b`.y)) END AS `:clause_1_1`"
        )
        assert statement.clauses == (
            MergeClause(MergeRows.MATCHED, MergeAction.UPDATE, ("v", "n"), ("v", None)),
            MergeClause(MergeRows.NOT_MATCHED, MergeAction.INSERT, ("id", "v"), ("k", None)),
        )

    def test_a_bare_name_is_of_the_one_row_if_the_other_table_has_it_too(self) -> None:
        """What neither has is Spark's to know: a variable, or nothing."""
        statement = merge(
            "MERGE INTO t USING s ON true "
            "WHEN NOT MATCHED AND a.f = b THEN INSERT (x, y) VALUES (user, current_date) "
            "WHEN NOT MATCHED BY SOURCE AND a = b THEN UPDATE SET x = c, y = CURRENT_DATE, z = user"
        )
        found = with_tables(statement, {"a", "user", "current_date"}, lambda: {"a", "b", "user"})
        text = " ".join(found.rows.over(["V0", "V1"]).text.split())
        assert re.findall(r"coalesce\(\( (.*?) \), false|THEN \( ?(\S+)\) END", text) == [
            ("`s`.a.f = b", ""),
            ("", "`s`.user"),
            ("", "current_date()"),
            ("`t`.a = `t`.b", ""),
            ("", "c"),
            ("", "`t`.CURRENT_DATE"),
            ("", "`t`.user"),
        ]

    @pytest.mark.parametrize(
        ("condition", "equal", "is_only_equal"),
        [
            ("t.id = s.k", {"id": "k"}, True),
            ("s.K <=> (t.id) AND (t.day = s.day)", {"id": "k", "day": "day"}, True),
            ("t.id = s.k AND t.n > 1", {"id": "k"}, False),
            ("t.id = s.k OR t.n = s.n", {}, False),
            ("t.id = s.k AND t.id = s.other", {"id": "other"}, False),
            ("t.id = s.k + 0", {}, False),
            ("id = s.k", {}, False),
            ("t.id = t.n", {}, False),
        ],
    )
    def test_columns_that_on_says_are_equal(
        self, condition: str, equal: dict[str, str], is_only_equal: bool
    ) -> None:
        statement = merge(f"MERGE INTO t USING s ON {condition} WHEN MATCHED THEN DELETE")
        assert (dict(statement.equal), statement.is_only_equal) == (equal, is_only_equal)

    @pytest.mark.parametrize(
        ("clauses", "join"),
        [
            (["WHEN MATCHED THEN DELETE"], "JOIN"),
            (["WHEN NOT MATCHED BY TARGET THEN INSERT *"], "RIGHT OUTER JOIN"),
            (["WHEN NOT MATCHED BY SOURCE THEN DELETE", "WHEN MATCHED THEN UPDATE *"], "LEFT OUTER JOIN"),
            (["WHEN NOT MATCHED BY SOURCE THEN DELETE", "WHEN NOT MATCHED THEN INSERT *"], "FULL OUTER JOIN"),
        ],
    )
    def test_join_has_the_rows_of_the_clauses_alone(self, clauses: list[str], join: str) -> None:
        text = merge(f"MERGE INTO t USING s ON t.id = s.id {' '.join(clauses)}").rows.over(["a", "b"]).text
        assert f") AS `t` {join} (" in text

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("MERGE INTO t", "MERGE INTO t: expected an alias, or USING, found the end of the text"),
            ("MERGE INTO t a b USING s", "expected USING, found 'b'"),
            ("MERGE INTO t USING s WHEN MATCHED THEN DELETE", "expected ON"),
            ("MERGE INTO t USING ON a", "expected a table, or a query in parentheses, found 'ON'"),
            (
                "MERGE INTO t USING s JOIN u ON a",
                "expected USING a table or a query in parentheses, found 's JOIN",
            ),
            ("MERGE INTO t USING s ON", "expected a condition"),
            ("MERGE INTO t USING s ON a = b", "expected WHEN [NOT] MATCHED, found the end of the text"),
            ("MERGE INTO t USING s ON a WHEN FOUND", "expected MATCHED or NOT MATCHED, found 'FOUND'"),
            ("MERGE INTO t USING s ON a WHEN NOT MATCHED BY x", "expected BY TARGET, found 'BY'"),
            (
                "MERGE INTO t USING s ON a WHEN MATCHED THEN INSERT *",
                "expected UPDATE or DELETE after WHEN MATCHED",
            ),
            (
                "MERGE INTO t USING s ON a WHEN NOT MATCHED THEN DELETE",
                "expected INSERT after WHEN NOT MATCHED",
            ),
            (
                "MERGE INTO t USING s ON a WHEN NOT MATCHED BY SOURCE THEN UPDATE SET *",
                "WHEN NOT MATCHED BY SOURCE has no row of the source",
            ),
            (
                "MERGE INTO t USING s ON a WHEN MATCHED THEN UPDATE SET s.n = 1",
                "expected a column of 't'; a field of a struct gets a value with the whole struct, found 's'",
            ),
            ("MERGE INTO t USING s ON a WHEN MATCHED THEN UPDATE SET n = ", "expected an expression"),
            (
                "MERGE INTO t USING s ON a WHEN NOT MATCHED THEN INSERT (a, b) VALUES (1)",
                "INSERT names 2 columns (a, b), and VALUES has 1",
            ),
            (
                "MERGE INTO t USING s ON a\nWHEN MATCHED THEN DELETE\nWHEN MATCHED AND b THEN UPDATE SET *",
                "only the last may be without AND, found another one at line 3, column 1",
            ),
            (
                "MERGE INTO t USING s ON a\nWHEN NOT MATCHED AND t.n > 1 THEN INSERT *",
                "WHEN NOT MATCHED has no row of 't', found 't.n' at line 2, column 22; use columns of 's'",
            ),
            (
                "MERGE INTO t USING s ON a WHEN NOT MATCHED BY SOURCE AND s.n > 1 THEN DELETE",
                "WHEN NOT MATCHED BY SOURCE has no row of 's', found 's.n'",
            ),
            ("MERGE INTO t USING s ON a WHEN MATCHED THEN DELETE HAVING b", "expected WHEN, found 'HAVING'"),
            (
                "MERGE INTO t USING s ON a WHEN MATCHED AND b + THEN DELETE",
                "the expression is incomplete, found '+' at line 1, column 46",
            ),
        ],
    )
    def test_what_is_no_statement_is_refused_with_its_place(self, text: str, message: str) -> None:
        with pytest.raises(SchemaError) as error:
            parse(text)
        assert message in str(error.value)

    @pytest.mark.parametrize(
        ("source", "given", "reference"),
        [
            ("db.s", "`V1` AS `s`", "db.s"),
            ("db.s FOR SYSTEM_VERSION AS OF 3 s TABLESAMPLE (5 ROWS)", "`V1` AS `s`", "db.s"),
            ("(SELECT * FROM u /*+ OPTIONS('scan.mode' = 'latest') */) s", "`V1` AS `:given`", ":given"),
            ("VALUES (1) AS s(id)", "`V1` AS `:given`", ":given"),
            ("range(3) s", "`V1` AS `:given`", ":given"),
        ],
    )
    def test_source_may_be_given_under_the_name_that_columns_have_with_it(
        self, source: str, given: str, reference: str
    ) -> None:
        query = over_given_source(
            merge(f"MERGE INTO t USING {source} ON t.id = s.id WHEN MATCHED THEN DELETE")
        )
        assert [one.name for one in query.references] == ["t", reference]
        text = " ".join(query.over(["V0", "V1"]).text.split())
        assert f"JOIN (SELECT *, true AS `:in_source` FROM {given} ) AS `s` ON t.id = s.id SELECT" in text

    def test_parameters_of_a_given_source_go_with_it(self) -> None:
        statement = bound(
            merge(
                "MERGE INTO t USING (SELECT ? AS id, ? AS n) s ON t.id = s.id AND t.n < ? "
                "WHEN MATCHED THEN DELETE"
            ),
            [1, 2, 3],
        )
        assert isinstance(statement, Merge)
        query = over_given_source(statement)
        assert query.parameters == ("_000000",)
        assert dict(query.args) == {"_000000": 3}

    def test_hint_in_a_subquery_of_update_is_that_of_its_table(self) -> None:
        statement: Any = parse(
            "UPDATE t SET a = (SELECT max(b) FROM u /*+ OPTIONS('scan.mode' = 'latest') */)"
        )
        assert [dict(one.options) for one in statement.rows.references] == [{"scan.mode": "latest"}, {}]


def _choice(random_: random.Random, *texts: str) -> str:
    return random_.choice(texts)


class RandomMerge:
    """A statement in words that Spark and DuckDB share, and what must be true of its outcome."""

    def __init__(self, random_: random.Random) -> None:
        self.on = _choice(random_, *["t.id = s.id"] * 4, "t.id = s.id AND t.n < 6", "t.n = s.n", "t.v = s.v")
        unique = random_.random() < 0.7
        self.source = "(SELECT min(n) AS n, min(v) AS v, id FROM s GROUP BY id)" if unique else "s"
        kinds = random_.sample(list(MergeRows), random_.randint(1, 3))
        self.clauses: list[tuple[MergeRows, str, str]] = []
        for rows in kinds:
            for place in range(number := random_.randint(1, 2)):
                is_last = place == number - 1
                condition = "" if is_last and random_.random() < 0.5 else self._condition(random_, rows)
                self.clauses.append((rows, condition, self._action(random_, rows)))
        random_.shuffle(kinds)

    def _condition(self, random_: random.Random, rows: MergeRows) -> str:
        table = "t" if rows is MergeRows.NOT_MATCHED_BY_SOURCE else "s"
        own = [f"{table}.n > 3", f"{table}.v IS NULL", f"{table}.id % 2 = 0", f"{table}.v < 'c'"]
        return _choice(random_, *own, *(["t.n > s.n", "t.v <> s.v"] if rows is MergeRows.MATCHED else []))

    def _action(self, random_: random.Random, rows: MergeRows) -> str:
        if rows is MergeRows.NOT_MATCHED:
            key = _choice(random_, *["s.id"] * 5, "s.id + 3")
            return f"INSERT (id, n, v) VALUES ({key}, {_choice(random_, 's.n', 'NULL', 's.n * 2')}, s.v)"
        if random_.random() < 0.35:
            return "DELETE"
        values = ["t.n + 1", "0", "NULL"]
        if rows is MergeRows.MATCHED:
            values += ["s.n", "coalesce(s.n, t.n)", "CASE WHEN s.v IS NULL THEN t.n ELSE s.n END"]
        return f"UPDATE SET n = {_choice(random_, *values)}"

    @property
    def text(self) -> str:
        whens = "\n".join(
            f"{rows} {f'AND {condition} ' if condition else ''}THEN {action}"
            for rows, condition, action in self.clauses
        )
        return f"MERGE INTO t USING {self.source} AS s ON {self.on}\n{whens}"

    def contradicts(self, duck: duckdb.DuckDBPyConnection) -> bool:
        """Whether several rows of the source change one of the target, and one does not delete it."""
        matched = [(c or "true", a) for rows, c, a in self.clauses if rows is MergeRows.MATCHED]
        if not matched:
            return False
        action = "CASE " + " ".join(f"WHEN {c} THEN '{a[0]}'" for c, a in matched) + " END"
        query = f"SELECT t.id, {action} AS a FROM t JOIN {self.source} AS s ON {self.on}"
        bad = f"SELECT 1 FROM ({query}) WHERE a IS NOT NULL GROUP BY id HAVING count(*) > 1 AND max(a) = 'U'"
        return bool(duck.sql(bad).fetchall())


def rows(catalog: Catalog, name: str) -> list[tuple[Any, ...]]:
    found = catalog.table(name).snapshot().scan().select(["id", "n", "v"])
    return sorted((tuple(row.values()) for row in found.to_pylist()), key=repr)


def compare_random_merges(
    spark: SparkSession, folder: Path, monkeypatch: pytest.MonkeyPatch, seed: int, number: int
) -> tuple[int, int]:
    """Merges that went through, and that were refused, as DuckDB and the two rules say."""
    random_ = random.Random(seed)
    catalog, done, refused = Catalog(folder), 0, 0
    for name in ("t", "s"):
        key = "PRIMARY KEY (id) NOT ENFORCED" if name == "t" else "PRIMARY KEY (place) NOT ENFORCED"
        catalog.sql(f"CREATE TABLE {name} (id INT, n INT, v STRING, place INT, {key}) WITH ('bucket' = '2')")
    for step in range(number):
        duck = duckdb.connect()
        for name, ids in (("t", range(1, 9)), ("s", range(3, 12))):
            keys = [one for one in ids if random_.random() < 0.7]
            if name == "s":
                keys += random_.choices(keys or [1], k=random_.choice([0, 0, 1]))
            columns = {
                "id": keys,
                "n": [random_.choice([None, *range(9)]) for _ in keys],
                "v": [random_.choice([None, *"abcde"]) for _ in keys],
                "place": list(range(len(keys))),
            }
            types = {"id": pa.int32(), "n": pa.int32(), "v": pa.string(), "place": pa.int32()}
            given = pa.table({one: pa.array(columns[one], type_) for one, type_ in types.items()})
            catalog.table(name).delete([])
            catalog.table(name).write(given)
            duck.sql(f"CREATE TABLE {name} AS FROM given")
        one, before = RandomMerge(random_), rows(catalog, "t")
        monkeypatch.setattr(rows_found, "LARGE_TARGET", 0)
        few, most = random_.choice([(1000, 1000), (1000, 1000), (-1, 1000), (-1, -1)])
        monkeypatch.setattr(rows_found, "FEW_ROWS", few)
        monkeypatch.setattr(rows_found, "MOST_ROWS", most)
        by_spark = step % 3 > 0
        monkeypatch.setattr(run_merge, "merged", (lambda *_: None) if by_spark else merged)
        about = f"seed {seed}, step {step}, {few} and {most} rows, {by_spark}: {one.text}"
        contradicts = one.contradicts(duck)
        duck.execute(one.text)
        wanted = sorted(duck.sql("SELECT id, n, v FROM t").fetchall(), key=repr)
        if contradicts or len({row[0] for row in wanted}) < len(wanted):
            with pytest.raises(ChangelogError, match="nothing was written"):
                catalog.sql(one.text, spark)
            assert rows(catalog, "t") == before, about
            refused += 1
            continue
        snapshot = catalog.table("t").snapshot().id
        note = catalog.sql(one.text, spark).note
        assert rows(catalog, "t") == wanted, about
        kinds = catalog.table("t").changes(snapshot).column("_row_kind").to_pylist()
        assert len(wanted) - len(before) == kinds.count("+I") - kinds.count("-D"), about
        numbers = [int(word) for word in note.partition(": ")[2].split() if word.isdecimal()]
        assert numbers[2] - numbers[1] == len(wanted) - len(before), f"{about}: {note}"
        done += 1
    return done, refused


@pytest.mark.spark
def test_random_merges_equal_those_of_duckdb(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, refused = compare_random_merges(spark, tmp_path / "warehouse", monkeypatch, seed=31, number=4)
    assert done
    assert refused


@pytest.mark.long
@pytest.mark.spark
def test_many_random_merges_equal_those_of_duckdb(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, refused = compare_random_merges(spark, tmp_path / "warehouse", monkeypatch, seed=SEED, number=120)
    assert done > refused > 0


@pytest.mark.spark
class TestMerge:
    @pytest.fixture
    def catalog(self, tmp_path: Path) -> Catalog:
        found = Catalog(tmp_path / "warehouse")
        found.sql(
            "CREATE TABLE days (day STRING, id INT, n BIGINT NOT NULL, twice AS n * 2, "
            "PRIMARY KEY (day, id) NOT ENFORCED) PARTITIONED BY (day)"
        )
        keys = {"day": ["mon", "mon", "tue"], "id": pa.array([1, 2, 1], pa.int32())}
        found.table("days").write(pa.table({**keys, "n": [1, 2, 3]}))
        found.sql("CREATE TABLE new (DAY STRING, id INT, n INT)")
        keys = {"DAY": ["mon", "tue", "wed"], "id": pa.array([1, 1, 1], pa.int32())}
        found.table("new").write(pa.table({**keys, "n": pa.array([10, 30, 40], pa.int32())}))
        return found

    def rows(self, catalog: Catalog) -> list[tuple[Any, ...]]:
        return sorted(tuple(row.values()) for row in catalog.table("days").snapshot().scan().to_pylist())

    def test_clauses_make_one_commit_with_exact_changes(self, catalog: Catalog, spark: SparkSession) -> None:
        """Partitions, a computed column, columns by name in another case and type, and the explained plan."""
        text = """
            MERGE INTO days USING new AS s ON days.day = s.day AND days.id = s.id
            WHEN MATCHED AND days.twice = 6 THEN DELETE
            WHEN MATCHED THEN UPDATE SET *
            WHEN NOT MATCHED AND n > (SELECT 1) THEN INSERT *
            WHEN NOT MATCHED BY SOURCE AND 6 / (n - 1) > 0 THEN UPDATE SET n = n * 100"""
        plan = catalog.sql(f"EXPLAIN {text}", spark).rows.column(0).to_pylist()
        assert any("FullOuter" in line for line in plan)
        # ON is the key, so there is no look for other rows of it
        assert sum(re.match(r"\(\d+\) MapInArrow", line) is not None for line in plan) == 2
        before = catalog.table("days").snapshot().id
        note = catalog.sql(text, spark).note
        assert note == f"merged, snapshot {before + 1}: 2 rows updated, 1 deleted, 1 inserted"
        assert self.rows(catalog) == [("mon", 1, 10), ("mon", 2, 200), ("wed", 1, 40)]
        changes = catalog.table("days").changes(before).to_pylist()
        assert sorted(tuple(row.values()) for row in changes) == [
            ("mon", 1, 1, "-U"),
            ("mon", 1, 10, "+U"),
            ("mon", 2, 2, "-U"),
            ("mon", 2, 200, "+U"),
            ("tue", 1, 3, "-D"),
            ("wed", 1, 40, "+I"),
        ]
        catalog.sql(
            f"MERGE INTO days USING days FOR SYSTEM_VERSION AS OF {before} AS old "
            "ON days.day = old.day AND days.id = old.id WHEN NOT MATCHED THEN INSERT *",
            spark,
        )
        assert self.rows(catalog)[2] == ("tue", 1, 3)

    @pytest.mark.parametrize(("way", "few"), [("write_rows", 100), ("write_few", 100), ("write", -1)])
    def test_row_that_others_changed_meanwhile_is_looked_at_again(
        self, catalog: Catalog, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, way: str, few: int
    ) -> None:
        """Another writer inserts the key that the first attempt would insert: the second one updates it.

        The row is one of those that the source names, which are read at the newer snapshot then.
        """
        monkeypatch.setattr(rows_found, "LARGE_TARGET", 0)
        monkeypatch.setattr(rows_found, "FEW_ROWS", few)
        if way != "write_rows":
            monkeypatch.setattr(run_merge, "merged", lambda *_: None)
        tries, own = [], getattr(frames, way)

        def write(df: DataFrame | pa.Table, path: str, options: dict[str, str]) -> None:
            tries.append(options)
            if len(tries) == 1:
                key = {"day": ["wed"], "id": pa.array([1], pa.int32())}
                catalog.table("days").write(pa.table({**key, "n": [7]}))
            own(df, path, options)

        monkeypatch.setattr(frames, way, write)
        note = catalog.sql(
            "MERGE INTO days AS t USING (SELECT * FROM new WHERE day = 'wed') s "
            "ON t.day = s.day AND t.id = s.id WHEN MATCHED THEN UPDATE SET t.n = t.n + s.n "
            "WHEN NOT MATCHED THEN INSERT *",
            spark,
        ).note
        assert len(tries) == 2
        assert note.endswith("1 row updated, 0 deleted, 0 inserted")
        assert self.rows(catalog)[-1] == ("wed", 1, 47)

    @pytest.mark.parametrize(
        ("text", "named"),
        [
            (
                "new s ON t.day = s.day AND t.id = s.id AND t.n > 1",
                {"day": {"mon", "tue", "wed"}, "id": {1}},
            ),
            ("(SELECT 7L AS id, NULL AS day) s ON s.ID <=> t.id", {"id": {7}}),
            (
                "(SELECT day, 1.0 AS id FROM new) s ON t.day = s.day AND t.id = s.id",
                {"day": {"mon", "tue", "wed"}},
            ),
            ("(SELECT CAST(id AS DOUBLE) AS id FROM new) s ON t.id = s.id", {}),
            ("new s ON t.day = s.day OR t.id = s.id", {}),
            ("new s ON t.day = s.day AND t.n > (SELECT min(n) FROM new)", {}),
            ("range(5001) s ON t.id = s.id", {}),
            ("(SELECT 7L AS id, repeat('x', 40000000) AS v) s ON t.id = s.id", {}),
            ("(SELECT id, current_date() AS at FROM new) s ON t.id = s.id AND s.at = current_date()", {}),
            ("(SELECT id, 1 / (n - 10) AS not_needed FROM new) s ON t.id = s.id", {}),
            ("parquet.`FOLDER/new.parquet` s ON t.id = s.id AND s._metadata.row_index = 0", {}),
        ],
    )
    def test_few_rows_of_a_source_name_those_of_a_large_target(
        self,
        catalog: Catalog,
        spark: SparkSession,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        text: str,
        named: Any,
    ) -> None:
        if "FOLDER" in text:
            parquet.write_table(catalog.table("new").snapshot().scan(), tmp_path / "new.parquet")
            text = text.replace("FOLDER", str(tmp_path))
        monkeypatch.setattr(rows_found, "LARGE_TARGET", 0)
        monkeypatch.setattr(rows_found, "FEW_ROWS", -1)
        statement = merge(f"MERGE INTO days t USING {text} WHEN MATCHED THEN DELETE")
        found = rows_found.merged_rows(catalog.context, spark, statement, catalog.table("days"), 1).named
        assert {column: set(values) for column, _, values in found} == named

    @pytest.mark.parametrize(
        ("text", "error", "message"),
        [
            ("WHEN MATCHED THEN UPDATE SET id = s.n", SchemaError, "column 'id' is one of the PRIMARY KEY"),
            ("WHEN MATCHED THEN UPDATE SET *", SchemaError, "column 'id' is one of the PRIMARY KEY"),
            ("WHEN MATCHED THEN UPDATE SET twice = 1", SchemaError, "column 'twice' is computed"),
            ("WHEN MATCHED THEN UPDATE SET nix = 1", SchemaError, "unknown column 'nix'"),
            ("WHEN MATCHED THEN UPDATE SET n = 1, N = 2", SchemaError, "column 'n' gets two values"),
            ("WHEN NOT MATCHED THEN INSERT (n, N) VALUES (1, 2)", SchemaError, "column 'n' gets two values"),
            ("WHEN MATCHED THEN UPDATE SET n = 'x'", SchemaError, "column 'n' must be BIGINT, got STRING"),
            ("WHEN MATCHED THEN\nUPDATE SET n = nix + 1", SchemaError, "at line 2, column 16"),
            ("WHEN MATCHED THEN UPDATE SET n = id", SchemaError, "`id` is ambiguous"),
            ("WHEN NOT MATCHED THEN INSERT (day, id) VALUES (day, id)", SchemaError, "'n' is NOT NULL"),
            (
                "WHEN NOT MATCHED THEN INSERT (day, id, n) VALUES (day, NULL, 1)",
                SchemaError,
                "PRIMARY KEY column 'id' must not be NULL",
            ),
        ],
    )
    def test_what_cannot_be_merged_is_refused(
        self, catalog: Catalog, spark: SparkSession, text: str, error: type[Exception], message: str
    ) -> None:
        with pytest.raises(error) as raised:
            catalog.sql(f"MERGE INTO days t USING new s ON t.day = s.day {text}", spark)
        assert message in str(raised.value)
        assert catalog.table("days").snapshot().id == 1

    def test_a_key_of_the_source_may_have_no_type(self, catalog: Catalog, spark: SparkSession) -> None:
        source = "(SELECT upper('tue') AS day, NULL AS id, 2 AS n) s ON t.day = s.day AND t.id = s.id"
        with pytest.raises(SchemaError, match="PRIMARY KEY column 'id' must not be NULL"):
            catalog.sql(f"MERGE INTO days t USING {source} WHEN NOT MATCHED THEN INSERT *", spark)

    def test_table_that_cannot_be_merged_into_is_refused_with_the_remedy(self, catalog: Catalog) -> None:
        catalog.sql(
            "CREATE TABLE sums (id INT, n INT, PRIMARY KEY (id) NOT ENFORCED) "
            "WITH ('merge-engine' = 'partial-update')"
        )
        catalog.sql(
            "CREATE TABLE topic (id INT, n INT, PRIMARY KEY (id) NOT ENFORCED) WITH ('connector' = "
            "'upsert-kafka', 'topic' = 't', 'properties.bootstrap.servers' = 'x:1', 'key.format' = 'json', "
            "'value.format' = 'json')"
        )
        for name, message in (
            ("new", "must have a PRIMARY KEY, by which its rows are told apart"),
            ("sums", "the last row of a key replaces the others"),
            ("topic", "MERGE needs a managed table, got one with a connector"),
        ):
            with pytest.raises(ConfigurationError, match=message):
                catalog.sql(f"MERGE INTO {name} t USING days s ON t.id = s.id WHEN MATCHED THEN DELETE")
