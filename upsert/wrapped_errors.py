"""Errors of this project inside those of Spark (pure).

What a source, a sink or a task raises comes to the driver as text: a Python traceback within a Java one, of
some hundred lines. The sentence that says what is wrong and what to do is one of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from upsert.errors import UpsertError

_RAISED: Final = re.compile(r"^\s*(?:upsert|deltajoin|planner)(?:\.\w+)*\.(\w+): (\S.*)$", re.MULTILINE)
"""The last line of a Python traceback, for an error of this project."""


def own_error(error: BaseException) -> UpsertError | None:
    r"""The error of this project of which an error of Spark tells; None where it is about something else.

    Args:
        error: what `awaitTermination`, `query.exception()` or an action has given.

    >>> told = "Job aborted\n  File …\nupsert.errors.SchemaError: column 'a' is gone"
    >>> own_error(RuntimeError(told))
    SchemaError("column 'a' is gone")
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, UpsertError):
            return cause
        if found := _RAISED.findall(str(cause)):
            name, sentence = found[-1]  # an error that was raised from another one stands behind it
            return _error(name, sentence.strip())
        cause = cause.__cause__
    return None


@contextmanager
def own_errors_first() -> Iterator[None]:
    """Raise the error of this project that Spark has wrapped, from Spark's, in place of Spark's."""
    try:
        yield
    except UpsertError:
        raise
    except Exception as error:
        if (own := own_error(error)) is not None:
            raise own from error
        raise


def _error(name: str, sentence: str) -> UpsertError:
    known = {cls.__name__: cls for cls in _subclasses(UpsertError) if _takes_a_sentence(cls)}
    return known.get(name, UpsertError)(sentence)


def _takes_a_sentence(cls: type[UpsertError]) -> bool:
    return not any("__init__" in vars(base) for base in cls.__mro__ if base.__module__ != "builtins")


def _subclasses(cls: type[UpsertError]) -> Iterator[type[UpsertError]]:
    for below in cls.__subclasses__():
        yield below
        yield from _subclasses(below)
