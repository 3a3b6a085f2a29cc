"""`deltajoin.upsert` and `deltajoin.planner`: second names of the packages `upsert` and `planner`.

Both are plain words, which a project may use for modules of its own. An alias gives the very same module
objects, at any depth: `deltajoin.upsert.store.table` is `upsert.store.table`, so there is one class `Table`,
and pickles hold the first name only. Names alone are known here; nothing above this layer is imported before
a user imports it (docs/decisions/0049-aliases-give-the-same-modules.md).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import CodeType, ModuleType
from typing import Final

PACKAGE: Final = "deltajoin"
ALIASED: Final = ("upsert", "planner")


def aliased(name: str) -> str | None:
    """The first name of a module that is imported by an alias, or None.

    >>> aliased("deltajoin.upsert.store"), aliased("deltajoin.planner"), aliased("deltajoin.upserts")
    ('upsert.store', 'planner', None)
    """
    package, _, rest = name.partition(".")
    return rest if package == PACKAGE and rest.partition(".")[0] in ALIASED else None


def require_beside(package: str) -> None:
    """Refuse a package of another installation, by an ImportError that names it, before it is imported."""
    found = _place(package)
    home = os.path.dirname(os.path.dirname(__file__))
    if found is None or os.path.realpath(os.path.dirname(os.path.dirname(found))) != os.path.realpath(home):
        raise ImportError(
            f"{PACKAGE}: the package {package!r} must be the one of this installation, in {home!r}; found "
            f"{found or 'none'!r}; rename or uninstall that, or install {PACKAGE} again",
            name=package,
        )


def _place(package: str) -> str | None:
    """The file that an import of a package would execute; of a folder without one, what it would be."""
    spec = find_spec(package)
    if spec is None:
        return None
    return spec.origin or os.path.join(*(spec.submodule_search_locations or [""]), "__init__.py")


def install() -> None:
    """Let the import system know the aliases; `import deltajoin` does it, in executors too."""
    require_beside("upsert")
    if _FINDER not in sys.meta_path:
        # first: to find `deltajoin.upsert.store` by the path of `upsert` would execute it a second time
        sys.meta_path.insert(0, _FINDER)


class _Finder(MetaPathFinder):
    """Finds a module of an alias where the module of the first name is."""

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        name = aliased(fullname)
        if name is None:
            return None
        if name in ALIASED:
            require_beside(name)
        found = find_spec(name)
        if found is None:
            return None
        spec = ModuleSpec(fullname, _Loader(name), origin=found.origin)
        spec.submodule_search_locations = found.submodule_search_locations
        return spec


class _Loader(Loader):
    """Puts the module of the first name in the place of the one that the import system has made."""

    def __init__(self, name: str) -> None:
        self._name = name

    def exec_module(self, module: ModuleType) -> None:
        # if `create_module` returned it instead, it would get this spec, by whose name `reload` looks for it
        sys.modules[module.__name__] = import_module(self._name)

    def get_code(self, fullname: str) -> CodeType | None:
        """For `python -m deltajoin.upsert.store.compactor`."""
        loader = getattr(find_spec(aliased(fullname) or fullname), "loader", None)
        return None if loader is None else loader.get_code(self._name)


_FINDER: Final = _Finder()
