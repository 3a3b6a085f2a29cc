"""The command `deltajoin`, as it is installed: a top-level module, which is there before any import.

Ctrl-C while the packages are imported, which takes about half a second, ends the command without a traceback.

Python looks for objects that refer to each other in a circle whenever so many have been made, and again, in
all that there are, when it ends. Of a command these are the functions and classes of what was imported, and
they stay. To look at them took a quarter of the processor time of a command that does little else.
"""

from __future__ import annotations

import atexit
import gc
import signal


def main() -> None:
    """Run the command line."""
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
