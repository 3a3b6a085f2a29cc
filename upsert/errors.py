"""Errors of all three packages, split by what the reader does next.

    UpsertError
    ├── ConfigurationError    an option or argument is wrong: correct the call
    ├── SchemaError           rows or DDL do not fit the table: correct the rows or the statement
    ├── ChangelogError        the changes contradict each other: correct the producer or the query
    ├── DuplicateKeyError     two rows have one key of a UNIQUE INDEX: correct one of them
    ├── CheckViolatedError    a CHECK constraint is false of a row: correct the row
    ├── TableExistsError      choose another name, or IF NOT EXISTS
    ├── TableNotFoundError    create the table, or correct its name
    ├── DatabaseExistsError   choose another name, or IF NOT EXISTS
    ├── DatabaseNotFoundError create the database, or correct its name
    ├── CommitConflictError   another writer changed the same files: run the command again
    ├── UnknownOutcomeError   it is not known whether the commit happened: check, then write again or not
    ├── StaleWriterError      the writer stalled until its files were cleaned up: write the rows again
    ├── SnapshotExpiredError  the version asked for is gone: start from a retained one
    ├── RecordsExpiredError   a topic no longer has the records asked for: start over, or accept the gap
    ├── KafkaUnavailableError Kafka did not answer in time: start it or correct its address, then continue
    ├── SinkUnavailableError  the database of a table does not answer: start it, then continue
    ├── DeliveryError         Kafka did not take some records: write them again
    ├── LogNotPublishedError  the commit stands, its log lacks it: repair the log, then publish_log()
    ├── FencedError           another attempt writes instead of this one: stop
    ├── MissingStateError     the state of a query is gone or belongs to another: restore it, or start over
    ├── ProcessLostError      a process of a query was killed: give it memory, start the query again
    ├── BrokenPayloadError    rows were damaged between two tasks: run the batch again
    ├── UntrackedChangesError a commit wrote rows that no change stream shows: reload what depends on it
    ├── StorageError          a disk or an object store refused or failed: remove the cause, try again
    └── CorruptTableError     a file is missing, damaged or of another format: restore it

A message reads: subject — expectation — what was found — next step. Lower case, no full stop.

What a source, a sink or a task raises reaches the driver as text: a Python traceback within a Java one, of
some hundred lines. `own_error` finds the sentence in it that says what is wrong and what to do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final


class UpsertError(Exception):
    """Root of every error that this project raises on purpose."""


class ConfigurationError(UpsertError, ValueError):
    """An option, argument or path is wrong; nothing was read or written."""


class SchemaError(UpsertError, ValueError):
    """Rows, keys or a DDL statement do not fit the table; nothing was written."""


class ChangelogError(UpsertError):
    """Changes contradict each other: two values for one key, a count below zero."""


class DuplicateKeyError(UpsertError):
    """Two rows would have equal values in the columns of a UNIQUE INDEX; nothing was committed."""


class CheckViolatedError(UpsertError):
    """A CHECK constraint of the table is false of a row; nothing was committed."""


class TableExistsError(UpsertError):
    """The table to create is already there."""


class TableNotFoundError(UpsertError):
    """No table has this name or lies at this path."""


class DatabaseExistsError(UpsertError):
    """The database to create is already there."""


class DatabaseNotFoundError(UpsertError):
    """No database of the catalog has this name."""


class CommitConflictError(UpsertError):
    """Another writer removed or replaced files that this commit builds on; nothing was committed."""


class UnknownOutcomeError(UpsertError):
    """It is not known whether a commit has happened, or may yet; no file was deleted."""


class StaleWriterError(UpsertError):
    """The writer began before a clean-up that may have removed its files; nothing was committed."""


class SnapshotExpiredError(UpsertError):
    """The snapshot asked for has expired; the message names the earliest one that is left."""


class RecordsExpiredError(UpsertError):
    """Kafka has deleted records of the range asked for, or the topic was created again and ends before it."""


class KafkaUnavailableError(UpsertError):
    """Kafka did not answer within ``connection.timeout``; the message has its address."""


class SinkUnavailableError(UpsertError):
    """The database of a table did not answer, or ended a transaction, which is applied once or not at all."""


class DeliveryError(UpsertError):
    """Kafka refused records, or did not confirm them in time; whether it has them is not known.

    A transaction that fails with this has been aborted, so no reader sees a part of it.
    """


class PartlyExecutedError(UpsertError):
    """A statement set failed after some of its INSERTs were committed; do not execute those again."""


class LogNotPublishedError(UpsertError):
    """A commit was made, and its changes are not in the table's log yet; do not write the rows again."""


