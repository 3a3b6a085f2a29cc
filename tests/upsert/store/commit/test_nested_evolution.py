"""Fields of structs come, go and get other names and types; rows of every age are read by the fields' ids."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from deltajoin.spark.tables import JoinedTables
from deltajoin.spec import DeltaJoinSpec, Side
from tests.deltajoin.spark.steps import Steps
from upsert.errors import SchemaError
from upsert.nested import reshaped
from upsert.schema import Column, ComputedColumn, FieldId, TableSchema, form_of
from upsert.store import Table
from upsert.store.alterations import (
    AddColumn,
    AddComputed,
    AddField,
    Alteration,
    DropField,
    RenameColumn,
    RenameField,
    WidenColumn,
    WidenPart,
)
from upsert.store.files.data_file import forget_open_files
from upsert.store.read.pinned_columns import PinnedColumns
from upsert.types import VARIANT

AT = pa.struct([("lat", pa.int32()), ("lon", pa.int32())])
PLACES = TableSchema.of({"id": pa.int64(), "at": AT}, ["id"])


def put(table: Table, *rows: dict[str, Any]) -> None:
    columns = {c.name: pa.array([row.get(c.name) for row in rows], c.type) for c in table.schema.columns}
    table.write(pa.table(columns))


def rows(table: Table, snapshot: int | None = None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table.snapshot(snapshot).scan().sort_by("id").to_pylist()
    return found


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = Table.create(tmp_path / "places", PLACES)
    put(
        table,
        {"id": 1, "at": {"lat": 1, "lon": 2}},
        {"id": 2, "at": None},
        {"id": 3, "at": {"lat": None, "lon": 4}},
    )
    return table


def test_field_of_the_name_of_a_dropped_one_is_another_field(table: Table) -> None:
    old = table.snapshot().id
    table.alter(DropField(("at", "lat")))
    assert rows(table) == [{"id": 1, "at": {"lon": 2}}, {"id": 2, "at": None}, {"id": 3, "at": {"lon": 4}}]
    table.alter(AddField(("at", "lat"), pa.int32()))
    put(table, {"id": 4, "at": {"lon": 7, "lat": 8}})
    expected = [
        {"id": 1, "at": {"lon": 2, "lat": None}},
        {"id": 2, "at": None},
        {"id": 3, "at": {"lon": 4, "lat": None}},
        {"id": 4, "at": {"lon": 7, "lat": 8}},
    ]
    assert rows(table) == expected
    assert rows(table, old) == expected[:3]
    table.compact()
    forget_open_files()
    assert rows(Table.open(table.path)) == expected
    assert [one for one in table.check(deep=True) if not one.is_information] == []


def test_names_that_two_fields_exchange(table: Table) -> None:
    table.alter(
        RenameField(("at", "lat"), "x"), RenameField(("at", "lon"), "lat"), RenameField(("at", "x"), "lon")
    )
    assert rows(table)[0] == {"id": 1, "at": {"lon": 1, "lat": 2}}
    table.alter(RenameColumn("at", "place"), WidenPart(("place", "lat"), pa.int64()))
    put(table, {"id": 5, "place": {"lat": 1 << 40, "lon": 0}})
    found = rows(table)
    assert (found[0]["place"], found[-1]["place"]) == ({"lon": 1, "lat": 2}, {"lon": 0, "lat": 1 << 40})
    (column,) = (column for column in table.schema.columns if column.name == "place")
    assert column.fields == (FieldId(("lat",), "lon"), FieldId(("lon",), "lat"))
    table.alter(
        RenameField(("place", "lat"), "x"),
        RenameField(("place", "lon"), "lat"),
        RenameField(("place", "x"), "lon"),
    )
    assert table.schema.column("place").fields == ()


REFUSED = [
    (DropField(("at", "alt")), "unknown field 'alt'; fields are lat, lon"),
    (DropField(("nix", "alt")), "unknown column 'nix'"),
    (DropField(("id", "x")), "only a STRUCT has fields, got BIGINT"),
    (RenameField(("at", "lat"), "lon"), "there is a field 'lon' among lat, lon; choose another name"),
    (RenameField(("at", "lat"), "LON"), "there is a field 'LON' among lat, lon; choose another name"),
    (WidenPart(("at", "lat"), pa.int16()), "INT can become a wider integer, DOUBLE or a longer DECIMAL"),
    (WidenPart(("at", "element"), pa.int64()), "STRUCT<lat: INT,lon: INT> has no part 'element'"),
]


@pytest.mark.parametrize(("change", "message"), REFUSED)
def test_change_that_cannot_be_is_refused(table: Table, change: Alteration, message: str) -> None:
    version = table.definition.version
    with pytest.raises(SchemaError) as caught:
        table.alter(change)
    assert message in str(caught.value)
    assert table.definition.version == version


def test_last_field_and_fields_that_something_names_stay(table: Table) -> None:
    table.alter(AddComputed(ComputedColumn("north", "at.lat > 0", ("at",), 2)))
    with pytest.raises(SchemaError, match=r"column 'north' AS at.lat > 0 names 'at'; drop it first"):
        table.alter(RenameField(("at", "lat"), "x"))
    table.alter(WidenPart(("at", "lat"), pa.int64()))
    schema = TableSchema.of({"id": pa.int64(), "s": pa.struct([("x", pa.int32())])}, ["id"])
    other = Table.create(f"{table.path}-2", schema)
    with pytest.raises(SchemaError, match="'x' is the only field; drop the column"):
        other.alter(DropField(("s", "x")))


def test_variant_has_no_fields_to_change(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "v", TableSchema.of({"id": pa.int64(), "v": VARIANT}, ["id"]))
    for change in (
        DropField(("v", "variant_value")),
        RenameField(("v", "variant_value"), "x"),
        AddField(("v", "x"), pa.int8()),
    ):
        with pytest.raises(SchemaError, match="only a STRUCT has fields, got VARIANT"):
            table.alter(change)


def test_running_query_keeps_the_fields_it_began_with(table: Table) -> None:
    pinned = PinnedColumns.named(table.schema, ["id", "at"], "query")

    def read() -> list[dict[str, Any]]:
        found = pinned.read(table, lambda names: table.snapshot().scan(list(names)))
        assert found.schema.field("at").type == AT
        ordered: list[dict[str, Any]] = found.sort_by("id").to_pylist()
        return ordered

    before = read()
    table.alter(RenameField(("at", "lat"), "north"), AddField(("at", "alt"), pa.float32()))
    assert read() == before
    table.alter(WidenPart(("at", "lon"), pa.int64()))
    put(table, {"id": 9, "at": {"north": 1, "lon": 5, "alt": 0.5}})
    assert read() == [*before, {"id": 9, "at": {"lat": 1, "lon": 5}}]
    put(table, {"id": 9, "at": {"north": 1, "lon": 1 << 40}})
    with pytest.raises(
        SchemaError, match="was STRUCT<lat: INT,lon: INT> when the query began, and now holds"
    ):
        read()
    put(table, {"id": 9, "at": None})
    table.alter(DropField(("at", "lon")), AddField(("at", "lon"), pa.int32()))
    with pytest.raises(SchemaError, match=r"field 'at.lon', which the query began with, must be there"):
        read()


@pytest.mark.parametrize(
    "change",
    [WidenColumn("n", pa.int64()), WidenPart(("at", "lon"), pa.int64()), DropField(("at", "alt"))],
)
def test_rows_are_read_again_when_their_columns_are_altered_while_they_are_read(
    table: Table, change: Alteration
) -> None:
    table.alter(AddColumn(Column("n", pa.int32())), AddField(("at", "alt"), pa.int8()))
    put(table, {"id": 1, "at": {"lat": 1, "lon": 2, "alt": 3}, "n": 4})
    pinned = PinnedColumns.named(table.schema, ["id", "at", "n"], "query")
    before, pending = rows(table), [change]

    def read(names: tuple[str, ...]) -> pa.Table:
        if pending:
            Table.open(table.path).alter(pending.pop())
        return table.snapshot().scan(names)

    if isinstance(change, DropField):
        with pytest.raises(SchemaError, match=r"field 'at.alt', which the query began with, must be there"):
            pinned.read(table, read)
    else:
        assert pinned.read(table, read).sort_by("id").to_pylist() == before


def test_running_query_writes_no_field_that_came_in_the_place_of_one_of_its_own(table: Table) -> None:
    before = table.schema
    table.alter(DropField(("at", "lon")), AddField(("at", "lon"), pa.int32()))
    assert table.schema == before
    assert not table.schema.has_columns_of(before)


def test_join_goes_on_across_the_statement_and_starts_again_with_the_new_names(tmp_path: Path) -> None:
    columns = {"id": pa.int64(), "at": AT, "k": pa.int64()}
    left = Table.create(tmp_path / "places", TableSchema.of(columns, ["id"]).index("k"))
    right = Table.create(tmp_path / "names", TableSchema.of({"k": pa.int64(), "name": pa.string()}, ["k"]))
    put(left, {"id": 1, "at": {"lat": 1, "lon": 2}, "k": 1})
    put(right, {"k": 1, "name": "a"})
    sides = Side(left.path, ("id", "at", "k"), ("k",)), Side(right.path, ("k", "name"), ("k",))
    spec = DeltaJoinSpec.of("inner", *sides, shards=2)
    steps = Steps(JoinedTables.open(spec).located)
    assert step(steps) == [(1, {"lat": 1, "lon": 2}, 1, 1, "a", "+I")]
    left.alter(RenameField(("at", "lat"), "north"), WidenPart(("at", "lon"), pa.int64()))
    put(right, {"k": 1, "name": "b"})
    assert step(steps) == [
        (1, {"lat": 1, "lon": 2}, 1, 1, "a", "-U"),
        (1, {"lat": 1, "lon": 2}, 1, 1, "b", "+U"),
    ]
    steps.spec = JoinedTables.open(spec).located
    steps.restart("fused", 2)
    put(left, {"id": 1, "at": {"north": 3, "lon": 4}, "k": 1})
    assert step(steps) == [
        (1, {"north": 1, "lon": 2}, 1, 1, "b", "-U"),
        (1, {"north": 3, "lon": 4}, 1, 1, "b", "+U"),
    ]


def step(steps: Steps) -> list[Any]:
    """The rows of one micro-batch, that of a key before the one that takes its place."""
    start, end = steps.offset, steps.reader.latestOffset(steps.offset, ReadAllAvailable())
    steps.offset = end
    read = [batch for part in steps.reader.partitions(start, end) for batch in steps.reader.read(part)]
    rows = [row for batch in read for row in zip(*map(pa.Array.to_pylist, batch.columns), strict=True)]
    return sorted(rows, key=lambda row: row[-1] != "-U")


# a model: fields have numbers, rows are kept by these


@dataclass
class Kind:
    """A type of the model: of a scalar its Arrow type, of a struct its fields by number."""

    scalar: pa.DataType | None = None
    fields: dict[int, tuple[str, Kind]] = field(default_factory=dict)
    element: Kind | None = None
    value: Kind | None = None

    @property
    def arrow(self) -> pa.DataType:
        if self.element:
            return pa.list_(self.element.arrow)
        if self.value:
            return pa.map_(pa.string(), self.value.arrow)
        return self.scalar or pa.struct([(name, kind.arrow) for name, kind in self.fields.values()])

    def shown(self, value: Any) -> Any:
        """A value as a scan gives it."""
        if value is None or self.scalar:
            return value
        if self.element:
            return [self.element.shown(one) for one in value]
        if self.value:
            return [(key, self.value.shown(one)) for key, one in value]
        return {name: kind.shown(value.get(number)) for number, (name, kind) in self.fields.items()}

    def drawn(self, draw: random.Random) -> Any:
        if draw.random() < 0.2:
            return None
        if self.element:
            return [self.element.drawn(draw) for _ in range(draw.randrange(3))]
        if self.value:
            return [(f"k{n}", self.value.drawn(draw)) for n in range(draw.randrange(3))]
        if self.scalar:
            return draw.randrange(100)
        return {number: kind.drawn(draw) for number, (_, kind) in self.fields.items()}

    def parts(self, path: tuple[str, ...] = ()) -> Iterable[tuple[tuple[str, ...], Kind]]:
        yield path, self
        if self.element:
            yield from self.element.parts((*path, "element"))
        elif self.value:
            yield from self.value.parts((*path, "value"))
        else:
            for name, kind in self.fields.values():
                yield from kind.parts((*path, name))

    def copy(self) -> Kind:
        return replace(
            self,
            fields={number: (name, kind.copy()) for number, (name, kind) in self.fields.items()},
            element=self.element and self.element.copy(),
            value=self.value and self.value.copy(),
        )

    def numbers(self) -> set[int]:
        return {number for _, kind in self.parts() for number in kind.fields}


def struct(start: int, *kinds: Kind) -> Kind:
    return Kind(fields={start + n: (f"f{n}", kind) for n, kind in enumerate(kinds)})


def number() -> Kind:
    return Kind(pa.int8())


WIDER = {pa.int8(): pa.int16(), pa.int16(): pa.int32(), pa.int32(): pa.int64(), pa.int64(): None}


def drawn_change(draw: random.Random, kind: Kind, new: int) -> Alteration | None:
    """A change of some part of the column ``c``, made in the model too."""
    path, part = draw.choice(list(kind.parts()))
    whole = ("c", *path)
    if part.scalar:
        wider = WIDER[part.scalar]
        if wider is None or len(whole) == 1:
            return None
        part.scalar = wider
        return WidenPart(whole, wider)
    if not part.fields:
        return None
    chosen = draw.choice(list(part.fields))
    name, own = part.fields[chosen]
    names = {name for name, _ in part.fields.values()}
    free = draw.choice([f"f{n}" for n in range(5) if f"f{n}" not in names])
    match draw.choice(["add", "drop", "rename"]):
        case "drop" if len(names) > 1:
            del part.fields[chosen]
            return DropField((*whole, name))
        case "rename":
            part.fields[chosen] = free, own
            return RenameField((*whole, name), free)
        case "add" if len(names) < 4:
            part.fields[new] = free, number()
            return AddField((*whole, free), pa.int8())
    return None


@pytest.mark.parametrize(
    "form", ["arrow", *(pytest.param(form, marks=pytest.mark.long) for form in ("parquet", "avro"))]
)
@pytest.mark.parametrize("key", [["id"], []])
def test_random_lives_of_nested_columns(key: list[str], form: str, tmp_path: Path) -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    draw = random.Random(seed)
    kind = struct(
        1,
        number(),
        Kind(element=struct(10, number(), struct(20, number(), number()))),
        Kind(value=struct(30, number(), Kind(element=number()))),
    )
    schema = TableSchema.of({"id": pa.int64(), "c": kind.arrow}, key)
    table = Table.create(
        tmp_path / "t", schema, {"file.format": form, "num-sorted-run.compaction-trigger": "3"}
    )
    model: dict[int, Any] = {}
    kept: list[tuple[int, dict[int, Any]]] = []
    pins: list[tuple[Kind, PinnedColumns]] = []
    for turn in range(24):
        if draw.random() < 0.5:
            change = drawn_change(draw, kind, 100 + turn)
            if change is not None:
                table.alter(change)
        else:
            ids = sorted(draw.sample(range(12), 3)) if key else [100 * turn + n for n in range(3)]
            new = {id: kind.drawn(draw) for id in ids}
            values = [kind.shown(one) for one in new.values()]
            table.write(pa.table({"id": ids, "c": pa.array(values, kind.arrow)}))
            model |= new
        if draw.random() < 0.2:
            kept.append((table.snapshot().id, dict(model)))
            pins.append((kind.copy(), PinnedColumns.named(table.schema, ["id", "c"], "query")))
        if draw.random() < 0.1:
            table.compact()
        if draw.random() < 0.3:
            forget_open_files()
            table = Table.open(table.path)
        assert table.schema.type_of("c") == kind.arrow
        assert found_in(table.snapshot().scan()) == expected(kind, model)
        for snapshot, then in kept:
            assert found_in(table.snapshot(snapshot).scan()) == expected(kind, then)
            changes = found_in(table.changes(snapshot), signed=True)
            state = expected(kind, then)
            state.update(changes)
            assert {row: n for row, n in state.items() if n} == expected(kind, model)
        for was, pinned in pins:
            if was.numbers() <= kind.numbers():
                read = pinned.read(table, lambda names, t=table: t.snapshot().scan(list(names)))
                assert read.schema.field("c").type == was.arrow
                assert found_in(read) == expected(was, model)
            else:
                with pytest.raises(SchemaError, match=r"field 'c\..*' *, which the query began with"):
                    pinned.read(table, lambda names, t=table: t.snapshot().scan(list(names)))
    assert [one for one in table.check(deep=True) if not one.is_information] == []


def found_in(rows: pa.Table, *, signed: bool = False) -> Counter[str]:
    counts: Counter[str] = Counter()
    for row in rows.to_pylist():
        sign = -1 if signed and row["_row_kind"].startswith("-") else 1
        counts[json.dumps([row["id"], row["c"]])] += sign
    return counts


def expected(kind: Kind, model: dict[int, Any]) -> Counter[str]:
    return Counter(json.dumps([id, kind.shown(value)]) for id, value in model.items())


def test_slices_are_reshaped_without_what_lies_beside_them() -> None:
    old = pa.list_(pa.struct([("a", pa.int64())]))
    new = pa.list_(pa.struct([("b", pa.int8())]))
    values = pa.array([[{"a": 1 << 40}], None, [], [{"a": 1}, None]], old)
    forms = form_of(old, []), form_of(new, [FieldId(("element", "b"), "a")])
    with pytest.raises(pa.ArrowInvalid):
        reshaped(values, *forms)
    for start in (1, 2, 3):
        made = reshaped(values.slice(start), *forms)
        made.validate(full=True)
        assert made.to_pylist() == [None, [], [{"b": 1}, None]][start - 1 :]
    made = reshaped(values.take(pa.array([3, 1, 0])).slice(0, 2), *forms)
    made.validate(full=True)
    assert made.to_pylist() == [[{"b": 1}, None], None]
    maps = pa.array(
        [[("x", {"a": 1 << 40})], None, [("y", None), ("z", {"a": 2})]], pa.map_(pa.string(), old.value_type)
    )
    target = pa.map_(pa.string(), new.value_type)
    forms = form_of(maps.type, []), form_of(target, [FieldId(("value", "b"), "a")])
    made = reshaped(maps.slice(1), *forms)
    made.validate(full=True)
    assert made.to_pylist() == [None, [("y", None), ("z", {"b": 2})]]
