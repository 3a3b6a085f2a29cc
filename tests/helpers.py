"""Shorthand that several test files share."""

import contextlib
import io
import math
import os
import runpy
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import SparkSession

from tests.forked_python import forked_python
from upsert.flock import locked
from upsert.rowkind import ROW_KIND_COLUMN

REPOSITORY = Path(__file__).parents[1]

MODULES = ("pyspark_upsert_table.py", "deltajoin_command.py", "deltajoin_daemon.py")
"""What is installed beside the packages: where Spark finds the format, the command begins, and workers do."""

CLASSES = Path(sys.prefix) / "spark-classes.jsa"
"""Spark's classes as `make test` keeps them, see scripts/class_archive.py; other runs may do without."""


def wait_until(is_true: Callable[[], object], seconds: float = 120) -> None:
    """Wait for another thread or process, up to a limit that only a broken one reaches."""
    deadline = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def files_open_in(folder: Path) -> list[str]:
    """The files in a folder, of any depth, that this process has open."""
    opened = set[str]()
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of this listing, or closed by another thread
            opened.add(os.readlink(f"/proc/self/fd/{descriptor}"))
    return sorted(file for file in opened if file.startswith(f"{folder.resolve()}/"))


def fetched_once(name: str, fetch: Callable[[Path], Path]) -> Path:
    """A folder below `~/.cache/deltajoin` that appears whole; `fetch` is given one and says what is in it."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "deltajoin"
    base.mkdir(parents=True, exist_ok=True)
    with locked(base / f"{name}.lock"):
        if not (base / name).is_dir():
            with tempfile.TemporaryDirectory(dir=base) as part:
                os.rename(fetch(Path(part)), base / name)
    return base / name


def _jvm_options(classes: Path) -> str:
    """For the JVM of every Spark that a test starts, as `SPARK_SUBMIT_OPTS`.

    It runs most of its code a few times: the optimizing compiler takes more than half of all processor time,
    and gives none back. And Spark's default writes a checkpoint in a local folder by way of ten child
    processes a micro-batch, and tells its page of queries each plan in the longest form, also where it has
    no page: a tenth of its processor time. Without that compiler Java keeps 48 MB of compiled code, which
    the generated classes of a long run fill: then code is thrown away and interpreted again, up to eight
    times slower.
    Its metaspace begins at what Spark loads at once, for whatever grows it collects the whole heap first.
    """
    options = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC -XX:MetaspaceSize=256m"
    if classes.exists() and " " not in str(classes):
        # An archive of another Java or other jars is not used, which would be told on standard output.
        options += f" -XX:SharedArchiveFile={classes} -Xlog:cds=off -Xlog:cds+dynamic=off"
    return (
        f'{options} "-Dspark.executor.extraJavaOptions={options}" '
        "-Dspark.sql.streaming.checkpointFileManagerClass="
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager "
        "-Dspark.sql.ui.explainMode=simple"
    )


JVM_OPTIONS = _jvm_options(CLASSES)

SESSION_OPTIONS: Mapping[str, str] = {
    # Each join, aggregate and sort of each task takes a page first: 32 MB of a heap of 2 GB, for a few rows.
    "spark.buffer.pageSize": "1m",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.pollingDelay": "50ms",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}

LOCAL_CLUSTER = "local-cluster[2,1,1024]"


def use_this_python(environment: MutableMapping[str, str], *, forked: bool = False) -> None:
    """Let Spark's Python workers be this interpreter, started or forked, and find this checkout."""
    python = forked_python() if forked else sys.executable
    environment["PYSPARK_PYTHON"] = environment["PYSPARK_DRIVER_PYTHON"] = python
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    if str(REPOSITORY) not in paths:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(REPOSITORY), *paths)))


