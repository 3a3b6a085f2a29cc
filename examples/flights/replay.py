"""The year 2013 as an ordered sequence of changes to two tables (pure).

A *flight* is inserted two weeks ahead, updated when it departs and when it lands, and deleted when it is
cancelled. Every eleventh is announced an hour too early and moved later: an update of a join key. *Weather*
comes late: some stations are silent for days, every sixth hour arrives rounded and is corrected days later,
every twenty-fifth is withdrawn and measured again. All of it follows from the row's number, so each run
replays the same changes; what is left at the end are the rows of the source files without cancelled flights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import IntEnum
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from upsert.rowkind import ROW_KIND_COLUMN, RowKind

Ints: TypeAlias = npt.NDArray[np.int64]
Codes: TypeAlias = npt.NDArray[np.int8]
Flags: TypeAlias = npt.NDArray[np.bool_]

_MINUTE: Final = 60_000_000
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR

MOVED_EVERY: Final = 11
ROUNDED_EVERY: Final = 6
WITHDRAWN_EVERY: Final = 25
SILENT_EVERY: Final = 9
_SILENCE: Final = 4 * _DAY
_UNKNOWN_AIR_TIME: Final = 360


class Event(IntEnum):
    """What happened to one row, in the order in which it can happen to a row."""

    ANNOUNCED = 0
    MOVED = 1
    DEPARTED = 2
    LANDED = 3
    CANCELLED = 4
    MEASURED = 5
    CORRECTED = 6
    WITHDRAWN = 7
    MEASURED_AGAIN = 8


_KIND_OF: Final = {
    Event.ANNOUNCED: RowKind.INSERT,
    Event.MOVED: RowKind.UPDATE_AFTER,
    Event.DEPARTED: RowKind.UPDATE_AFTER,
    Event.LANDED: RowKind.UPDATE_AFTER,
    Event.CANCELLED: RowKind.DELETE,
    Event.MEASURED: RowKind.INSERT,
    Event.CORRECTED: RowKind.UPDATE_AFTER,
    Event.WITHDRAWN: RowKind.DELETE,
    Event.MEASURED_AGAIN: RowKind.INSERT,
}
_KINDS: Final = pa.array([_KIND_OF[event].value for event in Event])
_KNOWN_AT_DEPARTURE: Final = ("tailnum", "dep_time", "dep_delay")
_KNOWN_AT_LANDING: Final = ("arr_time", "arr_delay", "air_time")
_ROUNDED: Final = ("temp", "dewp", "wind_speed")


@dataclass(frozen=True)
class Step:
    """Changes of both tables in one slice of the year, in the order in which they happened."""

    number: int
    until: datetime
    flights: pa.Table
    weather: pa.Table


@dataclass(frozen=True)
class Recorded:
    """Changes of one table as a database's log has them, row by row.

    Attributes:
        at: when each happened, in microseconds since 1970.
        kinds: of each, never UPDATE_BEFORE: an update is one change.
        before: the rows that were replaced or deleted; where a row is new, nothing that means anything.
        after: the rows that exist then; where one is deleted, nothing that means anything.
    """

    at: Ints
    kinds: pa.Array
    before: pa.Table
    after: pa.Table


@dataclass(frozen=True)
class Replay:
    """All events in order of time, cut into steps of equally many; the rows are made step by step."""

    flights: pa.Table
    weather: pa.Table
    at: Ints
    event: Codes
    row: Ints
    steps: int

    def __len__(self) -> int:
        """Number of steps."""
        return self.steps

    def __iter__(self) -> Iterator[Step]:
        """The steps, first to last."""
        return (self.step(number) for number in range(self.steps))

    @property
    def changes(self) -> int:
        """Number of changes in all steps."""
        return len(self.at)

    def step(self, number: int) -> Step:
        """One step by its number, from 0."""
        _, event, row = self._slice(number)
        is_weather = event >= Event.MEASURED
        return Step(
            number,
            self.until(number),
            _with_kinds(
                _flight_images(self.flights, row[~is_weather], event[~is_weather]), event[~is_weather]
            ),
            _with_kinds(_weather_images(self.weather, row[is_weather], event[is_weather]), event[is_weather]),
        )

    def until(self, number: int) -> datetime:
        """When the last change of a step happened."""
        at, _, _ = self._slice(number)
        return datetime.fromtimestamp(at[-1] / 1e6, UTC)

    def recorded(self, number: int) -> tuple[Recorded, Recorded]:
        """The same step of flights and weather, with the images that the changes replace."""
        at, event, row = self._slice(number)
        is_weather = event >= Event.MEASURED
        earlier = _event_before(event, row)

        def record(
            of: Flags, images: Callable[[pa.Table, Ints, Codes], pa.Table], rows: pa.Table
        ) -> Recorded:
            kinds = _KINDS.take(pa.array(event[of]))
            before = images(rows, row[of], earlier[of])
            return Recorded(at[of], kinds, before, images(rows, row[of], event[of]))

        return (
            record(~is_weather, _flight_images, self.flights),
            record(is_weather, _weather_images, self.weather),
        )

    def _slice(self, number: int) -> tuple[Ints, Codes, Ints]:
        begin, end = (position * self.changes // self.steps for position in (number, number + 1))
        return self.at[begin:end], self.event[begin:end], self.row[begin:end]


def replay(flights: pa.Table, weather: pa.Table, steps: int) -> Replay:
    """The events of these rows, cut into at most `steps` steps, none of them empty.

    Args:
        flights: rows of `source.FLIGHTS`.
        weather: rows of `source.WEATHER`.
        steps: how many; at least 1.
    """
    events = [*_flight_events(flights), *_weather_events(weather)]
    at = np.concatenate([at for _, _, at in events])
    row = np.concatenate([row for _, row, _ in events])
    event = np.concatenate([np.full(len(row), event, dtype=np.int8) for event, row, _ in events])
    # stable: events of one row never share a time, and rows of one time keep the file's order
    order = np.argsort(at, kind="stable")
    return Replay(flights, weather, at[order], event[order], row[order], max(1, min(steps, len(at))))


def _flight_events(flights: pa.Table) -> Iterator[tuple[Event, Ints, Ints]]:
    rows = np.arange(flights.num_rows)
    scheduled = _ints(flights["time_hour"]) + _ints(flights["sched_dep_time"]) % 100 * _MINUTE
    departed = scheduled + _ints(flights["dep_delay"]) * _MINUTE
    landed = departed + _ints(flights["air_time"], if_null=_UNKNOWN_AIR_TIME) * _MINUTE
    did_depart, did_land = _is_valid(flights["dep_time"]), _is_valid(flights["arr_time"])
    moved = _moved(rows)
    yield Event.ANNOUNCED, rows, scheduled - 14 * _DAY
    yield Event.MOVED, rows[moved], scheduled[moved] - 3 * _DAY
    yield Event.DEPARTED, rows[did_depart], departed[did_depart]
    yield Event.LANDED, rows[did_land], landed[did_land]
    yield Event.CANCELLED, rows[~did_depart], scheduled[~did_depart] + _HOUR


def _weather_events(weather: pa.Table) -> Iterator[tuple[Event, Ints, Ints]]:
    rows = np.arange(weather.num_rows)
    hour = _ints(weather["time_hour"])
    station = _ints(pc.index_in(weather["origin"], value_set=pa.array(["EWR", "JFK", "LGA"])))
    is_silent = (hour // _DAY + 3 * station) % SILENT_EVERY == 0
    measured = hour + _HOUR // 2 + np.where(is_silent, _SILENCE, 0)
    rounded, withdrawn = rows[_rounded(rows)], rows[rows % WITHDRAWN_EVERY == 0]
    yield Event.MEASURED, rows, measured
    yield Event.CORRECTED, rounded, measured[rounded] + 10 * _DAY
    yield Event.WITHDRAWN, withdrawn, measured[withdrawn] + 20 * _DAY
    yield Event.MEASURED_AGAIN, withdrawn, measured[withdrawn] + 30 * _DAY


def _event_before(event: Codes, row: Ints) -> Codes:
    """The event that made the image that an update or delete replaces; of an insert, any of its table."""
    announced = np.where(_moved(row), Event.MOVED, Event.ANNOUNCED)
    measured = np.where(_rounded(row), Event.CORRECTED, Event.MEASURED)
    found: Codes = np.select(
        [event == Event.LANDED, np.isin(event, (Event.DEPARTED, Event.CANCELLED)), event == Event.WITHDRAWN],
        [Event.DEPARTED, announced, measured],
        np.where(event >= Event.MEASURED, Event.MEASURED, Event.ANNOUNCED),
    ).astype(np.int8)
    return found


def _flight_images(flights: pa.Table, number: Ints, event: Codes) -> pa.Table:
    """What is known of flights at an event of each."""
    rows = flights.take(number)
    has_departed = pa.array((event == Event.DEPARTED) | (event == Event.LANDED))
    has_landed = pa.array(event == Event.LANDED)
    is_early = pa.array((event == Event.ANNOUNCED) & _moved(number))
    replaced = {name: _null_unless(has_departed, rows[name]) for name in _KNOWN_AT_DEPARTURE}
    replaced |= {name: _null_unless(has_landed, rows[name]) for name in _KNOWN_AT_LANDING}
    hour = pa.scalar(_HOUR, pa.duration("us"))
    replaced["time_hour"] = pc.if_else(is_early, pc.subtract(rows["time_hour"], hour), rows["time_hour"])
    earlier = pc.subtract(rows["sched_dep_time"], pa.scalar(100, pa.int32()))
    replaced["sched_dep_time"] = pc.if_else(is_early, earlier, rows["sched_dep_time"])
    return _replace(rows, replaced)


def _weather_images(weather: pa.Table, number: Ints, event: Codes) -> pa.Table:
    """What is known of hours of weather at an event of each."""
    rows = weather.take(number)
    is_provisional = pa.array((event == Event.MEASURED) & _rounded(number))
    replaced = {name: pc.if_else(is_provisional, pc.round(rows[name]), rows[name]) for name in _ROUNDED}
    return _replace(rows, replaced)


def _replace(rows: pa.Table, replaced: dict[str, pa.ChunkedArray]) -> pa.Table:
    return pa.table([replaced.get(name, rows[name]) for name in rows.column_names], schema=rows.schema)


def _with_kinds(rows: pa.Table, event: Codes) -> pa.Table:
    kind = pa.field(ROW_KIND_COLUMN, pa.string(), nullable=False)
    return rows.append_column(kind, _KINDS.take(pa.array(event)))


def _moved(rows: Ints) -> Flags:
    return np.equal(rows % MOVED_EVERY, 0)


def _rounded(rows: Ints) -> Flags:
    return np.equal(rows % ROUNDED_EVERY, 0)


def _null_unless(mask: pa.BooleanArray, column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.if_else(mask, column, pa.scalar(None, column.type))


def _is_valid(column: pa.ChunkedArray) -> Flags:
    found: Flags = pc.is_valid(column).to_numpy()
    return found


def _ints(column: pa.ChunkedArray, if_null: int = 0) -> Ints:
    found: Ints = pc.fill_null(column.cast(pa.int64()), if_null).to_numpy()
    return found


def registered(planes: pa.Table, step: int, steps: int) -> pa.Table:
    """The planes that come into the register in one of `steps` steps, counted from 0.

    Every second one is there from the beginning. The others are registered one after the other, most of them
    after their first flights: what is joined with them before has NULLs, and is then corrected.

    >>> planes = pa.table({"tailnum": ["a", "b", "c", "d"]})
    >>> [registered(planes, step, 3)["tailnum"].to_pylist() for step in range(3)]
    [['a', 'c'], ['b'], ['d']]
    """
    number = np.arange(planes.num_rows)
    is_late = (number % 2 == 1) & (steps > 1)
    rank = np.cumsum(is_late) - 1
    when = np.where(is_late, 1 + rank * (steps - 1) // max(1, int(is_late.sum())), 0)
    return planes.filter(pa.array(when == step))
