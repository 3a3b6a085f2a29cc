"""The command `deltajoin`, as it is installed: a top-level module, which is there before any import.

Ctrl-C while the packages are imported, which takes about half a second, ends the command without a traceback.

Python looks for objects that refer to each other in a circle whenever so many have been made, and again, in
all that there are, when it ends. Of a command these are the functions and classes of what was imported, and
they stay. To look at them took a quarter of the processor time of a command that does little else.
"""

from __future__ import annotations

import atexit
import gc
import os
import signal


def main() -> None:
    """Run the command line."""
    _open_standard_streams()
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:  # else Ctrl-C is ignored, as by nohup
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    gc.disable()
    from deltajoin.cli import app

    gc.freeze()
    gc.enable()
    atexit.register(gc.freeze)
    signal.signal(signal.SIGINT, handler)
    app.main()


def _open_standard_streams() -> None:
    """Let those that are closed lead nowhere, as some services start a command.

    The next file or connection would get the number of one, and what the JVM or a library says of an error is
    written to that number.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # it gets the lowest number that is free, which is this
