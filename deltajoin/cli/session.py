"""The session of a command: its catalog, Spark when a statement first needs it, and what statements give."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import pyarrow as pa
from rich.console import Console, Group
from rich.live import Live as LiveView
from rich.text import Text

import deltajoin_daemon
from deltajoin.cli.command import Output, has_terminal
from deltajoin.cli.java import checked_java, kept_classes
from upsert import Catalog
from upsert.catalog.results import (
    Done,
    Found,
    Frame,
    Live,
    PlanText,
    Result,
    Rows,
    Running,
    RunningSet,
    many,
    only_text,
)
from upsert.catalog.script import split_statements
from upsert.catalog.session import RUNTIME_MODE
from upsert.errors import ConfigurationError, own_errors_first
from upsert.show.terminal import RowGrid
from upsert.show.values import rows_of
from upsert.sql.parameters import bound, parameters, written
from upsert.sql.parser import parse
from upsert.sql.statements import CreateView, KeepMirror, RefreshView, SetOption

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from upsert.catalog.query_recorder import QueryRecorder
    from upsert.spark.jvm import StartingJvm
    from upsert.sql.statements import Statement

Given = TypeVar("Given")

_NAME: Final = "spark.app.name"
_NO_NAME: Final = "pyspark-shell"
"""What Spark calls an application of Python's that has no name."""
_SETTINGS: Final = {
    "spark.master": "local[*]",
    _NAME: "deltajoin",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": str(os.cpu_count() or 2),
    "spark.python.sql.dataFrameDebugging.enabled": "false",
}
"""Where neither the user nor Spark's own configuration says otherwise.

200 partitions suit a cluster only. And to tell errors the line in Python of each part of a query takes ten
calls into the JVM a part, where here all that a user wrote is SQL.
"""
_DAEMON: Final = {"spark.python.daemon.module": deltajoin_daemon.__name__}
"""For workers of this Python, where it is known that the module is there."""
_PATIENCE_S: Final = 1.0
"""After which a statement says that it runs."""
_LOG_LEVEL: Final = "spark.log.level"
_JOBS: Final = "deltajoin-statement"
"""The group of the jobs of statements, by which they are cancelled."""
_QUIET_LOG: Final = Path(__file__).with_name("log4j2.properties")
_JVM_OPTIONS: Final = "SPARK_SUBMIT_OPTS"
_NO_PROGRESS: Final = "-Dspark.ui.showConsoleProgress=false"
_NOT_AMONG_ROWS: Final = "-XX:+DisplayVMOutputToStderr"
"""A JVM that cannot start says the reason of some failures, such as a heap too large, on standard output."""
"""As a property of the JVM it counts less than what users say, but more than what Spark says for Python."""
_MEANS_SPARK: Final = re.compile(
    r"\s*(?:REFRESH|EXPLAIN|CREATE\s+MATERIALIZED|(?:EXECUTE|BEGIN)\s+STATEMENT"
    r"|(?:INSERT|UPDATE|DELETE|CREATE\s+(?:OR\s+REPLACE\s+)?TABLE)\b.*\bSELECT"
    r"|MERGE\b.*\bJOIN|(?:SELECT|MERGE)\b.*\b(?:(?:CROSS|NATURAL)\s+JOIN|UNION|OVER"
    r"|GROUP\s+BY\s+(?:ALL|(?:(?!HAVING|ORDER|LIMIT)[^(])*\()))\b",
    re.IGNORECASE | re.DOTALL,
)
"""See `means_spark`."""
SHOWN_ROWS: Final = 1_000
"""Rows of a batch that a table shows; with --json all are printed."""
_REFRESH_S: Final = 0.5
_SLOW_CLASS: Final = "org.apache.spark.sql.ml.InternalFunctionRegistration$"
"""What the first session of a JVM initializes, with Scala's library for types: as long as the rest."""


@dataclass(frozen=True)
class _Job:
    """A statement that started a query, None for none, and the options and the database that it ran with."""

    statement: Statement | None
    options: Mapping[str, str]
    catalog: str
    database: str

    @classmethod
    def of(cls, statement: Statement | None, catalog: Catalog) -> Self:
        if isinstance(statement, CreateView):
            statement = RefreshView(statement.name)  # it exists
        return cls(statement, dict(catalog.options), catalog.databases.catalog, catalog.databases.current)

    def restore(self, catalog: Catalog) -> None:
        catalog.options.clear()
        catalog.options.update(self.options)
        catalog.catalogs.use(self.catalog)
        catalog.databases.use(self.database)


