"""A Chromium without a window, told what to do by its DevTools protocol."""

import asyncio
import base64
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self

from aiohttp import ClientSession, ClientWebSocketResponse, WSMsgType

from tests.helpers import REPOSITORY

PATIENCE_S: Final = 120.0

_FLAGS: Final = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run")

_OFTEN: Final = "const every = setInterval; window.setInterval = (act, ms) => every(act, Math.min(ms, 200));"
"""What a page does every few seconds it does here five times a second."""


def chromium() -> str | None:
    """Its path; None if there is none, see ``scripts/chromium.sh``."""
    found = subprocess.run(
        ["sh", "scripts/chromium.sh", "find"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or None


_IS_LEFT: Final = ("target navigated or closed", "context was destroyed", "default execution context")
"""What the browser says to a question that comes while one page gives way to another."""


class LeftPageError(Exception):
    """The page that was asked has given way to another one."""


class Tab:
    """A page in a browser."""

    def __init__(self, socket: ClientWebSocketResponse) -> None:
        self._socket = socket
        self._number = 0
        self._session: str | None = None
        self.complaints: list[str] = []

    async def opened(self) -> Self:
        """With a page of its own, which tells of errors."""
        target = await self._told("Target.createTarget", url="about:blank")
        attached = await self._told("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            await self._told(f"{domain}.enable")
        await self._told("Page.addScriptToEvaluateOnNewDocument", source=_OFTEN)
        return self

    async def go(self, url: str) -> None:
        """Open an address."""
        await self._told("Page.navigate", url=url)
        await self.until("document.readyState == 'complete'")

    async def value(self, script: str) -> Any:
        """What a script in the page gives."""
        answer = await self._told("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def texts(self, selector: str) -> list[str]:
        """What people see of the elements that a selector finds."""
        found = await self.value(
            f"[...document.querySelectorAll({json.dumps(selector)})]"
            ".map(one => (one.innerText ?? one.textContent).trim())"
        )
        assert isinstance(found, list)
        return found

    async def click(self, selector: str) -> None:
        """Click at the first element that a selector finds, which may open another page at once."""
        with suppress(LeftPageError):
            await self.value(f"document.querySelector({json.dumps(selector)}).click()")

    async def until(self, script: str) -> None:
        """Wait until a script gives what is true, in this page or in one that is being opened."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                with suppress(LeftPageError):
                    if await self.value(script):
                        return
                await asyncio.sleep(0.05)

    async def picture(self, path: Path) -> None:
        """Write what is seen to a PNG file."""
        size = {"width": 1300, "height": 1100, "deviceScaleFactor": 1, "mobile": False}
        await self._told("Emulation.setDeviceMetricsOverride", **size)
        shot = await self._told("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(shot["data"]))

    async def _told(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        await self._socket.send_json(message)
        async with asyncio.timeout(PATIENCE_S):
            while True:
                answer = await self._socket.receive()
                assert answer.type is WSMsgType.TEXT, answer
                said = json.loads(answer.data)
                if said.get("id") == self._number:
                    if any(text in said.get("error", {}).get("message", "") for text in _IS_LEFT):
                        raise LeftPageError
                    assert "error" not in said, said
                    result = said["result"]
                    assert isinstance(result, dict)
                    return result
                self._note(said)

    def _note(self, said: dict[str, Any]) -> None:
        given = said.get("params", {})
        match said.get("method"):
            case "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(given["exceptionDetails"]))
            case "Log.entryAdded" if given["entry"]["level"] in ("error", "warning"):
                self.complaints.append(given["entry"]["text"])


@asynccontextmanager
async def browser(path: str, folder: Path) -> AsyncIterator[Tab]:
    """A page in a browser of its own, whose profile is in this folder."""
    flags = (*_FLAGS, "--remote-debugging-port=0", f"--user-data-dir={folder}")
    process = subprocess.Popen(
        [path, *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        address = await _address(folder / "DevToolsActivePort")
        async with ClientSession() as client, client.ws_connect(address, max_msg_size=0) as socket:
            yield await Tab(socket).opened()
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # asked to end, it would take its time
        process.wait(PATIENCE_S)


async def _address(file: Path) -> str:
    """Where the browser listens, which it writes to this file: a port and a path."""
    async with asyncio.timeout(PATIENCE_S):
        while not (file.exists() and len(lines := file.read_text().split()) == 2):
            await asyncio.sleep(0.05)
    return f"ws://127.0.0.1:{lines[0]}{lines[1]}"
