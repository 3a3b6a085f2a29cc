"""Options declared as data, one parser that converts all of them or refuses, and secrets (pure).

Keys are lower case with dots and hyphens: Spark lower-cases the option map of a data source.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from decimal import Decimal
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

from upsert.errors import ConfigurationError

_REQUIRED: Final = object()
_HELD: Final = "option"


@dataclass(frozen=True)
class Option:
    """One option: its key, how its text becomes a value, what it is for, and its default.

    ``convert`` raises ``ValueError`` whose text completes the sentence "option 'k' must be …". ``set_by``
    names the statement or the function that gives the option; empty where users do.
    """

    key: str
    convert: Callable[[str], Any]
    doc: str
    default: Any = _REQUIRED
    aliases: tuple[str, ...] = ()
    set_by: str = ""

    @property
    def is_required(self) -> bool:
        """Whether the option has no default."""
        return self.default is _REQUIRED


def parse(
    owner: str,
    declared: Iterable[Option],
    given: Mapping[str, str],
    elsewhere: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """Values of all ``declared`` options by key, converted; unknown, repeated and bad ones refused.

    ``elsewhere`` says of options of other systems, in lower case, what is written here.

    Raises:
        ConfigurationError: an option is unknown, missing, given twice (by an alias) or not convertible.

    >>> parse("demo", [Option("rows", positive_int, "rows a batch", 10)], {"rows": "5"})
    {'rows': 5}
    """
    by_name = {name: option for option in declared for name in (option.key, *option.aliases)}
    values = {option.key: option.default for option in by_name.values()}
    seen: dict[str, str] = {}
    for name, text in given.items():
        option = by_name.get(name.lower())
        if option is None:
            users = sorted(name for name, option in by_name.items() if not option.set_by)
            hint = elsewhere.get(name.lower()) or suggestion(name.lower(), users, "known options are")
            raise ConfigurationError(f"{owner}: unknown option {name!r}; {hint}")
        if option.key in seen:
            raise ConfigurationError(
                f"{owner}: options {seen[option.key]!r} and {name!r} mean the same; give one"
            )
        seen[option.key] = name
        if not isinstance(text, str):
            raise ConfigurationError(
                f"{owner}: option {name!r} must be given as a text, got {text!r}; write {str(text).lower()!r}"
            )
        try:
            values[option.key] = option.convert(text)
        except ValueError as cause:
            raise ConfigurationError(f"{owner}: option {name!r} must be {cause}, got {text!r}") from None
    for key, value in values.items():
        if value is _REQUIRED:
            raise ConfigurationError(f"{owner}: option {key!r} is required")
    return values


def held(declared: Iterable[Option], key: str) -> Any:
    """A dataclass's field that holds the value of an option, and its default; see ``values_held``."""
    default = next(option.default for option in declared if option.key == key)
    return field(default=default, metadata={_HELD: key})