class Session:
    """A catalog, and Spark for what needs it; executes statements and shows the result of each.

    Args:
        conf: Spark settings as ``key=value``.
        master: Spark's master, such as ``local[*]``.
        rows: how many rows of a batch a table shows.
        params: values for parameters of statements, as ``name=value``.

    Attributes:
        started: the queries that streaming statements have started, in their order.
        stopped: has something in it from when the command is being stopped.
    """

    def __init__(
        self,
        warehouse: str,
        output: Output,
        conf: Sequence[str] = (),
        master: str | None = None,
        *,
        rows: int = SHOWN_ROWS,
        params: Sequence[str] = (),
    ) -> None:
        self._conf = dict(map(_setting, conf))
        self._master = master
        self._warehouse = warehouse
        self._output = output
        self._rows = rows
        self._params = dict(map(_param, params))
        self._shown: list[StreamingQuery] = []
        self._is_cancelled = False
        self._recorder: QueryRecorder | None = None
        self._starting: StartingJvm | None = None
        self._jobs: list[_Job] = []
        self.started: list[StreamingQuery] = []
        self.stopped: Sequence[int] = ()

    @cached_property
    def catalog(self) -> Catalog:
        """The catalog, whose streams become delta joins."""
        catalog = Catalog(self._warehouse, optimize=_optimize)
        catalog.context.settings = self._conf
        catalog.context.gives_rows = True
        return catalog

    @cached_property
    def spark(self) -> SparkSession:
        """Spark; starting it takes some seconds."""
        from upsert.spark.jvm import quiet_when_it_ends
        from upsert.spark.settings import configure

        with Console(stderr=True).status("starting Spark …"):
            self.begin_jvm()
            _load_meanwhile()
            self._connect()
            session = self._new_session()
        if not session.sparkContext.getConf().contains(_LOG_LEVEL):
            session.sparkContext.setLogLevel("OFF")
        session = configure(session)
        self._recorder = self.catalog.record_queries(session)
        self._recorder.is_stopping = lambda: bool(self.stopped)
        quiet_when_it_ends(session.sparkContext)
        return session

    def begin_jvm(self) -> None:
        """Let Spark's JVM start, unless there is one: `spark` waits for it, and `close` ends it unused."""
        from pyspark import SparkConf

        from upsert.spark.jvm import begun_jvm

        if self._has_spark or self._starting is not None:
            return
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # its workers run this, not sys.executable
        java = checked_java(os.environ)
        classes = kept_classes(java, os.environ, self._conf, makes=has_terminal())
        with _jvm_options(self._conf, [*java.options, *classes]):
            self._starting = begun_jvm(SparkConf(loadDefaults=False).setAll([*self._given.items()]))

    def _connect(self) -> None:
        """Wait for the JVM; if `cancel` ends the wait, the next statement that needs it goes on to wait."""
        starting, self._starting = self._starting, None
        if starting is None:
            return
        try:
            starting.connect(self._go_on)
        except KeyboardInterrupt:
            self._starting = starting
            raise

    @property
    def _given(self) -> dict[str, str]:
        """The settings that the user gives the command."""
        return self._conf if self._master is None else {"spark.master": self._master} | self._conf

    def _new_session(self) -> SparkSession:
        from pyspark.logger import PySparkLogger
        from pyspark.sql import SparkSession

        from upsert.spark.jvm import initialize_beside

        initialize_beside(_SLOW_CLASS)
        # it prints a page of the JVM's stack for each error, which the command tells in one line
        PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True
        settings = unsaid(_SETTINGS, self._given) | self._given
        builder = SparkSession.builder
        for key, value in (_daemon_of_workers(settings) | settings).items():
            builder = builder.config(key, value)
        return builder.getOrCreate()

    def _with_spark_if_needed(self, execute: Callable[[SparkSession | None], Given]) -> Given:
        from upsert.catalog.run.jobs import SparkNeededError

        if not self._has_spark:
            with suppress(SparkNeededError):
                return execute(None)
        if type(self.spark).getActiveSession() is None:
            # the data sources of a session are found in threads where it is active, which this makes it
            self.spark.createDataFrame([], "a INT")
        self._go_on()  # Spark takes seconds to start
        # streams that run have groups of their own, so they go on when a statement is cancelled
        self.spark.sparkContext.setJobGroup(_JOBS, "a statement")
        with _shown_if_long():
            return execute(self.spark)

    @property
    def _has_spark(self) -> bool:
        return "spark" in self.__dict__

    def close(self) -> None:
        """Stop the queries that run, and Spark."""
        if self._starting is not None:
            self._starting.end()
        if self._has_spark:
            from upsert.spark.jvm import stop_without_a_wait, unless_it_ends

            with unless_it_ends():
                for query in self.spark.streams.active:
                    query.stop()
            if self._recorder is not None:
                self._recorder.close()
            stop_without_a_wait(self.spark.sparkContext)
            with unless_it_ends():
                self.spark.stop()

    def run_script(self, text: str) -> None:
        """Execute all statements of a text; stops at the first error."""
        self._is_cancelled = False
        if self._params:
            self._check_params([parse(statement.text) for statement in split_statements(self._read(text))])
        if any(means_spark(statement.text) for statement in split_statements(text)):
            with suppress(ConfigurationError, OSError):  # it is told where Spark is needed
                self.begin_jvm()
        for statement in split_statements(text):
            self._go_on()
            self.run(statement.text)

    def plan_script(self, text: str) -> list[Callable[[], Result]]:
        """Execute all statements of a text but its INSERTs; returns what runs those, in their order.

        So no query starts before all of them are known to be possible. Of a text that can start none, nothing
        is executed.
        """
        # each must be a statement before any is executed
        parsed = [parse(statement.text) for statement in split_statements(self._read(text))]
        self._check_params(parsed)
        if not any(map(_lets_queries_start, parsed)):
            return []
        self.begin_jvm()
        found: list[Callable[[], Result]] = []
        for one in [bound(one, self._args(one)) for one in parsed]:
            before = len(self.started)
            starts, job = self._planned(one), _Job.of(one, self.catalog)
            found += [partial(self._remembered, start, job) for start in starts]
            self._jobs += [job] if len(self.started) > before else []
        return found

    def _read(self, text: str) -> str:
        """A text with the values of Spark's variables; only a text that has any starts Spark for it."""
        from upsert.catalog.run.jobs import read_by

        return self._with_spark_if_needed(partial(read_by, text=text)) if "${" in text else text

    def _remembered(self, start: Callable[[], Result], job: _Job) -> Result:
        """Run what `plan_script` gave; if that starts a query, `restart` starts it again."""
        result = start()
        if isinstance(result, Running | RunningSet):
            self._jobs.append(job)
        return result

    def restart(self) -> None:
        """Stop the queries of `plan_script`, plan them again, each as it was planned then, and start them.

        Statements that started no query, such as a CREATE TABLE or an INSERT of a batch, are not repeated.
        """
        for query in self.started:
            query.stop()
        self.started.clear()
        after = _Job.of(None, self.catalog)
        found = []
        try:
            for job in self._jobs:
                job.restore(self.catalog)
                found += self._planned(job.statement) if job.statement is not None else []
        finally:
            after.restore(self.catalog)
        self.run_planned(found)

    def _planned(self, statement: Statement) -> list[Callable[[], Result]]:
        """What starts the queries of a statement; any other one is executed, and its result is shown."""
        from upsert.catalog.run import dispatch

        self._go_on()
        with own_errors_first():
            planned = self._with_spark_if_needed(partial(dispatch.planned, self.catalog.context, statement))
        if not isinstance(planned, Result):
            return [planned]
        self._show(planned)
        return []

    def run_planned(self, planned: Sequence[Callable[[], Result]]) -> None:
        """Run what `plan_script` gave."""
        for start in planned:
            self._go_on()
            with own_errors_first():
                result = start()
            self._show(result)

    def _args(self, statement: Statement) -> dict[str, Any] | None:
        """The values for the parameters of one statement."""
        names = parameters(statement)
        return {name: value for name, value in self._params.items() if name in names} or None

    def _check_params(self, statements: Sequence[Statement]) -> None:
        """Refuse a value that no statement of a text has a parameter for."""
        known = {name for statement in statements for name in parameters(statement)}
        if unused := next((name for name in self._params if name not in known), None):
            listed = ", ".join(f":{name}" for name in sorted(known))
            raise ConfigurationError(
                f"--param {unused}: a statement must have the parameter :{unused}, none has; "
                + (f"parameters are {listed}" if known else "write it into one, or leave the option out")
            )

    def _go_on(self) -> None:
        if self._is_cancelled:
            raise KeyboardInterrupt

    def cancel(self) -> None:
        """End what another thread executes: a statement's jobs, the stream that it shows, what follows."""
        self._is_cancelled = True
        if self._has_spark:
            from upsert.spark.jvm import unless_it_ends

            with unless_it_ends():
                for query in [*self._shown]:
                    query.stop()
                self.spark.sparkContext.cancelJobGroup(_JOBS)

    def run(self, text: str) -> None:
        """Execute one statement and show what it gives; a stream is shown until `cancel` stops it."""
        text = self._read(text)
        args = self._args(parse(text)) if self._params else None
        self._show(self._with_spark_if_needed(partial(self.catalog.sql, text, args=args)))

    @own_errors_first()
    def _show(self, result: Result) -> None:
        match result:
            case Done():
                self._output.say(f"{result.statement}: {result.note}")
            case Found(rows=rows):
                self._show_first(rows)
            case PlanText() if not self._output.as_json:
                self._output.plan(result.lines, result.warned)
            case Rows() if not self._output.as_json and (text := only_text(result.rows)) is not None:
                self._output.plan(text.replace("\r\n", "\n").split("\n"), ())
            case Rows():
                self._output.table(result.rows)
            case Running(query=query):
                self.started.append(query)
                self._output.say(f"{result.statement}: runs, checkpoint {result.checkpoint}")
            case RunningSet(runs=runs):
                for run in runs:
                    self._show(run)
            case Live():
                self._show_live(result)
            case Frame(df=df) if df.isStreaming:
                self._show_changes(df)
            case Frame(df=df):
                self._show_batch(df)

    def _show_batch(self, df: DataFrame) -> None:
        from upsert.spark.batches import arrow_of, parts_of, with_texts

        df = with_texts(df)
        if self._output.as_json:
            for part in parts_of(df):
                self._go_on()
                self._output.table(part)
            return
        with _shown_if_long():
            found = arrow_of(df.limit(self._rows + 1))
        self._show_first(found)

    def _show_first(self, found: pa.Table) -> None:
        """Show rows, as a table no more than a user wants to see."""
        from upsert.spark.batches import collected

        if self._output.as_json:
            self._output.table(collected(found))
            return
        self._output.table(found.slice(0, self._rows))
        if found.num_rows > self._rows:
            self._output.say(f"shown: the first {many(self._rows)}; add LIMIT, or use --json")

    def _show_changes(self, df: DataFrame) -> None:
        from upsert.spark.batches import arrow_of, with_texts
        from upsert.spark.query_writer import query_writer

        def show(rows: DataFrame, batch: int) -> None:  # noqa: ARG001 - Spark gives the number too
            found = arrow_of(with_texts(rows))
            if found.num_rows:
                self._output.table(found)

        query = query_writer(df).outputMode("update").foreachBatch(show).start()
        with self._showing(query):
            query.awaitTermination()

    def _show_live(self, result: Live) -> None:
        query = result.query
        with self._showing(query):
            if self._output.as_json:
                query.awaitTermination()
                self._output.table(result.rows)
                return
            with LiveView(console=self._output.console, auto_refresh=False, vertical_overflow="crop") as view:
                while query.isActive:
                    view.update(_picture(result.rows), refresh=True)
                    time.sleep(_REFRESH_S)
                view.update(_picture(result.rows), refresh=True)
        if (failure := query.exception()) is not None:
            raise failure

    @contextmanager
    def _showing(self, query: StreamingQuery) -> Iterator[None]:
        """While a query is shown, `cancel` stops it."""
        self._shown.append(query)
        try:
            self._go_on()  # its first rows can be shown, and Ctrl-C pressed, before it is among those to stop
            yield
        finally:
            query.stop()
            self._shown.remove(query)


