"""A schema registry that speaks Confluent's REST calls: schemas by id, and ids of schemas.

A few calls over plain ``urllib``: the client of confluent-kafka would bring httpx and authlib to every
executor for them. No connection is kept, so that a process may fork at any time. Replies are not trusted:
they are limited in size and checked; redirects are not followed, they would take the credentials elsewhere.

Messages with an id that cannot be used come by the thousand, and are decoded a piece at a time. So what a
question was answered is answered again for some seconds, and what is found is known for good.
"""

from __future__ import annotations

import base64
import json
import os
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from http.client import HTTPException
from typing import Any, Final, Self
from urllib.error import HTTPError
from urllib.parse import quote, unquote, urlsplit, urlunsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, OpenerDirector, Request, build_opener

from upsert.errors import ConfigurationError, KafkaUnavailableError, SchemaError
from upsert.options import Secret
from upsert.retry import retried

_MAX_REPLY_BYTES: Final = 10_000_000
_TIMEOUT_SECONDS: Final = 10.0
_PATIENCE_SECONDS: Final = 30.0
_PAUSE_SECONDS: Final = 0.1
_SAME_ANSWER_SECONDS: Final = 5.0
_SAME_ANSWERS: Final = 256
_CONTENT_TYPE: Final = "application/vnd.schemaregistry.v1+json"
_BUSY: Final = (408, 425, 429)
_MAX_ID: Final = 2**31 - 1
_MAX_FILES: Final = 1_000
_AS_DESCRIPTOR: Final = "?format=serialized"
"""Asks for the descriptor of a Protobuf schema, not for its text."""

Reference = tuple[str, str, int]
"""The name by which a schema imports another one, and the subject and the version where that is."""

AVRO: Final = "AVRO"
JSON: Final = "JSON"
PROTOBUF: Final = "PROTOBUF"
_KINDS: Final = {AVRO: "an Avro", JSON: "a JSON", PROTOBUF: "a Protobuf"}
"""What a registry calls the kinds of schemas that are read and written, and messages do."""


@dataclass(frozen=True)
class RegistryConfig:
    """How a registry is reached: URLs, tried in order, credentials, and PEM files of certificates."""

    urls: tuple[Secret, ...]
    user_info: Secret | None = None
    token: Secret | None = None
    truststore: str | None = None
    keystore: str | None = None
    keystore_password: Secret | None = None

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """The registry that the options of ``avro-confluent`` name."""
        return cls(
            options["url"],
            options["basic-auth.user-info"],
            options["bearer-auth.token"],
            options["ssl.truststore.location"],
            options["ssl.keystore.location"],
            options["ssl.keystore.password"],
        )


