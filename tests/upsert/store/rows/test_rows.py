"""Whether rows fit a table."""

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest

from upsert import types
from upsert.errors import ChangelogError, SchemaError
from upsert.schema import Column, TableSchema
from upsert.store.rows.conform import cast_to, conform, equal_values
from upsert.store.rows.layout import Layout

SCHEMA = TableSchema(
    (
        Column("id", pa.int64()),
        Column("name", pa.string()),
        Column("at", pa.timestamp("us", "UTC")),
        Column("score", pa.float64(), nullable=False),
    ),
    primary_key=("id",),
)
LAYOUT = Layout.of(SCHEMA)
AT = dt.datetime(2013, 1, 1, 12, tzinfo=dt.UTC)


def rows(**changed):
    columns = {"id": pa.array([1]), "name": pa.array(["a"]), "at": pa.array([AT]), "score": pa.array([1.0])}
    return pa.table({name: array for name, array in {**columns, **changed}.items() if array is not None})


def test_columns_come_in_the_order_of_the_table_and_in_its_types():
    given = pa.table(
        {
            "score": pa.array([1.0], pa.float32()),
            "at": pa.array([AT], pa.timestamp("ns", "Europe/Berlin")),
            "name": pa.array(["a"]).dictionary_encode(),
            "id": pa.array([1], pa.int16()),
        }
    )
    found, weights = conform(LAYOUT, given)
    assert found.schema == LAYOUT.stored
    assert found.to_pylist() == rows().to_pylist()
    assert weights is None


def test_categories_of_polars_are_texts():
    """Their dictionary has views, out of which Arrow takes nothing."""
    views = pa.array(["a", "b, a text that is longer than what a view holds itself"], pa.string_view())
    categories = pa.DictionaryArray.from_arrays(pa.array([1, None, 0], pa.uint32()), views, ordered=True)
    schema = TableSchema.of({"c": pa.string(), "l": pa.list_(pa.string())})
    lists = pa.ListArray.from_arrays(pa.array([0, 2, 2, 3], pa.int32()), categories)
    found, _ = conform(Layout.of(schema), pa.table({"c": categories, "l": lists}))
    texts = [views[1].as_py(), None, "a"]
    assert [found[name].to_pylist() for name in "cl"] == [texts, [texts[:2], [], texts[2:]]]
    assert equal_values(categories, pa.string()).to_pylist() == texts


def test_row_kinds_become_signs_and_leave_the_rows():
    given = rows().append_column("_row_kind", pa.array(["-U"], pa.large_string()))
    found, weights = conform(LAYOUT, given)
    assert (found.column_names, weights.tolist()) == (list(SCHEMA.names), [-1])
    with pytest.raises(ChangelogError, match=r"_row_kind must be one of .*, got '\+X'"):
        conform(LAYOUT, rows().append_column("_row_kind", pa.array(["+X"])))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"name": None}, "table 't': the columns must be id, name, at, score; the input lacks name"),
        ({"nam": pa.array(["a"])}, "the input has unknown nam"),
        ({"name": None, "nam": pa.array(["a"])}, "the input lacks name and has unknown nam"),
        (
            {"id": pa.array(["1"])},
            "column 'id' must be BIGINT, got Arrow type string; cast it before writing",
        ),
        ({"score": pa.array([1])}, "column 'score' must be DOUBLE, got Arrow type int64"),
        ({"id": pa.array([2**63], pa.uint64())}, "column 'id' must hold values of BIGINT, got others"),
        (
            {"at": pa.array([AT.replace(tzinfo=None)])},
            "column 'at' must be TIMESTAMP, got Arrow type timestamp",
        ),
        ({"at": pa.array([1], pa.timestamp("ns", "UTC"))}, "column 'at' must hold values of TIMESTAMP"),
        ({"id": pa.array([None], pa.int64())}, "PRIMARY KEY column 'id' must not be NULL, got NULL in row 0"),
        ({"score": pa.array([None], pa.float64())}, "column 'score' is NOT NULL, got NULL in row 0"),
        ({"_row_kind": pa.array([1])}, "column '_row_kind' must be STRING"),
    ],
)
def test_rows_that_do_not_fit_are_refused(changed, message):
    with pytest.raises(SchemaError) as caught:
        conform(LAYOUT, rows(**changed), "table 't'")
    assert message in str(caught.value)


