"""The options of a session: what ``SET`` and ``catalog.options[…]`` change (pure).

Follows FLIP-188: ``table-storage.…`` are defaults of the tables that are created; and Flink's names of how
statements run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, Final

from upsert import options
from upsert.errors import ConfigurationError
from upsert.options import Option, suggestion
from upsert.store import log_options, table_options
from upsert.store.table_options import SINK_MATERIALIZE

RUNTIME_MODE: Final = "execution.runtime-mode"
RESULT_MODE: Final = "execution.result-mode"
TRIGGER: Final = "execution.trigger"
CHECKPOINT: Final = "checkpoint.location"
PIPELINE: Final = "pipeline.name"
DROP_ON_CANCEL: Final = "drop-on-cancel"
MATERIALIZE: Final = "table.exec.sink.upsert-materialize"
TABLE_PREFIX: Final = "table-storage."
_FLINK: Final = ("table.optimizer.", "table.exec.")
_FORWARDED: Final = ("spark.", *_FLINK)
"""Options of Spark and of delta joins, which the Spark session keeps."""
FLINK_OPTIONS: Final = (
    "table.optimizer.delta-join.strategy",
    "table.exec.delta-join.cache-enabled",
    "table.exec.delta-join.cache-enable",
    "table.exec.delta-join.left.cache-size",
    "table.exec.delta-join.left-cache-size",
    "table.exec.delta-join.right.cache-size",
    "table.exec.delta-join.right-cache-size",
    "table.exec.async-lookup.buffer-capacity",
    "table.exec.async-lookup.timeout",
)
"""Flink's names of options of joins, which are declared above this layer; others mean nothing here."""
_OF_TABLES: Final = {"table.exec.source.cdc-events-duplicate": "cdc-events-duplicate"}
"""What is an option of the session in Flink, and of a single table here."""
_AVAILABLE_NOW: Final = "available-now"


def _trigger(value: str) -> dict[str, Any]:
    if value.lower() == _AVAILABLE_NOW:
        return {"availableNow": True}
    try:
        milliseconds = options.duration_ms(value)
    except ValueError as cause:
        raise ValueError(f"{_AVAILABLE_NOW!r}, or {cause}") from None
    return {"processingTime": f"{milliseconds} milliseconds"}


def _name(value: str) -> str:
    has_slash = any(sign in value for sign in "/\\\0")
    if not value.strip() or value in (".", "..") or has_slash or len(value) > 200:
        raise ValueError("a name without slashes")
    return value


OPTIONS: Final = (
    Option(
        RUNTIME_MODE,
        options.one_of("batch", "streaming"),
        "batch: a query reads the current rows; streaming: it reads the existing rows and then all changes",
        "batch",
    ),
    Option(
        RESULT_MODE,
        options.one_of("changelog", "table"),
        "what a streaming SELECT returns: changelog = changes; table = current rows, kept in the driver",
        "changelog",
    ),
    Option(
        TRIGGER,
        _trigger,
        "of streaming statements: available-now = read what is available and end; or the time between "
        "micro-batches",
        {},
        aliases=("execution.checkpointing.interval",),
    ),
    Option(CHECKPOINT, options.text, "folder that holds the checkpoints of streaming statements", None),
    Option(
        PIPELINE,
        _name,
        "name of a streaming job; without checkpoint.location its checkpoints are in the warehouse",
        None,
    ),
    Option(
        DROP_ON_CANCEL,
        options.boolean,
        "drop the table of a streaming CREATE TABLE AS when its query is stopped",
        False,
    ),
    Option(
        MATERIALIZE,
        SINK_MATERIALIZE.convert,
        "sink.materialize of streaming INSERT and CREATE TABLE AS, if neither the statement nor the table "
        "has that option; without effect on tables without a key, which keep every row",
        None,
    ),
)
"""Every option of a session, but those of tables, of Spark and of delta joins."""
_BY_KEY: Final = {option.key: option for option in OPTIONS}
_KEYS: Final = {name: option.key for option in OPTIONS for name in (option.key, *option.aliases)}
_OF_STORAGE: Final = {
    name: option for option in table_options.OPTIONS for name in (option.key, *option.aliases)
}


