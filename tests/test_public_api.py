"""What users may import: `__all__` of each package is exactly what is visible, and is documented.

That it is sorted is checked by ruff.
"""

import importlib
from types import ModuleType

import pytest

PACKAGES = ("deltajoin", "planner", "upsert")


@pytest.fixture(params=PACKAGES)
def package(request: pytest.FixtureRequest) -> ModuleType:
    return importlib.import_module(request.param)


def test_all_is_exactly_what_is_visible(package: ModuleType) -> None:
    """Whatever is neither private nor a submodule; `__all__` may name a submodule, such as `errors`."""
    things = {name: getattr(package, name) for name in dir(package) if not name.startswith("_")}
    visible = {
        name
        for name, value in things.items()
        if not isinstance(value, ModuleType) and name not in ("annotations", "TYPE_CHECKING")
    }
    named_modules = {name for name in package.__all__ if isinstance(getattr(package, name), ModuleType)}
    assert set(package.__all__) - named_modules == visible


def test_every_public_name_is_documented(package: ModuleType) -> None:
    """Constants are documented where they are assigned; classes, functions and modules carry their text."""
    things = {name: getattr(package, name) for name in package.__all__}
    undocumented = [
        name
        for name, thing in things.items()
        if (callable(thing) or isinstance(thing, ModuleType)) and not (thing.__doc__ or "").strip()
    ]
    assert undocumented == []


def test_every_public_method_is_documented(package: ModuleType) -> None:
    classes = [thing for name in package.__all__ if isinstance(thing := getattr(package, name), type)]
    methods = {
        f"{cls.__name__}.{name}": member
        for cls in classes
        for name, member in vars(cls).items()
        if not name.startswith("_") and is_method(member)
    }
    assert [name for name, member in methods.items() if not (member.__doc__ or "").strip()] == []


def is_method(member: object) -> bool:
    return callable(member) or isinstance(member, property | classmethod | staticmethod)
