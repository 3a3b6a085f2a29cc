"""The open end of an ``HttpLookup``; the only file that uses ``aiohttp``."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final, NoReturn

import aiohttp
import pyarrow as pa
from multidict import CIMultiDict
from yarl import URL

from deltajoin.errors import LookupFailedError, LookupUnavailableError
from deltajoin.lookup.http_json import JsonExchange
from deltajoin.lookup.protocol import Answer, RequestLimits
from upsert.errors import ConfigurationError
from upsert.options import shown_url

_BUSY: Final = (408, 425, 429)
_IDLE_S: Final = 60.0
_EXCERPT: Final = 300
_QUOTED: Final = 1 << 16
"""Bytes of a reply in which secrets are looked for before an excerpt is taken."""
_LARGE: Final = 1 << 20
"""Bytes of a reply that takes too long to read on the event loop: about 10 ms."""


class HttpClient:
    """A pool of connections to one endpoint; must be made on the thread of a running event loop."""

    def __init__(
        self,
        url: str,
        exchange: JsonExchange,
        limits: RequestLimits,
        *,
        headers: Mapping[str, str],
        max_reply_bytes: int,
        ca_file: str | None,
        masked: Callable[[str], str],
    ) -> None:
        self._url = URL(url)
        self._shown = f"HttpLookup {shown_url(url)}"
        self._exchange = exchange
        self._timeout_s = limits.timeout_s
        self._max_reply_bytes = max_reply_bytes
        self._masked = masked
        sent = CIMultiDict({"Content-Type": "application/json", "Accept": "application/json"})
        sent.update(headers)  # which replace ours, in any letter case
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=limits.requests, keepalive_timeout=_IDLE_S, ssl=_trusted(ca_file)
            ),
            headers=sent,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None),  # the engine's own counts; a second one costs time
        )

    async def lookup(self, keys: pa.Table) -> Answer:
        """One request about these keys."""
        reply = await self._reply(self._exchange.request(keys))
        try:
            if len(reply) > _LARGE:  # other requests must not wait, nor run out of time, meanwhile
                return await asyncio.to_thread(self._exchange.answer, reply, keys.num_rows)
            return self._exchange.answer(reply, keys.num_rows)
        except LookupFailedError as failure:
            raise LookupFailedError(f"{self._shown}: {failure}") from None

    async def _reply(self, body: bytes) -> bytes:
        try:
            async with self._session.post(self._url, data=body, allow_redirects=False) as response:
                reply = await self._read(response)
                if response.status != 200:
                    self._refuse(response, reply)
                return reply
        except aiohttp.ClientSSLError as cause:
            raise LookupFailedError(
                f"{self._shown}: the connection must be secure, it is not ({self._quoted(str(cause))}); "
                "see 'ca_file'"
            ) from None
        except (aiohttp.ClientError, OSError) as cause:  # also TimeoutError; may quote the whole url
            raise LookupUnavailableError(
                f"{self._shown}: the endpoint must answer within {self._timeout_s} s, it did "
                f"not ({type(cause).__name__}: {self._quoted(str(cause))}); check that it runs and can be "
                "reached from here"
            ) from None

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        """The body, unpacked, in pieces: a reply that is too large is not read to its end."""
        pieces: list[bytes] = []
        size = 0
        while not response.content.at_eof():
            piece = await response.content.readany()
            size += len(piece)
            if size > self._max_reply_bytes:
                raise LookupFailedError(
                    f"{self._shown}: a reply must have at most {self._max_reply_bytes} bytes, it has "
                    "more; ask for fewer keys at a time, or raise 'max_reply_bytes'"
                )
            pieces.append(piece)
        return b"".join(pieces)

    def _refuse(self, response: aiohttp.ClientResponse, reply: bytes) -> NoReturn:
        status = response.status
        reason = self._quoted(response.reason or "")
        said = f"{status} {reason}: {self._quoted(reply[:_QUOTED].decode(errors='replace'))!r}"
        if status in _BUSY or status >= 500:
            raise LookupUnavailableError(
                f"{self._shown}: the endpoint must answer with status 200, got {said}",
                retry_after_s=retry_after_s(response.headers.get("Retry-After"), datetime.now(UTC)),
            )
        if 300 <= status < 400:
            where = self._quoted(shown_url(response.headers.get("Location", "")))
            raise LookupFailedError(
                f"{self._shown}: the endpoint must answer itself, it redirects to {where!r}; correct the url"
            )
        if status in (401, 403):
            raise LookupFailedError(
                f"{self._shown}: the endpoint refused the credentials, {said}; see 'headers'"
            )
        raise LookupFailedError(f"{self._shown}: the endpoint must answer with status 200, got {said}")

    def _quoted(self, text: str) -> str:
        """The beginning of what came from outside, without what is secret."""
        return self._masked(text)[:_EXCERPT]

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()


def _trusted(ca_file: str | None) -> ssl.SSLContext | bool:
    if ca_file is None:
        return True
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as cause:  # also ssl.SSLError
        raise ConfigurationError(
            f"HttpLookup: ca_file must be a PEM file of certificates, {ca_file!r} is not ({cause})"
        ) from cause


def retry_after_s(header: str | None, now: datetime) -> float | None:
    """Seconds that a ``Retry-After`` header asks for, given as such or as a date; None if it says nothing.

    >>> retry_after_s("7", datetime(2026, 1, 1, tzinfo=UTC))
    7.0
    >>> retry_after_s("Thu, 01 Jan 2026 00:00:30 GMT", datetime(2026, 1, 1, tzinfo=UTC))
    30.0
    """
    if header is None:
        return None
    if header.strip().isascii() and header.strip().isdigit():
        return float(header)
    try:
        then = parsedate_to_datetime(header)
    except (ValueError, OverflowError):  # the latter for years of twenty digits
        return None
    if then.tzinfo is None:
        then = then.replace(tzinfo=UTC)
    return max(0.0, (then - now).total_seconds())
