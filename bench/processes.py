"""The processes of a driver: its JVM and all that these have started, their CPU time, how many begin.

A driver of its own reports figures to the benchmark that started it, one line of JSON each.
"""

from __future__ import annotations

import json
import os
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

_TICKS_A_SECOND: Final = os.sysconf("SC_CLK_TCK")


def processes() -> dict[int, tuple[int, str, int]]:
    """Parent, name and CPU ticks, those of ended children included, of each process of the machine."""
    found = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                text = Path(entry.path, "stat").read_text()
            except OSError:  # it has ended
                continue
            name, fields = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2 :].split()
            found[int(entry.name)] = int(fields[1]), name, sum(map(int, fields[11:15]))
    return found


def own_processes() -> dict[int, tuple[str, int]]:
    """Name and CPU ticks of this process and all below it."""
    of_machine = processes()
    own = {os.getpid()}
    while more := {id for id, (parent, _, _) in of_machine.items() if parent in own and id not in own}:
        own |= more
    return {id: of_machine[id][1:] for id in own}


def cpu_seconds() -> float:
    """CPU time of this process and all below it, also of those that have ended."""
    return sum(ticks for _, ticks in own_processes().values()) / _TICKS_A_SECOND


@contextmanager
def counted_processes() -> Iterator[dict[str, int]]:
    """Counts the processes that begin meanwhile, by name; some that live a millisecond may be missed."""
    counts: dict[str, int] = defaultdict(int)
    seen, is_over = set(own_processes()), threading.Event()

    def watch() -> None:
        while not is_over.is_set():
            for id, (name, _) in own_processes().items():
                if id not in seen:
                    seen.add(id)
                    counts[name] += 1

    watcher = threading.Thread(target=watch)
    watcher.start()
    yield counts
    is_over.set()
    watcher.join()


def report(values: dict[str, Any]) -> None:
    """Print figures as a line that the benchmark reads; ``{"done": True}`` is the last one."""
    print(json.dumps(values), flush=True)


def reported(command: Sequence[str], lines: Iterable[str], log: Path) -> Iterator[dict[str, Any]]:
    """What a command reports on its output until it says that it is done; other lines are passed over.

    Raises:
        SystemExit: it has ended before; with the end of its log.
    """
    for line in lines:
        values: dict[str, Any] = json.loads(line) if line.startswith("{") else {}
        if "done" in values:
            return
        if values:
            yield values
    raise SystemExit(f"{' '.join(command)} failed:\n{log.read_text()[-5000:]}")
