"""Show the doctests of docstrings as code on the site: an extension of griffe, which reads them."""

import re
from typing import Any

from griffe import Extension, Object

DOCTEST = re.compile(r"^(?P<indent> *)>>> .*(?:\n(?P=indent)\S?.*)*?(?=\n *\n|\Z)", re.MULTILINE)
"""A paragraph that begins with a prompt; Markdown would take it for quotations within quotations."""


def with_fences(text: str) -> str:
    """The docstring with each doctest as a block of code."""
    return DOCTEST.sub(lambda found: f"{found['indent']}```pycon\n{found[0]}\n{found['indent']}```", text)


class DoctestBlocks(Extension):
    """Changes every docstring before it is parsed."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Called for each module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = with_fences(obj.docstring.value)
