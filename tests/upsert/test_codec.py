"""JSON of dataclasses: what is written, and what is refused when it is read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa
import pytest

from upsert.codec import MAY_BE_MISSING, Jsonable, OneOf, from_text, json_by, to_text, written_with
from upsert.errors import ConfigurationError


@dataclass(frozen=True)
class Inner(Jsonable):
    n: int


@dataclass(frozen=True)
class Outer(Jsonable):
    name: str
    ratio: float
    mode: Literal["a", "b"]
    inner: Inner | None
    inners: tuple[Inner, ...]
    by_name: Mapping[str, Inner]
    type: pa.DataType
    since: int = field(default=0, metadata=MAY_BE_MISSING)
    key: str | None = field(default=None, metadata=written_with("key"))
    flag: bool = field(default=False, metadata=written_with("key"))


WHOLE = Outer("x", 0.5, "a", Inner(1), (Inner(2),), {"k": Inner(3)}, pa.list_(pa.int64()), 4, "k", True)


def test_a_value_is_read_as_it_was_written() -> None:
    assert Outer.from_json(json.loads(json.dumps(WHOLE.to_json()))) == WHOLE


def test_fields_are_written_in_order_and_those_that_may_be_left_out_last() -> None:
    always = ["name", "ratio", "mode", "inner", "inners", "by_name", "type", "since"]
    assert list(WHOLE.to_json()) == [*always, "key", "flag"]
    assert list(Outer("x", 0.5, "b", None, (), {}, pa.int64(), flag=True).to_json()) == always


def test_what_older_releases_left_out_has_its_default() -> None:
    value = WHOLE.to_json()
    for name in ("since", "key", "flag"):
        del value[name]
    assert Outer.from_json(value) == Outer("x", 0.5, "a", Inner(1), (Inner(2),), {"k": Inner(3)}, WHOLE.type)


def test_a_missing_field_is_named() -> None:
    value = WHOLE.to_json()
    del value["inner"]
    with pytest.raises(KeyError, match="inner"):
        Outer.from_json(value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("name", 1),
        ("ratio", 1),
        ("mode", "c"),
        ("mode", []),
        ("inner", 1),
        ("inners", "ab"),
        ("inners", [None]),
        ("by_name", []),
        ("since", True),
        ("since", "1"),
        ("flag", 0),
    ],
)
def test_a_value_of_another_type_is_refused(name: str, value: Any) -> None:
    with pytest.raises(TypeError, match=rf"Outer\.{name} is"):
        Outer.from_json(WHOLE.to_json() | {name: value})


@dataclass(frozen=True)
class Pairs(Jsonable):
    pairs: tuple[tuple[str, int | None], ...]


def test_a_tuple_of_some_parts_has_just_these() -> None:
    assert Pairs.from_json({"pairs": [["a", 1], ["b", None]]}) == Pairs((("a", 1), ("b", None)))
    with pytest.raises(ValueError, match="shorter"):
        Pairs.from_json({"pairs": [["a"]]})
    with pytest.raises(TypeError, match="'1'"):
        Pairs.from_json({"pairs": [["a", "1"]]})


@dataclass(frozen=True)
class Limits:
    low: complex = field(metadata=json_by(complex, str))
    names: tuple[str, ...] = ()


def test_a_field_of_its_own_form_is_read_and_written_by_its_functions() -> None:
    assert to_text(Limits(1j, ("a",))) == '{"low": "1j", "names": ["a"]}'
    assert from_text(Limits, '{"low": "1j", "names": ["a"]}', "limits") == Limits(1j, ("a",))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "JSONDecodeError"),
        ("7", "TypeError"),
        ('{"low": "1j"}', "KeyError"),
        ("[" * 100_000, "Recursion"),
    ],
)
def test_a_text_that_is_none_is_told_with_its_beginning(text: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=f"limits must be JSON text of one, got .{{2,82}}: {reason}"):
        from_text(Limits, text, "limits")


@dataclass(frozen=True)
class Dot(OneOf):
    at: int


@dataclass(frozen=True)
class Group(OneOf):
    inside: tuple[Dot | Group, ...]


def test_a_value_of_one_of_several_classes_says_of_which() -> None:
    value = Group((Dot(1), Group((Dot(2),)), Group(())))
    assert value.to_json()["inside"][0] == {"is": "Dot", "at": 1}
    assert from_text(Group, to_text(value), "a group") == value


@pytest.mark.parametrize("inside", ['{"at": 1}', '{"is": "Line", "at": 1}', "7", "null"])
def test_a_value_of_none_of_them_is_refused(inside: str) -> None:
    with pytest.raises(ConfigurationError, match="a group must be JSON text of one"):
        from_text(Group, f'{{"inside": [{inside}]}}', "a group")