def test_a_row_that_is_deleted_may_lack_what_another_one_must_have():
    given = pa.concat_tables([rows(score=pa.array([None], pa.float64()))] * 2)
    kinds = [pa.array(one, pa.string()) for one in (["-D", "-U"], ["-D", "+I"])]
    conform(LAYOUT, given.append_column("_row_kind", kinds[0]))
    with pytest.raises(SchemaError, match="column 'score' is NOT NULL, got NULL in row 1; give a value, or"):
        conform(LAYOUT, given.append_column("_row_kind", kinds[1]))


@pytest.mark.parametrize(
    ("of", "value"),
    [
        (lambda type_: type_, lambda number: number),
        (lambda type_: pa.list_(type_), lambda number: [number, None]),
        (lambda type_: pa.large_list(pa.struct([("price", type_)])), lambda number: [{"price": number}]),
        (lambda type_: pa.map_(pa.string(), pa.map_(type_, type_)), lambda number: [("a", [(number, None)])]),
    ],
)
def test_decimals_keep_their_value_wherever_they_are_or_are_refused(of, value):
    """As DECIMAL(38, 18), Arrow makes 717633079061536536.6… of the second one."""
    given, stored = of(pa.decimal128(38, 0)), types.canonical(of(pa.decimal128(38, 18)), "column 'prices'")
    assert cast_to(pa.chunked_array([[value(Decimal(7))]], given), stored).to_pylist() == [value(Decimal(7))]
    for number in (341 * 10**18, 10**37):
        with pytest.raises(pa.ArrowInvalid):
            cast_to(pa.chunked_array([[value(Decimal(number))]], given), stored)
    words = pa.array([Decimal(341 * 10**18)], pa.decimal128(38, 0)).dictionary_encode()
    with pytest.raises(pa.ArrowInvalid):
        cast_to(pa.chunked_array([words]), pa.decimal128(38, 18))


@pytest.mark.parametrize("type_", types.NANOS)
@pytest.mark.parametrize(
    ("given", "stored", "value"),
    [
        (lambda time: time, lambda time: time, lambda time: time),
        (pa.large_list, pa.list_, lambda time: [None, time]),
        (
            lambda time: pa.struct({"at": pa.list_(time, 1)}),
            lambda time: pa.struct({"at": pa.list_(time)}),
            lambda time: {"at": [time]},
        ),
        (
            lambda time: pa.map_(time, pa.null()),
            lambda time: pa.map_(time, pa.string()),
            lambda time: [(time, None)],
        ),
    ],
)
def test_times_that_no_day_has_are_refused(given, stored, value, type_):
    """Arrow compares such, and its casts make others of them: a table that had got one could not be read."""
    layout = Layout.of(TableSchema.of({"id": pa.int64(), "at": stored(type_)}))

    def conformed(units):
        at = pa.array([value(units)], given(types.with_numbers(type_))).cast(given(type_))
        return conform(layout, pa.table({"id": [1], "at": at}), "table 't'")[0]

    last = types.units_of_day(type_) - 1
    assert conformed(0).num_rows == conformed(last).num_rows == 1
    for units in (-1, last + 1):
        with pytest.raises(
            SchemaError, match=f"'at' must hold times of day, .*, got 1 others, .* of {units} "
        ):
            conformed(units)


@pytest.mark.parametrize("given", [[{"id": 1}], {"id": [1]}, rows().to_batches()[0]])
def test_anything_but_an_arrow_table_is_refused(given):
    with pytest.raises(SchemaError, match=r"rows must be a pyarrow\.Table or a DataFrame, got .*; make one"):
        conform(LAYOUT, given, "table 't'")


def test_values_that_arrow_casts_to_no_column_are_refused():
    """As which it has no cast of dictionaries of structs."""
    layout = Layout.of(TableSchema.of({"id": pa.int64(), "at": pa.struct({"x": pa.int64()})}))
    structs = pa.DictionaryArray.from_arrays([0], pa.array([{"x": 1}]))
    with pytest.raises(
        SchemaError, match=r"column 'at' must hold values of STRUCT<x: BIGINT>, got others: Uns"
    ):
        conform(layout, pa.table({"id": [1], "at": structs}), "table 't'")


