"""A terminal on which a command of Python runs, and what it has shown."""

import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress

import pytest

SILENT_S = 300
"""A command that shows nothing for so long hangs, on any machine."""
LAST_WORDS_S = 5


class Terminal:
    """One for a process alone, which it controls: Ctrl-C goes to all of the process's children too.

    If the process does not show in time what is waited for, the test fails with all that it has shown, and
    with what each of its threads does.

    Attributes:
        process: what runs there.
        shown: all that it has shown.
    """

    def __init__(self, *arguments: str, env: Mapping[str, str]) -> None:
        self._screen, terminal = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", *arguments],
            env=env,
            preexec_fn=lambda: os.login_tty(terminal),
            close_fds=False,
        )
        os.close(terminal)
        self.shown = ""
        self._seen = 0

    def until(self, text: str) -> str:
        """What it shows up to a text and with it, behind what an earlier call has given."""
        start = self._seen
        while (at := self.shown.find(text, start)) < 0:
            assert self._read(SILENT_S), f"{text!r} must be shown; {self._last_words()}"
        self._seen = at + len(text)
        return self.shown[start : self._seen]

    def type(self, keys: str) -> None:
        """Press some keys."""
        os.write(self._screen, keys.encode())

    def typed(self, line: str, answer: str) -> str:
        """Type a line; what is shown up to the answer."""
        self.type(f"{line}\r")
        return self.until(answer)

    def end(self, code: int = 0) -> str:
        """What it shows up to its end, with an exit code: that of a success."""
        start = self._seen
        while self._read(SILENT_S):
            pass
        os.close(self._screen)
        assert self.process.wait(60) == code, self.shown
        return self.shown[start:]

    def _read(self, patience_s: float) -> bool:
        """Read what there is; not if the process has ended."""
        ready, _, _ = select.select([self._screen], [], [], patience_s)
        if not ready:
            pytest.fail(f"it has shown nothing for {patience_s} s; {self._last_words()}")
        with suppress(OSError):  # of a terminal without processes
            part = os.read(self._screen, 4096)
            self.shown += part.decode(errors="replace")
            return bool(part)
        return False

    def _last_words(self) -> str:
        self.process.send_signal(signal.SIGABRT)  # which faulthandler answers with the stacks of all threads
        while select.select([self._screen], [], [], LAST_WORDS_S)[0]:
            try:
                self.shown += os.read(self._screen, 4096).decode(errors="replace")
            except OSError:
                break
        return f"all that was shown:\n{self.shown}"
