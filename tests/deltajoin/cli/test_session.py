"""The session of a command: --param, and what of Spark's settings counts."""

import os
import subprocess
import sys
from pathlib import Path
from typing import cast

import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from typer.testing import CliRunner

from deltajoin.cli.app import app
from deltajoin.cli.command import Output
from deltajoin.cli.session import Session, unsaid
from tests.helpers import use_this_python
from upsert import Catalog
from upsert.spark.java import java_of


def test_values_of_parameters_come_from_the_command_line(tmp_path: Path) -> None:
    """Each statement takes its own; one that no statement has is refused before any is executed."""
    catalog = Catalog(tmp_path)
    catalog.sql("CREATE TABLE words (id BIGINT, word STRING, PRIMARY KEY (id) NOT ENFORCED)")
    catalog.table("words").write(pa.table({"id": [1, 2, 3, 4], "word": ["a", "007", "O'Brien", "7"]}))

    def run(text: str, *given: str) -> tuple[int, str]:
        values = (one for value in given for one in ("--param", value))
        done = CliRunner().invoke(app, ["sql", "-w", str(tmp_path), "-e", text, *values])
        return done.exit_code, done.stderr

    text = "SHOW TABLES; DELETE FROM words WHERE word = :w OR word = :v; DELETE FROM words WHERE id = :id"
    code, told = run(text, "w=007", "v=O'Brien", "id=1", "idd=2")
    assert code != 0
    assert (
        "--param idd: a statement must have the parameter :idd, none has; parameters are :id, :v, :w" in told
    )
    assert catalog.table("words").snapshot().id == 1
    assert run(text, "w=007", "v=O'Brien", "id=1") == (0, "")
    assert catalog.table("words").snapshot().scan()["id"].to_pylist() == [4]
    code, told = run("DELETE FROM words WHERE id = :id")
    assert "parameter :id must have a value, args has none" in told
    code, told = run("SHOW TABLES", "id")
    assert "option --param must read name=value, got 'id'; for example least=3" in told


def test_a_stream_that_was_cancelled_before_it_was_known_is_stopped(tmp_path: Path) -> None:
    """Its first rows come from another thread, so Ctrl-C can be pressed while it still starts."""
    stops: list[None] = []

    class Query:
        def stop(self) -> None:
            stops.append(None)

    session = Session(str(tmp_path), Output())
    session.cancel()
    query = cast("StreamingQuery", Query())
    with pytest.raises(KeyboardInterrupt), session._showing(query):
        pytest.fail("it would be waited for, for ever")
    assert len(stops) == 1


@pytest.mark.spark
def test_what_sparks_own_configuration_says_counts_more_than_defaults(spark: SparkSession) -> None:
    """``spark-defaults.conf`` comes as properties of the JVM; what the user gives the command is left out."""
    name, properties = "spark.deltajoin.test", java_of(spark).java.lang.System
    defaults = {name: "3", "spark.deltajoin.other": "4", "spark.deltajoin.given": "5", "spark.app.name": "d"}
    properties.setProperty(name, "7")
    before = properties.getProperty("spark.app.name")
    properties.setProperty("spark.app.name", "pyspark-shell")  # as Spark does where there is no name
    try:
        left = {"spark.deltajoin.other": "4", "spark.app.name": "d"}
        assert unsaid(defaults, {"spark.deltajoin.given": "6"}) == left
    finally:
        properties.clearProperty(name)
        properties.setProperty("spark.app.name", before)


TELL = """
import sys
from deltajoin.cli.command import Output
from deltajoin.cli.session import Session

session = Session(sys.argv[1], Output(), ["spark.sql.shuffle.partitions=7"])
conf = session.spark.sparkContext.getConf()
keys = ["app.name", "ui.showConsoleProgress", "sql.shuffle.partitions", "ui.enabled", "ui.retainedJobs"]
keys.append("python.daemon.module")
print([conf.get(f"spark.{key}") for key in keys])
session.close()
"""