class SchemaRegistry:
    """A registry, and what it has said before: neither schemas nor ids ever change."""

    def __init__(
        self,
        config: RegistryConfig,
        patience_s: float = _PATIENCE_SECONDS,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._patience_s = patience_s
        self._sleep = sleep
        self._clock = clock
        self._opener = _opener(config)
        self._schemas: dict[tuple[int, str], str] = {}
        self._versions: dict[tuple[int, str], int] = {}
        self._ids: dict[tuple[str, str, str, tuple[Reference, ...]], int] = {}
        self._files: dict[int, tuple[tuple[str, bytes], ...]] = {}
        self._answers: dict[str, tuple[float, Any]] = {}

    def schema(self, id: int, kind: str = AVRO) -> str | None:
        """The text of the schema with this id, which must be of this kind; None if there is none."""
        if (id, kind) not in self._schemas:
            reply = self._get(f"schemas/ids/{id}")
            if reply is None:
                return None
            text = self._text(id, reply, kind)
            if kind == AVRO and reply.get("references"):
                raise SchemaError(f"schema {id} refers to schemas of other subjects, which is not supported")
            self._schemas[id, kind] = text
        return self._schemas[id, kind]

    def _text(self, id: int, reply: Any, kind: str) -> str:
        text = reply.get("schema") if isinstance(reply, dict) else None
        if not isinstance(text, str):
            raise self._no_registry("a schema", reply)
        if (found := reply.get("schemaType", AVRO)) != kind:
            raise SchemaError(f"schema {id} must be {_KINDS[kind]} schema, got {_short(found)}")
        return text

    def files(self, id: int) -> tuple[tuple[str, bytes], ...]:
        """The descriptors of the files that a Protobuf schema imports, by names, and of itself, the last.

        The schema, which has this id, has no name.

        Raises:
            SchemaError: there is none, or it is no Protobuf schema.
        """
        if id not in self._files:
            found: dict[str, bytes] = {}
            reply = self._get(f"schemas/ids/{id}{_AS_DESCRIPTOR}")
            if reply is None:
                raise SchemaError(f"schema {id} is not in the registry")
            own = self._descriptor(id, reply)
            try:
                self._add_references(id, reply, found)
            except RecursionError:
                raise SchemaError(f"schema {id} refers to schemas that refer to others too often") from None
            self._files[id] = (*found.items(), ("", own))
        return self._files[id]

    def _descriptor(self, id: int, reply: Any) -> bytes:
        text = self._text(id, reply, PROTOBUF)
        try:
            return base64.b64decode(text, validate=True)
        except ValueError:
            raise SchemaError(
                f"schema {id}: the registry gives the text of a Protobuf schema, not its descriptor; set "
                "'descriptor-file' and 'message-name'"
            ) from None

    def _add_references(self, id: int, reply: Any, found: dict[str, bytes]) -> None:
        """Add the files that one imports, before those that import them."""
        references = reply.get("references") or []
        if not isinstance(references, list):
            raise self._no_registry("references", references)
        for one in references:
            match one:
                case {"name": str(name), "subject": str(subject), "version": int(version)}:
                    pass
                case _:
                    raise self._no_registry("a reference", one)
            if name in found:
                continue
            if len(found) == _MAX_FILES:
                raise SchemaError(f"schema {id} refers to more than {_MAX_FILES} schemas")
            inner = self._get(f"subjects/{quote(subject, safe='')}/versions/{version}{_AS_DESCRIPTOR}")
            if inner is None:
                raise SchemaError(f"schema {id} refers to {name!r}, which is not in the registry")
            found[name] = self._descriptor(id, inner)
            self._add_references(id, inner, found)

    def id_of_file(self, subject: str, content: bytes, references: tuple[Reference, ...]) -> int:
        """As `id_of`, of a Protobuf schema by its descriptor, which imports others."""
        return self.id_of(subject, base64.b64encode(content).decode(), PROTOBUF, references)

    def version(self, id: int, subject: str) -> int | None:
        """The version that the schema with this id has in a subject; None if it is in another one only."""
        if (id, subject) not in self._versions:
            reply = self._get(f"schemas/ids/{id}/versions")
            for entry in reply if isinstance(reply, list) else ():
                if isinstance(entry, dict) and entry.get("subject") == subject:
                    self._versions[id, subject] = self._number(entry.get("version"), "a version")
        return self._versions.get((id, subject))

    def id_of(
        self, subject: str, schema: str, kind: str = AVRO, references: tuple[Reference, ...] = ()
    ) -> int:
        """The id of a schema in a subject, in which it is registered if it is not yet."""
        key = subject, schema, kind, references
        if key not in self._ids:
            path = f"subjects/{quote(subject, safe='')}"
            asked: dict[str, Any] = {"schema": schema}
            if kind != AVRO:
                asked["schemaType"] = kind
            if references:
                asked["references"] = [
                    {"name": name, "subject": of, "version": version} for name, of, version in references
                ]
            reply = self._call(path, asked) or self._call(f"{path}/versions", asked)
            found = reply.get("id") if isinstance(reply, dict) else None
            self._ids[key] = self._number(found, "an id")
            self._answers.clear()  # it may just have been registered
        return self._ids[key]

    def _number(self, value: Any, what: str) -> int:
        if not isinstance(value, int) or not 0 <= value <= _MAX_ID:
            raise self._no_registry(what, value)
        return value

    def _get(self, path: str) -> Any:
        """The reply to a question; one of the last seconds, if it was asked then."""
        until, reply = self._answers.get(path, (0.0, None))
        if self._clock() < until:
            return reply
        if len(self._answers) >= _SAME_ANSWERS:
            self._answers.clear()
        reply = self._call(path)
        self._answers[path] = self._clock() + _SAME_ANSWER_SECONDS, reply
        return reply

    def _call(self, path: str, asked: Mapping[str, Any] | None = None) -> Any:
        """The reply of the first URL that gives one, None for "not found"; tried again while none does."""
        body = None if asked is None else json.dumps(asked).encode()

        def ask() -> Any:
            failures = []
            for url in self._config.urls:
                try:
                    return self._reply(f"{_without_user(url)}/{path}", self._authorization(url), body)
                except (OSError, HTTPException) as failure:
                    failures.append(failure)
            raise failures[-1]

        try:
            return retried(
                ask,
                is_passing=lambda failure: isinstance(failure, OSError | HTTPException),
                patience_s=self._patience_s,
                first_pause_s=_PAUSE_SECONDS,
                sleep=self._sleep,
            )
        except (OSError, HTTPException) as failure:
            last = f"{type(failure).__name__}: {failure}"
        raise KafkaUnavailableError(
            f"the schema registry at {self._shown!r} should answer within {self._patience_s:g} s, and did "
            f"not; last: {last}; check that it runs and can be reached from here"
        )

    def _reply(self, url: str, authorization: str | None, body: bytes | None) -> Any:
        request = Request(url, data=body, headers={"Accept": f"{_CONTENT_TYPE}, application/json"})
        if body is not None:
            request.add_header("Content-Type", _CONTENT_TYPE)
        if authorization is not None:
            request.add_unredirected_header("Authorization", authorization)
        try:
            with self._opener.open(request, timeout=_TIMEOUT_SECONDS) as response:
                return self._json(response.read(_MAX_REPLY_BYTES + 1))
        except HTTPError as refusal:
            with refusal:
                if refusal.code >= 500 or refusal.code in _BUSY:
                    raise
                return self._refused(refusal)

    def _refused(self, refusal: HTTPError) -> None:
        """Return for a thing that is not there; raise for everything else."""
        if refusal.code in (401, 403):
            raise ConfigurationError(
                f"the schema registry at {self._shown!r} refused the credentials ({refusal.code}); correct "
                "'basic-auth.user-info' or 'bearer-auth.token'"
            )
        if 300 <= refusal.code < 400:
            raise ConfigurationError(
                f"the schema registry at {self._shown!r} redirects to {refusal.headers.get('Location')!r}, "
                "which is not followed; correct 'url'"
            )
        reply = self._json(refusal.read(_MAX_REPLY_BYTES + 1))
        if not isinstance(reply, dict) or "error_code" not in reply:
            raise self._no_registry("an error", reply)
        if refusal.code != 404:
            raise SchemaError(
                f"the schema registry at {self._shown!r} refused: {_short(reply.get('message'))}"
            )

    def _json(self, content: bytes) -> Any:
        if len(content) > _MAX_REPLY_BYTES:
            raise self._no_registry("a reply", f"more than {_MAX_REPLY_BYTES} bytes")
        try:
            return json.loads(content)
        except (ValueError, RecursionError):
            raise self._no_registry("JSON", content[:100]) from None

    def _authorization(self, url: str) -> str | None:
        config, parts = self._config, urlsplit(url)
        if config.token is not None:
            return f"Bearer {config.token}"
        user_info: str | None = config.user_info
        if user_info is None and parts.username is not None:
            user_info = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        return None if user_info is None else f"Basic {base64.b64encode(user_info.encode()).decode()}"

    def _no_registry(self, expected: str, got: Any) -> ConfigurationError:
        return ConfigurationError(
            f"the schema registry at {self._shown!r} must answer with {expected}, got {_short(got)}; "
            "correct 'url'"
        )

    @property
    def _shown(self) -> str:
        return ",".join(map(_without_user, self._config.urls))


@lru_cache(maxsize=16)
def shared_registry(config: RegistryConfig) -> SchemaRegistry:
    """The registry of this config; one for all tasks of a process."""
    return SchemaRegistry(config)


class _NoRedirect(HTTPRedirectHandler):
    """Lets every redirect fail."""

    def redirect_request(self, *_: Any) -> None:
        """None: do not follow."""


def _opener(config: RegistryConfig) -> OpenerDirector:
    if not any(urlsplit(url).scheme == "https" for url in config.urls):
        return build_opener(_NoRedirect)
    for path in (config.truststore, config.keystore):
        if path is not None and not os.path.isfile(path):
            raise _no_certificates(config, f"{path!r} is no file")
    try:
        context = ssl.create_default_context(cafile=config.truststore)
        if config.keystore is not None:
            context.load_cert_chain(config.keystore, password=config.keystore_password or "")
    except OSError as cause:  # also ssl.SSLError
        raise _no_certificates(config, str(cause)) from None
    return build_opener(HTTPSHandler(context=context), _NoRedirect)


def _no_certificates(config: RegistryConfig, reason: str) -> ConfigurationError:
    return ConfigurationError(
        "options 'ssl.truststore.location' and 'ssl.keystore.location' must be PEM files, got "
        f"{config.truststore!r} and {config.keystore!r}: {reason}"
    )


def _without_user(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])).rstrip("/")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:300]}…"
