"""The command `deltajoin`, as it is installed: a top-level module, which is there before any import.

Ctrl-C while the packages are imported, which takes about a second, ends the command without a traceback.
"""

from __future__ import annotations

import signal


def main() -> None:
    """Run the command line."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:  # else Ctrl-C is ignored, as by nohup
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from deltajoin.cli import app

    signal.signal(signal.SIGINT, handler)
    app.main()