def spark_script(
    script: Path,
    *arguments: object,
    master: str = "local[2]",
    environment: Mapping[str, str] = {},
    forked: bool = True,
) -> subprocess.Popen[str]:
    """A started process that runs a Python file; `SparkSession.builder.getOrCreate()` in it gets `master`.

    For what one session cannot do: another master (`LOCAL_CLUSTER`: two executor processes), or a driver
    that gets killed. Its output is one text stream, standard error included. With ``forked=False`` Spark
    starts its Python processes itself, as it does for a user.
    """
    variables = {**os.environ, "SPARK_HOME": str(Path(pyspark.__file__).parent), **environment}
    use_this_python(variables, forked=forked and master.startswith("local["))
    options = " ".join(f"--conf {key}={value}" for key, value in SESSION_OPTIONS.items())
    variables["PYSPARK_SUBMIT_ARGS"] = f"--master {master} {options} pyspark-shell"
    return subprocess.Popen(
        [sys.executable, str(script), *map(str, arguments)],
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run_spark_script(script: Path, *arguments: object, master: str = "local[2]", forked: bool = True) -> str:
    """The output of a Python file that was run to its end as `spark_script` does; it must succeed."""
    process = spark_script(script, *arguments, master=master, forked=forked)
    output = output_of(process)
    assert process.returncode == 0, output
    return output


def output_of(process: subprocess.Popen[str]) -> str:
    """What a process says until it ends; one that has not ended in ten minutes hangs, on any machine."""
    try:
        output, _ = process.communicate(timeout=600)
    finally:
        process.kill()
    return output


def snippet(text: str, folder: Path) -> Path:
    """A file with a program from the docs."""
    program = folder / "snippet.py"
    program.write_text(text)
    return program


def run_program(program: Path, folder: Path, given: str = "") -> str:
    """Standard output of a program that was run in a folder, in a process of its own; it must succeed."""
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
    use_this_python(environment)
    run = subprocess.run(
        [sys.executable, str(program)],
        cwd=folder,
        env=environment,
        input=given,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def run_in_session(
    program: Path, folder: Path, spark: SparkSession, given: str = "", **variables: str
) -> str:
    """Standard output of a program that was run in a folder, in this process and in a session that runs.

    It saves the start of a JVM. The program's environment variables are gone again afterwards.
    """
    output = io.StringIO()
    with (
        lent(spark),
        _jvm_in(spark, folder),
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(output),
    ):
        patch.chdir(folder)
        patch.setattr(os, "environ", os.environ.copy() | variables)
        patch.setattr(sys, "stdin", io.StringIO(given))
        runpy.run_path(str(program), run_name="__main__")
    return output.getvalue()


@contextlib.contextmanager
def _jvm_in(spark: SparkSession, folder: Path) -> Iterator[None]:
    """Let Spark take relative paths as below a folder; the JVM has a working directory of its own."""
    hadoop = spark._jvm.org.apache.hadoop.fs
    files = hadoop.FileSystem.get(spark._jsc.hadoopConfiguration())
    before = files.getWorkingDirectory()
    files.setWorkingDirectory(hadoop.Path(str(folder)))
    try:
        yield
    finally:
        files.setWorkingDirectory(before)


@contextlib.contextmanager
def lent(spark: SparkSession) -> Iterator[None]:
    """What runs within gets the session by `SparkSession.builder.getOrCreate()`, and cannot stop it.

    Options, views and queries that it leaves behind are gone again afterwards.
    """
    before = dict(spark.conf.getAll)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SparkSession, "stop", lambda _: None)
        try:
            yield
        finally:
            _tidy(spark, before)


def _tidy(spark: SparkSession, options: Mapping[str, str]) -> None:
    for query in spark.streams.active:
        query.stop()
    for view in spark.catalog.listTables():
        if view.isTemporary:
            spark.catalog.dropTempView(view.name)
    now = spark.conf.getAll
    for name in now.keys() - options.keys():
        spark.conf.unset(name)
    for name, value in options.items():  # also one that was unset: two partitions of a shuffle became 200
        if now.get(name) != value:
            spark.conf.set(name, value)


def built_wheel(folder: Path) -> Path:
    """The wheel of this checkout, built by the setuptools of this environment.

    From links to the sources, since a build leaves folders behind.
    """
    folder.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        (folder / name).symlink_to(REPOSITORY / name)
    for name in ("deltajoin", "planner", "upsert", *MODULES):
        (folder / name).symlink_to(REPOSITORY / name)
    for name in ("tests", "bench", "examples", "scripts"):  # not to be in it
        (folder / name).symlink_to(REPOSITORY / name)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder / "dist")]
    done = subprocess.run([*command, str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = (folder / "dist").glob("*.whl")
    return built


def changelog(schema: pa.Schema, *lines: str) -> pa.Table:
    """Signed rows from lines like `+I 1 apple NULL`: kind, then one word per column.

    >>> changelog(pa.schema({"id": pa.int64(), "name": pa.string()}), "+I 1 apple", "-D 2 NULL").to_pylist()
    [{'id': 1, 'name': 'apple', '_row_kind': '+I'}, {'id': 2, 'name': None, '_row_kind': '-D'}]
    """
    words = [line.split() for line in lines]
    columns = {
        field.name: pa.array([None if w[i] == "NULL" else w[i] for w in words], pa.string()).cast(field.type)
        for i, field in enumerate(schema, start=1)
    }
    columns[ROW_KIND_COLUMN] = pa.array([w[0] for w in words], pa.string())
    return pa.table(columns)


def of_kind(rows: pa.Table, kind: str) -> pa.Table:
    """The rows as changes of one kind.

    >>> of_kind(pa.table({"id": [1, 2]}), "-D").to_pylist()
    [{'id': 1, '_row_kind': '-D'}, {'id': 2, '_row_kind': '-D'}]
    """
    return rows.append_column(ROW_KIND_COLUMN, pa.array([kind] * rows.num_rows, pa.string()))


def sort_key(value: Any) -> Any:
    """What Python sorts by as Spark and the store do: NaN last, texts by their UTF-8 bytes."""
    if isinstance(value, float):
        return (math.isnan(value), 0.0 if math.isnan(value) else value)
    return value.encode() if isinstance(value, str) else value


def processes_that_mention(text: str) -> list[str]:
    """Id and command line of each process of the machine that has the text in its command line."""
    listing = subprocess.run(["ps", "-ww", "-eo", "pid,args"], capture_output=True, text=True, check=True)
    return [line for line in listing.stdout.splitlines() if text in line]


def multiset(rows: pa.Table, columns: Sequence[str] | None = None) -> Counter[tuple[Any, ...]]:
    """How often each row occurs, for comparing results whose order does not matter.

    >>> multiset(pa.table({"a": [1, 2, 1]}))
    Counter({(1,): 2, (2,): 1})
    """
    chosen = rows.select(columns) if columns is not None else rows
    return Counter(zip(*(column.to_pylist() for column in chosen.columns), strict=True))
