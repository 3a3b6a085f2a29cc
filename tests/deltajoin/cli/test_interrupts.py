"""Ctrl-C, typed on a real terminal: the statement ends, the prompt is back, the session is whole."""

import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from deltajoin.cli.sql import done_or_cancelled, signals_noted
from tests.deltajoin.cli.test_sql import FLAGS, environment, until
from upsert import Catalog
from upsert.catalog.query_records import read_all

pytestmark = pytest.mark.spark

CTRL_C = b"\x03"
NUMBERS = "(SELECT explode(sequence(1, 1000000)) AS n)"
ENDLESS = f"SELECT max(a.n * b.n % 7) AS m FROM {NUMBERS} a CROSS JOIN {NUMBERS} b"


def on_a_terminal(folder: Path, *arguments: str) -> tuple[subprocess.Popen[bytes], int]:
    """A command whose controlling terminal is a new one, so that Ctrl-C goes to all of its processes.

    Forked ones would belong to this process's terminal.
    """
    screen, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "deltajoin", *arguments],
        env=environment(forked=False) | {"HOME": str(folder), "XDG_CONFIG_HOME": str(folder / "config")},
        preexec_fn=lambda: os.login_tty(terminal),
        close_fds=False,
    )
    os.close(terminal)
    return process, screen


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    catalog = Catalog(tmp_path / "w")
    catalog.sql("CREATE TABLE words (id BIGINT, word STRING, PRIMARY KEY (id) NOT ENFORCED)")
    catalog.sql("CREATE TABLE copies (id BIGINT, word STRING, PRIMARY KEY (id) NOT ENFORCED)")
    catalog.table("words").write(pa.table({"id": [1, 2], "word": ["tea", "rum"]}))
    return tmp_path / "w"


def test_the_prompt_survives_errors_and_is_back_after_a_batch_and_a_stream_were_cancelled(
    tmp_path: Path, warehouse: Path
) -> None:
    process, screen = on_a_terminal(tmp_path, "sql", "-w", str(warehouse), *FLAGS)

    def typed(line: str, answer: str) -> str:
        os.write(screen, f"{line}\r".encode())
        return until(screen, answer)

    seen = until(screen, "sql> ")
    for line, answer in (
        ("SHOW TABLS;", "sql> "),
        ("SELECT 1 / 0;", "sql> "),
        ("CREATE TABLE more (id INT);", "sql> "),
        ("SHOW", "...>"),
        ("TABLES;", "sql> "),
    ):
        seen += typed(line, answer)
    assert "error: SHOW TABLS is no statement; did you mean SHOW TABLES?" in seen
    assert "error: [DIVIDE_BY_ZERO]" in seen
    assert seen.count("error:") == 2
    assert "CREATE TABLE more: created" in seen
    assert (warehouse / "more").is_dir()
    assert "JVM" not in seen
    assert "Traceback" not in seen

    seen = typed(f"SELECT concat('be', 'gun') AS n; {ENDLESS};", "begun")
    os.write(screen, CTRL_C)
    seen += until(screen, "sql> ")
    assert "cancelled" in seen
    seen += typed("SET 'execution.runtime-mode' = 'streaming';", "sql> ")
    seen += typed("SELECT id, word FROM words;", "rum")
    os.write(screen, CTRL_C)
    seen += until(screen, "sql> ")
    seen += typed("RESET;", "sql> ")
    seen += typed("SELECT max(word) AS last FROM words;", "tea")
    os.write(screen, b"exit\r")
    seen += until(screen, None)
    os.close(screen)
    assert process.wait(timeout=120) == 0
    assert "Traceback" not in seen
    assert "error" not in seen
    assert "reentrant" not in seen
    assert "WARNING" not in seen, "what Java says of Spark's modules is of no use to the user"


