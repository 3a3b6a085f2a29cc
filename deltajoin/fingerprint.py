"""What a query means, by which a checkpoint knows its own: a short hash, and its parts in words (pure).

Columns count by their field ids, so a renamed column is the same one; types have no part in it, so a column
may become wider. So the hash is that of the query with each column under the name of its id, and of
conditions without the types of their columns. Release 0.1 counted columns by name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from decimal import Decimal, localcontext
from math import isfinite
from typing import Any, Final

from deltajoin import expressions, filters
from deltajoin.expressions import Call, Cast, Condition, Const, Field, Ref
from deltajoin.tree import Inner, Leaf, Node, On, Outer, Where

Name = Callable[[Ref], str]


def renamed_tree(node: Node, name: Name) -> Node:
    """The tree with each column under the name that ``name`` gives it.

    >>> on = ((Ref(0, "a"), Ref(1, "b")),)
    >>> renamed_tree(Inner((Leaf(0), Leaf(1)), on), lambda ref: ref.column.upper()).on
    ((Ref(table=0, column='A'), Ref(table=1, column='B')),)
    """
    match node:
        case Leaf():
            return node
        case Inner(below, on, where):
            children = tuple(renamed_tree(child, name) for child in below)
            return Inner(children, _pairs(on, name), where and renamed_condition(where, name))
        case Outer(kind, left, right, on, where):
            sides = renamed_tree(left, name), renamed_tree(right, name)
            return Outer(kind, *sides, _pairs(on, name), where and renamed_condition(where, name))
        case Where(child, condition):
            return Where(renamed_tree(child, name), renamed_condition(condition, name))


def _pairs(on: On, name: Name) -> On:
    return tuple((Ref(a.table, name(a)), Ref(b.table, name(b))) for a, b in on)


def renamed_condition(condition: Condition, name: Name) -> Condition:
    """The condition with each column under the name that ``name`` gives it."""
    match condition:
        case Field(ref):
            return Field(Ref(ref.table, name(ref)))
        case Cast(value, type_):
            return Cast(renamed_condition(value, name), type_)
        case Call(op, args):
            return Call(op, tuple(renamed_condition(arg, name) for arg in args))
        case Const():
            return condition


def untyped(condition: Condition) -> Any:
    """JSON values of a condition, equal before and after a column of it has become wider.

    Spark casts a narrower column to the other side's type, and gives a constant the column's type. A cast of
    a condition loses nothing, so neither has a part in what it means; but for ``wrapping`` arithmetic, which
    begins again at the end of its type.

    >>> import pyarrow as pa
    >>> field = Field(Ref(0, "a"))
    >>> narrow = Call("<", (Cast(field, pa.int64()), Const(5, pa.int64())))
    >>> untyped(narrow) == untyped(Call("<", (field, Const(5, pa.int32()))))
    True
    """
    match condition:
        case Cast(value):
            return untyped(value)
        case Const(value, _) if _is_number(value):
            return {"const": plain_number(value)}
        case Call(op, args) if not op.startswith("wrapping"):
            return {"call": op, "args": [untyped(arg) for arg in args]}
    return expressions.to_json(condition)


def _is_number(value: Any) -> bool:
    if isinstance(value, float):
        return isfinite(value)
    return isinstance(value, int | Decimal) and not isinstance(value, bool)


def plain_number(value: float | Decimal) -> str:
    """A number as a text that does not depend on its type.

    >>> plain_number(5), plain_number(5.0), plain_number(Decimal("5.00"))
    ('5', '5', '5')
    """
    with localcontext(prec=400):
        exact = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
        return str(exact.normalize())


OFFSET_FORMAT: Final = 1
"""Format of the offsets that Spark keeps; part of the fingerprint, so another format is another join."""

_SHOWN: Final = 160
"""Characters of a part that an offset keeps: people read it."""


def part(kind: str, key: str, words: str) -> str:
    """A part of what a query means: what kind it is, what it is compared by, and how people would say it."""
    return f"{kind} {hashlib.sha256(key.encode()).hexdigest()[:8]} {words[:_SHOWN]}"


def what_differs(theirs: Sequence[str], ours: Sequence[str]) -> str:
    """What of some parts is not among others, in words.

    >>> old = "column 0.3 orders.amount", "filter 1a2b3c4d orders: amount > 5"
    >>> what_differs(old, ("column 0.3 orders.price", "filter 99ab3c4d orders: price > 7"))
    'it has filter orders: amount > 5, which is gone; new is filter orders: price > 7'
    """
    gone, new = _missing(theirs, ours), _missing(ours, theirs)
    said = [f"it has {', '.join(gone)}, which {'is' if len(gone) == 1 else 'are'} gone"] if gone else []
    said += [f"new {'is' if len(new) == 1 else 'are'} {', '.join(new)}"] if new else []
    return "; ".join(said) or "its joins are nested in another way"


def _missing(parts: Sequence[str], others: Sequence[str]) -> list[str]:
    known = {tuple(other.split(" ", 2)[:2]) for other in others}
    split = (one.split(" ", 2) for one in parts)
    return [f"{kind} {words}" for kind, key, words in split if (kind, key) not in known]


def shape(node: Node, names: Sequence[str]) -> str:
    """How the tables are nested, in words; without keys and conditions."""
    match node:
        case Leaf(table):
            return names[table]
        case Inner(below):
            return f"inner({', '.join(sorted(shape(child, names) for child in below))})"
        case Outer(kind, left, right):
            return f"{kind}({shape(left, names)}, {shape(right, names)})"
        case Where(child):
            return shape(child, names)


def hash_of(meaning: Any) -> str:
    """A short hash of JSON values."""
    return hashlib.sha256(json.dumps(meaning, sort_keys=True).encode()).hexdigest()[:16]


def canonical(node: Node, to_json: Callable[[Condition], Any]) -> Any:
    """JSON values of a tree, equal for trees that differ only in the order of what has no order."""

    def conditions(where: Condition | None) -> list[str]:
        return sorted(json.dumps(to_json(part)) for part in expressions.conjuncts(where))

    match node:
        case Leaf(table):
            return {"node": "leaf", "table": table}
        case Inner(children, on, where):
            below = sorted((canonical(child, to_json) for child in children), key=json.dumps)
            pairs = sorted(sorted([ref.table, ref.column] for ref in pair) for pair in on)
            return {"node": "inner", "children": below, "on": pairs, "where": conditions(where)}
        case Outer(kind, left, right, on, where):
            sides = [canonical(left, to_json), canonical(right, to_json)]
            pairs = sorted([[ref.table, ref.column] for ref in pair] for pair in on)
            return {"node": kind, "sides": sides, "on": pairs, "where": conditions(where)}
        case Where(child, condition):
            return {"node": "where", "child": canonical(child, to_json), "where": conditions(condition)}


def sorted_filters(where: Any) -> list[str]:
    """JSON values of filters, equal for those that differ only in their order."""
    return sorted(json.dumps(sorted(json.dumps(part) for part in parts)) for parts in where or ())


def plain_filters(where: Sequence[Any] | None) -> Any:
    """JSON values of filters, whose numbers do not depend on the type of their column."""

    def plain(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(plain, value))
        return ("number", plain_number(value)) if _is_number(value) else value

    return filters.to_json(
        where and tuple(tuple((column, op, plain(value)) for column, op, value in parts) for parts in where)
    )
