"""Child processes of the demo: each in its own process group, told by stdin, heard through a report file."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from examples.flights.messages import Message, Receiver
from upsert.errors import UpsertError

ROOT: Final = Path(__file__).parents[2]

_LOG_LINES: Final = 40
_GRACE_S: Final = 10.0
_REMOVALS: Final = 20
_PAUSE_S: Final = 0.1


class ProcessFailedError(UpsertError):
    """A child process ended with an error; the message has the end of its log."""


class Child:
    """One running child: `python -m module reports *arguments`.

    Its reports and its log are in the folder `work`, its temporary files in `scratch`. It belongs to a `with`
    block, which leaves no process behind, however it ends.
    """

    def __init__(self, name: str, module: str, work: Path, scratch: Path, *arguments: object) -> None:
        self.name = name
        reports, self._log = work / f"{name}.jsonl", work / f"{name}.log"
        self._receiver = Receiver(reports)
        with self._log.open("ab") as output:
            # a session of its own: Ctrl-C reaches only the supervisor, a JVM can be killed with its driver
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, str(reports), *map(str, arguments)],
                stdin=subprocess.PIPE,
                bufsize=0,
                stdout=output,
                stderr=output,
                env=_environment(os.environ, scratch),
                start_new_session=True,
            )

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """Process id, which is also the id of the process group."""
        return self._process.pid

    def tell(self, line: str) -> None:
        """Send a line to the child's stdin; nothing if it is dead, which `has_ended` will find."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{line}\n".encode())
        except BrokenPipeError:
            return

    def hear(self) -> list[Message]:
        """What it has reported since the last call."""
        return self._receiver.receive()

    def has_ended(self) -> bool:
        """Whether it has ended well.

        Raises:
            ProcessFailedError: it ended with an error.
        """
        code = self._process.poll()
        if code:
            raise ProcessFailedError(
                f"process {self.name!r} must run to its end; it stopped with exit code {code};"
                f" its log ends so:\n{self._tail()}"
            )
        return code is not None

    def finish(self) -> None:
        """End its stdin, upon which it stops by itself."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def kill(self) -> None:
        """SIGKILL the whole group, the JVM included, and wait."""
        self._signal(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """SIGTERM, then SIGKILL if that is not enough; nothing if it has ended."""
        if self._process.poll() is None:
            self._signal(signal.SIGTERM)
            try:
                self._process.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                self.kill()
        # a JVM outlives its driver by a second, and would write into folders that are removed next
        self._signal(signal.SIGKILL)
        if self._process.stdin:
            self._process.stdin.close()

    def _signal(self, number: signal.Signals) -> None:
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            return

    def _tail(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-_LOG_LINES:])


def remove(folder: Path) -> None:
    """Remove a folder in which Spark's children may have been at work.

    Its Python workers notice only after a moment that their JVM is dead, and may add a file until then.
    """
    for _ in range(_REMOVALS):
        with suppress(OSError):
            shutil.rmtree(folder)
            return
        time.sleep(_PAUSE_S)
    shutil.rmtree(folder)


def _environment(inherited: Mapping[str, str], scratch: Path) -> dict[str, str]:
    return {
        **inherited,
        # Spark's Python workers run $PYSPARK_PYTHON, which may be another interpreter than this one
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        # the examples are no part of the installed packages
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), inherited.get("PYTHONPATH")))),
        # a killed process leaves its temporary files behind
        "TMPDIR": str(scratch),
    }
