"""Messages that librdkafka has fetched, as columns, with no object of Python for each.

librdkafka keeps the records of a batch one after the other. So the fields of all messages that have come are
gathered at once, and of keys and values whole stretches are copied. What is left for each message is the call
that frees it. See docs/decisions/0108.
"""

from __future__ import annotations

import ctypes
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import islice
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from upsert.arrays import Ints, Mask
from upsert.kafka.client.librdkafka import CONSUMER, Client, Message, error_of, functions, refusal
from upsert.kafka.client.records import HEADERS, TIMESTAMP_TYPES, TopicPartition

_BYTES_AT_ONCE: Final = 64 << 20
"""Bytes of keys and values that become columns at a time: a few MB of a topic can be far more in memory."""

Addresses = npt.NDArray[np.int64]


class Taken(NamedTuple):
    """What a client had: records, and errors with the offset of each, such as the end of the partition."""

    records: pa.Table
    errors: list[tuple[Any, int]]


class Consumer(Client):
    """A client of librdkafka that reads one partition.

    ``on_error`` gets what it meets while it goes on trying.

    Raises:
        confluent_kafka.KafkaException: a property is refused.
    """

    def __init__(self, properties: Mapping[str, Any], on_error: Callable[[Any], None]) -> None:
        super().__init__(CONSUMER, properties, on_error)
        self._queue = self.calls["queue_get_consumer"](self.handle)
        if not self._queue:
            super().close()
            raise refusal("_INVALID_ARG", b"group.id must not be empty")
        self._partition = TopicPartition("", 0)
        self._waiting = Messages.at(_NONE)
        self._unfreed: Iterator[int] = iter(())

    def close(self) -> None:
        """End the client."""
        self._free()
        self.calls["queue_destroy"](self._queue)
        self.calls["consumer_close"](self.handle)
        super().close()

    def assign(self, partition: TopicPartition, offset: int) -> None:
        """Read a partition from an offset on; what has been fetched before is given up."""
        self._waiting = Messages.at(_NONE)
        self._free()
        calls, topic = self.calls, partition.topic.encode()
        one = calls["topic_partition_list_new"](1)
        calls["topic_partition_list_add"](one, topic, partition.partition)
        calls["topic_partition_list_set_offset"](one, topic, partition.partition, offset)
        code = calls["assign"](self.handle, one)
        calls["topic_partition_list_destroy"](one)
        self.check(code)
        self._partition = partition

    @property
    def waiting(self) -> int:
        """How many messages have come that were not taken, the end of the partition among them."""
        return len(self._waiting.addresses) + int(self.calls["queue_length"](self._queue))

    def rest(self) -> None:
        """Ask for no more records until a partition is assigned again."""
        self.check(self.calls["assign"](self.handle, None))

    def take(self, limit: int, wait_s: float, schema: pa.Schema) -> Taken:
        """What has come, as columns of `RECORD_SCHEMA`, about 64 MB at most; waits while there is nothing."""
        if not len(self._waiting.addresses):
            self._waiting = self._come(limit, wait_s)
        count = min(limit, self._waiting.within(_BYTES_AT_ONCE))
        messages, self._waiting = self._waiting.chosen(slice(count)), self._waiting.chosen(slice(count, None))
        try:
            is_error = messages.codes != 0
            errors = [self._error_of(messages, row) for row in np.flatnonzero(is_error).tolist()]
            good = messages.chosen(~is_error) if errors else messages
            return Taken(good.table(schema, self._partition), errors)
        finally:
            self._free(count)

    def _come(self, limit: int, wait_s: float) -> Messages:
        """The messages that the client has; waits while there are none."""
        self.poll(0)
        self._free()
        found = array("q", bytes(limit * _WORD))
        # told before there are any: Ctrl-C may be raised next, and `close` waits for messages not freed
        self._unfreed = filter(None, found)
        milliseconds, place = int(1000 * wait_s), found.buffer_info()[0]
        count = self.calls["consume_batch_queue"](self._queue, milliseconds, place, limit)
        del found[max(0, count) :]
        if count < 0:
            self.check(self.calls["last_error"]())
        return Messages.at(np.frombuffer(found, np.int64) if found else _NONE)

    def _free(self, count: int | None = None) -> None:
        """Free the next messages, or all."""
        deque(map(self.calls["message_destroy"], islice(self._unfreed, count)), maxlen=0)

    def _error_of(self, messages: Messages, row: int) -> tuple[Any, int]:
        text = self.calls["message_errstr"](int(messages.addresses[row]))
        return error_of(int(messages.codes[row]), text), int(messages.offsets[row])