@pytest.mark.parametrize("given", [{"x": 1}, {"y": 1, "x": 2}, {"x": 1, "z": 2}, {"x": 1, "y": "2"}], ids=str)
def test_structs_of_other_fields_are_refused(given):
    """Arrow casts some of them by names, and leaves fields out or makes them NULL."""
    layout = Layout.of(TableSchema.of({"at": pa.struct({"x": pa.int64(), "y": pa.int64()})}))
    with pytest.raises(SchemaError, match="column 'at' must be STRUCT<x: BIGINT,y: BIGINT>, got Arrow"):
        conform(layout, pa.table({"at": [given]}), "table 't'")


def test_repeated_columns_are_refused():
    twice = pa.table([[1], [2]], names=["id", "id"])
    with pytest.raises(SchemaError, match="lacks name"):
        conform(LAYOUT, twice)
    with pytest.raises(SchemaError, match="repeats id"):
        conform(Layout.of(TableSchema.of({"id": pa.int64()})), twice)


def test_a_deletion_needs_only_its_key():
    """CDC tools send deletions with NULL in every other column."""
    given = rows(score=pa.array([None], pa.float64()), _row_kind=pa.array(["-D"]))
    assert conform(LAYOUT, given)[0]["score"].null_count == 1


def test_columns_of_arrow_null_type_are_all_null():
    assert conform(LAYOUT, rows(name=pa.nulls(1)))[0]["name"].type == pa.string()


def test_float_keys_are_stored_normalised():
    layout = Layout.of(TableSchema.of({"k": pa.float64(), "v": pa.float64()}, primary_key=["k"]))
    found, _ = conform(layout, pa.table({"k": [-0.0], "v": [-0.0]}))
    assert str(found["k"][0]) == "0.0"
    assert str(found["v"][0]) == "-0.0"


def test_null_inside_a_nested_type_that_has_none_is_refused():
    number = pa.field("x", pa.int64(), nullable=False)
    inner, loose = pa.struct([number]), pa.struct([("x", pa.int64())])
    cases = [
        (pa.list_(number), pa.array([[1, None]])),
        (pa.map_(pa.string(), number), pa.array([[("a", None)]], pa.map_(pa.string(), pa.int64()))),
        (inner, pa.array([{"x": None}], loose)),
        (pa.list_(inner), pa.array([[{"x": None}]], pa.list_(loose))),
    ]
    for type_, bad in cases:
        layout = Layout.of(TableSchema.of({"c": type_}))
        with pytest.raises(SchemaError, match=r"column 'c': .* inside it must not be NULL"):
            conform(layout, pa.table({"c": bad}))
        assert conform(layout, pa.table({"c": pa.nulls(1, type_)}))[0]["c"].null_count == 1


def test_null_struct_of_not_null_fields_is_no_null_inside_it():
    inner = pa.struct([pa.field("x", pa.int64(), nullable=False)])
    layout = Layout.of(TableSchema.of({"c": inner, "l": pa.list_(inner)}))
    loose = pa.struct([("x", pa.int32())])
    given = pa.table(
        {"c": pa.array([None, {"x": 1}], loose), "l": pa.array([[None, {"x": 1}], None], pa.list_(loose))}
    )
    found, _ = conform(layout, given)
    assert found.select(["c", "l"]).to_pylist() == given.to_pylist()
    assert found.schema.field("l").type == pa.list_(inner)


def test_rows_of_a_table_without_key_get_their_hash():
    layout = Layout.of(TableSchema.of({"a": pa.int64()}))
    found, _ = conform(layout, pa.table({"a": [1, 2, 1, None]}))
    hashes = found["_row_hash"].to_pylist()
    assert hashes[0] == hashes[2]
    assert len(set(hashes)) == 3


def test_no_rows_fit():
    assert conform(LAYOUT, SCHEMA.arrow.empty_table())[0].num_rows == 0
