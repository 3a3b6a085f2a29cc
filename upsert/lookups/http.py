"""A table whose rows a web service gives by key, as CREATE TABLE declares it (pure)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Self
from urllib.parse import urlsplit

from upsert import options
from upsert.errors import ConfigurationError, SchemaError
from upsert.formats.json_values import check_types
from upsert.lookups.options import LOOKUP_OPTIONS, LookupOptions, LookupTable
from upsert.options import Option, Secret, shown_url
from upsert.schema import TableSchema
from upsert.types import differ_in_case

CONNECTOR: Final = "http"
MAX_REPLY_BYTES: Final = 64 << 20

OPTIONS: Final = (
    Option(
        "url",
        Secret,
        "address of the endpoint, which answers as the page on [lookup sources](lookup-sources.md#http) says",
    ),
    Option("ca-file", options.text, "certificates to trust instead of the system's, PEM", None),
    Option("missing-is-null", options.boolean, "whether a row may leave columns out, as NULL", False),
    Option("max-reply-size", options.byte_size, "size above which a reply is refused", MAX_REPLY_BYTES),
    *LOOKUP_OPTIONS,
)
"""Options of ``'connector' = 'http'``, beside ``header.<name>`` for the headers of each request."""

_HEADERS: Final = "header."
_HEADER: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_NO_URL: Final = re.compile(r"[\x00-\x20\x7f]")


@dataclass(frozen=True)
class HttpTable(LookupTable):
    """A table of a web service: beside what all have, what each request needs."""

    connector = CONNECTOR

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False, compare=False)
    ca_file: str | None
    missing_is_null: bool
    max_reply_bytes: int

    @classmethod
    def of(cls, name: str, schema: TableSchema, given: Mapping[str, str]) -> Self:
        """The table that a definition means; nothing is sent.

        Raises:
            ConfigurationError: an option is unknown, missing or wrong.
            SchemaError: there is no primary key, or a column cannot be in a reply.
        """
        of = f"table {name!r}"
        headers = {key: text for key, text in given.items() if key.lower().startswith(_HEADERS)}
        values = options.parse(of, OPTIONS, {key: t for key, t in given.items() if key not in headers})
        named = {key[len(_HEADERS) :]: Secret(text) for key, text in headers.items()}
        check_request(of, values["url"], named)
        cls.check_key(schema, of, "the endpoint is asked; name the columns that it finds a row by")
        if schema.watermark is not None:
            raise SchemaError(
                f"{of}: a table of the connector {CONNECTOR!r} is no stream, got a WATERMARK; leave it out"
            )
        try:
            check_types(schema.arrow)
        except SchemaError as cause:
            raise SchemaError(f"{of}: {cause}") from None
        return cls(
            name,
            dict(given),
            schema,
            LookupOptions.of(of, values),
            values["url"],
            named,
            values["ca-file"],
            values["missing-is-null"],
            values["max-reply-size"],
        )

    @property
    def shown(self) -> str:
        """The table for messages: its name here, and where its rows are, without secrets."""
        return f"table {self.name!r} ({shown_url(self.url)})"

    def asked_by(self, equated: tuple[str, ...]) -> tuple[str, ...] | None:
        """The columns that it is asked by where some have values; None if these are not enough."""
        key = self.schema.primary_key
        return key if set(key) <= set(equated) else None


def check_request(of: str, url: str, headers: Mapping[str, str]) -> None:
    """Refuse what cannot be a request of HTTP; ``of`` begins messages.

    Raises:
        ConfigurationError: the address or a header is none.

    >>> check_request("table 'rates'", "ftp://user:secret@example.com/rates", {})
    Traceback (most recent call last):
    ...
    upsert.errors.ConfigurationError: table 'rates': url must be like 'https://host/path', got
    'ftp://example.com/rates'
    """
    if not _is_url(url):
        raise ConfigurationError(f"{of}: url must be like 'https://host/path', got {shown_url(url)!r}")
    if (repeated := differ_in_case(headers)) is not None:
        raise ConfigurationError(
            f"{of}: headers must be given once each, whatever the case of their names, got "
            f"{' and '.join(map(repr, repeated))}; leave one of them out"
        )
    for name, text in headers.items():
        if not _HEADER.fullmatch(name) or _CONTROL.search(text):
            raise ConfigurationError(
                f"{of}: headers must have names and values as in HTTP, without line ends, {name!r} has not"
            )
        if name.lower() in ("content-length", "transfer-encoding"):
            raise ConfigurationError(
                f"{of}: headers must leave {name!r} to the client, which knows what it sends"
            )
        if name.lower() == "authorization" and "@" in urlsplit(url).netloc:
            raise ConfigurationError(
                f"{of}: credentials must be given once, got some in the url and some in headers; "
                f"leave one of them out of {shown_url(url)!r}"
            )


def _is_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        has_port = parts.port is None or parts.port > 0
    except ValueError:
        return False
    labels = (parts.hostname or "").removesuffix(".").split(".")
    return (
        parts.scheme in ("http", "https")
        and has_port
        and all(0 < len(label) < 64 for label in labels)
        and not _NO_URL.search(url)
    )