def test_ctrl_c_cancels_whichever_thread_receives_it_and_a_second_one_does_not_break_that_off() -> None:
    """Which thread of a process gets a signal is the system's choice; Python handles it in the main one."""
    begun, calls, cancelled = threading.Event(), list[str](), threading.Event()

    def work() -> None:
        begun.set()
        assert cancelled.wait(10)
        raise RuntimeError("cancelled")

    def interrupt() -> None:
        begun.wait()
        time.sleep(0.1)  # the main thread waits by then
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    def cancel() -> None:
        calls.append("begins")
        signal.raise_signal(signal.SIGINT)
        calls.append("ends")
        cancelled.set()

    threading.Thread(target=interrupt).start()
    with ThreadPoolExecutor(1) as thread, signals_noted(signal.SIGINT) as noted:
        with pytest.raises(KeyboardInterrupt):
            done_or_cancelled(thread, work, cancel, noted)
        noted.clear()
        done_or_cancelled(thread, lambda: None, cancel, noted)
    assert calls == ["begins", "ends"]


INTERRUPTED_IMPORT = """
import os, signal, sys
from runpy import run_module

class CtrlC:
    def find_spec(self, name, *_):
        if name == "deltajoin.cli.sql":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, CtrlC())
run_module("deltajoin", run_name="__main__")
"""


def test_ctrl_c_while_the_command_loads_ends_it_without_a_trace(tmp_path: Path) -> None:
    command = [sys.executable, "-c", INTERRUPTED_IMPORT, "tables", "-w", str(tmp_path)]
    done = subprocess.run(
        command, env=environment(forked=False), capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


@pytest.mark.long
def test_queries_of_a_job_that_is_stopped_with_all_of_its_processes_have_not_failed(
    tmp_path: Path, warehouse: Path
) -> None:
    """A signal to a whole group, as systemd sends it, ends what a query needs before it can be stopped."""
    job = tmp_path / "job.sql"
    job.write_text(
        "SET 'execution.runtime-mode' = 'streaming';\nSET 'pipeline.name' = 'job';\n"
        "INSERT INTO copies SELECT a.id, b.word FROM words a JOIN words b ON a.id = b.id;\n"
    )
    process, screen = on_a_terminal(tmp_path, "run", str(job), "-w", str(warehouse), "--json", *FLAGS)
    seen = until(screen, '"micro-batch",')
    os.killpg(process.pid, signal.SIGTERM)
    seen += until(screen, None)
    os.close(screen)
    assert process.wait(timeout=120) == 0, seen
    assert "Traceback" not in seen
    assert '"failed"' not in seen
    ((record,), _) = read_all(str(warehouse))
    assert (record.state, record.error) == ("ended", None)


@pytest.mark.long
@pytest.mark.parametrize("is_for_all", [False, True])
def test_a_job_ends_in_good_order_in_its_first_micro_batch(
    tmp_path: Path, warehouse: Path, is_for_all: bool
) -> None:
    job = tmp_path / "job.sql"
    job.write_text(
        "SET 'execution.runtime-mode' = 'streaming';\nSET 'pipeline.name' = 'copies';\n"
        "INSERT INTO copies SELECT id, word FROM words;\n"
    )
    process, screen = on_a_terminal(tmp_path, "run", str(job), "-w", str(warehouse), "--json", *FLAGS)
    seen = until(screen, '"started"')
    if is_for_all:
        os.killpg(process.pid, signal.SIGTERM)  # as systemd and `timeout` do
    else:
        os.write(screen, CTRL_C)
    seen += until(screen, None)
    os.close(screen)
    assert process.wait(timeout=120) == 0, seen
    # the terminal itself shows ^C, before an event or behind it
    events = (line[line.index("{") :] for line in seen.splitlines() if '"event"' in line)
    told = [json.JSONDecoder().raw_decode(event)[0] for event in events]
    ends = [one["event"] for one in told if one["event"] != "micro-batch"]
    assert ends in (
        ["started", "stopped"],
        *([["started"]] if is_for_all else []),
    )  # if the JVM is gone first
    assert "deltajoin/cli/" not in seen, "no trace of the command itself; Spark's processes may leave one"