class SessionOptions(MutableMapping[str, str]):
    """Options as they were set, checked one by one; unknown ones are refused.

    >>> session = SessionOptions()
    >>> session["execution.runtime-mode"] = "streaming"
    >>> session["table-storage.bucket"] = "4"
    >>> session.value("execution.runtime-mode"), session.table_defaults()
    ('streaming', {'bucket': '4'})
    """

    def __init__(self) -> None:
        self._given: dict[str, str] = {}

    def __getitem__(self, key: str) -> str:
        return self._given[_canonical(key)]

    def __setitem__(self, key: str, value: str) -> None:
        """Set an option; refuses unknown ones, and values that it cannot have."""
        name = _canonical(key)
        if name.lower().startswith(_FLINK) and name not in _BY_KEY:
            _check_known(name)
        elif name in _BY_KEY or not name.startswith(_FORWARDED):
            own, declared = _declared(name)
            options.parse("SET", [declared], {own: str(value)})
        self._given[name] = str(value)

    def __delitem__(self, key: str) -> None:
        del self._given[_canonical(key)]

    def reset(self, key: str) -> None:
        """Give an option its default back, whether it was set or not; refuses unknown ones."""
        name = _canonical(key)
        if not name.startswith(_FORWARDED):
            _declared(name)
        self._given.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._given))

    def __len__(self) -> int:
        return len(self._given)

    def __repr__(self) -> str:
        return f"SessionOptions({', '.join(self)})"

    def value(self, key: str) -> Any:
        """The converted value of one of ``OPTIONS``, its default if it is not set."""
        declared = _BY_KEY[key]
        return declared.convert(self._given[key]) if key in self._given else declared.default

    @property
    def is_streaming(self) -> bool:
        """Whether statements run as streams."""
        return bool(self.value(RUNTIME_MODE) == "streaming")

    def table_defaults(self) -> dict[str, str]:
        """The options that a managed table gets that does not say otherwise."""
        found = self._given.items()
        return {key[len(TABLE_PREFIX) :]: value for key, value in found if key.startswith(TABLE_PREFIX)}

    def with_defaults(self, given: Mapping[str, str]) -> dict[str, str]:
        """The options of a statement that creates a managed table, and those of the session."""
        keys = {name: option.key for name, option in _OF_STORAGE.items()}
        own = {keys.get(key.lower(), key) for key in given}
        defaults = self.table_defaults().items()
        return {key: value for key, value in defaults if keys.get(key, key) not in own} | dict(given)

    def with_materialize(self, own: Mapping[str, str], table: Mapping[str, str]) -> dict[str, str]:
        """The options of a stream into a keyed table, and ``sink.materialize`` of the session.

        Args:
            own: those of the statement.
            table: those of the table. Where one of both has the option, the session's does not count.

        >>> session = SessionOptions()
        >>> session["table.exec.sink.upsert-materialize"] = "FORCE"
        >>> session.with_materialize({}, {}), session.with_materialize({}, {"sink.materialize": "none"})
        ({'sink.materialize': 'force'}, {})
        """
        mode = self.value(MATERIALIZE)
        if mode is None or any(name.lower() == SINK_MATERIALIZE.key for name in (*own, *table)):
            return dict(own)
        return {**own, SINK_MATERIALIZE.key: mode}

    def forwarded(self) -> dict[str, str]:
        """The options that the Spark session keeps."""
        found = self._given.items()
        return {key: value for key, value in found if key.startswith(_FORWARDED) and key not in _BY_KEY}


