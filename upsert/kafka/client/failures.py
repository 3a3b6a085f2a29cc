"""From the client library's errors to ours, how long to try again, and calls that must come back.

The client library does not always keep to the time limit it was given: after a restart of the broker inside a
transaction, ``send_offsets_to_transaction`` of librdkafka 2.16 has been seen not to return for minutes,
whatever its timeout. `bounded` stops waiting for such a call.
"""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Callable, Hashable
from typing import Any, Final, TypeVar

from upsert import retry
from upsert.errors import (
    ConfigurationError,
    DeliveryError,
    FencedError,
    KafkaUnavailableError,
    RecordsExpiredError,
    TableExistsError,
    TableNotFoundError,
    UpsertError,
)
from upsert.kafka.client.connection import ClientCache, Connection, library

T = TypeVar("T")
FIRST_PAUSE_SECONDS: Final = 0.05
LONGEST_PAUSE_SECONDS: Final = 1.0

TELL_SECONDS: Final = 3.0
"""How long Kafka is tried in silence; then the cause is logged, while it is tried again."""
TELL_AGAIN_SECONDS: Final = 60.0
LOG: Final = logging.getLogger("upsert.kafka")

_PASSING: Final = """
    _TRANSPORT _ALL_BROKERS_DOWN _TIMED_OUT _TIMED_OUT_QUEUE _MSG_TIMED_OUT _RESOLVE _SSL _WAIT_COORD
    _WAIT_CACHE _RETRY _NOENT REQUEST_TIMED_OUT LEADER_NOT_AVAILABLE NOT_LEADER_FOR_PARTITION
    BROKER_NOT_AVAILABLE REPLICA_NOT_AVAILABLE NETWORK_EXCEPTION COORDINATOR_LOAD_IN_PROGRESS
    COORDINATOR_NOT_AVAILABLE NOT_COORDINATOR NOT_CONTROLLER UNSTABLE_OFFSET_COMMIT
    CONCURRENT_TRANSACTIONS OFFSET_NOT_AVAILABLE FENCED_LEADER_EPOCH UNKNOWN_LEADER_EPOCH
    KAFKA_STORAGE_ERROR NOT_ENOUGH_REPLICAS
"""
"""Names of errors that may be gone when the call is made again."""

_WHEN_FENCED: Final = (
    "another attempt has taken over, or the transaction was open for longer than transaction.timeout.ms; if "
    "two queries run with one checkpoint, stop one; a query that is started again continues"
)

_KINDS: Final[tuple[tuple[type[UpsertError], str, str], ...]] = (
    (
        TableNotFoundError,
        "create the topic, or correct its name",
        "UNKNOWN_TOPIC_OR_PART UNKNOWN_TOPIC_ID _UNKNOWN_TOPIC _UNKNOWN_PARTITION",
    ),
    (TableExistsError, "choose another name", "TOPIC_ALREADY_EXISTS"),
    (
        RecordsExpiredError,
        "records were deleted before they were read; start over, or accept the gap",
        "OFFSET_OUT_OF_RANGE _AUTO_OFFSET_RESET",
    ),
    (
        ConfigurationError,
        "correct the user, the password or the rights in Kafka",
        """_AUTHENTICATION SASL_AUTHENTICATION_FAILED UNSUPPORTED_SASL_MECHANISM TOPIC_AUTHORIZATION_FAILED
        GROUP_AUTHORIZATION_FAILED CLUSTER_AUTHORIZATION_FAILED TRANSACTIONAL_ID_AUTHORIZATION_FAILED""",
    ),
    (
        ConfigurationError,
        "correct the option or property",
        """_INVALID_ARG INVALID_CONFIG INVALID_REPLICATION_FACTOR INVALID_PARTITIONS
        INVALID_TRANSACTION_TIMEOUT TOPIC_EXCEPTION POLICY_VIOLATION""",
    ),
    (
        DeliveryError,
        "a topic allows max.message.bytes a record, a client 'properties.message.max.bytes', else 1000000",
        "MSG_SIZE_TOO_LARGE",
    ),
    (
        FencedError,
        _WHEN_FENCED,
        "_FENCED PRODUCER_FENCED INVALID_PRODUCER_EPOCH FENCED_INSTANCE_ID",
    ),
)
"""What an error of such a name means, and what to do about it."""