@pytest.mark.long
@pytest.mark.spark
def test_settings_come_from_the_command_line_then_from_sparks_files_then_from_the_command(
    tmp_path: Path,
) -> None:
    own = "spark.app.name ours\nspark.ui.showConsoleProgress false\nspark.sql.shuffle.partitions 5\n"
    (tmp_path / "spark-defaults.conf").write_text(own)
    given = "--conf spark.ui.showConsoleProgress=true --conf spark.ui.retainedJobs=9 pyspark-shell"
    environment = {**os.environ, "SPARK_CONF_DIR": str(tmp_path), "PYSPARK_SUBMIT_ARGS": given}
    use_this_python(environment)
    command = [sys.executable, "-c", TELL, str(tmp_path / "warehouse")]
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert told.stdout.splitlines()[-1] == "['ours', 'true', '7', 'false', '9', 'deltajoin_daemon']"


@pytest.mark.spark
@pytest.mark.long
def test_without_any_settings_the_command_names_itself_and_shows_no_bars(tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "PYSPARK_SUBMIT_ARGS"}
    use_this_python(environment)
    command = [sys.executable, "-c", TELL, str(tmp_path / "warehouse")]
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert told.stdout.splitlines()[-1] == "['deltajoin', 'false', '7', 'false', None, 'deltajoin_daemon']"


def test_java_is_asked_before_the_first_statement_of_a_text_that_will_need_it(tmp_path: Path) -> None:
    """So the JVM starts meanwhile. A Java that is missing is told where Spark is needed, and not before."""
    program = tmp_path / "java" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho asked >> {tmp_path}/asked\necho 'openjdk version \"17\"' >&2\n")
    program.chmod(0o755)
    text = (
        "CREATE TABLE t (k INT, PRIMARY KEY (k) NOT ENFORCED); USE DATABASE no; REFRESH MATERIALIZED VIEW v"
    )
    for home, is_asked in ((str(program.parents[1]), True), ("/nowhere", False)):
        command = [sys.executable, "-m", "deltajoin", "sql", "-w", str(tmp_path / str(is_asked)), "-e", text]
        environment = {**os.environ, "JAVA_HOME": home}
        told = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert "CREATE TABLE t: created" in told.stdout
        assert "'no'" in told.stderr
        assert "Java" not in told.stderr
        assert (tmp_path / "asked").exists() == is_asked
        (tmp_path / "asked").unlink(missing_ok=True)


BEGIN = """
import os, sys, tempfile
from deltajoin.cli.command import Output
from deltajoin.cli.session import Session

session = Session(sys.argv[1], Output())
session.begin_jvm()
process = session._starting._process
began = os.listdir(tempfile.gettempdir())
outputs = [os.readlink(f"/proc/{pid}/fd/1") for pid in (os.getpid(), process.pid)]
session.close()
print(len(began), process.returncode is not None, os.listdir(tempfile.gettempdir()), len({*outputs}))
"""


def test_a_jvm_that_no_statement_has_needed_ends_with_the_session(tmp_path: Path) -> None:
    """And who reads what the command prints does not wait for a JVM that ends later."""
    (tmp_path / "temporary").mkdir()
    environment = {**os.environ, "TMPDIR": str(tmp_path / "temporary")}
    command = [sys.executable, "-c", BEGIN, str(tmp_path / "warehouse")]
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert (told.stdout, told.stderr) == ("1 True [] 2\n", "")


UNUSED = """
import os, sys, time
from deltajoin.cli.command import Output
from deltajoin.cli.session import Session

for _ in "12":
    session = Session(sys.argv[1], Output())
    session.begin_jvm()
    while not os.path.isfile(session._starting._told):
        time.sleep(0.02)
    session.close()
print(os.listdir(sys.argv[2]))
"""


@pytest.mark.long
def test_a_jvm_that_no_statement_has_needed_keeps_no_classes(tmp_path: Path) -> None:
    """It has loaded too few: each later start took those for a month, and loaded all others again."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    environment.pop("SPARK_SUBMIT_OPTS")
    folder = tmp_path / "deltajoin" / "classes"
    command = [sys.executable, "-c", UNUSED, str(tmp_path / "warehouse"), str(folder)]
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert (told.stdout, told.stderr) == ("[]\n", "")


CANCELLED = """
import sys, threading, time
from deltajoin.cli.command import Output
from deltajoin.cli.session import Session

