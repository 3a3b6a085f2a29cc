"""librdkafka's own functions, for many messages at a time: no object of Python is made for each.

``confluent_kafka`` takes and gives one message at a time, with its topic, key and value as objects, and that
is most of the time that reading and writing take. librdkafka says in its public header how messages lie in
memory, so `message_consumer` and `message_producer` go from there to columns and back. This is what they
share: the functions, a client with its properties, and what it tells of itself. See docs/decisions/0107 and
0108.

The functions are those of the library that ``confluent_kafka`` brings, found through its own module.

What Ctrl-C raises in a function of Python that librdkafka calls is lost. So errors, lines of the log and
reports are asked for as events, between other calls. Errors of a partition alone have no such event: they lie
among its messages.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final, Literal

from upsert.errors import ConfigurationError
from upsert.kafka.client.connection import LOGGER, library

PRODUCER: Final = 0
CONSUMER: Final = 1
_TEXT_BYTES: Final = 512

_LEVELS: Final = (50, 50, 50, 40, 30, 20, 20, 10)
"""Levels of Python's log for those of syslog, which librdkafka has."""

REPORTS: Final = 1
_LOG: Final = 4
_ERROR: Final = 8


class Message(ctypes.Structure):
    """``rd_kafka_message_t`` of rdkafka.h."""

    _fields_ = (
        ("err", ctypes.c_int32),
        ("rkt", ctypes.c_void_p),
        ("partition", ctypes.c_int32),
        ("payload", ctypes.c_void_p),
        ("len", ctypes.c_size_t),
        ("key", ctypes.c_void_p),
        ("key_len", ctypes.c_size_t),
        ("offset", ctypes.c_int64),
        ("_private", ctypes.c_void_p),
    )


_pointer, _text, _int, _size = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_size_t
_partition, _offset = ctypes.c_int32, ctypes.c_int64

_ON_ERROR: Final = ctypes.CFUNCTYPE(None, _pointer, _int, _text, _pointer)

_CALLS: Final[Mapping[str, tuple[Any, tuple[Any, ...]]]] = {
    "conf_new": (_pointer, ()),
    "conf_set": (_int, (_pointer, _text, _text, _pointer, _size)),
    "conf_set_events": (None, (_pointer, _int)),
    "conf_set_error_cb": (None, (_pointer, _ON_ERROR)),
    "conf_enable_sasl_queue": (None, (_pointer, _int)),
    "conf_destroy": (None, (_pointer,)),
    "new": (_pointer, (_int, _pointer, _pointer, _size)),
    "set_log_queue": (_int, (_pointer, _pointer)),
    "sasl_background_callbacks_enable": (_pointer, (_pointer,)),
    "queue_get_main": (_pointer, (_pointer,)),
    "queue_get_consumer": (_pointer, (_pointer,)),
    "queue_poll": (_pointer, (_pointer, _int)),
    "queue_length": (_size, (_pointer,)),
    "queue_destroy": (None, (_pointer,)),
    "topic_partition_list_new": (_pointer, (_int,)),
    "topic_partition_list_add": (_pointer, (_pointer, _text, _partition)),
    "topic_partition_list_set_offset": (_int, (_pointer, _text, _partition, _offset)),
    "topic_partition_list_destroy": (None, (_pointer,)),
    "assign": (_int, (_pointer, _pointer)),
    "consume_batch_queue": (ctypes.c_ssize_t, (_pointer, _int, _pointer, _size)),
    "consumer_close": (_int, (_pointer,)),
    "topic_new": (_pointer, (_pointer, _text, _pointer)),
    "topic_destroy": (None, (_pointer,)),
    "produce_batch": (_int, (_pointer, _partition, _int, _pointer, _int)),
    "flush": (_int, (_pointer, _int)),
    "purge": (_int, (_pointer, _int)),
    "outq_len": (_int, (_pointer,)),
    "init_transactions": (_pointer, (_pointer, _int)),
    "begin_transaction": (_pointer, (_pointer,)),
    "consumer_group_metadata_new": (_pointer, (_text,)),
    "consumer_group_metadata_destroy": (None, (_pointer,)),
    "send_offsets_to_transaction": (_pointer, (_pointer, _pointer, _pointer, _int)),
    "commit_transaction": (_pointer, (_pointer, _int)),
    "abort_transaction": (_pointer, (_pointer, _int)),
    "destroy": (None, (_pointer,)),
}
"""Result and arguments of ``rd_kafka_…``; other threads of Python go on meanwhile."""

_QUICK_CALLS: Final[Mapping[str, tuple[Any, tuple[Any, ...]]]] = {
    "name": (_text, (_pointer,)),
    "last_error": (_int, ()),
    "err2str": (_text, (_int,)),
    "error_code": (_int, (_pointer,)),
    "error_string": (_text, (_pointer,)),
    "error_is_fatal": (_int, (_pointer,)),
    "error_is_retriable": (_int, (_pointer,)),
    "error_txn_requires_abort": (_int, (_pointer,)),
    "error_destroy": (None, (_pointer,)),
    "event_type": (_int, (_pointer,)),
    "event_log": (_int, (_pointer, _pointer, _pointer, _pointer)),
    "event_error": (_int, (_pointer,)),
    "event_error_string": (_text, (_pointer,)),
    "event_error_is_fatal": (_int, (_pointer,)),
    "event_message_next": (ctypes.POINTER(Message), (_pointer,)),
    "event_destroy": (None, (_pointer,)),
    "topic_name": (_text, (_pointer,)),
    "message_destroy": (None, (_pointer,)),
    "message_errstr": (_text, (_pointer,)),
    "message_timestamp": (_offset, (_pointer, _pointer)),
    "message_leader_epoch": (ctypes.c_int32, (_pointer,)),
    "message_headers": (_int, (_pointer, _pointer)),
    "header_cnt": (_size, (_pointer,)),
    "header_get_all": (_int, (_pointer, _size, _pointer, _pointer, _pointer)),
    "produceva": (_pointer, (_pointer, _pointer, _size)),
}
"""The same of calls that are made for each message or event, and wait for nothing."""


