"""The Spark session of a command, started when a statement first needs one, on a Java that Spark runs on."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from rich.console import Console

from upsert import Catalog
from upsert.catalog.results import Result
from upsert.errors import ConfigurationError, own_errors_first
from upsert.sql.parser import parse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Found = TypeVar("Found")

OLDEST: Final = 17
"""The first version of Java that Spark 4 runs on."""
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)([^"]*)"')


def check_java(environment: Mapping[str, str]) -> None:
    """Make sure that Spark will find a Java that it runs on.

    Args:
        environment: variables of the process: `JAVA_HOME`, else `PATH`, says which Java it is.

    Raises:
        ConfigurationError: there is none, or it is too old; the message has its version.
    """
    home = environment.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java", path=environment.get("PATH"))
    where = f"JAVA_HOME = {home!r}" if home else "PATH"
    remedy = f"install Java {OLDEST} or newer and set JAVA_HOME to its folder"
    if java is None or not os.access(java, os.X_OK):
        raise ConfigurationError(f"Spark needs Java {OLDEST} or newer, found none by {where}; {remedy}")
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as cause:
        raise ConfigurationError(f"Java at {java!r} must tell its version, got {cause}; {remedy}") from cause
    found = _VERSION.search(answer.stderr + answer.stdout)
    if found is None:
        said = (answer.stderr + answer.stdout).strip().partition("\n")[0]
        raise ConfigurationError(f"Java at {java!r} must tell its version, got {said!r}; {remedy}")
    if int(found[1]) < OLDEST:
        raise ConfigurationError(
            f"Spark needs Java {OLDEST} or newer, found Java {found[1]}{found[2]} by {where}; {remedy}"
        )


_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": str(os.cpu_count() or 2),
}
"""Where neither the user nor Spark's own configuration says otherwise; 200 partitions suit a cluster only."""
_JOBS: Final = "deltajoin-statement"
"""The group of the jobs of statements, by which they are cancelled."""
_QUIET_LOG: Final = Path(__file__).with_name("log4j2.properties")
_JVM_OPTIONS: Final = "SPARK_SUBMIT_OPTS"


class Session:
    """A catalog, and Spark for what needs it.

    Args:
        warehouse: folder of the catalog.
        conf: Spark settings as ``key=value``.
        master: Spark's master, such as ``local[*]``.

    Raises:
        ConfigurationError: a setting is none.
    """

    def __init__(self, warehouse: str, conf: Sequence[str] = (), master: str | None = None) -> None:
        self._conf = dict(map(_setting, conf))
        self._master = master
        self._warehouse = warehouse

    @cached_property
    def catalog(self) -> Catalog:
        """The catalog, whose streams become delta joins."""
        import planner

        return Catalog(self._warehouse, optimize=planner.optimize)

    @cached_property
    def spark(self) -> SparkSession:
        """Spark; starting it takes some seconds."""
        from pyspark.logger import PySparkLogger
        from pyspark.sql import SparkSession

        # it prints a page of the JVM's stack for each error, which the command tells in one line
        PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # its workers run this, not sys.executable
        check_java(os.environ)
        builder = SparkSession.builder.appName("deltajoin").master(self._master or "local[*]")
        for key, value in (_SETTINGS | self._conf).items():
            builder = builder.config(key, value)
        with Console(stderr=True).status("starting Spark …"), _quiet_start(self._conf):
            session = builder.getOrCreate()
        session.sparkContext.setLogLevel("OFF" if "spark.log.level" not in self._conf else "WARN")
        return session

    def sql(self, text: str) -> Result:
        """Execute one statement; Spark is started for those that need it."""
        return self._with_spark_if_needed(lambda spark: self.catalog.sql(text, spark))

    def planned(self, text: str) -> Callable[[], Result] | Result:
        """What runs an INSERT, which has been found possible; any other statement is executed."""
        from upsert.catalog.run.dispatch import planned

        statement = parse(text)
        with own_errors_first():
            return self._with_spark_if_needed(lambda spark: planned(self.catalog.context, statement, spark))

    def _with_spark_if_needed(self, execute: Callable[[SparkSession | None], Found]) -> Found:
        from upsert.catalog.run.jobs import SparkNeededError

        if not self.has_spark:
            with suppress(SparkNeededError):
                return execute(None)
        if type(self.spark).getActiveSession() is None:
            # the data sources of a session are found in threads where it is active, which this makes it
            self.spark.createDataFrame([], "a INT")
        # streams that run have groups of their own, so they go on when a statement is cancelled
        self.spark.sparkContext.setJobGroup(_JOBS, "a statement")
        return execute(self.spark)

    def cancel(self) -> None:
        """Cancel the jobs of the statement that another thread executes."""
        if self.has_spark:
            self.spark.sparkContext.cancelJobGroup(_JOBS)

    @property
    def has_spark(self) -> bool:
        """Whether Spark has been started."""
        return "spark" in self.__dict__

    def close(self) -> None:
        """Stop the queries that run, and Spark."""
        if self.has_spark:
            for query in self.spark.streams.active:
                query.stop()
            self.spark.stop()


@contextmanager
def _quiet_start(conf: Mapping[str, str]) -> Iterator[None]:
    """Without the log of a JVM that starts, unless the user or an installed Spark says what is logged."""
    given = os.environ.get(_JVM_OPTIONS)
    if "spark.log.level" not in conf and not {"SPARK_CONF_DIR", "SPARK_HOME"} & os.environ.keys():
        os.environ[_JVM_OPTIONS] = f"{given or ''} -Dlog4j2.configurationFile={_QUIET_LOG.as_uri()}"
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
