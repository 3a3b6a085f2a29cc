"""The server on a free port, asked by a client."""

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import ClientSession
from aiohttp.test_utils import TestServer
from typer.testing import CliRunner

from deltajoin.cli.app import app
from deltajoin.observe.observer import Observer
from deltajoin.ui.server import application
from tests.deltajoin.ui import shop
from tests.deltajoin.ui.test_pages import Page
from upsert.catalog import query_records


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> str:
    return shop.make(tmp_path_factory.mktemp("shop"))[0].warehouse


def asked(warehouse: str, ask: Callable[[ClientSession, str], Awaitable[None]]) -> None:
    async def run() -> None:
        async with (
            TestServer(application(Observer(warehouse), ["desk.example"])) as server,
            ClientSession() as client,
        ):
            await ask(client, str(server.make_url("")).rstrip("/"))

    asyncio.run(run())


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/", 200, "Streaming queries"),
        ("/tables", 200, "reports.sales"),
        ("/tables/reports.sales", 200, "Snapshots"),
        ("/tables/products?rows=1", 200, "<milk>"),
        (f"/queries/{shop.JOIN}", 200, "Micro-batches"),
        ("/tables/nothing", 404, "there is no table 'nothing'"),
        ("/tables/..%2F..%2Fetc%2Fpasswd", 404, "there is no table"),
        ("/tables/%3Cscript%3E", 404, "there is no table '<script>'"),
        ("/queries/x", 404, "no query 'x'"),
    ],
)
def test_pages(warehouse: str, path: str, status: int, text: str) -> None:
    async def ask(client: ClientSession, url: str) -> None:
        async with client.get(url + path) as answer:
            assert answer.status == status
            assert text in Page(await answer.text()).text
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
            assert answer.headers["Cache-Control"] == "no-store"

    asked(warehouse, ask)


def test_values_as_json(warehouse: str) -> None:
    async def ask(client: ClientSession, url: str) -> None:
        async def of(path: str, status: int = 200) -> object:
            async with client.get(url + path) as answer:
                assert answer.status == status
                assert answer.content_type == "application/json"
                return await answer.json()

        whole = await of("/api")
        assert isinstance(whole, dict)
        assert await of("/api/tables") == whole["tables"]
        assert await of("/api/queries") == whole["queries"]
        assert await of("/api/tables/orders") == whole["tables"][0]
        query = await of(f"/api/queries/{shop.JOIN}")
        assert isinstance(query, dict)
        assert (query["name"], query["record"]["id"]) == ("sales", shop.JOIN)
        assert "no table" in str(await of("/api/tables/x", 404))

    asked(warehouse, ask)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("evil.example", 421),
        ("evil.example:80", 421),
        ("127.0.0.1.evil.example", 421),
        ("", 421),
        ("localhost", 200),
        ("LOCALHOST:1", 200),
        ("[::1]:8642", 200),
        ("192.168.1.7:8642", 200),
        ("desk.example:8642", 200),
    ],
)
def test_a_page_of_another_name_gets_nothing(warehouse: str, host: str, status: int) -> None:
    async def ask(client: ClientSession, url: str) -> None:
        async with client.get(url + "/api", headers={"Host": host}) as answer:
            assert answer.status == status
            assert ("orders" in await answer.text()) == (status == 200)

    asked(warehouse, ask)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_nothing_can_be_changed(warehouse: str, method: str) -> None:
    async def ask(client: ClientSession, url: str) -> None:
        async with client.request(method, url + "/tables/orders") as answer:
            assert answer.status == 405
            assert "Content-Security-Policy" in answer.headers

    asked(warehouse, ask)


def test_new_commits_are_seen(tmp_path: Path) -> None:
    catalog, _ = shop.make(tmp_path)
    observer = Observer(catalog.warehouse)
    assert len(observer.look(0).tables[1].snapshots) == 1
    catalog.table("products").delete([])
    products = observer.look(0).tables[1]
    assert (len(products.snapshots), products.rows) == (2, 0)


def test_the_command_writes_a_file(warehouse: str, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    done = CliRunner().invoke(app, ["ui", "-w", warehouse, "--html", str(file)])
    assert (done.exit_code, "written" in done.stdout) == (0, True)
    assert "reports.sales" in Page(file.read_text("utf-8")).text


def test_the_command_tells_that_its_port_is_taken(warehouse: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = CliRunner().invoke(app, ["ui", "-w", warehouse, "--port", str(taken.getsockname()[1])])
    assert done.exit_code == 1
    assert "in use" in done.stderr
    assert "another --port" in done.stderr


@pytest.mark.parametrize(
    ("host", "message"),
    [
        ("", "--host must be an address of this machine, got ''; 0.0.0.0 is all of them"),
        ("x" * 64, "must be a free address of this machine, got encoding with 'idna' codec failed"),
    ],
)
def test_the_command_refuses_what_is_no_host(warehouse: str, host: str, message: str) -> None:
    """An empty one, as of a variable that is not set, was all addresses of the machine."""
    done = CliRunner().invoke(app, ["ui", "-w", warehouse, "--port", "0", "--host", host])
    assert done.exit_code == 1
    assert message in " ".join(done.stderr.split())


def test_the_command_serves_until_it_is_interrupted(warehouse: str) -> None:
    command = [sys.executable, "-m", "deltajoin", "ui", "-w", warehouse, "--port", "0"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            address = re.match(r"http://127\.0\.0\.1:\d+", process.stdout.readline())
            assert address is not None
            with urllib.request.urlopen(f"{address[0]}/api/queries", timeout=60) as answer:
                assert len(json.load(answer)) == len(query_records.names(warehouse))
            with pytest.raises(urllib.error.HTTPError, match="400"):
                urllib.request.urlopen(f"{address[0]}/{'a' * 9_000}", timeout=60)
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()
