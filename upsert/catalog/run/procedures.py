"""``CALL``: what is done to a table as a whole, under Paimon's and Iceberg's names; each result is rows."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from upsert.catalog.query_records import read_all
from upsert.catalog.results import Rows
from upsert.catalog.run.definitions import managed, refuse_view
from upsert.catalog.run.jobs import SparkNeededError, active
from upsert.catalog.run.scans import zone
from upsert.catalog.run.shows import matching
from upsert.errors import ConfigurationError
from upsert.options import positive_duration_ms, suggestion
from upsert.sql import statements as s
from upsert.sql.predicates import instant
from upsert.store import Table, paths
from upsert.store.upkeep.query_state import forget_queries

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from upsert.catalog.context import Context

_Row = tuple[Any, ...]


@dataclass(frozen=True)
class Environment:
    """What values of arguments depend on.

    Attributes:
        zone: of times without one; None: each must name its own.
        now_s: the present time, in s since 1970.
    """

    zone: str | None
    now_s: float


class _NoZoneError(ValueError):
    """A time names no zone, and there is no session whose zone it could be of."""


@dataclass(frozen=True)
class Parameter:
    """One parameter: its name, what its values are converted by and must be, and its default.

    ``convert`` raises a ``ValueError`` for what it cannot take. NULL means the default.
    """

    name: str
    convert: Callable[[Any, Environment], Any]
    must_be: str
    default: Any = None
    is_needed: bool = False


@dataclass(frozen=True)
class Procedure:
    """What ``CALL`` can name.

    Attributes:
        about: what it does, for SHOW PROCEDURES.
        parameters: behind the table, which is the first of all procedures.
        columns: of the rows that it gives.
        run: does it to a table, by the values of all parameters.
        takes_views: whether the table may be a materialized view.
        find: what ``run`` is given for the table of a name; a managed one, unless said otherwise.
    """

    about: str
    parameters: tuple[Parameter, ...]
    columns: Mapping[str, pa.DataType]
    run: Callable[[Any, Mapping[str, Any]], Sequence[_Row]]
    takes_views: bool = True
    find: Callable[[Context, str, str], Any] = managed

    @property
    def signature(self) -> str:
        """The parameters as people read them.

        >>> PROCEDURES["create_tag"].signature
        'table, tag [, snapshot]'
        """
        optional = (f" [, {one.name}]" for one in self.parameters if not one.is_needed)
        needed = (one.name for one in self.parameters if one.is_needed)
        return ", ".join(["table", *needed]) + "".join(optional)


_ELSEWHERE: Final = {
    "drop_partition": "write ALTER TABLE t DROP PARTITION (…)",
    "merge_into": "write MERGE INTO",
    "reset_consumer": "a stream continues where its checkpoint says; begin with a new one to read again",
    "expire_tags": "a tag stays until delete_tag(table, tag)",
    **dict.fromkeys(
        ("rename_tag", "replace_tag"), "write create_tag(table, tag, snapshot), before or after delete_tag"
    ),
    **dict.fromkeys(
        ("create_branch", "delete_branch", "fast_forward"),
        "there are no branches; create_tag keeps a snapshot, CREATE TABLE … AS SELECT copies one",
    ),
}
"""Procedures of Paimon, and what is written here."""


def call(context: Context, statement: s.Call, spark: SparkSession | None) -> Rows:
    """``CALL procedure(…)``: what it did, as rows."""
    what = f"CALL {statement.procedure}"
    if (procedure := PROCEDURES.get(statement.procedure)) is None:
        hint = _ELSEWHERE.get(statement.procedure) or suggestion(statement.procedure, PROCEDURES, "there are")
        raise ConfigurationError(f"CALL: unknown procedure {statement.procedure!r}; {hint}")
    session = active(spark)
    environment = Environment(None if session is None else zone(session), time.time())
    name, values = bound(procedure, statement.arguments, what, environment)
    table = procedure.find(context, name, what)
    if not procedure.takes_views:
        refuse_view(table, what)
    rows = procedure.run(table, values)
    return Rows.listed(
        what, procedure.columns, (dict(zip(procedure.columns, row, strict=True)) for row in rows)
    )


def bound(
    procedure: Procedure, arguments: Sequence[s.Argument], what: str, environment: Environment
) -> tuple[str, dict[str, Any]]:
    """The name of the table, and the value of each other parameter, converted.

    Raises:
        ConfigurationError: an argument is unknown, missing, given twice, or is not what it must be.
        SparkNeededError: an argument depends on a session's zone.
    """
    parameters = {one.name: one for one in (_TABLE, *procedure.parameters)}
    given: dict[str, Any] = {}
    for number, argument in enumerate(arguments):
        if argument.name is None and number >= len(parameters):
            raise ConfigurationError(
                f"{what}: arguments are ({procedure.signature}), got {len(arguments)} of them; leave some out"
            )
        name = list(parameters)[number] if argument.name is None else argument.name
        if name not in parameters:
            hint = suggestion(name, parameters, "arguments are")
            raise ConfigurationError(f"{what}: unknown argument {name!r}; {hint}")
        if name in given:
            raise ConfigurationError(f"{what}: argument {name!r} is given twice; give it once")
        given[name] = argument.value
    found = {}
    for name, one in parameters.items():
        value = given.get(name)
        if value is None and one.is_needed:
            raise ConfigurationError(
                f"{what}: argument {name!r} is missing; arguments are ({procedure.signature})"
            )
        try:
            found[name] = one.default if value is None else one.convert(value, environment)
        except _NoZoneError:
            raise SparkNeededError(
                f"{what}: argument {name!r} must name its zone where there is no Spark session, as TIMESTAMP "
                f"'2020-10-01 08:00:00Z', got {value!r}; or give a session, whose zone it then has"
            ) from None
        except ValueError:
            message = f"{what}: argument {name!r} must be {one.must_be}, got {value!r}"
            raise ConfigurationError(message) from None
    return found.pop(_TABLE.name), found


def show_procedures(statement: s.ShowProcedures) -> Rows:
    """``SHOW PROCEDURES``: each with its arguments, those that may be missing in brackets."""
    rows = [
        {"procedure": name, "arguments": PROCEDURES[name].signature, "description": PROCEDURES[name].about}
        for name in matching(tuple(PROCEDURES), statement.like)
    ]
    columns = dict.fromkeys(("procedure", "arguments", "description"), pa.string())
    return Rows.listed("SHOW PROCEDURES", columns, rows)


def _text(value: Any, _: Environment) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value


def _state(value: Any, _: Environment) -> int | str:
    if not isinstance(value, int | str) or isinstance(value, bool):
        raise ValueError
    return value


def _count(value: Any, _: Environment) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError
    return value


def _flag(value: Any, _: Environment) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


def _age(value: Any, environment: Environment) -> float:
    """Seconds since a time, which must not lie ahead."""
    try:
        at = instant(str(value), environment.zone)
    except ValueError:
        if environment.zone is not None:
            raise
        instant(str(value), "UTC")  # refuses what is no time in any zone
        raise _NoZoneError from None
    age = environment.now_s - at.timestamp()
    if age < 0:
        raise ValueError
    return age


def _duration(value: Any, _: Environment) -> float:
    return positive_duration_ms(str(value)) / 1000


def _create_tag(table: Table, given: Mapping[str, Any]) -> Sequence[_Row]:
    tag = table.tag(given["tag"], given["snapshot"])
    return [(tag.name, tag.snapshot.id)]


def _delete_tag(table: Table, given: Mapping[str, Any]) -> Sequence[_Row]:
    table.delete_tag(given["tag"])
    return [(given["tag"],)]


def _rollback_to(table: Table, given: Mapping[str, Any]) -> Sequence[_Row]:
    before = table.snapshot().id
    return [(before, table.rollback_to(given["snapshot"]).id)]


def _expire_snapshots(table: Table, given: Mapping[str, Any]) -> Sequence[_Row]:
    return [(table.expire(keep=given["retain_last"], older_than_s=given["older_than"]),)]


def _expire_partitions(table: Table, given: Mapping[str, Any]) -> Sequence[_Row]:
    gone = table.expire_partitions(
        older_than_s=given["expiration_time"],
        timestamp_formatter=given["timestamp_formatter"],
        timestamp_pattern=given["timestamp_pattern"],
    )
    return [(name,) for name in gone]


def _remove_orphan_files(table: Table, given: Mapping[str, Any]) -> Sequence[_Row]:
    age = given["older_than"]
    return [(table.clean() if age is None else table.clean(older_than_s=age),)]


def _compact(table: Table, _: Mapping[str, Any]) -> Sequence[_Row]:
    before, done = table.snapshot().info, table.compact()
    after = before if done is None else done.info
    return [(None if done is None else after.id, before.files, after.files)]


def _delete_consumer(table: Table, given: Mapping[str, Any]) -> Sequence[_Row]:
    return [(given["consumer_id"], table.release(given["consumer_id"]))]


@dataclass(frozen=True)
class _KeptByQueries:
    """The folders of what queries keep beside a table, and the ids of the queries that run."""

    folders: Sequence[str]
    running: frozenset[str]


def _kept_by_queries(context: Context, name: str, _: str) -> _KeptByQueries:
    connected = context.connected(name)
    folder = context.managed(name).root if connected is None else connected.kept_in
    inside = [] if connected is None or folder is None else [folder]
    kept = [] if folder is None else [os.path.join(folder, paths.KEPT_ROWS_FOLDER)]
    now_ms = int(time.time() * 1000)
    queries = read_all(context.warehouse).queries
    running = frozenset(one.id for one in queries if one.shown_state(now_ms) == "running")
    return _KeptByQueries([*inside, *kept], running)


def _forget_queries(kept: _KeptByQueries, given: Mapping[str, Any]) -> Sequence[_Row]:
    before_s = time.time() - given["older_than"]
    return [(id,) for folder in kept.folders for id in forget_queries(folder, before_s, kept.running)]


def _check(table: Table, given: Mapping[str, Any]) -> Sequence[_Row]:
    found = table.check(deep=given["deep"])
    return [(one.rule, one.subject, one.found, not one.is_information) for one in found]


_TIME: Final = "a time that has been, as TIMESTAMP 'date time'"
_TABLE: Final = Parameter("table", _text, "the name of a table", is_needed=True)
_TAG: Final = Parameter("tag", _text, "the name of a tag in quotes", is_needed=True)
_STATE: Final = Parameter("snapshot", _state, "the id of a snapshot, or a tag in quotes")
_BEFORE: Final = Parameter("older_than", _age, _TIME)

PROCEDURES: Final[Mapping[str, Procedure]] = {
    "create_tag": Procedure(
        "gives a snapshot a name, by which it stays readable; the newest one if none is named",
        (_TAG, _STATE),
        {"tag_name": pa.string(), "snapshot_id": pa.int64()},
        _create_tag,
    ),
    "delete_tag": Procedure(
        "deletes a tag, and the files that only its snapshot needs",
        (_TAG,),
        {"tag_name": pa.string()},
        _delete_tag,
    ),
    "rollback_to": Procedure(
        "gives the table the rows of a snapshot or tag again, in a new snapshot",
        (Parameter("snapshot", _state, _STATE.must_be, is_needed=True),),
        {"previous_snapshot_id": pa.int64(), "current_snapshot_id": pa.int64()},
        _rollback_to,
        takes_views=False,
    ),
    "expire_snapshots": Procedure(
        "expires the snapshots that were replaced before `older_than`, but never the newest `retain_last`; "
        "without both arguments the options `snapshot.…` hold",
        (Parameter("retain_last", _count, "a number of states"), _BEFORE),
        {"expired_snapshots_count": pa.int64()},
        _expire_snapshots,
    ),
    "expire_partitions": Procedure(
        "drops the partitions that are older than `expiration_time`, such as `'7 d'`; for an argument that "
        "is left out the option `partition.…` holds",
        (
            Parameter("expiration_time", _duration, "a duration in quotes, like '7 d'"),
            Parameter("timestamp_formatter", _text, "a text like 'yyyyMMdd'"),
            Parameter("timestamp_pattern", _text, "a text like '$day $hour:00:00'"),
        ),
        {"expired_partition": pa.string()},
        _expire_partitions,
        takes_views=False,
    ),
    "remove_orphan_files": Procedure(
        "deletes files that no snapshot needs and that were written before `older_than`, else a day ago",
        (_BEFORE,),
        {"deleted_file_count": pa.int64()},
        _remove_orphan_files,
    ),
    "compact": Procedure(
        "merges the files of each bucket, and stores indexes that files lack; `snapshot_id` is NULL if there "
        "was nothing to do",
        (),
        {"snapshot_id": pa.int64(), "previous_file_count": pa.int64(), "file_count": pa.int64()},
        _compact,
    ),
    "delete_consumer": Procedure(
        "lets the snapshots expire that a consumer holds",
        (Parameter("consumer_id", _text, "the name of a consumer in quotes", is_needed=True),),
        {"consumer_id": pa.string(), "was_held": pa.bool_()},
        _delete_consumer,
    ),
    "forget_queries": Procedure(
        "deletes what streaming queries keep for a topic or a sink and have not changed since `older_than`; "
        "one that is started again after that is refused, and needs a new checkpoint",
        (replace(_BEFORE, is_needed=True),),
        {"query_id": pa.string()},
        _forget_queries,
        find=_kept_by_queries,
    ),
    "check": Procedure(
        "says which rules of the store the table breaks, and repairs nothing; with `deep` it reads all data "
        "files too",
        (Parameter("deep", _flag, "TRUE or FALSE", default=False),),
        {"rule": pa.string(), "subject": pa.string(), "found": pa.string(), "is_harmful": pa.bool_()},
        _check,
    ),
}
"""Every procedure by its name."""