class FencedError(UpsertError):
    """Another attempt or driver writes instead of this one; no row of this one is visible."""


class MissingStateError(UpsertError):
    """The state of a streaming query is gone or damaged, or does not fit its checkpoint."""


class ProcessLostError(UpsertError):
    """A Python process that a query needs was killed or crashed; the query continues from its checkpoint."""


class BrokenPayloadError(UpsertError):
    """Rows that reached a task are not what another task sent; the micro-batch emitted nothing."""


class UntrackedChangesError(UpsertError):
    """The range of versions holds a commit written with ``change-tracking = false``."""


class StorageError(UpsertError, OSError):
    """A disk or an object store refused or failed: a missing right, no space, no answer.

    Nothing is known to be damaged: restore no files, but remove the cause that the message names and try
    again. ``errno`` and ``filename`` are those of an ``OSError``. A write that failed with this may still
    have happened.
    """

    def __str__(self) -> str:
        return f"{self.filename!r}: {self.strerror}" if self.filename is not None else super().__str__()


class CorruptTableError(UpsertError):
    """A file of the table is missing, damaged, or written by another format version."""


_OTHER_STATE: Final = re.compile(
    r"STATE_STORE_(?:KEY|VALUE)_(?:SCHEMA_NOT_COMPATIBLE|ROW_FORMAT_VALIDATION_FAILURE)"
)
"""Spark's names of the errors that tell that a checkpoint's state has other fields than the query."""

_LOST_VERSIONS: Final = re.compile(
    r"\[(?:DELTA_MISSING_CHANGE_DATA|DELTA_LOG_FILE_NOT_FOUND\w*|DELTA_MISSING_FILES_UNEXPECTED_VERSION|"
    r"DELTA_CHANGE_DATA_FILE_NOT_FOUND|DIFFERENT_DELTA_TABLE_READ\w*)|FILE_NOT_EXIST(?s:.*)DeltaSource\["
)
_OTHER_COLUMNS: Final = re.compile(r"\[(?:DELTA_SCHEMA_CHANGED?|DELTA_STREAMING_INCOMPATIBLE_SCHEMA_CHANGE)")
"""How Delta's errors of streams are called; that of a file which is gone is Spark's own."""

_TWO_DRIVERS: Final = re.compile(r"\[CONCURRENT_STREAM_LOG_UPDATE\].* detected for (\d+)")
"""What Spark says where another driver has written the next file of a checkpoint's log."""

_LOST_SOURCE: Final = re.compile(
    r"java\.[\w.]+Exception\b[^\n]*\n(?:\s+at java\.[^\n]*\n)*\s+at "
    r"org\.apache\.spark\.sql\.execution\.python\.streaming\.PythonStreamingSourceRunner\."
)
"""A connection that ends where Spark asks the process that answers for a stream."""

_SUPPRESSED: Final = re.compile(r"^\tSuppressed: (?:(?!Caused by: ).*\n?)*", re.MULTILINE)
"""What has failed in a trace of Java after the failure that it is about, and because of that."""