def cancel():
    while session._starting is None:
        time.sleep(0.02)
    while not ended.wait(0.02):
        session.cancel()

session, ended = Session(sys.argv[1], Output()), threading.Event()
threading.Thread(target=cancel).start()
for _ in "12":
    try:
        session.run_script("SELECT max(1)")
    except KeyboardInterrupt:
        print("cancelled", session._starting is not None)
ended.set()
session.close()
"""


def test_a_statement_that_waits_for_the_jvm_can_be_cancelled(tmp_path: Path) -> None:
    """Ctrl-C had no effect until Spark had started. The JVM goes on to start, for the next statement."""
    program = tmp_path / "java" / "bin" / "java"
    program.parent.mkdir(parents=True)
    version, launched = 'openjdk version "17"', r"\0\nsleep\0003600\000"
    program.write_text(
        f"#!/bin/sh\ncase \"$*\" in *-version) echo '{version}' >&2;; *) printf '{launched}';; esac\n"
    )
    program.chmod(0o755)
    environment = {**os.environ, "JAVA_HOME": str(program.parents[1])}
    command = [sys.executable, "-c", CANCELLED, str(tmp_path / "warehouse")]
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    assert (told.stdout, told.stderr) == ("cancelled True\n" * 2, "")


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("PYSPARK_SUBMIT_ARGS", "--conf 'a=1 pyspark-shell", "a quote that is not closed; close it"),
        ("SPARK_HOME", "/nowhere", "'/nowhere/bin/spark-submit': No such file or directory"),
    ],
)
def test_a_jvm_that_cannot_be_started_is_told_where_it_is_needed_and_leaves_nothing(
    name: str, value: str, reason: str, tmp_path: Path
) -> None:
    (tmp_path / "temporary").mkdir()
    environment = {**os.environ, "TMPDIR": str(tmp_path / "temporary"), name: value}
    text = "CREATE TABLE t (k INT, PRIMARY KEY (k) NOT ENFORCED); SELECT 1 AS n UNION SELECT 2"
    command = [sys.executable, "-m", "deltajoin", "sql", "-w", str(tmp_path / "warehouse"), "-e", text]
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (told.returncode, told.stdout) == (1, "CREATE TABLE t: created\n")
    (line,) = told.stderr.splitlines()
    assert reason in line
    assert os.listdir(tmp_path / "temporary") == []


@pytest.mark.long
@pytest.mark.spark
def test_the_command_may_be_started_by_spark_submit(tmp_path: Path) -> None:
    """Its JVM is there, and PySpark not connected: a thread failed with a trace of Python."""
    program = tmp_path / "program.py"
    program.write_text("from deltajoin_command import main\nmain()\n")
    environment = {**os.environ}
    use_this_python(environment)
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    command = [submit, "--master", "local[1]", program, "sql", "--json", "-e", "SELECT max(7) AS n"]
    told = subprocess.check_output(command, env=environment, text=True, cwd=tmp_path, timeout=300)
    assert told.splitlines()[-1] == '{"n": 7}'
    assert "Traceback" not in told  # `spark-submit` writes what a program says of errors there too


def test_statements_that_are_no_queries_load_no_planner(tmp_path: Path) -> None:
    program = """
import sys
from deltajoin.cli.command import Output
from deltajoin.cli.session import Session

session = Session(sys.argv[1], Output())
session.run_script("CREATE TABLE t (k INT, PRIMARY KEY (k) NOT ENFORCED); INSERT INTO t VALUES (1)")
print([name for name in sys.modules if name.startswith("planner")], session.catalog.context.takes_requests)
"""
    command = [sys.executable, "-c", program, str(tmp_path / "warehouse")]
    told = subprocess.run(command, capture_output=True, text=True, check=True)
    assert told.stdout.splitlines()[-1] == "[] True"
