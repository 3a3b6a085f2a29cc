"""What stands in the URI of a table beside its place: settings of how its server is reached (pure)."""

from __future__ import annotations

from urllib.parse import parse_qsl, unquote, urlsplit


def settings_of(beside: str, query: str | None) -> dict[str, str]:
    """Settings as the store keeps them, ``;name=value`` beside the host, and as users write them at the end.

    >>> settings_of(";region=eu-west-1", "endpoint=http://host:9000")
    {'region': 'eu-west-1', 'endpoint': 'http://host:9000'}
    """
    given = [part.partition("=")[::2] for part in beside.split(";")[1:]]
    kept = {name: unquote(value) for name, value in given}
    return kept | dict(parse_qsl(query or "", keep_blank_values=True))


def is_http_address(value: str) -> bool:
    """Whether this is the address of a server, without user, path and query.

    >>> is_http_address("http://host:9000"), is_http_address("http://me@host"), is_http_address("host:9000")
    (True, False, False)
    """
    try:
        parts = urlsplit(value)
        is_server = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        return False
    return is_server and "@" not in value and not (parts.path.strip("/") or parts.query or parts.fragment)