_AT_A_START: Final = (
    r"Exception\b[^\n]*\n(?:\s+at java\.[^\n]*\n)*\s+at "
    r"org\.apache\.spark\.(?:api\.python\.PythonWorkerFactory|security\.SocketAuthHelper)\."
)
_LOST_WORKER: Final = re.compile(
    r"Python worker exited unexpectedly \(crashed\)|"
    r"while reading the port number from [\w.]+'s stdout(?:\.| and terminated with code: 137)|"
    r"java\.(?!net\.SocketTimeoutException)[\w.]+" + _AT_A_START
)
"""What Spark says where the process of a task ends, or the one that starts it, or a call of a sink."""

_LATE_WORKER: Final = re.compile(
    r"Python worker failed to connect back|"
    r"java\.net\.SocketTimeout" + _AT_A_START
)
"""What Spark says of a process that told it not in ten seconds who it is, or was not forked in a minute."""

_NO_TIME: Final = re.compile(r"\[UNSUPPORTED_TIME_TYPE\]")
"""How Spark calls a column of TIME where the session has no such type, which is its default."""

_NO_ROOM: Final = re.compile(r"\[USER_RAISED_EXCEPTION\] (.+: column .+ must be .+, which cannot hold \S+)")
"""What a row is refused with whose value its column cannot hold, see ``assigned``."""

_OF_PYTHON: Final = re.compile(
    r"Traceback \(most recent call last\):\n(?:[ \t].*\n)+(?:py4j\.protocol\.Py4JJavaError: .*\n: )?(\S.*)"
)
"""A Python traceback, and what its last line says, or the next one, where py4j tells of an error of Java."""

_SAYS_NOTHING: Final = re.compile(
    r"(?:\w+\.)+[A-Z][\w$]*(?:: (?:Writing job failed\.|Job aborted\.|Task failed while writing rows.*))?"
)
_PLACE: Final = re.compile(r"^\s+at (\S+)", re.MULTILINE)
"""An exception of Java that has no message of its own, and a line of its trace."""

_SPARK_S_CLASS: Final = re.compile(r"^pyspark\.[\w.]+: ")
"""How an error of Spark begins in a traceback; it has a name of its own."""

_BAD_CHECKPOINT: Final = re.compile(
    r"terminated with exception: (?:Failed to read log file |Checksum error: |batch \d+ doesn't exist|"
    r"assertion failed: There are \[0\] sources in the checkpoint|[^\n]*\n at \[Source: REDACTED )"
)
"""What is said of a file of a checkpoint that is missing, cut off or damaged, as after a power failure."""

_OTHER_SOURCES: Final = re.compile(
    r"There are \[([1-9]\d*)\] sources in the checkpoint offsets and now there are \[(\d+)\] sources"
)
_NO_STATE: Final = re.compile(r"\[STREAMING_STATEFUL_OPERATOR_MISSING_STATE_DIRECTORY\]")
"""What is said where a query continues from the checkpoint of another one."""

_RESTORE_QUERY: Final = "restore it, or start this one with a new checkpointLocation and an empty sink"

_BAD_OFFSET: Final = re.compile(r"json\.loads\(utf8_deserializer(?s:.*?)JSONDecodeError: (.*)")
"""What is said where Spark gives a source in Python an offset that is cut off."""

_RAISED: Final = re.compile(r"^\s*(?:upsert|deltajoin|planner)(?:\.\w+)*\.(\w+): (\S.*)$", re.MULTILINE)
"""The last line of a Python traceback, for an error of this project."""


