"""Messages of Avro as bytes: where each is read, its next numbers and stretches, why it is refused (pure).

Nothing more is read of a message that is refused, and its numbers are 0: so who reads many side by side need
not look which ones are left.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from upsert.arrays import Ints, Positions
from upsert.formats.avro_schema import AvroType
from upsert.formats.binary_columns import FAR, Spans, Words, places, varints

_VARINT_BYTES: Final = 10
_INT_BYTES: Final = 5

TOO_EARLY: Final = "no datum of the schema: it ends too early"
"""Why a message is refused that has fewer bytes than its datum."""


def _too_long(bits: int) -> str:
    return f"no datum of the schema: a number has more than {bits} bits"


def no_index(what: str, index: int) -> str:
    """Why a message is refused whose union or enum has an index of nothing."""
    return f"no datum of the schema: there is no {what} {index}"


def _below_zero(length: int) -> str:
    return f"no datum of the schema: a length is {length}"


def _signed(words: Words) -> Ints:
    found: Ints = (words >> np.uint64(1)).view(np.int64) ^ -(words & np.uint64(1)).view(np.int64)
    return found


class Messages:
    """Some messages, how far each has been read, and why some of them are refused.

    Many are read at once, by their numbers, each named once; or one by itself, see ``begin_alone``.

    Attributes:
        past: what reads past values of a type that no column wants, by the type's ``id``. There is one for
            each type, wherever it stands: a short schema may name types in types a billion times.
    """

    def __init__(self, messages: Spans) -> None:
        self.data = messages.data
        self.at = messages.begin.copy()
        self.end = messages.end
        self.is_bad = np.zeros(len(messages.begin), np.bool_)
        self.reasons: dict[int, str] = {}
        self.past: dict[int, tuple[AvroType, Any]] = {}
        self._number_ends: Positions | None = None
        self._view = self.data.data.cast("B")
        self.row = self._place = self._stop = 0

    def refuse(self, rows: Positions, reason: str) -> None:
        """Count messages as bad, and read nothing more of them; the first reason of each counts."""
        for row in rows.tolist():
            self.reasons.setdefault(row, reason)
        self.is_bad[rows] = True
        self.at[rows] = self.end[rows]

    def numbers(self, rows: Positions, bits: int = 64) -> Ints:
        """The next number of each message, a long or an int; 0 where it is refused."""
        at, end = self.at[rows], self.end[rows]
        words, after = varints(self.data, at)
        found = _signed(words)
        self.at[rows] = after
        if (is_bad := after > end).any():
            # whether it goes on for too long does not depend on what stands behind the message
            self.refuse(rows[is_bad & ((after < FAR) | (end - at < _VARINT_BYTES))], TOO_EARLY)
            self.refuse(rows[is_bad], _too_long(bits))
            found[is_bad] = 0
        if bits == 32 and (is_bad := (after - at > _INT_BYTES) | (found != found.astype(np.int32))).any():
            self.refuse(rows[is_bad], _too_long(bits))
            found[is_bad] = 0
        return found

    def stretches(self, rows: Positions, size: int | None) -> tuple[Positions, Positions]:
        """Where the next bytes of each message begin and end: so many, or as many as a number says."""
        if size is not None:
            length = np.full(len(rows), size)
        elif (is_below := (length := self.numbers(rows)) < 0).any():
            for row, given in zip(rows[is_below], length[is_below].tolist(), strict=True):
                self.refuse(row[None], _below_zero(given))
            length[is_below] = 0
        begin = self.at[rows]
        if (is_cut := length > self.end[rows] - begin).any():
            length[is_cut] = 0
        self.at[rows] = end = begin + length
        self.refuse(rows[is_cut], TOO_EARLY)
        return begin, end

    def number_runs(
        self, rows: Positions, counts: Ints, bits: int = 64, branch: int | None = None
    ) -> Ints | None:
        """So many numbers of each message, which lie one after the other; None if they are none, or too many.

        Then nothing is read, and to read them one by one says what is wrong. With ``branch`` each is in a
        union, of which it must be that type.
        """
        if branch is not None:
            counts = 2 * counts
        if self._number_ends is None:
            self._number_ends = np.flatnonzero(self.data < 0x80) + 1
        ends, begin = self._number_ends, self.at[rows]
        first = np.searchsorted(ends, begin, side="right")
        # the bytes behind all messages end numbers too
        if ((after := ends[np.minimum(first + counts, len(ends)) - 1]) > self.end[rows]).any():
            return None
        stop = ends[places(first, counts)]
        start = np.concatenate(([0], stop[:-1]))
        start[np.cumsum(counts) - counts] = begin
        words, seen = varints(self.data, start)
        found = _signed(words)
        is_bad = seen != stop
        if bits == 32:
            is_bad |= (stop - start > _INT_BYTES) | (found != found.astype(np.int32))
        if is_bad.any() or (branch is not None and (found[::2] != branch).any()):
            return None
        self.at[rows] = after
        return found if branch is None else found[1::2]

    def stretch_runs(
        self, rows: Positions, counts: Ints, size: int, branch: int | None = None
    ) -> Positions | None:
        """Where so many stretches of a size of each message begin, likewise."""
        begin, step = self.at[rows], size + (branch is not None)
        if ((after := begin + counts * step) > self.end[rows]).any():
            return None
        offsets = np.cumsum(counts) - counts
        places = np.repeat(begin - offsets * step, counts) + np.arange(int(counts.sum())) * step
        if branch is not None:
            if (self.data[places] != 2 * branch).any():
                return None
            places += 1
        self.at[rows] = after
        return places

    def begin_alone(self, row: int) -> None:
        """Read one message by itself, from where it is."""
        self.row, self._place, self._stop = row, int(self.at[row]), int(self.end[row])

    def end_alone(self) -> None:
        """Note how far it has been read."""
        self.at[self.row] = self._place

    @property
    def is_refused(self) -> bool:
        """Whether the message that is read by itself is bad."""
        return self.row in self.reasons

    @property
    def left(self) -> int:
        """How many bytes it has yet."""
        return self._stop - self._place

    def refuse_one(self, reason: str) -> None:
        """Count it as bad, and read nothing more of it."""
        self.refuse(np.array([self.row]), reason)
        self._place = self._stop

    def number(self, bits: int = 64) -> int:
        """Its next number, a long or an int; 0 where it is refused."""
        view, at, begin = self._view, self._place, self._place
        stop = min(self._stop, begin + _VARINT_BYTES)
        value = shift = 0
        while at < stop:
            byte = view[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                found = (value >> 1) ^ -(value & 1)
                if value >> 64 or (bits == 32 and (at - begin > _INT_BYTES or not -(2**31) <= found < 2**31)):
                    self.refuse_one(_too_long(bits))
                    return 0
                self._place = at
                return found
            shift += 7
        self.refuse_one(TOO_EARLY if at - begin < _VARINT_BYTES else _too_long(bits))
        return 0

    def stretch(self, size: int | None) -> tuple[int, int]:
        """Where its next bytes begin and end."""
        length = self.number() if size is None else size
        begin = self._place
        if length < 0:
            self.refuse_one(_below_zero(length))
        elif length > self._stop - begin:
            self.refuse_one(TOO_EARLY)
        else:
            self._place = begin + length
            return begin, self._place
        return begin, begin
