"""A query goes on while columns of its tables get other names and wider types; it knows its checkpoint."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from itertools import cycle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from deltajoin import DeltaJoinSpec, Side
from deltajoin.aggregate.evaluate import output_schema
from deltajoin.aggregate.source import AggregateReader
from deltajoin.aggregate.spec import DeltaAggregateSpec, Measure
from deltajoin.errors import CheckpointMismatchError
from deltajoin.expressions import Call, Cast, Condition, Const, Field, Ref
from deltajoin.spark.offsets import JoinOffset
from deltajoin.spark.pinned_side import PinnedSide
from deltajoin.spark.tables import JoinedTables
from tests.deltajoin.core.memory_tables import signed
from tests.deltajoin.spark.steps import FORMS, Steps
from upsert.errors import SchemaError
from upsert.managed.options import ReadOptions
from upsert.managed.reader import ChangesReader
from upsert.schema import Column, TableSchema
from upsert.spark.columns import spark_schema
from upsert.store import Table
from upsert.store.alterations import AddColumn, Alteration, DropColumn, RenameColumn, WidenColumn
from upsert.store.read.snapshot import AtVersion
from upsert.store.version import Version

RENAMED = (RenameColumn("amount", "price"), RenameColumn("product", "sku"), RenameColumn("rate", "amount"))
WIDER = (
    WidenColumn("amount", pa.int64()),
    WidenColumn("rate", pa.float64()),
    WidenColumn("fee", pa.decimal128(12, 3)),
)
BOTH = (*WIDER, *RENAMED)
COLUMNS = ("id", "product", "amount", "rate", "fee")
TENTH = pa.scalar(0.1, pa.float32()).as_py()
"""What a FLOAT holds of 0.1, also as a DOUBLE."""
NAMES_THEN = {"price": "amount", "sku": "product", "amount": "rate"}


@pytest.fixture
def orders(tmp_path: Path) -> Table:
    columns = {"id": pa.int64(), "product": pa.int32(), "amount": pa.int32()}
    others = {"rate": pa.float32(), "fee": pa.decimal128(6, 2), "other": pa.int32()}
    schema = TableSchema.of({**columns, **others}, primary_key=["id"]).index("product")
    return Table.create(tmp_path / "orders", schema, {"bucket": "2"})


@pytest.fixture
def products(tmp_path: Path) -> Table:
    schema = TableSchema.of({"sku": pa.int64(), "name": pa.string()}, primary_key=["sku"])
    return Table.create(tmp_path / "products", schema, {"bucket": "2"})


def spec_of(orders: Table, products: Table, **changes: Any) -> DeltaJoinSpec:
    left = Side(orders.path, COLUMNS, ("product",), [("rate", "!=", TENTH)])
    right = Side(products.path, ("sku", "name"), ("sku",))
    less = Call("<", (Cast(Field(Ref(0, "amount")), pa.int64()), Const(1000, pa.int64())))
    return replace(DeltaJoinSpec.of("inner", left, right, where=less), **changes)


def put(table: Table, rows: list[tuple[Any, ...]], kinds: list[str] | None = None) -> None:
    """Rows of (id, product, amount, rate, fee) or (sku, name), whatever the columns are called by now."""
    schema = table.schema
    width = 5 if "fee" in schema.names else 2
    columns = [pa.array(column, schema.columns[n].type) for n, column in enumerate(zip(*rows, strict=True))]
    named = dict(zip(schema.names[:width], columns, strict=True))
    named |= {name: pa.nulls(len(rows), schema.type_of(name)) for name in schema.names[width:]}
    table.write(pa.table({**named, "_row_kind": kinds or ["+I"] * len(rows)}))


def filled(orders: Table, products: Table) -> None:
    put(products, [(1, "one"), (2, "two"), (3, "three")])
    put(
        orders,
        [
            (10, 1, 5, 0.5, Decimal("1.50")),
            (11, 2, 6, TENTH, Decimal("2.50")),
            (12, 3, 2000, 0.5, None),
            (13, 2, 7, 1.5, Decimal(0)),
        ],
    )


def changed(orders: Table, products: Table) -> None:
    put(products, [(2, "zwei"), (3, "three")], ["+U", "-D"])
    put(
        orders,
        [(10, 2, 8, 0.5, Decimal("1.50")), (12, 2, 4, 0.5, None), (14, 1, 4, TENTH, None)],
        ["+U", "+U", "+I"],
    )


def joined(orders: Table, products: Table) -> Counter[tuple[Any, ...]]:
    """The join by a dict, of the tables as they are now; column names do not matter here."""
    names = {row[0]: row[1] for row in rows_of(products)}
    return Counter(
        (*row[:5], row[1], names[row[1]])
        for row in rows_of(orders)
        if row[1] in names and row[2] < 1000 and row[3] != TENTH
    )


def rows_of(table: Table) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in table.snapshot().scan().columns), strict=True))


ALTERATIONS = pytest.mark.parametrize("changes", [RENAMED, WIDER, BOTH], ids=["renamed", "wider", "both"])


@ALTERATIONS
@pytest.mark.parametrize("form", FORMS)
def test_a_running_join_goes_on_with_the_names_and_types_that_it_began_with(
    orders: Table, products: Table, changes: tuple[Alteration, ...], form: str
) -> None:
    steps = Steps(JoinedTables.open(spec_of(orders, products)).located, form=form)
    filled(orders, products)
    assert steps.run() == joined(orders, products)
    began = steps.spec
    schemas = [JoinedTables.open(began).output]
    orders.alter(*changes)
    changed(orders, products)
    assert steps.run() == joined(orders, products)
    schemas.append(JoinedTables.open(began).output)
    assert schemas[0] == schemas[1]


@ALTERATIONS
def test_a_join_begun_again_under_the_new_names_has_the_new_types_and_the_same_checkpoint(
    orders: Table, products: Table, changes: tuple[Alteration, ...]
) -> None:
    steps = Steps(JoinedTables.open(spec_of(orders, products)).located)
    filled(orders, products)
    steps.run()
    orders.alter(*changes)
    changed(orders, products)
    steps.spec = JoinedTables.open(anew(orders, products, changes)).located
    steps.reader = steps.reader_of("fused")
    assert steps.run() == joined(orders, products)
    found = JoinedTables.open(steps.spec).output.types[: len(COLUMNS)]
    assert found == [orders.schema.columns[n].type for n in range(len(COLUMNS))]


def anew(orders: Table, products: Table, changes: tuple[Alteration, ...]) -> DeltaJoinSpec:
    """The same join as somebody writes it after the change: new names, and no cast that is not needed."""
    is_renamed, is_wider = changes != WIDER, changes != RENAMED
    now = {then: new for new, then in NAMES_THEN.items()} if is_renamed else {}
    select = tuple(now.get(name, name) for name in COLUMNS)
    left = Side(
        orders.path, select, (now.get("product", "product"),), [(now.get("rate", "rate"), "!=", TENTH)]
    )
    amount: Condition = Field(Ref(0, now.get("amount", "amount")))
    amount = amount if is_wider else Cast(amount, pa.int64())
    less = Call("<", (amount, Const(1000, pa.int64())))
    right = Side(products.path, ("sku", "name"), ("sku",))
    return DeltaJoinSpec.of("inner", left, right, where=less)


def test_a_value_that_the_old_type_cannot_hold_stops_the_join_by_name(orders: Table, products: Table) -> None:
    steps = Steps(JoinedTables.open(spec_of(orders, products)).located)
    filled(orders, products)
    steps.run()
    orders.alter(WidenColumn("amount", pa.int64()), WidenColumn("rate", pa.float64()))
    put(orders, [(20, 1, 2**40, 0.5, None)])
    with pytest.raises(SchemaError, match=r"table 'orders': column 'amount' was INT when the query began"):
        steps.run()
    put(orders, [(20, 1, 7, 0.1, None)])
    with pytest.raises(SchemaError, match=r"column 'rate' was FLOAT when the query began, .*\(0\.1\)"):
        steps.run()


def test_a_dropped_column_stops_the_join_by_name_and_the_others_do_not(
    orders: Table, products: Table
) -> None:
    steps = Steps(JoinedTables.open(spec_of(orders, products)).located)
    filled(orders, products)
    steps.run()
    orders.alter(DropColumn("other"), AddColumn(Column("note", pa.string())))
    changed(orders, products)
    assert steps.run() == joined(orders, products)
    orders.alter(DropColumn("fee"), AddColumn(Column("fee", pa.decimal128(6, 2))))
    with pytest.raises(
        SchemaError, match="table 'orders': column 'fee', which the query began with, must be"
    ):
        steps.run()


def test_a_column_under_the_name_of_another_one_is_another_join(orders: Table, products: Table) -> None:
    spec = spec_of(orders, products)
    before = JoinOffset(JoinedTables.open(spec).identity, (Version.EMPTY,) * 2).to_json()
    orders.alter(DropColumn("fee"), AddColumn(Column("fee", pa.decimal128(6, 2))))
    with pytest.raises(
        CheckpointMismatchError,
        match=r"it has column orders\.fee, which is gone; new is column orders\.fee; .*start_from",
    ):
        JoinOffset.of(before, JoinedTables.open(spec).identity)


def test_a_join_opened_before_a_change_is_the_join_that_it_was(orders: Table, products: Table) -> None:
    spec = spec_of(orders, products)
    before = JoinedTables.open(spec)
    orders.alter(DropColumn("fee"), AddColumn(Column("fee", pa.decimal128(6, 2))))
    assert before.identity.fingerprint != JoinedTables.open(spec).identity.fingerprint


def with_filter(spec: DeltaJoinSpec) -> DeltaJoinSpec:
    left = replace(spec.tables[0], where=[("amount", ">", 7)])
    return replace(spec, tables=(left, spec.tables[1]))


def with_condition(spec: DeltaJoinSpec) -> DeltaJoinSpec:
    less = Call("<", (Field(Ref(0, "amount")), Const(7, pa.int32())))
    return replace(spec, tree=replace(spec.tree, where=less))


def with_key(spec: DeltaJoinSpec) -> DeltaJoinSpec:
    return replace(spec, tree=replace(spec.tree, on=((Ref(0, "id"), Ref(1, "sku")),)))


def with_columns(spec: DeltaJoinSpec) -> DeltaJoinSpec:
    left = replace(spec.tables[0], select=(*COLUMNS, "other"))
    return replace(spec, tables=(left, spec.tables[1]))


def as_left_join(spec: DeltaJoinSpec) -> DeltaJoinSpec:
    left, right = (
        Side(t.path, t.select, (k,), t.where) for t, k in zip(spec.tables, ("product", "sku"), strict=True)
    )
    return DeltaJoinSpec.of("left", left, right, where=spec.tree.where)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (
            with_filter,
            r"it has filter orders: rate != 0\.1\d+, which is gone; new is filter orders: amount > 7;",
        ),
        (
            with_condition,
            r"it has condition \(cast\(t0\.amount as BIGINT\) < 1000\), which is gone; new is condition \(t0",
        ),
        (
            with_key,
            r"it has key orders\.product = products\.sku, which is gone; new is key orders\.id = products",
        ),
        (with_columns, r"\]: new is column orders\.other;"),
        (as_left_join, r"inner\(orders, products\), which is gone; new is join left\(orders, products\);"),
    ],
)
def test_the_checkpoint_of_another_join_is_refused_with_what_differs(
    orders: Table, products: Table, other: Callable[[DeltaJoinSpec], DeltaJoinSpec], said: str
) -> None:
    spec = spec_of(orders, products)
    before = JoinOffset(JoinedTables.open(spec).identity, (Version.EMPTY,) * 2).to_json()
    with pytest.raises(CheckpointMismatchError, match=said):
        JoinOffset.of(before, JoinedTables.open(other(spec)).identity)


def test_checkpoints_of_release_0_1_go_on_also_after_a_rename(orders: Table, products: Table) -> None:
    """Their fingerprint is of names, and of columns that were altered when it was written."""
    spec = spec_of(orders, products)
    uuids = [orders.uuid, products.uuid]
    written = {"join": str(spec), "tables": uuids, "versions": [Version.EMPTY.to_json()] * 2}
    of_names = {**written, "fingerprint": "ac6e372c6e4d8179"}
    of_altered = {**written, "fingerprint": "7a6790c87204ac28"}
    JoinOffset.of(of_names, JoinedTables.open(spec).identity)
    orders.alter(WidenColumn("fee", pa.decimal128(12, 3)))  # after which that release gave the second one
    for offset in (of_names, of_altered):
        JoinOffset.of(offset, JoinedTables.open(spec).identity)
    orders.alter(*RENAMED)
    for offset in (of_names, of_altered):
        JoinOffset.of(offset, JoinedTables.open(anew(orders, products, RENAMED)).identity)
    with pytest.raises(CheckpointMismatchError, match="keys, columns and filters must be the same"):
        JoinOffset.of(
            {**written, "fingerprint": "0" * 16}, JoinedTables.open(anew(orders, products, RENAMED)).identity
        )


def aggregate_of(orders: Table, product: str = "product", amount: str = "amount") -> DeltaAggregateSpec:
    less = Call("<", (Field(Ref(0, amount)), Const(1000, pa.int32())))
    return DeltaAggregateSpec(
        orders.path, (product,), (Measure("max", (amount,)), Measure("count", ())), less
    )


def aggregate_reader(spec: DeltaAggregateSpec) -> AggregateReader:
    table = Table.open(spec.path)
    schema = PinnedSide(table, spec.began).schema if spec.began else table.schema
    asked = spark_schema(TableSchema.of(output_schema(spec, schema)), row_kind=True)
    return AggregateReader(spec, asked)


def begun(spec: DeltaAggregateSpec) -> DeltaAggregateSpec:
    schema = Table.open(spec.path).schema
    return replace(spec, began=tuple(schema.column(name) for name in spec.read))


def step(reader: Any, offset: dict[str, Any]) -> tuple[dict[str, Any], Counter[tuple[Any, ...]]]:
    end = reader.latestOffset(offset, ReadAllAvailable())
    read = [batch for part in reader.partitions(offset, end) for batch in reader.read(part)]
    rows = [row for batch in read for row in zip(*map(pa.Array.to_pylist, batch.columns), strict=True)]
    return end, signed(rows)


def grouped(orders: Table) -> Counter[tuple[Any, ...]]:
    groups: dict[Any, list[int]] = {}
    for row in rows_of(orders):
        if row[2] < 1000:
            groups.setdefault(row[1], []).append(row[2])
    return Counter((key, max(values), len(values)) for key, values in groups.items())


@ALTERATIONS
@pytest.mark.parametrize("is_restarted", [False, True], ids=["running", "restarted"])
def test_an_aggregate_by_lookups_goes_on(
    orders: Table, products: Table, changes: tuple[Alteration, ...], is_restarted: bool
) -> None:
    reader = aggregate_reader(begun(aggregate_of(orders)))
    filled(orders, products)
    offset, emitted = step(reader, reader.initialOffset())
    assert emitted == grouped(orders)
    orders.alter(*changes)
    changed(orders, products)
    if is_restarted:
        names = ("sku", "price") if changes != WIDER else ()
        reader = aggregate_reader(begun(aggregate_of(orders, *names)))
    _, more = step(reader, offset)
    emitted.update(more)
    assert Counter({row: count for row, count in emitted.items() if count}) == grouped(orders)


def test_the_checkpoint_of_another_aggregate_is_refused_with_what_differs(orders: Table) -> None:
    spec = aggregate_of(orders)
    offset = aggregate_reader(spec).initialOffset()
    other = replace(spec, measures=(Measure("min", ("amount",)), Measure("count", ())), where=None)
    with pytest.raises(
        CheckpointMismatchError,
        match=r"it has result max\(amount\), filter \(t0\.amount < 1000\), which are gone; new is result min",
    ):
        aggregate_reader(other).latestOffset(offset, ReadAllAvailable())


def test_checkpoints_of_an_aggregate_of_release_0_1_go_on(orders: Table) -> None:
    spec = aggregate_of(orders)
    inner = {n: v for n, v in aggregate_reader(spec).initialOffset().items() if n in ("table", "version")}
    offset = {**inner, "aggregate": str(spec), "fingerprint": "ffa19f8ac6b8815b"}
    aggregate_reader(spec).latestOffset(offset, ReadAllAvailable())
    orders.alter(*RENAMED)
    aggregate_reader(aggregate_of(orders, "sku", "price")).latestOffset(offset, ReadAllAvailable())


@ALTERATIONS
@pytest.mark.parametrize("options", [{}, {"where": f'[["rate", "!=", {TENTH}]]'}], ids=["all", "where"])
def test_a_stream_of_changes_goes_on(
    orders: Table, products: Table, changes: tuple[Alteration, ...], options: dict[str, str]
) -> None:
    asked: StructType = spark_schema(orders.schema, row_kind=True)
    reader = ChangesReader(ReadOptions(orders.path, **options), asked)  # type: ignore[arg-type]
    filled(orders, products)
    offset, emitted = step(reader, reader.initialOffset())
    orders.alter(*changes)
    changed(orders, products)
    _, more = step(reader, offset)
    emitted.update(more)
    expected = [row for row in rows_of(orders) if not options or row[3] != TENTH]
    assert Counter({row: count for row, count in emitted.items() if count}) == Counter(expected)


def test_lookups_find_their_columns_that_another_thread_renames_as_they_begin(
    orders: Table, products: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(orders, products)
    side = PinnedSide(orders, orders.schema.columns)
    images = pa.schema([(column.name, column.type) for column in side.columns])
    version = Version.complete(orders.snapshot().info.id)
    at, swap = Table.at, [("product", "new"), ("amount", "product"), ("new", "amount")]

    def altered_then(table: Table, version: Version) -> AtVersion:
        found = at(table, version)
        while swap:
            table.alter(RenameColumn(*swap.pop(0)))
        return found

    monkeypatch.setattr(Table, "at", altered_then)
    keys = pa.table({"product": pa.array([7, 3], pa.int32())})
    positions, rows = side.match(version, None, images)(["product"], keys, ["id", "amount"])
    assert (positions.tolist(), rows.to_pydict()) == ([1], {"id": [12], "amount": [2000]})


def test_keys_have_their_names_while_another_thread_swaps_these(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look at the table gives another definition."""
    schema = TableSchema.of({name: pa.int64() for name in "abc"}, primary_key=["a", "b"])
    table = Table.create(tmp_path / "t", schema)
    side = PinnedSide(table, table.schema.columns)
    before = table.definition
    table.alter(RenameColumn("b", "new"), RenameColumn("c", "b"), RenameColumn("new", "c"))
    seen = cycle([before, table.definition, table.definition])
    monkeypatch.setattr(Table, "definition", property(lambda _: next(seen)))
    assert {(side.primary_key, side.bucket_key) for _ in range(4)} == {(("a", "b"), ("a", "b"))}