_ELSEWHERE: Final = {
    **dict.fromkeys(
        (
            "execution.checkpointing.mode",
            "execution.checkpointing.timeout",
            "execution.checkpointing.min-pause",
        ),
        "leave it out: each micro-batch is a checkpoint; SET 'execution.trigger', the time between them",
    ),
    "execution.checkpointing.dir": "SET 'checkpoint.location' = 'folder'",
    "execution.savepoint.path": "a statement continues from its checkpoint, a changed one by 'start-from'",
    "execution.state-recovery.path": "the same statement continues from its checkpoint",
    "parallelism.default": "SET 'spark.sql.shuffle.partitions', and give 'bucket' in WITH (…) of tables",
    "restart-strategy": "deltajoin run --restarts N starts failed queries again",
    "sql-client.execution.result-mode": "SET 'execution.result-mode' = 'table' or 'changelog'",
    "state.backend": "SET 'spark.sql.streaming.stateStore.providerClass'",
    "state.checkpoints.dir": "SET 'checkpoint.location' = 'folder'",
    "state.savepoints.dir": "there are no savepoints: the same statement continues from its checkpoint",
    "table.dml-sync": "leave it out: a batch waits, and a stream gives its query, running.query",
    "table.dynamic-table-options.enabled": "leave it out: hints are always read",
    "table.exec.sink.not-null-enforcer": "leave out such rows in the query: WHERE c IS NOT NULL",
    "table.exec.sink.type-length-enforcer": "cut texts in the query: left(c, 20)",
    **dict.fromkeys(
        (
            "table.exec.sink.keyed-shuffle",
            "table.optimizer.agg-phase-strategy",
            "table.optimizer.distinct-agg",
            "table.optimizer.join-reorder-enabled",
            "table.optimizer.multi-join",
            "table.optimizer.reuse-source-enabled",
            "table.optimizer.reuse-sub-plan-enabled",
        ),
        "leave it out: plans are Spark's, and those of joins are in planner.explain",
    ),
    "table.exec.mini-batch": "SET 'execution.trigger', the time between micro-batches",
    "table.exec.source.idle-timeout": "leave it out: watermarks are of whole tables, not of their partitions",
    "table.exec.state.ttl": "leave it out: delta joins keep no state; groups are dropped by a WATERMARK",
    "table.local-time-zone": "SET 'spark.sql.session.timeZone'",
}
"""Beginnings of options that users of Flink set, and what is done here instead."""


def _check_is_here(key: str) -> None:
    """Refuse an option of which it is known what is done here instead."""
    for head, instead in _ELSEWHERE.items():
        if key.lower() == head or key.lower().startswith(f"{head}."):
            raise ConfigurationError(f"SET: option {key!r} is not supported; {instead}")


def _check_known(key: str) -> None:
    """Refuse an option of Flink's that nothing here reads."""
    if (own := _OF_TABLES.get(key.lower())) is not None:
        raise ConfigurationError(
            f"SET: option {key!r} belongs to a single table; give {own!r} in WITH (…) of the table"
        )
    _check_is_here(key)
    if key not in FLINK_OPTIONS:
        hint = suggestion(key, (*FLINK_OPTIONS, MATERIALIZE), "known are")
        raise ConfigurationError(f"SET: unknown option {key!r}; {hint}")


def _canonical(key: str) -> str:
    if key.lower().startswith(_FORWARDED) and key.lower() not in _BY_KEY:
        return key  # Spark's keys have capitals
    return _KEYS.get(key.lower(), key.lower())


def _declared(key: str) -> tuple[str, Option]:
    """The declaration of an option, and its key there."""
    if key.startswith(TABLE_PREFIX):
        own = key[len(TABLE_PREFIX) :]
        if own in log_options.OF_ONE_TABLE:
            raise ConfigurationError(f"SET: option {own!r} belongs to a single table; give it in WITH (…)")
        if log_options.is_of_client(own):
            return own, Option(own, options.text, "goes to the Kafka client of a table's log")
        if own in _OF_STORAGE:
            return own, _OF_STORAGE[own]
    if key in _BY_KEY:
        return key, _BY_KEY[key]
    _check_is_here(key)
    of_tables = (TABLE_PREFIX + option.key for option in table_options.OPTIONS)
    hint = suggestion(key, [*_KEYS, *of_tables, "spark.*"], "options are")
    raise ConfigurationError(f"SET: unknown option {key!r}; {hint}")
