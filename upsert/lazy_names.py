"""Names of a package that are imported when they are first used (PEP 562).

Each Python process that Spark starts for a source, a sink or a task imports these packages again, so what it
does not need would cost every query processor time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def imported_on_use(
    package: str, modules: Mapping[str, str], namespace: dict[str, Any]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package whose names each come from one of ``modules``.

    A name that comes from the package itself is a module of it. Its ``globals()``, the ``namespace``, keep
    what was imported.

    >>> get, names = imported_on_use("numbers", {"sqrt": "math"}, {})
    >>> get("sqrt")(4.0), names()
    (2.0, ['sqrt'])
    """

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if modules[name] == package:
            namespace[name] = import_module(f"{package}.{name}")
        else:
            namespace[name] = getattr(import_module(modules[name]), name)
        return namespace[name]

    def names() -> list[str]:
        return sorted({*namespace, *modules})

    return get, names
