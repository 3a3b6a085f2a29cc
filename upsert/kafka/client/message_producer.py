"""Columns as messages that librdkafka sends, with no object of Python for each.

librdkafka takes an array of messages with addresses of keys and values, which it copies. The addresses are
those of the columns' own memory, so an array is filled for all records of a batch together. That array has no
place for headers, timestamps and partitions: a record that has some of them is an array of parts, and there
is a call for each record, made by no loop of Python. See docs/decisions/0107.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import repeat
from operator import length_hint
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from upsert.arrays import Ints, integers
from upsert.kafka.client.connection import library
from upsert.kafka.client.librdkafka import PRODUCER, REPORTS, Client, Message, error_of, refusal
from upsert.kafka.client.records import TopicPartition

_ANY_PARTITION: Final = -1
_NOW: Final = 0
_COPY: Final = 2
_PURGE_ALL: Final = 7
"""What waits and what is on its way, without waiting for it."""

_LARGER_THAN_QUEUE: Final = (
    b"Unable to produce message: one record is larger than 'queue.buffering.max.kbytes'; raise that"
)

_ABORT_MS: Final = 20
"""How long an abort waits for records that it has given up, until their reports are taken."""

Addresses = npt.NDArray[np.int64]


class _Offset(ctypes.Structure):
    """``rd_kafka_topic_partition_t`` of rdkafka.h."""

    _fields_ = (
        ("topic", ctypes.c_char_p),
        ("partition", ctypes.c_int32),
        ("offset", ctypes.c_int64),
        ("metadata", ctypes.c_void_p),
        ("metadata_size", ctypes.c_size_t),
        ("opaque", ctypes.c_void_p),
        ("err", ctypes.c_int),
        ("_private", ctypes.c_void_p),
    )


_MESSAGE: Final = np.dtype(Message)

_PART: Final = np.dtype([("kind", "i8"), ("first", "i8"), ("second", "i8"), ("third", "i8"), ("", "i8", 5)])
"""``rd_kafka_vu_t`` of rdkafka.h: the kind of a part, and a number, a text, or a header's name and value."""

_TOPIC, _PARTITION, _VALUE, _KEY, _FLAGS, _TIME, _HEADER = 2, 3, 4, 5, 7, 8, 9