def values_held(by: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a dataclass that hold options, with their values of those by key."""
    return {one.name: values[one.metadata[_HELD]] for one in fields(by) if _HELD in one.metadata}


def suggestion(name: str, known: Iterable[str], listing: str) -> str:
    """What a message offers instead of an unknown name: one that is similar, else all of them.

    >>> suggestion("BUKKET", ["bucket"], "options are"), suggestion("x", ["bucket"], "options are")
    ("did you mean 'bucket'?", 'options are bucket')
    """
    known = list(known)
    by_lower = {one.lower(): one for one in known}
    close = get_close_matches(name, known, n=1) or [
        by_lower[one] for one in get_close_matches(name.lower(), by_lower, n=1)
    ]
    return f"did you mean {close[0]!r}?" if close else f"{listing} {', '.join(known)}"


def text(value: str) -> str:
    """The text as it is, unless empty."""
    if not value:
        raise ValueError("a non-empty text")
    return value


def boolean(value: str) -> bool:
    """``true`` or ``false``, in any case."""
    if value.lower() not in ("true", "false"):
        raise ValueError("true or false")
    return value.lower() == "true"


_GREATEST: Final = (1 << 63) - 1
"""Numbers of more than 64 bits no client and no file takes."""


@dataclass(frozen=True)
class Integer:
    """A converter for whole numbers from ``at_least`` on."""

    at_least: int

    def __call__(self, value: str) -> int:
        """The number of a text."""
        # a Decimal, for Python reads no integer of some thousand digits
        if not value.isascii() or not value.isdigit() or (number := Decimal(value)) < self.at_least:
            expected = (
                "a positive integer" if self.at_least == 1 else f"an integer of at least {self.at_least}"
            )
            raise ValueError(expected)
        if number > _GREATEST:
            raise ValueError(f"an integer of at most {_GREATEST}")
        return int(number)


def integer(at_least: int) -> Integer:
    """A converter for whole numbers from ``at_least`` on."""
    return Integer(at_least)


positive_int: Final = integer(1)


@dataclass(frozen=True)
class OneOf:
    """A converter for one of some lower-case words, in any case."""

    choices: tuple[str, ...]

    def __call__(self, value: str) -> str:
        """The word of a text."""
        if value.lower() not in self.choices:
            raise ValueError(f"one of {', '.join(self.choices)}")
        return value.lower()


def one_of(*choices: str) -> OneOf:
    """A converter for one of the given lower-case words, in any case."""
    return OneOf(choices)


def _measured(value: str, units: Mapping[str, int]) -> int | None:
    """A number with a unit in the smallest unit; None if the text is none."""
    match = re.fullmatch(r"(\d+)\s*([a-z]*)", value.strip().lower())
    return None if match is None or match[2] not in units else int(match[1]) * units[match[2]]


_UNITS_MS: Final = {
    **dict.fromkeys(("", "ms", "milli", "millis", "millisecond", "milliseconds"), 1),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1_000),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60_000),
    **dict.fromkeys(("h", "hour", "hours"), 3_600_000),
    **dict.fromkeys(("d", "day", "days"), 86_400_000),
}


def duration_ms(value: str) -> int:
    """Milliseconds of a duration such as ``5 min``, ``10s`` or ``250`` (milliseconds).

    >>> duration_ms("5 min")
    300000
    """
    if (found := _measured(value, _UNITS_MS)) is None:
        raise ValueError("a duration like '250 ms', '10 s', '5 min', '2 h' or '1 d'")
    return found


def positive_duration_ms(value: str) -> int:
    """As ``duration_ms``, of a duration above 0."""
    if duration_ms(value) == 0:
        raise ValueError("a duration above 0, like '3 min'")
    return duration_ms(value)


_SIZE_UNITS: Final = {
    **dict.fromkeys(("", "b", "bytes"), 1),
    **dict.fromkeys(("k", "kb", "kibibytes"), 1 << 10),
    **dict.fromkeys(("m", "mb", "mebibytes"), 1 << 20),
    **dict.fromkeys(("g", "gb", "gibibytes"), 1 << 30),
}


def byte_size(value: str) -> int:
    """Bytes of a size such as ``128 mb``, ``1g`` or ``4096`` (bytes); at least 1.

    >>> byte_size("64 kb")
    65536
    """
    if not (found := _measured(value, _SIZE_UNITS)):
        raise ValueError("a size like '4096', '64 kb', '128 mb' or '1 gb'")
    return found


def names(value: str) -> tuple[str, ...]:
    """Column names separated by commas or semicolons."""
    parts = tuple(part.strip() for part in value.replace(";", ",").split(","))
    if not all(parts):
        raise ValueError("column names separated by commas")
    return parts


def micro_batch(value: str) -> tuple[str, int]:
    """A query's id and the number of a micro-batch, from ``id:number``.

    >>> micro_batch("8f14e45f:7")
    ('8f14e45f', 7)
    """
    query, _, number = value.rpartition(":")
    if not query or not number.isascii() or not number.isdigit():
        raise ValueError("the id of a query and the number of a micro-batch, as in 'id:7'")
    return query, int(number)


def json_object(value: str) -> dict[str, Any]:
    """The names and values of a JSON object.

    >>> json_object('{"day": "2013-01-01"}')
    {'day': '2013-01-01'}
    """
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ValueError("a JSON object")
    return found


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
    r"|keystore\.key$|basic[.-]auth|user[.-]info|oauthbearer\.(config|extensions)"
    r"|api[._-]?key|passphrase|authorization|^pwd$|^header\.",
    re.IGNORECASE,
)


def is_secret(name: str) -> bool:
    """Whether the value of a property must not be shown.

    >>> is_secret("sasl.password"), is_secret("ssl.ca.location")
    (True, False)
    """
    return _SECRET_NAMES.search(name) is not None


_USER_IN_URL: Final = re.compile(r"://[^/\s]*@")
_QUERY_OF_HTTP: Final = re.compile(r"https?://[^?\s]*\?.")


def holds_secret(name: str, value: str) -> bool:
    """Whether an option is secret by its name, or holds an address with a user or, over HTTP, a query in it.

    >>> holds_secret("url", "https://me:pa55@registry"), holds_secret("url", "https://registry")
    (True, False)
    >>> holds_secret("url", "https://example.com/rates?code=7")
    True
    """
    found = (_USER_IN_URL.search(value), _QUERY_OF_HTTP.search(value))
    return is_secret(name) or any(found)


SECRET_PREFIX: Final = "secret."
"""Before the name of an option, so that Spark does not print its value."""


def with_secret_names(given: Mapping[str, str]) -> dict[str, str]:
    """Options for Spark: those that hold secrets have names by which Spark leaves them out of what it prints.

    >>> with_secret_names({"topic": "words", "properties.sasl.password": "pa55"})
    {'topic': 'words', 'secret.properties.sasl.password': 'pa55'}
    """
    return {
        SECRET_PREFIX + name
        if holds_secret(name, text) and not name.lower().startswith(SECRET_PREFIX)
        else name: text
        for name, text in given.items()
    }


_NAME_IN_TEXT: Final = re.compile(r"""(?<![\w.-])([\w.-]++)\\*+["']?+\s*+[=:]++>?+\s*+""")
_VALUE_IN_TEXT: Final = re.compile(
    r"""(?i)(?:(?:bearer|basic)\s++)?+(?:\\*+"[^"]*+"?+|\\*+'[^']*+'?+|[^\s,;&"')}\]]++)"""
)


def masked_text(text: str) -> str:
    """A text of others, such as an error, with what it says of passwords and tokens masked.

    >>> masked_text("cannot open jdbc:x://me:pa55@host/db, user=me, password='pa 55'; correct it")
    'cannot open jdbc:x://***@host/db, user=me, password=***; correct it'
    """
    parts: list[str] = []
    shown = at = 0
    while (name := _NAME_IN_TEXT.search(text, at)) is not None:
        at = name.end()
        if is_secret(name[1]) and (value := _VALUE_IN_TEXT.match(text, at)) is not None:
            parts += text[shown:at], MASK
            shown = at = value.end()
    parts.append(text[shown:])
    return _USER_IN_URL.sub(f"://{MASK}@", "".join(parts))
