"""Streaming queries until they end, fail or are stopped, with their progress as it comes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from rich.live import Live

from deltajoin.cli.command import Output, reason_of
from upsert.catalog.query_records import is_micro_batch
from upsert.errors import UpsertError, own_error
from upsert.retry import retried
from upsert.show.terminal import RowGrid
from upsert.views.progress import METRICS

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_REFRESH_S: Final = 0.5
_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 60.0
_RECOVERED_S: Final = 600.0


class JobFailedError(UpsertError):
    """Queries of a job have failed; all others have been stopped, or have ended."""


def follow(
    queries: Sequence[StreamingQuery], output: Output, stopped: Sequence[int], *, keep_going: bool = False
) -> None:
    """Tell the progress of queries until all have ended or `stopped` has something in it; then stop them.

    On a terminal they are a table that changes. Elsewhere each start, micro-batch and end is a line of a log,
    with ``--json`` an object ``{"event": "started" | "micro-batch" | "ended" | "stopped" | "failed", …}``.
    With ``keep_going`` a query that fails leaves the others running. Else they are stopped, and then it is a
    `JobFailedError`. A log has the reason at once: how long the others need to stop, or whether they do, is
    not known. What a query ends with when `stopped` has something in it is no
    failure: the signal that stops the command may have ended processes that the query needs.
    """
    is_seen = output.console.is_terminal and not output.as_json
    log = _Log(queries, output, stopped, is_seen=is_seen, goes_on=keep_going)
    with Live(console=output.console, auto_refresh=False) if is_seen else nullcontext() as view:
        while not stopped and any(query.isActive for query in queries):
            if not keep_going and any(query.exception() is not None for query in queries):
                break
            log.tell()
            if view is not None:
                view.update(log.picture(), refresh=True)
            time.sleep(_REFRESH_S)
        log.tell()
        for query in queries:
            query.stop()
        log.tell(end="stopped")
        if view is not None:
            view.update(log.picture(), refresh=True)
    if log.failed:
        failed = (
            f"query {name} has failed: {reason_of(failure).removesuffix('.')}"
            for name, failure in log.failed.items()
        )
        # an error of this project's own says itself what to do about it
        has_remedy = own_error(next(reversed(log.failed.values()))) is not None
        raise JobFailedError(
            f"{'; '.join(failed)}; {'then' if has_remedy else 'correct the cause and'} run the job again, it "
            "continues from its checkpoints"
        ) from next(iter(log.failed.values()))


def kept(
    run: Callable[[], None],
    restarts: int,
    tell: Callable[[str], None],
    *,
    sleep: Callable[[float], None] = time.sleep,
    monotonic: Callable[[], float] = time.monotonic,
) -> None:
    """Run a job, and again after each failure, with pauses of 1 s, 2 s, 4 s … up to a minute.

    So often in a row; counted from the start when the job has run for ten minutes. ``tell`` is told of each
    failure that is followed by a restart.
    """
    began, has_recovered, reason = monotonic(), False, ""

    def attempt() -> None:
        nonlocal began
        began = monotonic()
        run()

    def is_passing(failure: BaseException) -> bool:
        nonlocal has_recovered, reason
        has_recovered, reason = monotonic() - began >= _RECOVERED_S, str(failure)
        return isinstance(failure, UpsertError) and not has_recovered

    def pause(seconds: float) -> None:
        tell(reason)
        sleep(seconds)

    while True:
        try:
            retried(
                attempt,
                is_passing=is_passing,
                first_pause_s=_FIRST_PAUSE_S,
                longest_pause_s=_LONGEST_PAUSE_S,
                tries=restarts + 1,
                sleep=pause,
            )
        except UpsertError:
            if not has_recovered or not restarts:
                raise
            pause(_FIRST_PAUSE_S)
        else:
            return


def tell_restart(output: Output, reason: str) -> None:
    """Tell that a job is started again."""
    if output.as_json:
        print(json.dumps({"event": "restarting", "message": reason}), flush=True)
    else:
        output.say(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} the job is started again: {reason}")


class _Log:
    """What queries have done since the last report.

    If that ``is_seen`` on a terminal, only failures are told; these only if the job ``goes_on``, else it ends
    with them.

    Attributes:
        failed: with what each query that has failed has ended, by its name.
    """

    def __init__(
        self,
        queries: Sequence[StreamingQuery],
        output: Output,
        stopped: Sequence[int],
        *,
        is_seen: bool,
        goes_on: bool,
    ) -> None:
        self.failed: dict[str, Exception] = {}
        self._queries = queries
        self._output = output
        self._stopped = stopped
        self._is_seen = is_seen
        self._goes_on = goes_on
        self._looked: dict[str, str | None] = {}
        """The time of the newest progress that was looked at: one is told of each look for rows too."""
        self._last: dict[str, Any] = {}
        """The newest micro-batch that was told."""
        self._ended: set[str] = set()

    def tell(self, end: str = "ended") -> None:
        for query in self._queries:
            for event in self._news(query, end):
                if not self._is_seen or (self._goes_on and event["event"] == "failed"):
                    self._line(event)

    def _news(self, query: StreamingQuery, end: str) -> Iterator[dict[str, Any]]:
        number = str(query.id)
        if number not in self._looked:
            self._looked[number] = None
            yield {"event": "started", **_line(query, {})}
        newest = query.lastProgress
        if newest is not None and newest["timestamp"] != self._looked[number]:
            self._looked[number] = newest["timestamp"]
            for progress in filter(is_micro_batch, query.recentProgress):
                last = self._last.get(number)
                if last is None or progress["batchId"] > last["batchId"]:
                    self._last[number] = progress
                    yield {"event": "micro-batch", **_line(query, progress)}
        if not query.isActive and number not in self._ended:
            self._ended.add(number)
            line = _line(query, self._last.get(number, {}))
            if (failure := query.exception()) is None:
                yield {"event": end, **line}
            elif self._stopped:
                yield {"event": "stopped", **line, "state": "ended"}
            else:
                self.failed[_name(query)] = failure
                yield {"event": "failed", **line, "message": reason_of(failure)}

    def _line(self, event: dict[str, Any]) -> None:
        if self._output.as_json:
            print(json.dumps(event), flush=True)
            return
        parts = [f"query {event['query']}: {event['event']}"]
        if event["event"] == "micro-batch":
            parts = [f"{parts[0]} {event['micro-batch']}", f"{event['rows']} rows", f"{event['seconds']} s"]
            parts += [event["refresh"]] if "refresh" in event else []
        if "message" in event:
            parts.append(str(event["message"]))
        self._output.say(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} {', '.join(parts)}")

    def picture(self) -> RowGrid:
        """The queries and what each has done last."""
        names = ["query", "state", "micro-batch", "rows", "rows/s", "seconds"]
        lines = [_line(query, self._last.get(str(query.id), {})) for query in self._queries]
        names += ["refresh"] if any("refresh" in line for line in lines) else []
        rows = [[line.get(name) for name in names] for line in lines]
        return RowGrid(names, rows, counts={"rows", "rows/s"})


def _line(query: StreamingQuery, progress: Any) -> dict[str, Any]:
    seconds = progress["durationMs"].get("triggerExecution") if progress else None
    return {
        "query": _name(query),
        "state": "running" if query.isActive else "ended" if query.exception() is None else "failed",
        "micro-batch": progress["batchId"] if progress else None,
        "rows": progress["numInputRows"] if progress else None,
        "rows/s": round(progress["processedRowsPerSecond"] or 0.0) if progress else None,
        "seconds": None if seconds is None else seconds / 1000,
        **(_told(progress["observedMetrics"].get(METRICS)) if progress else {}),
    }


def _told(view: Any) -> dict[str, Any]:
    """What the query of a view tells beside that: the rows that have changed, the way, and what it lacks."""
    if view is None or not view["refreshes"]:
        return {}
    own = view["refreshes"][0]
    way = f"by {'changes' if own['by_changes'] else 'all rows'}: {own['reason']}"
    behind = [one for one in view["lag"] if one["versions"]]
    lags = "".join(f"; {one['table']} has {one['versions']} newer versions" for one in behind)
    return {"rows": max(one["changed"] for one in view["refreshes"]), "refresh": way + lags}


def _name(query: StreamingQuery) -> str:
    return query.name or str(query.id)
