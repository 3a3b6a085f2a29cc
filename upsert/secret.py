"""A text that must not be printed: passwords, tokens, URLs that hold one (pure)."""

from urllib.parse import urlsplit, urlunsplit


class Secret(str):
    """A text that does not show itself.

    >>> Secret("user:password")
    '***'
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"


def shown_url(url: str) -> str:
    """A URL without what may be secret: user, password, query.

    >>> shown_url("https://user:secret@example.com/users?token=x"), shown_url("http://[oops")
    ('https://example.com/users', '***')
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        return "***"
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
