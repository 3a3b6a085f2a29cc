"""Runs one program for as long as the parent process lives; started as a file, so it imports no package.

``python -I watchdog.py <folder> <program> <arguments…>``. Standard input carries orders, one a line: ``stop``
ends the program with SIGTERM (and with SIGKILL when that takes too long), ``kill`` with SIGKILL at once;
``pause`` stops it with SIGSTOP until ``resume``, and each says on standard output that it is done. The end of
standard input means that the parent is gone: the program is ended and its folder removed. The exit status is
the program's.
"""

import os
import select
import shutil
import signal
import subprocess
import sys

POLL_SECONDS = 0.5
SIGNALS = {b"pause\n": signal.SIGSTOP, b"resume\n": signal.SIGCONT}
STOP_SECONDS = 15.0


def main(folder: str, command: list[str]) -> int:
    """Start the program and wait for its end, an order, or the end of the parent."""
    parent = os.getppid()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    program = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr)
    try:
        while program.poll() is None:
            readable, _, _ = select.select([0], [], [], POLL_SECONDS)
            order = os.read(0, 100) if readable else None
            if order == b"kill\n":
                kill(program)
            elif order == b"stop\n":
                stop(program)
            elif order in SIGNALS:
                program.send_signal(SIGNALS[order])
                os.write(1, b"done\n")
            elif order is not None or os.getppid() != parent:
                stop(program)
                shutil.rmtree(folder, ignore_errors=True)
    finally:
        kill(program)
    return program.returncode


def stop(program: subprocess.Popen[bytes]) -> None:
    """End the program in its own way if it finds one in time."""
    program.terminate()
    program.send_signal(signal.SIGCONT)  # one that is paused would not see it
    try:
        program.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        kill(program)


def kill(program: subprocess.Popen[bytes]) -> None:
    """End the program with SIGKILL; one that has ended is left alone."""
    program.kill()
    program.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