def own_error(error: BaseException) -> UpsertError | None:
    r"""The error of this project that an error of Spark contains; None if there is none in it.

    Args:
        error: what `awaitTermination` or an action raised, or `query.exception()` returned.

    >>> text = "Job aborted\n  File …\nupsert.errors.SchemaError: column 'a' is gone"
    >>> own_error(RuntimeError(text))
    SchemaError("column 'a' is gone")
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, UpsertError):
            return cause
        told = _SUPPRESSED.sub("", f"{cause}\n{_trace_of_java(cause)}")
        if raised := _RAISED.findall(told):
            name, sentence = raised[-1]  # an error that was raised from another one stands behind it
            known = {cls.__name__: cls for cls in _subclasses(UpsertError) if _takes_a_sentence(cls)}
            return known.get(name, UpsertError)(sentence.strip())
        if (found := _explained(told) or _lost_process(told)) is not None:
            return found
        cause = cause.__cause__
    return None


def _explained(text: str) -> UpsertError | None:
    """What a text of Spark's means for a query; None if it is about something else."""
    if _OTHER_STATE.search(text):
        return MissingStateError(
            "the query's checkpoint: expected state with the fields that this query keeps, found others: "
            "the query was another one, a column that it groups by or adds up has become wider, or an older "
            "release kept its state in another way (a sum of DOUBLE as one number); start it with a new "
            "checkpointLocation and an empty sink"
        )
    if other := _OTHER_SOURCES.search(text):
        return MissingStateError(
            f"the query's checkpoint: expected that of a query with as many sources as this one, {other[2]}, "
            f"found that of one with {other[1]}: the query was another one; {_RESTORE_QUERY}"
        )
    if _NO_STATE.search(text):
        return MissingStateError(
            "the query's checkpoint: expected state, which this query keeps, found none: the query was "
            f"another one, or the checkpoint's folder 'state' is gone; {_RESTORE_QUERY}"
        )
    if bad := _BAD_CHECKPOINT.search(text):
        return bad_checkpoint(text[bad.start() :].partition(": ")[2])
    if bad := _BAD_OFFSET.search(text):
        return bad_checkpoint(f"one of the newest two of its folder 'offsets' is no JSON: {bad[1]}")
    if _LOST_VERSIONS.search(text):
        return SnapshotExpiredError(
            "the query's Delta table: expected every version since the one that was read last, found "
            "some of them gone, or without their changes: VACUUM or the log's retention took them, the "
            "change data feed was off, or it is another table; DROP TABLE the one that has the mirror, "
            "create it again, and the mirror begins with the rows of that moment"
        )
    if _OTHER_COLUMNS.search(text):
        return SchemaError(
            "the query's Delta table: expected the columns that it had when the query began, found "
            "others; start the query again; if it ends again, a column was dropped or renamed: DROP "
            "TABLE the one that has the mirror, and create it again"
        )
    if twice := _TWO_DRIVERS.search(text):
        return FencedError(
            "the query's checkpoint: expected one driver that writes it, found another one, which has "
            f"begun micro-batch {twice[1]}: the query runs twice; stop one of the drivers, SHOW JOBS "
            "names the one that was heard of last; nothing is lost or doubled"
        )
    if refused := _NO_ROOM.search(text):
        return SchemaError(refused[1])
    if _NO_TIME.search(text):
        return ConfigurationError(
            "a column of TIME: expected a session that has the type, found one without it; "
            "spark.conf.set('spark.sql.timeType.enabled', 'true'), which is off by default in Spark"
        )
    return None


def _lost_process(text: str) -> ProcessLostError | None:
    """The error about a process of Python that has ended, if a text of Spark's tells of one."""
    if _LOST_SOURCE.search(text):
        which = "the Python process that answers for the query's source"
        more = "give the driver more memory beside that of its JVM (spark.driver.memoryOverhead)"
    elif _LOST_WORKER.search(text):
        which = "a Python process of the query's tasks"
        more = "give executors more memory beside that of the JVM (spark.executor.memoryOverhead)"
    elif _LATE_WORKER.search(text):
        return ProcessLostError(
            "a Python process of the query: expected it to connect to Spark soon after its start, found that "
            "it has not: the machine has too much to do, or it was killed, most often for lack of memory; "
            "remove the cause, and start the query again: it continues from its checkpoint"
        )
    else:
        return None
    return ProcessLostError(
        f"{which}: expected it to run as long as the query needs it, found it gone: it was killed, most "
        "often for lack of memory, or crashed; the log of the system or the events of the container say so; "
        f"{more}, and start the query again: it continues from its checkpoint"
    )


