"""The pages in a real browser: what is seen after their script ran, and that the browser allows it to run."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pyarrow as pa
import pytest
from aiohttp.test_utils import TestServer

from deltajoin.observe.observer import Observer
from deltajoin.ui import pages
from deltajoin.ui.server import application
from tests.deltajoin.ui import shop
from tests.deltajoin.ui.browser import Tab, browser, chromium
from upsert import Catalog
from upsert.catalog import query_records

BROWSER = chromium()

pytestmark = pytest.mark.skipif(
    BROWSER is None and not os.environ.get("CI"), reason="needs a Chromium; sh scripts/chromium.sh gets one"
)


def seen(tmp_path: Path, look: Callable[[Tab, str, Catalog], Awaitable[None]]) -> None:
    """Serve a warehouse, and look at it in a browser."""
    assert BROWSER is not None, "sh scripts/chromium.sh gets one"
    path = BROWSER
    catalog, _ = shop.make(tmp_path / "w")

    async def run() -> None:
        async with (
            TestServer(application(Observer(catalog.warehouse))) as server,
            browser(path, tmp_path / "profile") as tab,
        ):
            await look(tab, str(server.make_url("")).rstrip("/"), catalog)
            assert tab.complaints == []

    asyncio.run(run())


def test_pages_are_seen_and_follow_what_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table, a running query and a failed one; links between them; and a commit while the page is open."""
    monkeypatch.setattr(query_records, "SILENT_MS", 500_000)  # a browser may take a minute to start

    async def look(tab: Tab, url: str, catalog: Catalog) -> None:
        await tab.go(url)
        states = dict(zip(await tab.texts("td a"), await tab.texts("td .state"), strict=True))
        assert states == {"sales": "running", "copy": "failed", "query cccccccc": "silent"}
        assert await tab.texts("tr.below") == ["table 'copies': column 'b' is gone; add it"]
        boxes = await tab.texts(".graph .node text:not(.note)")
        assert {"orders", "products", "sales", "reports.sales"} <= set(boxes)
        assert await tab.value("document.querySelectorAll('.graph .edge').length") == 3

        await tab.click("td a")
        await tab.until("document.querySelector('h1')?.innerText.startsWith('sales')")
        assert await tab.value("location.pathname") == f"/queries/{shop.JOIN}"
        assert await tab.value("document.querySelectorAll('.bars rect').length") > 4

        await tab.go(f"{url}/tables")
        assert await tab.texts("td:nth-child(3)") == ["30", "3", "3"]
        await tab.value("window.same = true")
        catalog.table("products").write(pa.table({"id": [9], "name": ["gin"]}))
        await tab.until("document.querySelectorAll('td:nth-child(3)')[1].innerText == '4'")
        assert await tab.value("window.same")  # its script has brought the news, nobody has loaded the page

        await tab.go(f"{url}/tables/products?rows=1")
        assert "<milk>" in await tab.texts("td")
        assert await tab.value("document.querySelectorAll('milk').length") == 0

    seen(tmp_path, look)


def test_the_file_is_read_without_a_server(tmp_path: Path) -> None:
    async def look(tab: Tab, url: str, catalog: Catalog) -> None:
        file = tmp_path / "page.html"
        file.write_text(pages.snapshot_file(Observer(catalog.warehouse).look(0)))
        await tab.go(file.as_uri())
        await tab.click("td a[href='#table-orders']")
        await tab.until("location.hash == '#table-orders'")
        await tab.until("document.querySelector(':target h1').getBoundingClientRect().top < innerHeight")
        assert await tab.value("document.querySelector(':target h1').innerText") == "orders table"
        assert await tab.value("document.scripts.length") == 0

    seen(tmp_path, look)