class Producer(Client):
    """A client of librdkafka that writes.

    ``on_error`` gets what it meets while it goes on trying, and what ends it for good, which its ``poll``
    raises then; ``on_failure`` the first record that was not delivered, with its place.

    Raises:
        confluent_kafka.KafkaException: a property is refused.
    """

    def __init__(
        self,
        properties: Mapping[str, Any],
        on_error: Callable[[Any], None],
        on_failure: Callable[[Any, str], None],
    ) -> None:
        def met(error: Any) -> None:
            on_error(error)
            if error.fatal():
                raise library().KafkaException(error)

        super().__init__(PRODUCER, properties, met)
        self._on_failure = on_failure
        self._topics: dict[str, int] = {}

    def close(self) -> None:
        """End the client without sending what it still has."""
        self.calls["purge"](self.handle, _PURGE_ALL)
        for topic in self._topics.values():
            self.calls["topic_destroy"](topic)
        super().close()

    def hand_on(self, event: int, kind: int) -> None:
        """As every client, and the records that were not delivered."""
        if kind != REPORTS:
            super().hand_on(event, kind)
        elif message := self.calls["event_message_next"](event):
            found = message.contents
            topic = self.calls["topic_name"](found.rkt).decode()
            place = topic if found.partition < 0 else str(TopicPartition(topic, found.partition))
            self._on_failure(error_of(found.err), place)

    def send(self, topic: str, records: pa.RecordBatch) -> Iterator[None]:
        """Hand records with columns of `RECORD_SCHEMA` over, in their order.

        It stops wherever the client's queue is full, to go on when there may be room again.
        """
        hand_over: Callable[[int], int]
        if set(records.schema.names) <= {"key", "value"}:
            hand_over = partial(self._hand_over_messages, self._topic(topic), _messages(records))
        else:
            hand_over = partial(self._hand_over_parts, _parts(self._topics_of(topic, records), records))
        sent = 0
        while sent < records.num_rows:
            is_empty = not self.waiting
            taken = hand_over(sent)
            if is_empty and not taken:
                raise refusal("_QUEUE_FULL", _LARGER_THAN_QUEUE)
            sent += taken
            if sent < records.num_rows:
                yield

    def _hand_over_messages(self, topic: int, messages: npt.NDArray[Any], first: int) -> int:
        """Hand messages from one on over, all together; gives for how many there was room."""
        rest = messages[first:]
        given = topic, _ANY_PARTITION, _COPY, rest.ctypes.data, len(rest)
        if self.calls["produce_batch"](*given) == len(rest):
            return len(rest)
        failed = int(np.flatnonzero(rest["err"])[0])
        self._check_full(int(rest["err"][failed]))
        return failed

    def _hand_over_parts(self, records: _Parts, first: int) -> int:
        """The same of records in parts, one after the other."""
        addresses = iter(records.addresses[first:])
        calls = map(self.calls["produceva"], repeat(self.handle), addresses, records.counts[first:])
        error = next(filter(None, calls), None)
        taken = len(records.addresses) - first - length_hint(addresses)
        if error is None:
            return taken
        is_fatal, code = self.calls["error_is_fatal"](error), self.calls["error_code"](error)
        self.calls["error_destroy"](error)
        self._check_full(library().KafkaError._FATAL if is_fatal else code)
        return taken - 1

    def _check_full(self, code: int) -> None:
        """Raise why a record is refused, if not for a full queue."""
        if code != library().KafkaError._QUEUE_FULL:
            text = self.calls["err2str"](code)
            raise library().KafkaException(error_of(code, b"Unable to produce message: " + text))

    def _topic(self, name: str) -> int:
        """The client's own topic of that name."""
        if name not in self._topics:
            if "\0" in name:  # where a text of C ends, so it would be another topic
                self._check_full(library().KafkaError._INVALID_ARG)
            topic = self.calls["topic_new"](self.handle, name.encode(), None)
            if topic is None:
                self._check_full(self.calls["last_error"]())
            self._topics[name] = topic
        return self._topics[name]

    def _topics_of(self, topic: str, records: pa.RecordBatch) -> Ints:
        """The topic of each record, which may name its own."""
        if "topic" not in records.schema.names:
            return np.full(records.num_rows, self._topic(topic))
        names = pc.fill_null(records.column("topic"), topic).dictionary_encode()
        topics = np.array([self._topic(name or topic) for name in names.dictionary.to_pylist()], np.int64)
        found: Ints = topics[integers(names.indices)]
        return found

    @property
    def waiting(self) -> int:
        """How many records and events wait to be delivered or handed on."""
        return int(self.calls["outq_len"](self.handle))

    def flush(self, seconds: float) -> None:
        """Send what waits without lingering; returns when all is delivered, or the time is over."""
        self.calls["flush"](self.handle, int(1000 * seconds))

    def init_transactions(self, seconds: float) -> None:
        """Take the transactional id over."""
        self.check_error(self.calls["init_transactions"](self.handle, int(1000 * seconds)))

    def begin_transaction(self) -> None:
        """Begin a transaction."""
        self.check_error(self.calls["begin_transaction"](self.handle))

    def failure_of_transaction(self) -> Any | None:
        """What has made the transaction that is open fail; None if it has not failed."""
        try:
            # there is never a second one, and where the first has failed the refusal has the cause
            self.begin_transaction()
        except library().KafkaException as refused:
            error = refused.args[0]
            return error if error.txn_requires_abort() else None
        return None

    def send_offset(self, place: TopicPartition, offset: int, text: str, group: str, seconds: float) -> None:
        """Commit an offset of a consumer group with the transaction, and a text beside it."""
        calls, data = self.calls, ctypes.create_string_buffer(text.encode())
        owner = calls["consumer_group_metadata_new"](group.encode())
        offsets = calls["topic_partition_list_new"](1)
        added = calls["topic_partition_list_add"](offsets, place.topic.encode(), place.partition)
        one = _Offset.from_address(added)
        # with the zero at its end, by which confluent_kafka knows where it ends when it reads it
        one.offset, one.metadata, one.metadata_size = offset, ctypes.addressof(data), len(data)
        error = calls["send_offsets_to_transaction"](self.handle, offsets, owner, int(1000 * seconds))
        one.metadata, one.metadata_size = None, 0  # librdkafka would free it
        calls["topic_partition_list_destroy"](offsets)
        calls["consumer_group_metadata_destroy"](owner)
        self.check_error(error)

    def commit_transaction(self, seconds: float) -> None:
        """Commit the transaction, whose records are all delivered."""
        self.check_error(self.calls["commit_transaction"](self.handle, int(1000 * seconds)))

    def abort_transaction(self, seconds: float) -> None:
        """Abort the transaction, and give up what is not yet delivered."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                self.check_error(self.calls["abort_transaction"](self.handle, _ABORT_MS))
                return
            except library().KafkaException as refused:
                is_over = refused.args[0].code() != library().KafkaError._TIMED_OUT
                if is_over or time.monotonic() > deadline:
                    raise
            self.poll(0)


def _messages(records: pa.RecordBatch) -> npt.NDArray[Any]:
    """Keys and values as an array of ``rd_kafka_message_t``."""
    messages = np.zeros(records.num_rows, _MESSAGE)
    for name, place, length in (("key", "key", "key_len"), ("value", "payload", "len")):
        if name in records.schema.names:
            messages[place], messages[length] = _texts(records.column(name))
    return messages


class _Parts(NamedTuple):
    """Where the parts of each record lie, how many there are, and what has to be kept for them."""

    addresses: list[int]
    counts: list[int]
    kept: tuple[Any, ...]


def _parts(topics: Ints, records: pa.RecordBatch) -> _Parts:
    """Records as arrays of ``rd_kafka_vu_t``, one behind the other."""
    fields: dict[int, tuple[Any, ...]] = {_TOPIC: (topics,), _FLAGS: (_COPY,)}
    for name, kind in (("key", _KEY), ("value", _VALUE)):
        if name in records.schema.names:
            fields[kind] = _texts(records.column(name))
    for name, kind, otherwise in (("partition", _PARTITION, _ANY_PARTITION), ("timestamp", _TIME, _NOW)):
        if name in records.schema.names:
            fields[kind] = (integers(pc.fill_null(records.column(name), otherwise)),)
    headers = _Headers.of(records)
    counts = len(fields) + headers.counts
    ends = np.cumsum(counts)
    starts = ends - counts
    parts = np.zeros(counts.sum(), _PART)
    for place, (kind, values) in enumerate(fields.items()):
        _fill(parts, starts + place, kind, *values)
    before = np.cumsum(headers.counts) - headers.counts
    places = np.repeat(starts + len(fields) - before, headers.counts) + np.arange(len(headers.names))
    _fill(parts, places, _HEADER, _texts(headers.names)[0], *_texts(headers.values))
    addresses = parts.ctypes.data + _PART.itemsize * starts
    return _Parts(addresses.tolist(), counts.tolist(), (parts, headers))


def _fill(parts: npt.NDArray[Any], places: Ints, kind: int, *values: Any) -> None:
    parts["kind"][places] = kind
    for name, value in zip(("first", "second", "third"), values, strict=False):
        parts[name][places] = value


class _Headers(NamedTuple):
    """The headers of some records, one behind the other, and how many each record has."""

    counts: Ints
    names: pa.Array
    values: pa.Array

    @classmethod
    def of(cls, records: pa.RecordBatch) -> _Headers:
        """Those of records; the names end as texts of C do."""
        if "headers" not in records.schema.names:
            nothing = pa.array([], pa.binary())
            return cls(np.zeros(records.num_rows, np.int64), nothing, nothing)
        lists = records.column("headers")
        counts = integers(pc.fill_null(pc.list_value_length(lists), 0)).astype(np.int64)
        names, values = (pc.struct_field(lists.flatten(), part) for part in ("key", "value"))
        ended = pc.binary_join_element_wise(names.cast(pa.binary()), b"\0", b"", null_handling="replace")
        return cls(counts, ended, values)


def _texts(column: pa.Array) -> tuple[Addresses, Ints]:
    """Where the bytes of each value lie, and how many there are; the address 0 for NULL.

    >>> column = pa.array([b"a", None, b"", b"bcd"]).slice(1)
    >>> at, sizes = _texts(column)
    >>> [at and ctypes.string_at(at, size) for at, size in zip(at.tolist(), sizes.tolist())]
    [0, b'', b'bcd']
    """
    if not len(column):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    _, bounds, data = column.buffers()
    ends = np.frombuffer(bounds, np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    # where all texts are empty there may be no memory, and yet they are not NULL
    begin = (data.address if data is not None else 0) or bounds.address
    addresses = begin + ends[:-1]
    if column.null_count:
        addresses[pc.is_null(column).to_numpy(zero_copy_only=False)] = 0
    return addresses, np.diff(ends)