def _trace_of_java(error: BaseException) -> str:
    """The trace of what Java raised, as an error of PySpark has it; "" of another error."""
    # PySpark gives neither of these a public name
    java: Any = getattr(error, "_cause", None) or error
    return str(getattr(java, "_stackTrace", ""))


def raised_in_java(error: BaseException) -> str:
    """What Java raised, where an error of PySpark says nothing of it; "" if that is not known."""
    return told_by_java(_trace_of_java(error))


def told_by_java(trace: str) -> str:
    r"""What a trace of Java says: what Python raised, or its first line.

    If that is only a class, or that something has failed, it is what caused it, or where it was raised.

    >>> told_by_java("java.io.IOException: no\n\tat a.B.c(B.java:1)")
    'java.io.IOException: no'
    >>> told_by_java("java.io.EOFException\n\tat java.base/java.io.D.read(D.java:1)\n\tat a.B.c(B.java:1)")
    'java.io.EOFException at a.B.c(B.java:1)'
    >>> told_by_java("a.B: Writing job failed.\n\tat a.B.c(B.java:1)\nCaused by: java.io.IOException: no\n")
    'java.io.IOException: no'
    """
    trace = _SUPPRESSED.sub("", trace)
    return raised_in_python(trace) or _first_told(trace)


def _first_told(trace: str) -> str:
    first, _, rest = trace.strip().partition("\n")
    first = first.rstrip(": ")
    if _SAYS_NOTHING.fullmatch(first) is None:
        return first
    frames, _, cause = rest.partition("Caused by: ")
    if cause:
        return _first_told(cause)
    places = _PLACE.findall(frames)
    own = (place for place in places if not place.startswith(("java.", "jdk.", "scala.")))
    place = next(own, next(iter(places), None))
    return first if place is None else f"{first} at {place}"


def raised_in_python(text: str) -> str | None:
    r"""What Python raised, if a text of Spark's tells of it with a traceback.

    >>> raised_in_python("Message: Traceback (most recent call last):\n  File …\nValueError: no\n\tat …")
    'ValueError: no'
    """
    found = _OF_PYTHON.findall(text)
    return _SPARK_S_CLASS.sub("", found[-1], count=1) if found else None


def bad_checkpoint(told: str) -> MissingStateError:
    """The error about a checkpoint of which Spark cannot read a file, by the first line of what it tells."""
    first = told.partition("\n")[0].strip()
    return MissingStateError(
        f"the query's checkpoint: expected whole files, found one missing, cut off or damaged: {first}; "
        "restore the folder from a copy, or start the query with a new checkpointLocation and an empty sink"
    )


@contextmanager
def own_errors_first() -> Iterator[None]:
    """Raise the error of this project that Spark has wrapped, from Spark's, instead of Spark's."""
    try:
        yield
    except UpsertError:
        raise
    except Exception as error:  # Spark and py4j wrap it in many ways
        if (own := own_error(error)) is not None:
            raise own from error
        raise


@contextmanager
def optional_package(package: str, extra: str, user: str) -> Iterator[None]:
    """Around imports of a package that not every installation has; one that fails says how to install it.

    >>> with optional_package("nowhere", "kafka", "a topic"):
    ...     import nowhere
    Traceback (most recent call last):
    ...
    upsert.errors.ConfigurationError: a topic needs the package 'nowhere', which cannot be ...
    """
    try:
        yield
    except ImportError as cause:
        raise ConfigurationError(
            f"{user} needs the package {package!r}, which cannot be imported ({cause}); "
            f"pip install 'deltajoin[{extra}]' on the driver and every worker"
        ) from cause


def _takes_a_sentence(cls: type[UpsertError]) -> bool:
    return not any("__init__" in vars(base) for base in cls.__mro__ if base.__module__ != "builtins")


def _subclasses(cls: type[UpsertError]) -> Iterator[type[UpsertError]]:
    for below in cls.__subclasses__():
        yield below
        yield from _subclasses(below)
