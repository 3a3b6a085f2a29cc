"""Children of the demo: heard, told, killed, and never left behind. Real processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from examples.flights.messages import Loaded
from examples.flights.processes import Child, ProcessFailedError
from tests.helpers import wait_until

ECHO = """
import sys
from pathlib import Path
from examples.flights.messages import Loaded, Sender
sender = Sender(Path(sys.argv[1]))
sender.send(Loaded(1, 1))
for line in sys.stdin:
    sender.send(Loaded(2, int(line)))
print("ends", flush=True)
"""
FAILS = "raise SystemExit('no such airport')"
SPAWNS = """
import subprocess, sys
from pathlib import Path
from examples.flights.messages import Loaded, Sender
other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
Sender(Path(sys.argv[1])).send(Loaded(0, other.pid))
other.wait()
"""


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Child]:
    """Start a child that runs the given program."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.getcwd()]))

    def start(program: str) -> Child:
        (tmp_path / "program.py").write_text(program)
        return Child("writer", "program", tmp_path, tmp_path)

    return start


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        # a killed orphan may wait for its new parent to collect it
        return not Path("/proc/self").exists() or Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except (ProcessLookupError, FileNotFoundError):  # also when it is collected in between
        return False


def test_a_child_is_told_and_heard_and_ends_when_its_stdin_does(start: Callable[[str], Child]) -> None:
    heard = []
    with start(ECHO) as child:
        child.tell("42")
        child.finish()
        wait_until(child.has_ended)
        heard += child.hear()
    assert heard == [Loaded(1, 1), Loaded(2, 42)]


def test_an_error_of_a_child_shows_the_end_of_its_log(start: Callable[[str], Child]) -> None:
    with (
        start(FAILS) as child,
        pytest.raises(ProcessFailedError, match=r"process 'writer' .* exit code 1.*\nno such airport"),
    ):
        wait_until(child.has_ended)


def test_kill_takes_the_childs_own_children_with_it(start: Callable[[str], Child]) -> None:
    """As a JVM is one of its driver: it must not go on working for a dead driver."""
    messages = []
    with start(SPAWNS) as child:
        wait_until(lambda: messages.extend(child.hear()) or messages)
        (pid,) = [message.changes for message in messages]
        assert is_alive(pid)
        child.kill()
        wait_until(lambda: not is_alive(pid))


def test_leaving_the_block_ends_the_child(start: Callable[[str], Child]) -> None:
    with start(ECHO) as child:
        wait_until(child.hear)
    assert not is_alive(child.pid)


def test_a_dead_child_can_be_told_and_killed_without_harm(start: Callable[[str], Child]) -> None:
    with start(ECHO) as child:
        wait_until(child.hear)
        os.kill(child.pid, signal.SIGKILL)
        with pytest.raises(ProcessFailedError, match="exit code -9"):
            wait_until(child.has_ended)
        child.tell("1")
        child.kill()