@cache
def functions() -> dict[str, Any]:
    """``rd_kafka_…`` by name."""
    path = library().cimpl.__file__
    found = {}
    for load, calls in ((ctypes.CDLL, _CALLS), (ctypes.PyDLL, _QUICK_CALLS)):
        loaded = load(path)
        for name, (result, arguments) in calls.items():
            try:
                function = getattr(loaded, f"rd_kafka_{name}")
            except AttributeError:
                raise ConfigurationError(
                    f"the package confluent-kafka must bring librdkafka as a library whose functions can be "
                    f"called, and {path!r} has no 'rd_kafka_{name}'; install the package from a wheel of PyPI"
                ) from None
            function.restype, function.argtypes = result, arguments
            found[name] = function
    return found


class Client:
    """A client of librdkafka; one that is left without ``close`` ends with the process.

    ``on_error`` gets what it meets while it goes on trying.

    Raises:
        confluent_kafka.KafkaException: a property is refused.
    """

    def __init__(
        self, kind: Literal[0, 1], properties: Mapping[str, Any], on_error: Callable[[Any], None]
    ) -> None:
        self.calls = calls = functions()
        self._on_error = on_error
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        settings = calls["conf_new"]()
        for name, value in {**_software(), **properties, "log.queue": True}.items():
            given = str(value).lower() if isinstance(value, bool) else str(value)
            if calls["conf_set"](settings, name.encode(), given.encode(), text, _TEXT_BYTES):
                calls["conf_destroy"](settings)
                raise refusal("_INVALID_ARG", text.value)
        calls["conf_set_events"](settings, REPORTS | _LOG | _ERROR)
        # as long as the client lives it is called for errors that come where messages are asked for
        self._on_error_there = _ON_ERROR(lambda _, code, reason, __: on_error(error_of(code, reason)))
        calls["conf_set_error_cb"](settings, self._on_error_there)
        calls["conf_enable_sasl_queue"](settings, 1)
        self.handle = calls["new"](kind, settings, text, _TEXT_BYTES)
        if not self.handle:
            calls["conf_destroy"](settings)
            raise refusal("_INVALID_ARG", text.value)
        calls["set_log_queue"](self.handle, None)
        # a thread of librdkafka renews tokens where it has some; elsewhere there is no such queue
        calls["error_destroy"](calls["sasl_background_callbacks_enable"](self.handle))
        self._events = calls["queue_get_main"](self.handle)

    def close(self) -> None:
        """End the client."""
        self.calls["queue_destroy"](self._events)
        self.calls["destroy"](self.handle)
        self.calls = {}  # what is called later would work on memory that is free

    def poll(self, seconds: float) -> None:
        """Hand on what the client has to tell; waits while it has nothing."""
        milliseconds = int(1000 * seconds)
        while event := self.calls["queue_poll"](self._events, milliseconds):
            milliseconds = 0
            try:
                self.hand_on(event, self.calls["event_type"](event))
            finally:
                self.calls["event_destroy"](event)

    def hand_on(self, event: int, kind: int) -> None:
        """Tell an error to who asked for it, and a line of the log to Python's."""
        if kind == _ERROR:
            code, text = self.calls["event_error"](event), self.calls["event_error_string"](event)
            self._on_error(error_of(code, text, fatal=bool(self.calls["event_error_is_fatal"](event))))
        elif kind == _LOG:
            facility, text, level = ctypes.c_char_p(), ctypes.c_char_p(), ctypes.c_int()
            self.calls["event_log"](event, *map(ctypes.byref, (facility, text, level)))
            self.log(level.value, facility.value or b"", text.value or b"")

    def log(self, level: int, facility: bytes, text: bytes) -> None:
        """Write a line into the log."""
        name = self.calls["name"](self.handle)
        parts = (part.decode(errors="replace") for part in (facility, name, text))
        LOGGER.log(_LEVELS[level], "%s [%s] %s", *parts)

    def check(self, code: int) -> None:
        """Raise what a code says."""
        if code:
            raise library().KafkaException(error_of(code))

    def check_error(self, error: int | None) -> None:
        """Raise an ``rd_kafka_error_t``, which is destroyed."""
        if error is None:
            return
        calls = self.calls
        try:
            raise library().KafkaException(
                error_of(
                    calls["error_code"](error),
                    calls["error_string"](error),
                    fatal=bool(calls["error_is_fatal"](error)),
                    retriable=bool(calls["error_is_retriable"](error)),
                    txn_requires_abort=bool(calls["error_txn_requires_abort"](error)),
                )
            )
        finally:
            calls["error_destroy"](error)


def _software() -> dict[str, str]:
    """What brokers are told of the library, as ``confluent_kafka`` tells it."""
    versions = library().__version__, library().libversion()[0]
    return {
        "client.software.name": "confluent-kafka-python",
        "client.software.version": "-rdkafka-".join(versions),
    }


def error_of(code: int, reason: bytes | None = None, **kinds: bool) -> Any:
    """A ``KafkaError`` as ``confluent_kafka`` makes it; without a reason it has the code's."""
    text = functions()["err2str"](code) if reason is None else reason
    return library().KafkaError(code, text.decode(errors="replace"), **kinds)


def refusal(kind: str, reason: bytes | None = None) -> Exception:
    """A ``KafkaException`` with the error of that name."""
    code = getattr(library().KafkaError, kind)
    refused: Exception = library().KafkaException(error_of(code, reason))
    return refused