def codes(*names: str) -> frozenset[int]:
    """Numbers of the client library's errors; a name that this release does not have is passed over."""
    errors = library().KafkaError
    return frozenset(int(getattr(errors, name)) for name in names if hasattr(errors, name))


def is_passing(error: Any) -> bool:
    """Whether a ``KafkaError`` may be gone when the call is made again."""
    return not is_lasting(error) and (bool(error.retriable()) or error.code() in codes(*_PASSING.split()))


def is_lasting(error: Any) -> bool:
    """Whether a ``KafkaError`` has a cause that does not pass by itself."""
    return error.code() in codes(*(name for _, _, names in _KINDS for name in names.split()))


def translated(
    connection: Connection, subject: str, error: Any, otherwise: type[UpsertError] = UpsertError
) -> UpsertError:
    """A ``KafkaError`` as an error of ours, with the subject first and secrets masked.

    It is of the class ``otherwise`` where it fits none of those that ask for a reaction of their own.
    """
    text = connection.masked(f"{error.str()} ({error.name()})")
    for kind, advice, names in _KINDS:
        if error.code() in codes(*names.split()):
            return kind(f"{subject}: Kafka at {connection.bootstrap_servers!r} said: {text}; {advice}")
    if is_passing(error):
        return unavailable(connection, subject, text)
    return otherwise(f"{subject}: Kafka at {connection.bootstrap_servers!r} said: {text}")


def unavailable(connection: Connection, subject: str, last: str | None) -> KafkaUnavailableError:
    """The error for a cluster that has not answered for as long as the connection has patience."""
    said = f"; last: {connection.masked(last)}" if last else ""
    return KafkaUnavailableError(
        f"{subject}: Kafka at {connection.bootstrap_servers!r} should answer within "
        f"{connection.patience_s:g} s, and did not{said}; check that it runs and can be reached from here"
    )


class Reports:
    """What a client reports from within its calls; apart from it, so that neither keeps the other alive."""

    def __init__(self) -> None:
        self.failure: tuple[Any, str] | None = None
        self.broker_failure: Any = None
        self.fatal: Any = None

    def on_failure(self, error: Any, place: str) -> None:
        """Keep the first record that was not delivered, and where it should have gone."""
        if self.failure is None:
            self.failure = (error, place)

    def on_error(self, error: Any) -> None:
        """Keep what the client last met while it goes on trying, and what ended it for good."""
        if self.broker_failure is None or error.code() != library().KafkaError._ALL_BROKERS_DOWN:
            self.broker_failure = error  # which says more than that none is left
        if error.fatal():
            self.fatal = error


_told: dict[tuple[str, str], float] = {}
"""When a process last said that a cluster cannot be reached, by address and failure; "" is silence."""


def tell(connection: Connection, subject: str, error: Any | None, since: float) -> None:
    """Log why Kafka cannot be reached, or that it is silent, after some seconds and then once a minute."""
    now = time.monotonic()
    key = connection.bootstrap_servers, "" if error is None else error.name()
    if now < since + min(TELL_SECONDS, connection.patience_s / 2):
        return
    if now < _told.get(key, -TELL_AGAIN_SECONDS) + TELL_AGAIN_SECONDS:
        return
    _told[key] = now
    left_s = max(0.0, since + connection.patience_s - now)
    if error is None:
        text = "%s: Kafka at %r has not answered yet; waiting for another %.0f s"
        LOG.warning(text, subject, connection.bootstrap_servers, left_s)
        return
    text = "%s: Kafka at %r cannot be reached: %s; trying again for %.0f s"
    LOG.warning(text, subject, connection.bootstrap_servers, connection.masked(error.str()), left_s)