def _optimize(df: DataFrame, **given: Any) -> Any:
    """`planner.optimize`, loaded for the first query that it is asked about: most statements are none."""
    from deltajoin.planner import optimize  # by the alias, which finds out whose package `planner` is

    return optimize(df, **given)


def means_spark(statement: str) -> bool:
    """Whether a statement looks like one that needs Spark, so that the JVM may start before it is its turn.

    It is a guess from its first word and some others.

    >>> means_spark("refresh MATERIALIZED VIEW v"), means_spark("INSERT INTO t SELECT * FROM s")
    (True, True)
    >>> means_spark("INSERT INTO t VALUES (1)"), means_spark("SHOW MATERIALIZED VIEWS")
    (False, False)
    >>> means_spark("SELECT a FROM t GROUP BY a HAVING max(b) > 1")
    False
    >>> means_spark("SELECT a FROM t JOIN u USING (id)"), means_spark("SELECT a FROM t CROSS JOIN u")
    (False, True)
    >>> means_spark("SELECT a FROM t GROUP BY ALL"), means_spark("SELECT max(a) FROM t GROUP BY b, year(c)")
    (True, True)
    """
    return _MEANS_SPARK.match(statement) is not None


def _lets_queries_start(statement: Statement) -> bool:
    """Whether a statement starts a query, or sets the mode in which others do."""
    match statement:
        case SetOption(key=key, value=value):
            return key.lower() == RUNTIME_MODE and value.lower() == "streaming"
        case KeepMirror(is_stopped=is_stopped):
            return not is_stopped
    return False


