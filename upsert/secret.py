"""Texts that must not be printed, and the names of options and properties that hold one (pure)."""

from __future__ import annotations

import re
from typing import Final
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


MASK: Final = "***"
"""What is shown instead of a secret."""

_SECRET_NAMES: Final = re.compile(
    r"password|passwd|secret|jaas|private|credential|token(?!\.endpoint)|ssl\.key(?!\.location)|\.pem$"
    r"|keystore\.key$|basic\.auth|user\.info|oauthbearer\.(config|extensions)",
    re.IGNORECASE,
)


def is_secret(name: str) -> bool:
    """Whether the value of a property must not be shown.

    >>> is_secret("sasl.password"), is_secret("ssl.ca.location")
    (True, False)
    """
    return _SECRET_NAMES.search(name) is not None
