"""Lookups over HTTP: a batch endpoint that takes keys and gives rows, both in JSON (see ``http_json``)."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

import pyarrow as pa

from deltajoin.lookup.http_json import JsonExchange
from deltajoin.lookup.protocol import LookupClient, RequestLimits, check_columns
from upsert.errors import ConfigurationError, optional_package
from upsert.lookups.http import MAX_REPLY_BYTES, check_request
from upsert.options import Secret, shown_url

_SHORTEST_SECRET: Final = 4
"""A shorter one would be found in half of all messages."""


@dataclass(frozen=True, repr=False)
class HttpLookup:
    """Rows behind an HTTP endpoint.

    Keys are sent as ``POST url``, many in one request; ``docs/lookup-sources.md`` has the format. Connections
    are reused. After a status of 408, 425, 429 or 5xx, a lost connection or a timeout the request is tried
    again, not before the time of ``Retry-After``; after other errors it is not. Redirects are not followed,
    because they would send the credentials to another server.

    Args:
        url: of the endpoint, ``http`` or ``https``.
        schema: columns of the rows that it returns.
        keys: the columns by which rows are looked up.
        headers: sent with each request; their values are masked.
        limits: keys a request, requests at a time, seconds a request, attempts.
        missing_is_null: whether a row of a reply may leave columns out, which are NULL then.
        max_reply_bytes: size of a reply, unpacked, above which it is refused.
        ca_file: certificates to trust instead of the system's, PEM; must be on every worker.

    Raises:
        ConfigurationError, SchemaError: an argument is wrong; nothing was sent.

    >>> schema = pa.schema({"id": pa.int64(), "name": pa.string()})
    >>> HttpLookup("https://user:secret@example.com/users?token=x", schema, ["id"])
    HttpLookup('https://example.com/users', keys=('id',))
    """

    url: str
    schema: pa.Schema
    keys: Sequence[str]
    headers: Mapping[str, str] = field(default_factory=dict)
    limits: RequestLimits = field(default_factory=RequestLimits)
    missing_is_null: bool = False
    max_reply_bytes: int = MAX_REPLY_BYTES
    ca_file: str | None = None

    def __post_init__(self) -> None:
        check_columns(self.schema, self.keys, "HttpLookup")
        check_request("HttpLookup", self.url, self.headers)
        if self.max_reply_bytes < 1:
            raise ConfigurationError(
                f"HttpLookup: max_reply_bytes must be a positive integer, got {self.max_reply_bytes!r}"
            )
        JsonExchange(self.schema)
        object.__setattr__(self, "keys", tuple(self.keys))
        object.__setattr__(self, "headers", {name: Secret(text) for name, text in self.headers.items()})

    def __repr__(self) -> str:
        return f"HttpLookup({self.shown_url!r}, keys={self.keys!r})"

    @property
    def shown_url(self) -> str:
        """The URL without what may be secret: user, password, query."""
        return shown_url(self.url)

    def masked(self, text: str) -> str:
        """A text that may quote what is secret here, such as an endpoint's complaint, with ``***`` for it."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text

    @cached_property
    def _secrets(self) -> tuple[str, ...]:
        """Longest first: a shorter one may be a part of it."""
        parts = urlsplit(self.url)
        user = parts.netloc.rpartition("@")[0]
        secrets = {user, unquote(user), b64encode(unquote(user).encode()).decode(), parts.query}
        secrets |= {parts.password or "", unquote(parts.password or "")}
        secrets |= {value for _, value in parse_qsl(parts.query)}
        for value in self.headers.values():
            secrets |= {str(value), *value.split()}
        long_enough = (secret for secret in secrets if len(secret) >= _SHORTEST_SECRET)
        return tuple(sorted(long_enough, key=len, reverse=True))

    def open(self) -> LookupClient:
        """A client with a pool of connections, none of which is open yet.

        Raises:
            ConfigurationError: ``aiohttp`` is not installed, or ``ca_file`` cannot be read.
        """
        with optional_package("aiohttp", "http", "HttpLookup"):
            from deltajoin.lookup.http_client import HttpClient
        return HttpClient(
            self.url,
            JsonExchange(self.schema, missing_is_null=self.missing_is_null, masked=self.masked),
            self.limits,
            headers=self.headers,
            max_reply_bytes=self.max_reply_bytes,
            ca_file=self.ca_file,
            masked=self.masked,
        )
