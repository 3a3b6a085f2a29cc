"""Streaming queries until they end or somebody stops them, with their progress as it comes."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from rich.live import Live

from deltajoin.cli.grids import RowGrid
from deltajoin.cli.output import Output
from upsert.errors import UpsertError

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_REFRESH_S: Final = 0.5


class JobFailedError(UpsertError):
    """A query of a job has failed; the others were stopped."""


def follow(queries: Sequence[StreamingQuery], output: Output) -> None:
    """Show the progress of queries until all have ended; SIGINT and SIGTERM stop them, in good order.

    Raises:
        JobFailedError: one has failed. The others have been stopped; each goes on from its checkpoint.
    """
    with _stopped_by_signals() as stopped:
        if output.as_json:
            seen: dict[str, int] = {}
            while _active(queries) and not stopped:
                _print_news(queries, seen)
                time.sleep(_REFRESH_S)
            _print_news(queries, seen)
        else:
            with Live(console=output.console, auto_refresh=False) as view:
                while _active(queries) and not stopped:
                    view.update(picture(queries), refresh=True)
                    time.sleep(_REFRESH_S)
                view.update(picture(queries), refresh=True)
        failed = next((query for query in queries if query.exception() is not None), None)
        for query in queries:
            query.stop()
    if failed is not None:
        raise JobFailedError(
            f"query {_name(failed)} must go on until it is stopped, got {failed.exception()}; correct the "
            "cause and run the job again, it goes on from its checkpoint"
        )


def _active(queries: Sequence[StreamingQuery]) -> bool:
    """Whether the job goes on: something runs, and nothing has failed."""
    return any(query.isActive for query in queries) and all(query.exception() is None for query in queries)


def picture(queries: Sequence[StreamingQuery]) -> RowGrid:
    """The queries and what each has done last."""
    names = ["query", "state", "micro-batch", "rows", "rows/s", "seconds"]
    return RowGrid(names, [list(_line(query).values()) for query in queries])


def _line(query: StreamingQuery) -> dict[str, Any]:
    progress = query.lastProgress
    known = {} if progress is None else progress
    seconds = known.get("durationMs", {}).get("triggerExecution")
    return {
        "query": _name(query),
        "state": _state(query),
        "micro-batch": known.get("batchId"),
        "rows": known.get("numInputRows"),
        "rows/s": None if progress is None else round(progress["processedRowsPerSecond"] or 0.0),
        "seconds": None if seconds is None else seconds / 1000,
    }


def _name(query: StreamingQuery) -> str:
    return query.name or str(query.id)


def _state(query: StreamingQuery) -> str:
    if query.isActive:
        return "running"
    return "ended" if query.exception() is None else "failed"


def _print_news(queries: Sequence[StreamingQuery], seen: dict[str, int]) -> None:
    for query in queries:
        progress = query.lastProgress
        if progress is not None and seen.get(str(query.id)) != progress["batchId"]:
            seen[str(query.id)] = progress["batchId"]
            print(json.dumps(_line(query)), flush=True)


@contextmanager
def _stopped_by_signals() -> Iterator[list[int]]:
    """A list that SIGINT and SIGTERM are put into, instead of ending the process half-way."""
    received: list[int] = []
    handlers = {
        number: signal.signal(number, lambda number, _frame: received.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield received
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
