"""Ctrl-C, typed on a real terminal: the statement ends, the prompt is back, the session is whole."""

import json
import os
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
from tests.deltajoin.cli.terminal import Terminal
from tests.deltajoin.cli.test_sql import FLAGS, environment
from upsert import Catalog
from upsert.catalog.query_records import read_all

pytestmark = pytest.mark.spark

CTRL_C = "\x03"
NUMBERS = "(SELECT explode(sequence(1, 1000000)) AS n)"
ENDLESS = f"SELECT max(a.n * b.n % 7) AS m FROM {NUMBERS} a CROSS JOIN {NUMBERS} b"


def on_a_terminal(folder: Path, *arguments: str) -> Terminal:
    """A command that has its own settings; forked processes would belong to this process's terminal."""
    of_user = {"HOME": str(folder), "XDG_CONFIG_HOME": str(folder / "config")}
    return Terminal("-m", "deltajoin", *arguments, env=environment(forked=False) | of_user)


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
    terminal = on_a_terminal(tmp_path, "sql", "-w", str(warehouse), *FLAGS)
    seen = terminal.until("sql> ")
    for line, answer in (
        ("SHOW TABLS;", "sql> "),
        ("SELECT 1 / 0;", "sql> "),
        ("CREATE TABLE more (id INT);", "sql> "),
        ("SHOW", "...>"),
        ("TABLES;", "sql> "),
    ):
        seen += terminal.typed(line, answer)
    assert "error: SHOW TABLS is no statement; did you mean SHOW TABLES?" in seen
    assert "error: [DIVIDE_BY_ZERO]" in seen
    assert seen.count("error:") == 2
    assert "CREATE TABLE more: created" in seen
    assert (warehouse / "more").is_dir()
    assert "JVM" not in seen
    assert "Traceback" not in seen

    seen = terminal.typed(f"SELECT concat('be', 'gun') AS n; {ENDLESS};", "begun")
    terminal.type(CTRL_C)
    seen += terminal.until("sql> ")
    assert "cancelled" in seen
    seen += terminal.typed("SET 'execution.runtime-mode' = 'streaming';", "sql> ")
    seen += terminal.typed("SELECT id, word FROM words;", "rum")
    terminal.type(CTRL_C)
    seen += terminal.until("sql> ")
    seen += terminal.typed("RESET;", "sql> ")
    seen += terminal.typed("SELECT max(word) AS last FROM words;", "tea")
    terminal.type("exit\r")
    seen += terminal.end()
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


STUCK = """
import time
from runpy import run_module
from upsert.store.commit.committer import Committer

def commit(*_, **__):
    print("no answer", flush=True)
    time.sleep(3600)

Committer.commit = commit
run_module("deltajoin", run_name="__main__")
"""


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_a_second_signal_ends_a_job_that_cannot_stop(
    tmp_path: Path, warehouse: Path, number: signal.Signals
) -> None:
    """One within milliseconds is the same: `timeout` sends it to the command and then to its group."""
    job = tmp_path / "job.sql"
    job.write_text(
        "SET 'execution.runtime-mode' = 'streaming';\nSET 'pipeline.name' = 'copies';\n"
        "INSERT INTO copies SELECT id, word FROM words;\n"
    )
    command = ["-c", STUCK, "run", str(job), "-w", str(warehouse), *FLAGS]
    terminal = Terminal(*command, env=environment(forked=False))
    terminal.until("no answer")
    for _ in range(2):
        os.kill(terminal.process.pid, number)
    time.sleep(0.5)
    assert terminal.process.poll() is None
    time.sleep(1)
    while terminal.process.poll() is None:  # a busy machine may have told of the first one later
        os.kill(terminal.process.pid, number)
        time.sleep(0.3)
    terminal.end(128 + number)
    assert "ended at once, before its queries have stopped" in terminal.shown
    assert "Traceback" not in terminal.shown


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
    terminal = on_a_terminal(tmp_path, "run", str(job), "-w", str(warehouse), "--json", *FLAGS)
    terminal.until('"micro-batch",')
    os.killpg(terminal.process.pid, signal.SIGTERM)
    terminal.end()
    assert "Traceback" not in terminal.shown
    assert '"failed"' not in terminal.shown
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
    terminal = on_a_terminal(tmp_path, "run", str(job), "-w", str(warehouse), "--json", *FLAGS)
    terminal.until('"started"')
    if is_for_all:
        os.killpg(terminal.process.pid, signal.SIGTERM)  # as systemd and `timeout` do
    else:
        terminal.type(CTRL_C)
    terminal.end()
    # the terminal itself shows ^C, before an event or behind it
    events = (line[line.index("{") :] for line in terminal.shown.splitlines() if '"event"' in line)
    told = [json.JSONDecoder().raw_decode(event)[0] for event in events]
    ends = [one["event"] for one in told if one["event"] != "micro-batch"]
    assert ends in (
        ["started", "stopped"],
        *([["started"]] if is_for_all else []),
    )  # if the JVM is gone first
    assert "deltajoin/cli/" not in terminal.shown, (
        "no trace of the command itself; Spark's processes may leave one"
    )