def unsaid(settings: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Those settings of which neither what is given says anything, nor Spark's own configuration.

    That is in ``spark-defaults.conf`` or in ``PYSPARK_SUBMIT_ARGS``. The JVM that runs has read it.
    """
    from pyspark import SparkConf

    said = {key for key, value in SparkConf().getAll() if (key, value) != (_NAME, _NO_NAME)} | given.keys()
    return {key: value for key, value in settings.items() if key not in said}


def _load_meanwhile() -> None:
    """Load what the first statement with Spark needs, while the JVM starts."""
    import pyspark.testing.utils  # noqa: F401 - PySpark loads it, and pandas, for its first call into the JVM

    import upsert.catalog.run.dispatch  # noqa: F401


def _daemon_of_workers(settings: Mapping[str, str]) -> dict[str, str]:
    """The setting that lets workers be forked from a process that has loaded what they need."""
    from pyspark import SparkConf, SparkContext

    if SparkContext._active_spark_context is not None:  # its workers have a daemon already
        return {}
    master = settings.get("spark.master") or SparkConf().get("spark.master") or ""
    if master.partition("[")[0] != "local" or os.environ["PYSPARK_PYTHON"] != sys.executable:
        return {}
    return unsaid(_DAEMON, settings)


@contextmanager
def _shown_if_long() -> Iterator[None]:
    """Show on a terminal that something runs, once it has taken a second."""
    status = Console(stderr=True).status("running …")
    shown = threading.Timer(_PATIENCE_S, status.start)
    shown.daemon = True
    shown.start()
    try:
        yield
    finally:
        shown.cancel()
        shown.join()
        status.stop()


@contextmanager
def _jvm_options(conf: Mapping[str, str], others: Sequence[str]) -> Iterator[None]:
    """Without bars of progress, and without the log of a JVM that starts; what the user says counts more.

    An installed Spark has a configuration of its log.
    """
    given = os.environ.get(_JVM_OPTIONS)
    own = [_NO_PROGRESS, _NOT_AMONG_ROWS, *others]
    if _LOG_LEVEL not in conf and not {"SPARK_CONF_DIR", "SPARK_HOME"} & os.environ.keys():
        own.append(f"-Dlog4j2.configurationFile={_QUIET_LOG.as_uri()}")
    os.environ[_JVM_OPTIONS] = " ".join([*own, *([] if given is None else [given])])
    try:
        yield
    finally:
        os.environ.pop(_JVM_OPTIONS, None)
        if given is not None:
            os.environ[_JVM_OPTIONS] = given


def _setting(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not sign or not key.strip():
        raise ConfigurationError(
            f"option --conf must read key=value, got {text!r}; for example spark.ui.port=4040"
        )
    return key.strip(), value


def _param(text: str) -> tuple[str, Any]:
    name, sign, value = text.partition("=")
    if not sign or not name.strip():
        raise ConfigurationError(f"option --param must read name=value, got {name!r}; for example least=3")
    return name.strip(), written(value)


def _picture(rows: pa.Table) -> Group:
    """The rows of a result as they are now, in a fixed order."""
    return Group(
        RowGrid(rows.column_names, sorted(rows_of(rows), key=repr)),
        Text(f"{many(rows.num_rows)}; Ctrl-C ends", style="dim"),
    )
