"""Commits batches to a table with a log, or creates one, in a process that a failpoint may kill.

A process of its own, not a fork of the tests': that has clients of Kafka, whose threads a fork lacks.

    python -m tests.upsert.log.write_script write PATH WRITER FIRST LAST
    python -m tests.upsert.log.write_script elsewhere PATH WRITER FIRST LAST
    python -m tests.upsert.log.write_script create PATH BROKERS TOPIC
    python -m tests.upsert.log.write_script switch PATH {on|off} BROKERS
"""

import os
import subprocess
import sys
from contextlib import nullcontext

from tests.forked_python import forked_program
from tests.upsert.log.log_content import new_table, rows
from upsert import failpoints
from upsert.log import publisher
from upsert.store.alterations import SetOptions
from upsert.store.table import Table


def write(path: str, writer: str, first: str, last: str) -> None:
    """Upsert six keys a batch and delete one; a batch that was committed before changes nothing."""
    table = Table.open(path)
    for batch in range(int(first), int(last) + 1):
        changed = [("+U", id, f"{writer} {batch}") for id in range(batch, batch + 6)]
        table.write(rows(*changed, ("-D", batch - 1, None)), writer_id=writer, transaction=batch)


def elsewhere(path: str, writer: str, first: str, last: str) -> None:
    """As ``write``, on a host of its own: its publisher waits for nobody here."""
    publisher.turn = lambda *_: nullcontext()  # type: ignore[assignment]
    write(path, writer, first, last)


def create(path: str, servers: str, topic: str) -> None:
    new_table(path, servers, **{"log.kafka.topic": topic})


def switch(path: str, to: str, servers: str) -> None:
    """Give a table a log, or take it away."""
    options = {"log.system": "kafka", "log.kafka.bootstrap.servers": servers}
    Table.open(path).alter(SetOptions(options if to == "on" else {"log.system": "none"}))


def started(*arguments: object, failpoint: str | None = None) -> subprocess.Popen[bytes]:
    """This file as a process, which dies at ``failpoint``."""
    killed = {} if failpoint is None else {failpoints.ENVIRONMENT_VARIABLE: failpoint}
    environment = {**os.environ, **killed}
    return subprocess.Popen(forked_program("tests.upsert.log.write_script", *arguments), env=environment)


if __name__ == "__main__":
    scripts = {"write": write, "elsewhere": elsewhere, "create": create, "switch": switch}
    scripts[sys.argv[1]](*sys.argv[2:])
