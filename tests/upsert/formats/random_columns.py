"""Random types and random tables of them, for the round trips of all formats."""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from upsert import types
from upsert.formats.text_values import has_form, integer_range

FIRST = datetime(1, 1, 1)
LAST = datetime(9999, 12, 31, 23, 59, 59, 999_999)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(
    ["", "null", '"', "\\", "a,b", "x;y", "\n", "\x00", "😀", " a ", "NaN", "}{", "#", "\u2028", "'"]
)

SCALARS = st.sampled_from([type_ for type_ in types.SCALARS.values() if has_form(type_)]) | st.builds(
    lambda precision, scale: pa.decimal128(precision, min(scale, precision)),
    st.integers(1, 38),
    st.integers(0, 38),
)


def nested(scalars: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    """Types of arrays, maps and structs up to a few levels, beside scalar ones."""

    def wrapped(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
        return st.one_of(
            st.builds(lambda t, n: pa.list_(pa.field("element", t, nullable=n)), inner, st.booleans()),
            st.builds(
                lambda t, n: pa.map_(pa.string(), pa.field("value", t, nullable=n)), inner, st.booleans()
            ),
            structs(inner),
        )

    return st.recursive(scalars, wrapped, max_leaves=4)


def structs(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    members = st.lists(st.tuples(inner, st.booleans()), min_size=1, max_size=3)
    return members.map(
        lambda found: pa.struct([pa.field(f"f{i}", t, nullable=n) for i, (t, n) in enumerate(found)])
    )


def schemas(type_: st.SearchStrategy[pa.DataType], max_size: int = 4) -> st.SearchStrategy[pa.Schema]:
    names = st.sampled_from(["id", "word", "ts", "größe", 'a"b', "data", "op", "x y"])
    field = st.builds(pa.field, names, type_, nullable=st.booleans())
    return st.lists(field, min_size=1, max_size=max_size, unique_by=lambda f: f.name).map(pa.schema)


def values(field: pa.Field, texts: st.SearchStrategy[str] = TEXTS) -> st.SearchStrategy[Any]:
    """Values of a field as ``pa.array`` takes them, NULL where it may be."""
    found = _values(field.type, texts)
    return st.none() | found if field.nullable else found


def _values(type_: pa.DataType, texts: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    if pa.types.is_struct(type_):
        return st.tuples(*(values(child, texts) for child in type_))
    if pa.types.is_list(type_):
        return st.lists(values(type_.value_field, texts), max_size=3)
    if pa.types.is_map(type_):
        return st.dictionaries(texts, values(type_.item_field, texts), max_size=3).map(
            lambda d: list(d.items())
        )
    if type_ == pa.bool_():
        return st.booleans()
    if pa.types.is_integer(type_):
        return st.integers(*integer_range(type_))
    if pa.types.is_floating(type_):
        return st.floats(width=type_.bit_width)
    if pa.types.is_decimal128(type_):
        unscaled = st.integers(-(10**type_.precision) + 1, 10**type_.precision - 1)
        return unscaled.map(
            lambda n: Decimal(n).scaleb(-type_.scale) if abs(n) < 10**28 else _exact(n, type_.scale)
        )
    if type_ == pa.string():
        return texts
    if type_ == pa.binary():
        return st.binary(max_size=5)
    if type_ == pa.date32():
        return st.dates(date.min, date.max)
    if pa.types.is_time(type_):
        return st.integers(0, 86_400 * 10**9 // types.NANOS[type_] - 1)
    if type_ == types.TIMESTAMP:
        return st.datetimes(FIRST, LAST).map(lambda d: d.replace(tzinfo=UTC))
    return st.datetimes(FIRST, LAST)


def _exact(unscaled: int, scale: int) -> Decimal:
    """Decimal arithmetic rounds to 28 digits; a text is exact."""
    return Decimal(f"{unscaled}E-{scale}")


@st.composite
def tables(
    draw: st.DrawFn, schema: st.SearchStrategy[pa.Schema], texts: st.SearchStrategy[str] = TEXTS
) -> pa.Table:
    """Tables of up to five rows."""
    fields = draw(schema)
    count = draw(st.integers(0, 5))
    columns = [
        pa.array(draw(st.lists(values(field, texts), min_size=count, max_size=count)), field.type)
        for field in fields
    ]
    return pa.Table.from_arrays(columns, schema=fields)


def plain(rows: pa.Table) -> list[Any]:
    """Rows that compare equal when they are: NaN equals itself."""
    return [_plain(list(row.values())) for row in rows.to_pylist()]


def _plain(value: Any) -> Any:
    match value:
        case float():
            return repr(value)
        case list() | tuple():
            return [_plain(item) for item in value]
        case dict():
            return {name: _plain(item) for name, item in value.items()}
    return value
