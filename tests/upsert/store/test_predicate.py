"""`where`: what it selects, what it refuses, and that skipping files never loses a row."""

import datetime as dt
import operator
from decimal import Context, Decimal

import pyarrow as pa
import pytest
from hypothesis import example, given, reject
from hypothesis import strategies as st

from upsert.errors import SchemaError
from upsert.schema import TableSchema
from upsert.store import predicate as filters
from upsert.store.metadata.file_entry import FileEntry
from upsert.store.predicate import parse_where, where_from_json, where_to_json

SCHEMA = TableSchema.of(
    {
        "i": pa.int32(),
        "f": pa.float64(),
        "s": pa.string(),
        "t": pa.timestamp("us", "UTC"),
        "d": pa.decimal128(10, 2),
        "l": pa.list_(pa.int64()),
    }
)
COMPARE = {
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
NAN = float("nan")
integers, floats = st.sampled_from([-3, 0, 1, 5]), st.sampled_from([-1.0, -0.0, 0.0, 2.5, NAN])
texts = st.sampled_from(["", "a", "b", "a" * 70, "a" * 70 + "b"])
of_column = {"i": integers | st.just(2**40), "f": floats, "s": texts}


@st.composite
def predicates(draw):
    column = draw(st.sampled_from(list(of_column)))
    kind = draw(st.sampled_from([*COMPARE, "in", "not in", "is null", "is not null"]))
    if kind in COMPARE:
        return column, kind, draw(of_column[column])
    return column, kind, None if "null" in kind else draw(st.lists(of_column[column], max_size=3))


where = st.lists(predicates(), min_size=1, max_size=3) | st.lists(
    st.lists(predicates(), min_size=1, max_size=2), min_size=1, max_size=3
)
rows = st.lists(st.tuples(st.none() | integers, st.none() | floats, st.none() | texts), max_size=8)


def holds(predicate, row):
    column, kind, value = predicate
    found = row["ifs".index(column)]
    if "null" in kind:
        return (found is None) == (kind == "is null")
    if found is None:
        return False
    if kind in COMPARE:
        return COMPARE[kind](found, value)
    return any(found == v for v in value) == (kind == "in")


def selects(where, row):
    alternatives = [where] if isinstance(where[0], tuple) else where
    return any(all(holds(p, row) for p in each) for each in alternatives)


def table(rows):
    return pa.table(
        {
            "i": pa.array([r[0] for r in rows], pa.int32()),
            "f": pa.array([r[1] for r in rows], pa.float64()),
            "s": pa.array([r[2] for r in rows], pa.string()),
        }
    )


@given(where, rows)
def test_filter_selects_what_sql_would(where, rows):
    kept = parse_where(where, SCHEMA).apply(table(rows))
    assert repr(kept.to_pylist()) == repr(table([r for r in rows if selects(where, r)]).to_pylist())


@given(where, rows, st.sets(st.sampled_from("ifs")))
def test_no_file_with_a_selected_row_is_skipped(where, rows, columns):
    """Bounds as they are written: NaN is left out, long texts are cut or not known."""
    low, high = {}, {}
    for place, name in enumerate("ifs"):
        values = [r[place] for r in rows if r[place] is not None and r[place] == r[place]]
        id = SCHEMA.column(name).id
        low[id] = min(values)[:64] if values and name == "s" else min(values, default=None)
        high[id] = max(values, default=None)
        if name == "s" and len(high[id] or "") > 64:
            high[id] = None
    entry = FileEntry("f", (), 0, 0, 1, len(rows), 0, 1, 0, low, high)
    wanted = parse_where(where, SCHEMA)
    if any(selects(where, row) for row in rows):
        assert wanted.keep([entry], columns, SCHEMA).tolist() == [True]
    if not columns:
        assert wanted.keep([entry], columns, SCHEMA).tolist() == [True]


@pytest.mark.parametrize(
    ("where", "kept"),
    [
        ([("i", "=", 3)], [False, False, True]),
        ([("i", ">", 1)], [False, True, True]),
        ([("i", "<=", 1)], [True, True, False]),
        ([("i", "in", [0, -9])], [True, False, False]),
        ([("i", "!=", 0)], [False, True, True]),
        ([("i", "=", 3), ("s", "=", "nobody")], [False, False, True]),
        ([[("i", "=", 0)], [("i", "=", 3)]], [True, False, True]),
        ([("i", "not in", [0])], [True, True, True]),
        ([("i", "in", [])], [False, False, False]),
    ],
)
def test_files_whose_bounds_exclude_the_predicate_are_skipped(where, kept):
    entries = [
        FileEntry("f", (), 0, 0, 1, 1, 0, 1, 0, {1: low}, {1: high}) for low, high in [(0, 0), (1, 2), (3, 9)]
    ]
    assert parse_where(where, SCHEMA).keep(entries, {"i", "s"}, SCHEMA).tolist() == kept
    assert parse_where(where, SCHEMA).keep([], {"i", "s"}, SCHEMA).tolist() == []


def test_values_of_a_column_s_own_kind_compare():
    at = dt.datetime(2013, 1, 1, tzinfo=dt.UTC)
    row = pa.table({"t": pa.array([at], pa.timestamp("us", "UTC")), "d": pa.array([Decimal("1.50")])})
    for predicate in [("t", "=", at), ("t", "in", [at]), ("d", "=", Decimal("1.5")), ("d", "<", 2)]:
        assert parse_where([predicate], SCHEMA).apply(row).num_rows == 1
    assert parse_where([("d", "in", [Decimal("1.505")])], SCHEMA).apply(row).num_rows == 0


@pytest.mark.parametrize("values", [[2, 3], [2, 10**18], [2.0, 1.004], [2, Decimal("1.004")], {2}])
def test_list_of_numbers_holds_the_decimals_that_equal_one(values):
    rows = pa.table({"d": pa.array([Decimal("2.00"), Decimal("1.00"), None])})
    assert parse_where([("d", "in", values)], SCHEMA).apply(rows)["d"].to_pylist() == [2]
    assert parse_where([("d", "not in", values)], SCHEMA).apply(rows)["d"].to_pylist() == [1]


def test_list_holds_a_float_only_if_it_equals_one_of_its_values():
    """The nearest FLOAT to 0.1 is another number, which `=` does not take for it either."""
    rows = pa.table({"x": pa.array([0.1, 0.5, -0.0, None], pa.float32())})
    schema = TableSchema.of({"x": pa.float32()})
    for predicate, wanted in [
        (("x", "=", 0.1), []),
        (("x", "in", [0.1, 0.5, 0.0]), [0.5, -0.0]),
        (("x", "not in", [0.1, 0.5]), [pa.scalar(0.1, pa.float32()).as_py(), -0.0]),
    ]:
        assert parse_where([predicate], schema).apply(rows)["x"].to_pylist() == wanted


def test_list_of_datetimes_holds_the_days_that_begin_then():
    rows = pa.table({"day": pa.array([dt.date(2020, 1, 1), dt.date(2020, 1, 2)])})
    noon, midnight = dt.datetime(2020, 1, 1, 12), dt.datetime(2020, 1, 2)
    where = parse_where([("day", "in", [noon, midnight])], TableSchema.of({"day": pa.date32()}))
    assert where.apply(rows)["day"].to_pylist() == [dt.date(2020, 1, 2)]


_EXACT_TYPES = st.sampled_from([pa.int8(), pa.int32(), pa.int64()]) | st.integers(1, 38).flatmap(
    lambda digits: st.builds(pa.decimal128, st.just(digits), st.integers(0, digits))
)


@given(
    _EXACT_TYPES,
    st.lists(
        st.integers(-(10**18), 10**18) | st.decimals(-(10**20), 10**20, places=4), min_size=1, max_size=4
    ),
)
@example(pa.decimal128(38, 10), [Decimal(-9) * 10**26])
@example(pa.int64(), [Decimal(2**63), Decimal(5)])
def test_list_holds_the_numbers_that_the_column_can_have(type_, values):
    def has(value):
        if pa.types.is_integer(type_):
            return value == int(value) and -(2 ** (type_.bit_width - 1)) <= value < 2 ** (type_.bit_width - 1)
        scaled = Decimal(value).scaleb(type_.scale, Context(prec=99))
        return scaled == int(scaled) and abs(scaled) < 10**type_.precision

    try:
        where = parse_where([("n", "in", values)], TableSchema.of({"n": type_}))
    except SchemaError:
        reject()  # Arrow finds no type for both that compares them
    (found,) = where.alternatives[0]
    assert sorted(found.value.to_pylist()) == sorted(filter(has, values))


@pytest.mark.parametrize(
    ("column", "values", "fitting"),
    [
        ("t", [dt.datetime(2020, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=n) for n in range(300)], 300),
        ("d", [Decimal(n) / 100 for n in range(300)], 300),
        ("d", [Decimal(n) / 1000 for n in range(300)], 30),
        ("d", [Decimal(n).scaleb(6) for n in range(300)], 100),
        ("i", [n * 2**24 for n in range(300)], 128),
    ],
)
def test_values_of_a_list_are_read_at_once(column, values, fitting, monkeypatch):
    """10 000 decimals took 6 s, one at a time."""
    asked = []
    literal, read = filters._literal, filters._read
    monkeypatch.setattr(filters, "_literal", lambda *args: [asked.append(args), literal(*args)][1])
    monkeypatch.setattr(filters, "_read", lambda *args: [asked.append(args), read(*args)][1])
    where = where_from_json(where_to_json([(column, "in", values)]), SCHEMA)
    (found,) = parse_where(where, SCHEMA).alternatives[0]
    assert len(found.value) == fitting
    assert len(asked) <= 2


def test_filters_back_from_json_mean_the_same():
    """JSON has no tuples: the form is told by where the first text lies."""
    assert parse_where([["i", "=", 1]], SCHEMA) == parse_where([("i", "=", 1)], SCHEMA)
    assert parse_where([[["i", "=", 1]], [["i", "=", 2]]], SCHEMA).columns == ("i",)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("i = 1", "where: must list (column, operator, value), or be a list of such lists"),
        ([()], "where: must list"),
        ([("i", "=")], "where: a predicate must be (column, operator, value), got ('i', '=')"),
        ([("x", "=", 1)], "where: unknown column 'x'; columns are i, f, s, t, d, l"),
        ([("i", "like", 1)], "where: operator must be one of =, ==, !="),
        (
            [("i", "=", "1")],
            "column 'i' of type INT must be compared by '=' with a value of its type, got '1'",
        ),
        ([("t", ">", dt.datetime(2013, 1, 1))], "column 't' of type TIMESTAMP must be compared"),
        ([("l", "=", [1])], "column 'l' of type ARRAY<BIGINT> must be compared"),
        ([("i", "=", None)], "where: 'i' = NULL is never true, got None; use 'is null'"),
        ([("i", "in", [None])], "NULL is never true"),
        ([("s", "in", "abc")], "where: 's' in needs a list of values, got 'abc'"),
        ([("i", "is null", 1)], "where: 'i' is null takes the value None, got 1"),
    ],
)
def test_malformed_predicates_are_refused(where, message):
    with pytest.raises(SchemaError) as caught:
        parse_where(where, SCHEMA)
    assert message in str(caught.value)


def test_no_predicate_selects_everything():
    everything = table([(1, None, "a")])
    assert (
        parse_where(None, SCHEMA).apply(everything) == parse_where([], SCHEMA).apply(everything) == everything
    )
