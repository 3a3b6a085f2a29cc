"""How the rows of a table are looked up where they lie: options, in Flink's names if it has them (pure)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Self

from upsert.errors import ConfigurationError, SchemaError
from upsert.options import Option, boolean, integer, positive_duration_ms, positive_int
from upsert.schema import TableSchema


def _cache(value: str) -> str:
    if value.lower() not in ("none", "partial"):
        raise ValueError(
            "NONE or PARTIAL (instead of FULL write the rows into a managed table, which is looked up alike)"
        )
    return value.lower()


CACHE: Final = "lookup.cache"
_OF_CACHE: Final = "lookup.partial-cache."
_REQUESTS: Final = "lookup.requests"

LOOKUP_OPTIONS: Final = (
    Option(
        CACHE,
        _cache,
        "`NONE`: each micro-batch looks its keys up; `PARTIAL`: a worker process caches the rows that it has "
        "found, as the options `lookup.partial-cache.…` say; set at least one of the first three",
        "none",
    ),
    Option(f"{_OF_CACHE}max-rows", positive_int, "maximum number of cached keys, those used last", None),
    Option(
        f"{_OF_CACHE}expire-after-write",
        positive_duration_ms,
        "how long after its lookup a key is looked up again",
        None,
    ),
    Option(
        f"{_OF_CACHE}expire-after-access",
        positive_duration_ms,
        "how long after its last use a key leaves the cache",
        None,
    ),
    Option(f"{_OF_CACHE}cache-missing-key", boolean, "whether keys without rows are cached; `true`", None),
    Option("lookup.max-retries", integer(0), "how often a request is repeated after a temporary failure", 3),
    Option(
        "lookup.async",
        boolean,
        "`false`: each worker process has one request in flight; `true`: `lookup.requests`",
        True,
    ),
    Option(
        _REQUESTS,
        positive_int,
        "requests in flight in each worker process; default: 16 over HTTP, 4 in PostgreSQL",
        None,
    ),
    Option(
        "lookup.keys-per-request",
        positive_int,
        "maximum number of keys in one request; default: 100 over HTTP, 1000 in PostgreSQL",
        None,
    ),
    Option("lookup.request-timeout", positive_duration_ms, "longest time of one attempt", 30_000),
)
"""Options of lookups; they are those of the table, whichever store has its rows."""


@dataclass(frozen=True)
class PartialCache:
    """What a worker process keeps of the keys that it has looked up: FLIP-221's ``PARTIAL``.

    Attributes:
        max_keys: most keys that are kept with their rows, those used last; None: 64 MiB of memory.
        expire_after_write_s: seconds after which a key is looked up again; None: never.
        expire_after_access_s: seconds without use after which a key is forgotten; None: never.
        keeps_missing: whether a key without rows is kept too.

    >>> PartialCache(expire_after_write_s=0)
    Traceback (most recent call last):
    ...
    upsert.errors.ConfigurationError: lookup cache: expire_after_write_s must be above 0, got 0
    """

    max_keys: int | None = None
    expire_after_write_s: float | None = None
    expire_after_access_s: float | None = None
    keeps_missing: bool = True

    def __post_init__(self) -> None:
        bounds = ("max_keys", "expire_after_write_s", "expire_after_access_s")
        for name in bounds:
            if (value := getattr(self, name)) is not None and value <= 0:
                raise ConfigurationError(f"lookup cache: {name} must be above 0, got {value!r}")
        if all(getattr(self, name) is None for name in bounds):
            raise ConfigurationError(
                f"lookup cache: one of {', '.join(bounds)} must say how long rows are kept, got none"
            )


@dataclass(frozen=True)
class LookupOptions:
    """The options of a table's lookups, converted; None is the default of the store.

    Attributes:
        cache: None: nothing is kept.
        max_retries: attempts of a request beyond the first.
        requests: requests in flight in one worker process.
        keys_per_request: most keys in one request.
        timeout_s: seconds of one attempt.
    """

    cache: PartialCache | None = None
    max_retries: int = 3
    requests: int | None = None
    keys_per_request: int | None = None
    timeout_s: float = 30.0

    @classmethod
    def of(cls, of: str, values: Mapping[str, Any]) -> Self:
        """The options of ``LOOKUP_OPTIONS``; ``of`` begins messages.

        Raises:
            ConfigurationError: one has no effect beside another, or PARTIAL has no bound.
        """
        requests = values[_REQUESTS]
        if not values["lookup.async"]:
            if requests is not None:
                raise ConfigurationError(
                    f"{of}: option {_REQUESTS!r} has no effect with 'lookup.async' = 'false', which is one "
                    "request; leave one of them out"
                )
            requests = 1
        return cls(
            _cache_of(of, values),
            values["lookup.max-retries"],
            requests,
            values["lookup.keys-per-request"],
            values["lookup.request-timeout"] / 1000,
        )


@dataclass(frozen=True)
class LookupTable(ABC):
    """A declared table whose rows are looked up: a value, whose ``repr`` shows no secrets.

    Attributes:
        connector: of which kind it is.
        name: for messages.
        given: the options as they were written, without ``connector``.
        schema: the columns, by the names that they have there, and the primary key.
        lookup: how many requests, and what is kept.
    """

    connector: ClassVar[str]

    name: str
    given: Mapping[str, str] = field(repr=False, compare=False)
    schema: TableSchema
    lookup: LookupOptions

    @property
    @abstractmethod
    def shown(self) -> str:
        """The table for messages: its name here, and where its rows are, without secrets."""

    @abstractmethod
    def asked_by(self, equated: tuple[str, ...]) -> tuple[str, ...] | None:
        """The columns that it is asked by where some have values; None if these are not enough."""

    @classmethod
    def check_key(cls, schema: TableSchema, of: str, why: str) -> None:
        """Refuse columns without a primary key; ``why`` says what it is for, and which columns it has."""
        if not schema.primary_key:
            raise SchemaError(f"{of}: the connector {cls.connector!r} needs a PRIMARY KEY, by which {why}")


def _cache_of(of: str, values: Mapping[str, Any]) -> PartialCache | None:
    given = {key: value for key, value in values.items() if key.startswith(_OF_CACHE) and value is not None}
    if values[CACHE] == "none":
        if given:
            raise ConfigurationError(
                f"{of}: option {next(iter(given))!r} has no effect with {CACHE!r} = 'NONE'; add {CACHE!r} = "
                "'PARTIAL', or leave it out"
            )
        return None
    write, access = (given.get(f"{_OF_CACHE}expire-after-{event}") for event in ("write", "access"))
    max_rows, keeps_missing = given.get(f"{_OF_CACHE}max-rows"), given.get(f"{_OF_CACHE}cache-missing-key")
    if write is access is max_rows is None:
        raise ConfigurationError(
            f"{of}: option {CACHE!r} = 'PARTIAL' needs a bound; add '{_OF_CACHE}max-rows', "
            f"'{_OF_CACHE}expire-after-write' or '{_OF_CACHE}expire-after-access'"
        )
    return PartialCache(
        max_rows,
        None if write is None else write / 1000,
        None if access is None else access / 1000,
        keeps_missing is not False,
    )
