"""Format ``avro-confluent``: Avro messages that name their schema by its id in a schema registry.

A message is a zero byte, the id in four bytes, and the datum, as Confluent's serializers write it. Messages
are read with the schemas that they were written with, whatever mixture a topic holds; rows are written with
the schema of the columns (or the one given), which is registered in the subject, as Flink does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from upsert import options
from upsert.arrays import Positions
from upsert.errors import ConfigurationError, SchemaError
from upsert.formats import avro
from upsert.formats.base import BadMessage, Decoded, Format, FormatContext
from upsert.formats.metadata_columns import MetadataKey
from upsert.formats.schema_registry import RegistryConfig, SchemaRegistry, shared_registry
from upsert.options import Option, Secret

MAGIC: Final = b"\x00"
HEADER_BYTES: Final = 5
"""What is before a datum: the magic byte and the id of its schema."""
_SCHEMA, _ID, _VERSION = avro.SCHEMA_KEY, "schema-id", "schema-version"
METADATA: Final = {_SCHEMA: pa.string(), _ID: pa.int32(), _VERSION: pa.int32()}
"""Of the schema that a message was written with: its JSON text, its id, its version in the subject."""


def registry_urls(value: str) -> tuple[Secret, ...]:
    """Addresses of one registry, separated by commas; ``check`` looks at them, for they may hold passwords.

    >>> [str(url) for url in registry_urls("http://one:8081, https://two")]
    ['http://one:8081', 'https://two']
    """
    return tuple(Secret(part.strip()) for part in value.split(","))


def secret(value: str) -> Secret:
    """The text, which does not show itself."""
    return Secret(options.text(value))


def _option(key: str, convert: Any, doc: str) -> Option:
    """An option that also has the name that Flink gave it first."""
    return Option(key, convert, doc, None, aliases=(f"schema-registry.{key}",))


REGISTRY_OPTIONS: Final = (
    Option(
        "url",
        registry_urls,
        "addresses of the schema registry, tried in turn",
        aliases=("schema-registry.url",),
    ),
    _option("subject", options.text, "subject of the schema; default: <topic>-key or <topic>-value"),
    _option(
        "basic-auth.credentials-source",
        options.one_of("user_info", "url"),
        "user_info: the option basic-auth.user-info has them; url: the url has, as https://user:password@host",
    ),
    _option("basic-auth.user-info", secret, "user:password"),
    _option(
        "bearer-auth.credentials-source",
        options.one_of("static_token"),
        "where the token is: in the option bearer-auth.token",
    ),
    _option("bearer-auth.token", secret, "token of bearer authentication"),
    _option("ssl.truststore.location", options.text, "PEM file of trusted certificates"),
    _option("ssl.truststore.password", secret, "refused: a PEM file of certificates has no password"),
    _option("ssl.keystore.location", options.text, "PEM file of the client's certificate and key"),
    _option("ssl.keystore.password", secret, "password of the key"),
)
"""How a schema registry is reached, and where in it the schema is."""

OPTIONS: Final = (*REGISTRY_OPTIONS, *avro.SHARED_OPTIONS)


def check(context: FormatContext, of: str = "avro-confluent") -> None:
    """Refuse fields and options that the format cannot serve; the registry is not asked."""
    avro.check(context)
    check_registry(context.options, of)


def check_registry(given: Mapping[str, Any], of: str) -> None:
    """Refuse addresses that are none, and credentials that do not go together."""
    for place, url in enumerate(given["url"], start=1):
        try:
            parts = urlsplit(url)
            is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_good = False
        if not is_good or parts.query or parts.fragment:
            raise ConfigurationError(
                f"{of}: option 'url' must be http: or https: addresses separated by commas, like "
                f"http://registry:8081; address {place} is none"
            )
    if (reason := _contradiction(given)) is not None:
        raise ConfigurationError(f"{of}: {reason}")


def _contradiction(given: Mapping[str, Any]) -> str | None:
    """Which options of credentials do not go together; None if all do."""
    basic, user_info = given["basic-auth.credentials-source"], given["basic-auth.user-info"]
    bearer, token = given["bearer-auth.credentials-source"], given["bearer-auth.token"]
    if (basic == "user_info" and user_info is None) or (basic == "url" and user_info is not None):
        return (
            "'basic-auth.credentials-source' = 'USER_INFO' and 'basic-auth.user-info' must be given together"
        )
    if bearer is not None and token is None:
        return "'bearer-auth.credentials-source' = 'STATIC_TOKEN' needs 'bearer-auth.token'"
    has_user = any(urlsplit(url).username is not None for url in given["url"])
    if has_user != (basic == "url"):
        return "a user in the option 'url' and 'basic-auth.credentials-source' = 'URL' must be given together"
    if token is not None and (user_info is not None or has_user):
        return "basic and bearer authentication exclude each other; give one"
    if given["ssl.truststore.password"] is not None:
        return (
            "'ssl.truststore.location' must be a PEM file, which has no password; leave out "
            "'ssl.truststore.password'"
        )
    return None


def subject_of(context: FormatContext) -> str | None:
    """The subject of the schema; None if several topics are read and none is given."""
    given: str | None = context.options["subject"]
    if given is not None or context.topic is None:
        return given
    return f"{context.topic}-{context.side}"


def subject_to_write(context: FormatContext, of: str) -> str:
    """The subject of the schema; `ConfigurationError` if there is no single one."""
    if (subject := subject_of(context)) is None:
        raise ConfigurationError(f"{of}: option 'subject' is required to write into several topics")
    return subject


def id_in(header: bytes) -> int:
    """The id in what is before a datum; `SchemaError` if that is something else."""
    if len(header) < HEADER_BYTES or not header.startswith(MAGIC):
        raise SchemaError(f"a message must begin with a zero byte and a schema's id, got {header!r}")
    return int.from_bytes(header[len(MAGIC) :], "big")


def header_of(id: int) -> bytes:
    r"""What is before a datum of the schema with this id.

    >>> header_of(7), id_in(header_of(7))
    (b'\x00\x00\x00\x00\x07', 7)
    """
    return MAGIC + id.to_bytes(HEADER_BYTES - len(MAGIC), "big")


class AvroConfluentDecoder:
    """Messages of any schemas of a registry to rows."""

    def __init__(self, context: FormatContext, registry: SchemaRegistry | None = None) -> None:
        self._fields = context.fields
        self._own: str | None = context.options[_SCHEMA]
        self._registry = registry or shared_registry(RegistryConfig.of(context.options))
        self._subject = subject_of(context)
        self._metadata = {key: METADATA[key] for key in context.metadata}
        self._empty = pa.schema([*self._fields, *self._metadata.items()]).empty_table()

    def decode(self, messages: pa.Array) -> Decoded:
        """One row a message. Bad is what names no schema of the registry, or is no datum of it."""
        headers = pc.binary_slice(messages, 0, HEADER_BYTES).dictionary_encode()
        numbers = headers.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        by_header = np.argsort(numbers, kind="stable")
        starts = np.searchsorted(numbers[by_header], np.arange(len(headers.dictionary) + 1))
        groups: list[tuple[Positions, pa.Table]] = []
        bad: list[BadMessage] = []
        for number, header in enumerate(headers.dictionary.to_pylist()):
            own = by_header[starts[number] : starts[number + 1]]
            rows, kept, reasons = self._of_schema(header, messages.take(pa.array(own)))
            groups.append((own[kept], rows))
            bad += [BadMessage(int(own[message.position]), message.reason) for message in reasons]
        return Decoded.of_groups(groups, len(messages), self._empty, bad)

    def _of_schema(self, header: bytes, messages: pa.Array) -> tuple[pa.Table, Positions, list[BadMessage]]:
        """The rows of messages that name one schema."""
        try:
            id = id_in(header)
            text, codec = self._codec(id)
        except SchemaError as cause:
            none = np.zeros(0, np.int64)
            return self._empty, none, [BadMessage(place, str(cause)) for place in range(len(messages))]
        rows, places, bad = codec.decode(messages, start=HEADER_BYTES)
        for key, type_ in self._metadata.items():
            value = text if key == _SCHEMA else id if key == _ID else self._version(id)
            rows = rows.append_column(key, pa.repeat(pa.scalar(value, type_), rows.num_rows))
        return rows, places, bad

    def _codec(self, id: int) -> tuple[str, avro.AvroCodec]:
        text = self._registry.schema(id)
        if text is None:
            raise SchemaError(f"schema {id} is not in the registry")
        codec = avro.shared_codec(text, self._fields, self._own)
        if reason := codec.misfit(writing=False):
            raise SchemaError(f"schema {id} does not fit the columns: {reason}")
        return text, codec

    def _version(self, id: int) -> int | None:
        return None if self._subject is None else self._registry.version(id, self._subject)


class AvroConfluentEncoder:
    """Rows to messages of one schema, which has an id in a registry."""

    def __init__(
        self, context: FormatContext, registry: SchemaRegistry | None = None, *, of: str = "avro-confluent"
    ) -> None:
        self._subject = subject_to_write(context, of)
        self._schema = avro.schema_of(context)
        self._codec = avro.writing_codec(context)
        self._registry = registry or shared_registry(RegistryConfig.of(context.options))

    def encode(self, rows: pa.Table, kinds: pa.Array | None = None) -> pa.Array:  # noqa: ARG002
        """One message a row."""
        if not rows.num_rows:
            return pa.array([], pa.binary())
        id = self._registry.id_of(self._subject, self._schema)
        return self._codec.encode(rows, before=header_of(id))


FORMAT: Final = Format(
    "avro-confluent",
    OPTIONS,
    check,
    AvroConfluentDecoder,
    AvroConfluentEncoder,
    metadata=tuple(MetadataKey(key, type_) for key, type_ in METADATA.items()),
    reads_some=True,
)
