"""`deltajoin sql` and `deltajoin run` as a user starts them: in a process of their own."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import planner
from deltajoin.cli.app import app
from tests.helpers import REPOSITORY, lent, use_this_python
from upsert import Catalog, Table
from upsert.catalog.results import Running
from upsert.catalog.run import queries
from upsert.catalog.run.without_spark.statements import selected_later
from upsert.catalog.script import split_statements
from upsert.sql.parser import parse
from upsert.sql.statements import CreateTable

pytestmark = pytest.mark.spark

FLAGS = ("--conf", "spark.driver.bindAddress=127.0.0.1", "--conf", "spark.sql.shuffle.partitions=1")


def environment(*, forked: bool = True) -> dict[str, str]:
    found = {**os.environ, "PYTHONPATH": str(REPOSITORY), "COLUMNS": "120", "TERM": "dumb"}
    use_this_python(found, forked=forked)
    return found


def started(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "deltajoin", *arguments],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(*arguments: str, given: str = "") -> tuple[int, str, str]:
    process = started(*arguments)
    out, errors = process.communicate(given, timeout=600)
    return process.returncode, out, errors


def run_here(*arguments: str, given: str = "") -> tuple[int, str, str]:
    """The same in this process, which has loaded what the command needs: for commands that start no Spark."""
    queries.selected_later = selected_later  # also where a test has Spark compute the rows of its queries
    # whose settings would have Spark compute them too
    done = CliRunner(env={"SPARK_SUBMIT_OPTS": None}).invoke(app, arguments, input=given)
    return done.exit_code, done.stdout, done.stderr


def test_a_file_is_an_argument_or_an_option(tmp_path: Path) -> None:
    file = tmp_path / "tables.sql"
    file.write_text("SHOW TABLES;")
    where = ("sql", "-w", str(tmp_path / "warehouse"), "--json")
    given = [run_here(*where, *source) for source in ([str(file)], ["-f", str(file)], ["--file", str(file)])]
    assert given == [(0, "", "")] * 3
    code, _, errors = run_here(*where, str(file), "-f", str(file))
    assert (code, "one file or -e says what to do, got several of them; leave one" in errors) == (1, True)


def test_a_file_that_an_editor_of_windows_has_written_is_read_as_it_is(tmp_path: Path) -> None:
    script = """\ufeffCREATE TABLE t (id INT, note STRING, PRIMARY KEY (id) NOT ENFORCED);\r
        INSERT INTO t VALUES (1, 'a;\r\nb'); -- one\r
        SELECT note FROM t"""
    file = tmp_path / "tables.sql"
    file.write_bytes(script.encode())
    code, out, errors = run_here("sql", "-w", str(tmp_path / "w"), "--json", str(file))
    assert (code, errors, json.loads(out)) == (0, "", {"note": "a;\r\nb"})
    file.write_bytes(b"SELECT '\xfc'")
    code, _, errors = run_here("sql", "-w", str(tmp_path / "w"), str(file))
    assert code == 1
    assert (
        "tables.sql' must be a text of UTF-8, got b'\\xfc' at 8 (invalid start byte); save it as UTF-8"
        in errors
    )


def test_a_look_at_a_table_needs_no_java(tmp_path: Path) -> None:
    """With a Java that cannot start; what only Spark answers says so."""
    script = """
        CREATE TABLE words (id BIGINT, word STRING, at TIMESTAMP, PRIMARY KEY (id) NOT ENFORCED);
        INSERT INTO words VALUES (1, 'tea', TIMESTAMP '2020-10-01 08:00:00'), (2, 'water', NULL);
        INSERT INTO words (id) VALUES (3);
        SELECT * FROM words WHERE word LIKE 't%';
        SELECT word AS w FROM words ORDER BY w DESC NULLS FIRST LIMIT 2;
        SELECT count(*) FROM words;
    """
    where = ("sql", "-w", str(tmp_path / "warehouse"))
    bare = {key: text for key, text in environment().items() if key != "SPARK_SUBMIT_OPTS"}
    bare |= {"JAVA_HOME": str(tmp_path), "PATH": os.path.dirname(sys.executable), "TZ": "Europe/Berlin"}

    def without_java(*arguments: str) -> tuple[int, str, str]:
        command = [sys.executable, "-m", "deltajoin", *where, *arguments]
        done = subprocess.run(command, env=bare, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    code, out, errors = without_java("--json", "-e", script)
    assert (code, errors) == (0, "")
    assert list(map(json.loads, out.splitlines())) == [
        {"id": 1, "word": "tea", "at": "2020-10-01T06:00:00+00:00"},
        {"w": None},
        {"w": "water"},
        {"count(1)": 3},
    ]
    code, out, _ = without_java("--rows", "1", "-e", "SELECT id, at FROM words ORDER BY id", "--param", "x=1")
    assert code == 1
    code, out, _ = without_java(
        "--rows", "1", "-e", "SELECT id, at FROM words WHERE id < :x ORDER BY id", "--param", "x=3"
    )
    assert (code, "2020-10-01 06:00:00.000+00:00" in out, "shown: the first 1 row;" in out) == (
        0,
        True,
        True,
    )
    code, _, errors = without_java("-e", "SELECT id + 1 FROM words")
    assert (code, "Java" in errors) == (1, True)


def test_definitions_need_no_spark_and_may_come_through_a_pipe(tmp_path: Path) -> None:
    script = """
        CREATE TABLE words (id BIGINT, word STRING COMMENT 'a; word', PRIMARY KEY (id) NOT ENFORCED);
        -- a comment; with a semicolon
        SHOW TABLES;
    """
    code, out, errors = run("sql", "-w", str(tmp_path), "--json", given=script)
    assert (code, errors) == (0, "")
    assert [list(json.loads(line).values())[-1] for line in out.splitlines()] == ["words"]
    code, out, _ = run_here("sql", "-w", str(tmp_path), given="SHOW CREATE TABLE words;")
    assert (code, out) == (0, f"{Catalog(tmp_path).sql('SHOW CREATE TABLE words')}\n")
    code, out, _ = run_here("describe", "words", "-w", str(tmp_path))
    assert code == 0
    assert "a; word" in out


def test_a_definition_that_is_printed_makes_an_equal_table(tmp_path: Path) -> None:
    """Whatever is in a comment: what rich takes for an emoji, what ends a line, what commands a terminal.

    And whatever is between words, as tabs and the line ends of Windows.
    """
    comment = "a :heart: [b]\u2028c\x0cd\x1b[2Je\tf\rg\r\nh\\i\x85'"
    made = parse("CREATE TABLE t (id BIGINT, CHECK (id\t<>\r\n0), PRIMARY KEY (id) NOT ENFORCED)")
    assert isinstance(made, CreateTable)
    Table.create(str(tmp_path / "t"), replace(made.schema, comment=comment))
    code, out, _ = run_here("sql", "-e", "SHOW CREATE TABLE t", "-w", str(tmp_path))
    assert (code, "\x1b" in out) == (0, False)
    statement = parse(out)
    assert isinstance(statement, CreateTable)
    assert statement.schema.comment == comment
    assert [check.text for check in statement.schema.checks] == ["id\t<>\n0"]


def test_rows_are_written_and_read_by_a_script_and_an_error_names_its_place(
    tmp_path: Path, spark: SparkSession
) -> None:
    job = tmp_path / "job.sql"
    job.write_text(
        "CREATE TABLE words (id BIGINT, word STRING, PRIMARY KEY (id) NOT ENFORCED);\n"
        "INSERT INTO words VALUES (1, 'tea'), (2, NULL), (3, 'NaN');\n"
        "SELECT word, id FROM words ORDER BY id;\n"
        "CREATE TABLE copy AS SELECT id AS n FROM words WHERE word IS NULL;\n"
        "SELECT n, TIMESTAMP '9999-12-31 23:59:59-01:00' AS at, DATE '0001-01-01' AS day,"
        " map('a', X'00') AS m, parse_json('1') AS v, make_ym_interval(1, 2) AS `y.m`,"
        " array(make_interval(1)) AS l, n AS n FROM copy;\n"
        "SELECT wrong FROM words;\n"
    )
    with lent(spark):
        done = CliRunner().invoke(app, ["sql", str(job), "-w", str(tmp_path / "w"), "--json"])
    *lines, of_all_types = done.stdout.splitlines()
    assert [json.loads(line) for line in lines] == [
        {"word": "tea", "id": 1},
        {"word": None, "id": 2},
        {"word": "NaN", "id": 3},
    ]
    assert json.loads(of_all_types, object_pairs_hook=list) == [
        ("n", 2),
        ("at", "+10000-01-01T00:59:59+00:00"),
        ("day", "0001-01-01"),
        ("m", [["a", "00"]]),
        ("v", 1),
        ("y.m", "INTERVAL '1-2' YEAR TO MONTH"),
        ("l", "[1 years]"),
        ("n", 2),
    ]
    assert done.exit_code == 1
    assert "line 6" in json.loads(done.stderr.splitlines()[-1])["message"]


def test_a_job_runs_until_it_is_stopped_and_goes_on(tmp_path: Path, spark: SparkSession) -> None:
    """A table without a key would have a row twice that is read again."""
    warehouse = tmp_path / "w"
    catalog = Catalog(warehouse)
    catalog.sql("CREATE TABLE words (id BIGINT, word STRING, PRIMARY KEY (id) NOT ENFORCED)")
    catalog.sql("CREATE TABLE copies (id BIGINT, word STRING)")
    words = catalog.table("words")
    words.write(pa.table({"id": [1, 2, 3], "word": ["a", "b", "a"]}))
    job = tmp_path / "job.sql"
    job.write_text(
        "SET 'execution.runtime-mode' = 'streaming';\nSET 'pipeline.name' = 'copies';\n"
        "INSERT INTO copies SELECT id, upper(word) FROM words;\n"
    )

    def copies() -> list[str]:
        found = catalog.table("copies").snapshot().scan().to_pylist()
        return sorted(f"{row['id']} {row['word']}" for row in found)

    process = started("run", str(job), "-w", str(warehouse), "--json", *FLAGS)
    assert process.stdout is not None
    told = [json.loads(process.stdout.readline()) for _ in range(2)]
    process.send_signal(signal.SIGTERM)
    rest, errors = process.communicate(timeout=300)
    assert (process.returncode, copies()) == (0, ["1 A", "2 B", "3 A"]), errors
    told += [json.loads(line) for line in rest.splitlines()]
    assert [one["event"] for one in told if one["event"] != "micro-batch"] == ["started", "stopped"]
    assert [told[1][name] for name in ("event", "micro-batch", "rows", "state")] == [
        "micro-batch",
        0,
        3,
        "running",
    ]

    words.write(pa.table({"id": [1, 4], "word": ["b", "b"]}))
    again = Catalog(warehouse, optimize=planner.optimize)
    for statement in split_statements(job.read_text()):
        result = again.sql(statement.text, spark)
    assert isinstance(result, Running)
    result.query.processAllAvailable()
    result.query.stop()
    assert copies() == ["1 B", "2 B", "3 A", "4 B"]


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        pytest.param(
            *("spark.driver.memory=1x", "'Invalid maximum heap size: -Xmx1x'; correct the settings"),
            marks=pytest.mark.long,
        ),
        pytest.param(
            *("spark.driver.memory=1k", "'Too small maximum heap'; correct the settings"),
            marks=pytest.mark.long,
        ),
        (
            "spark.driver.extraJavaOptions=--add-modules=no.such",
            "'Module no.such not found'; set JAVA_HOME to a Java that has it, or correct the settings",
        ),
    ],
)
def test_a_jvm_that_cannot_start_is_one_line_with_its_reason(setting: str, reason: str) -> None:
    """Java tells some reasons in a second line, after one that says no more than that it could not start."""
    code, out, errors = run("sql", "-e", "SELECT 1", "--conf", setting)
    assert (code, out) == (1, "")
    (told,) = errors.splitlines()
    assert f"Spark's JVM must start, it ended with {reason}" in told


@pytest.mark.skipif(sys.platform == "darwin", reason="Java names files by UTF-8 there, whatever the locale")
def test_a_folder_of_temporary_files_that_java_cannot_name_is_refused(tmp_path: Path) -> None:
    """The JVM told in another folder, of a name with `?`, that it had started, and the command waited."""
    folder = tmp_path / "thé"
    folder.mkdir()
    command = [sys.executable, "-m", "deltajoin", "sql", "-w", str(tmp_path), "-e", "SELECT hash(1)"]
    of_user = {"TMPDIR": str(folder), "LC_ALL": "C"}
    done = subprocess.run(command, env=environment() | of_user, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, [*folder.iterdir()]) == (1, "", [])
    (told,) = done.stderr.splitlines()
    assert f"temporary files {str(folder)!r}: must have a name that Java can have in the locale" in told
    assert told.endswith("set LC_ALL to C.UTF-8, or TMPDIR to another folder")


@pytest.mark.long
def test_standard_input_may_be_closed(tmp_path: Path) -> None:
    """Python has none then: a query ended with the trace of an AttributeError."""

    def told(*arguments: str) -> tuple[int, str, str]:
        command = ["sh", "-c", 'exec "$@" <&-', "sh", sys.executable, "-m", "deltajoin", "sql"]
        done = subprocess.run(
            [*command, "-w", str(tmp_path), *arguments],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=600,
        )
        return done.returncode, done.stdout, done.stderr

    assert told("--json", "-e", "SELECT 7 AS n")[:2] == (0, '{"n": 7}\n')
    code, _, errors = told()
    assert (code, "through standard input, which is closed; give a file or -e" in errors) == (1, True)


def test_a_job_without_a_stream_is_refused_before_anything_is_executed(tmp_path: Path) -> None:
    job = tmp_path / "job.sql"
    job.write_text("CREATE TABLE t (id INT); SET 'execution.runtime-mode' = 'batch'")
    code, out, errors = run_here("run", str(job), "-w", str(tmp_path / "w"))
    assert (code, out) == (1, "")
    assert "must start a streaming query" in errors
    assert not (tmp_path / "w").exists()