def made(connection: Connection, subject: str, make: Callable[[], T]) -> T:
    """A new client; what the library says against its properties becomes a `ConfigurationError`."""
    refusal = library().KafkaException  # before: it is loaded here, and Ctrl-C may leave half of it
    try:
        return make()
    except ConfigurationError:
        raise  # it says itself what is to be corrected: the library, for instance
    except (refusal, ValueError, TypeError) as refused:
        cause = refused.args[0] if refused.args else refused
        text = connection.masked(cause.str() if hasattr(cause, "str") else str(cause))
    # Raised outside: the library's own error may quote a secret, and would be shown as the cause.
    raise ConfigurationError(f"{subject}: the properties were refused: {text}; correct 'properties.*'")


def retried(connection: Connection, subject: str, call: Callable[[], T], reports: Reports | None = None) -> T:
    """The result of a call, made again while Kafka is away and the connection has patience.

    What its clients have reported of brokers is the cause where the call only took too long.
    """
    begun = time.monotonic()
    refusal = library().KafkaException

    def cause_of(failure: BaseException) -> Any:
        error = failure.args[0]
        met = None if reports is None else reports.broker_failure
        return met if met is not None and is_passing(error) else error

    try:
        return retry.retried(
            call,
            is_passing=lambda failure: isinstance(failure, refusal) and is_passing(cause_of(failure)),
            patience_s=connection.patience_s,
            first_pause_s=FIRST_PAUSE_SECONDS,
            longest_pause_s=LONGEST_PAUSE_SECONDS,
            on_failure=lambda failure: tell(connection, subject, cause_of(failure), begun),
        )
    except refusal as failure:
        error = cause_of(failure)
    # Raised outside: the library's own error may quote a secret, and would be shown as the cause.
    raise translated(connection, subject, error)


def with_client(
    connection: Connection,
    subject: str,
    clients: ClientCache[tuple[Any, Reports]],
    key: Hashable,
    make: Callable[[Reports], Any],
    call: Callable[[Any, Reports], T],
) -> T:
    """The result of a call with the idle client of a key, or a new one, and what that client has met.

    Another try is made with a new client: after a change of leaders an old one goes on asking with what it
    knew of them.
    """
    reports = Reports()

    def attempt() -> T:
        kept = clients.take(key)
        if kept is None:
            own = Reports()
            kept = make(own), own
        client, own = kept
        client.poll(0)  # hands the library's log on
        own.broker_failure = None  # of the time before this request
        try:
            result = call(client, own)
        except Exception as failure:  # also one of ours, after which the caller may try again
            client.poll(0)
            reports.broker_failure = own.broker_failure
            # a failure that is raised by a future holds it, and so this client with its threads, in a circle
            # of which a process that only waits collects none
            traceback.clear_frames(failure.__traceback__)
            client = kept = None
            raise
        clients.give_back(key, kept)
        return result

    return retried(connection, subject, attempt, reports)


GRACE_SECONDS: Final = 10.0
"""How much longer than its own limit a call is waited for."""

_MEANWHILE_SECONDS: Final = 1.0


class DidNotReturnError(Exception):
    """A call is still at work: what it works on may not be touched any more."""


def bounded(call: Callable[[], object], seconds: float, meanwhile: Callable[[], None] = lambda: None) -> None:
    """Make a call that should take so many seconds at most; what it raises is raised here.

    While it takes long, ``meanwhile`` is called again and again.

    It runs in a thread of its own, which cannot be ended: when it takes `GRACE_SECONDS` longer, a
    ``DidNotReturnError`` is raised, and it goes on, holding on to what it uses, until it returns or the
    process ends.
    """
    failures: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as failure:
            failures.append(failure)

    thread = threading.Thread(target=run, name="kafka-call", daemon=True)
    thread.start()
    deadline = time.monotonic() + seconds + GRACE_SECONDS
    while thread.is_alive():
        if (left_s := deadline - time.monotonic()) <= 0:
            raise DidNotReturnError
        thread.join(min(left_s, _MEANWHILE_SECONDS))
        meanwhile()
    if failures:
        raise failures[0]