_WORD: Final = 8
"""Bytes of an address; the parts of a message that are read begin at multiples of it."""

_NONE: Final = np.empty(0, np.int64)


class Messages(NamedTuple):
    """The fields of some messages that librdkafka has handed over, and that are not yet freed."""

    addresses: Addresses
    codes: npt.NDArray[np.int32]
    offsets: Ints
    keys: Addresses
    key_lengths: Ints
    values: Addresses
    value_lengths: Ints

    @classmethod
    def at(cls, addresses: Addresses) -> Messages:
        """The messages at these addresses."""
        if not len(addresses):
            return cls(_NONE, _NONE.astype(np.int32), *[_NONE] * 5)
        first = int(addresses.min())
        # of what lies from the first message to the last one only the messages are touched
        memory = pa.foreign_buffer(first, int(addresses.max()) - first + ctypes.sizeof(Message))
        words = np.frombuffer(memory, np.int64)
        places = (addresses - first) // _WORD
        codes = np.frombuffer(memory, np.int32)[(addresses - first) // 4]
        parts = (Message.offset, Message.key, Message.key_len, Message.payload, Message.len)
        return cls(addresses, codes, *(words[places + part.offset // _WORD] for part in parts))

    def within(self, size: int) -> int:
        """How many messages, from the first on, have so many bytes; the one that exceeds it is the last."""
        return 1 + int(np.searchsorted(np.cumsum(self.key_lengths + self.value_lengths), size))

    def chosen(self, which: Mask | slice) -> Messages:
        """Some of the messages."""
        return Messages(
            self.addresses[which],
            self.codes[which],
            self.offsets[which],
            self.keys[which],
            self.key_lengths[which],
            self.values[which],
            self.value_lengths[which],
        )

    def table(self, schema: pa.Schema, partition: TopicPartition) -> pa.Table:
        """Records of a partition, copied, as columns of `RECORD_SCHEMA`."""
        if not len(self.addresses):
            return schema.empty_table()
        columns = [self._column(field, partition) for field in schema]
        return pa.Table.from_arrays(columns, schema=schema)

    def _column(self, field: pa.Field, partition: TopicPartition) -> pa.Array:
        calls = functions()
        match field.name:
            case "key":
                return texts(self.keys, self.key_lengths)
            case "value":
                return texts(self.values, self.value_lengths)
            case "offset":
                return pa.array(self.offsets)
            case "topic":
                return pa.repeat(partition.topic, len(self.addresses))
            case "partition":
                return pa.repeat(pa.scalar(partition.partition, pa.int32()), len(self.addresses))
            case "timestamp":
                kinds, milliseconds = self._timestamps()
                return pa.array(milliseconds, mask=kinds == 0)
            case "timestamp-type":
                return pa.array(TIMESTAMP_TYPES).take(pa.array(self._timestamps()[0]))
            case "leader-epoch":
                epochs = map(calls["message_leader_epoch"], self.addresses.tolist())
                found = np.fromiter(epochs, np.int32, len(self.addresses))
                return pa.array(found, mask=found < 0)
            case "headers":
                return _headers(self.addresses)
        raise AssertionError(field)

    def _timestamps(self) -> tuple[npt.NDArray[np.int32], Ints]:
        """Of each message the kind of its timestamp, and the timestamp in milliseconds."""
        kinds = np.zeros(len(self.addresses), np.int32)
        times = map(functions()["message_timestamp"], self.addresses.tolist(), _places(kinds))
        return kinds, np.fromiter(times, np.int64, len(kinds))


_NEAR: Final = 4096
"""Bytes between two texts that are copied along. No page without memory can lie in fewer."""


def texts(addresses: Addresses, lengths: Ints) -> pa.Array:
    """Copies of the bytes at some addresses; NULL for the address 0.

    >>> import numpy as np
    >>> memory = np.frombuffer(b"one two", np.uint8)
    >>> at = memory.ctypes.data
    >>> texts(np.array([at, 0, at + 4]), np.array([3, 0, 3])).to_pylist()
    [b'one', None, b'two']
    """
    is_missing = addresses == 0
    if is_missing.any():
        known = texts(addresses[~is_missing], lengths[~is_missing])
        places = np.cumsum(~is_missing) - 1
        return known.take(pa.array(places, mask=is_missing))
    if not len(addresses):
        return pa.array([], pa.binary())
    # texts that follow each other closely are one stretch, from which the bytes between them are left out
    ends = addresses + lengths
    gaps = addresses[1:] - ends[:-1]
    first = np.flatnonzero(np.append(True, (gaps < 0) | (gaps >= _NEAR)))
    stop = np.append(first[1:], len(addresses))
    starts, sizes = addresses[first], ends[stop - 1] - addresses[first]
    stretches = [
        pa.foreign_buffer(start, size) if size else b""
        for start, size in zip(starts.tolist(), sizes.tolist(), strict=True)
    ]
    copied = b"".join(stretches)
    moved = np.repeat(np.cumsum(sizes) - sizes - starts, stop - first)
    bounds = np.empty(2 * len(addresses) + 1, np.int64)
    bounds[:-1:2], bounds[1::2], bounds[-1] = addresses + moved, ends + moved, len(copied)
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(copied)]
    alternating = pa.Array.from_buffers(pa.large_binary(), 2 * len(addresses), buffers)
    return alternating.take(pa.array(np.arange(0, 2 * len(addresses), 2))).cast(pa.binary())


def _headers(addresses: Addresses) -> pa.Array:
    """The headers of each message: a call for each message and two for each header, all results together."""
    calls = functions()
    lists = np.zeros(len(addresses), np.int64)
    codes = map(calls["message_headers"], addresses.tolist(), _places(lists))
    is_there = np.fromiter(codes, np.int32, len(lists)) == 0
    counts = np.zeros(len(lists), np.int64)
    counts[is_there] = list(map(calls["header_cnt"], lists[is_there].tolist()))
    ends = np.cumsum(counts)
    total = int(counts.sum())
    names, values, sizes = (np.zeros(total, np.int64) for _ in range(3))
    numbers = np.arange(total) - np.repeat(ends - counts, counts)
    asked = np.repeat(lists, counts).tolist(), numbers.tolist(), *map(_places, (names, values, sizes))
    deque(map(calls["header_get_all"], *asked), maxlen=0)
    lengths = np.fromiter(map(_text_length(), names.tolist()), np.int64, total)
    columns = [_as_java(texts(names, lengths)), texts(values, sizes)]
    entries = pa.StructArray.from_arrays(columns, fields=list(HEADERS.value_type))
    return pa.ListArray.from_arrays(pa.array(np.append(0, ends), pa.int32()), entries, HEADERS)


def _as_java(names: pa.Array) -> pa.Array:
    r"""Names as Java's client has them: what is no UTF-8 becomes a sign of its own.

    >>> _as_java(pa.array([b"id", b"\xff"])).to_pylist()
    ['id', '\ufffd']
    """
    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([name.decode(errors="replace") for name in names.to_pylist()], pa.string())


def _places(results: npt.NDArray[Any]) -> range:
    """The address of each number of an array, for calls that write their results there."""
    first = results.ctypes.data
    return range(first, first + results.nbytes, results.itemsize)


@cache
def _text_length() -> Any:
    """C's ``strlen``."""
    found = ctypes.PyDLL(None).strlen
    found.restype, found.argtypes = ctypes.c_size_t, (ctypes.c_void_p,)
    return found
