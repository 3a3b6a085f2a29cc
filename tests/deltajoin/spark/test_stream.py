"""The join as a Spark stream: micro-batches, restarts, replays, a killed driver, several executors."""

import datetime as dt
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from deltajoin import CheckpointMismatchError, DeltaJoinSpec, Side, reached, read_join
from deltajoin.expressions import Ref
from deltajoin.spark.source import register
from deltajoin.spec import JoinedTable
from deltajoin.tree import Leaf, Outer
from tests.deltajoin.core.memory_tables import Rows, signed
from tests.deltajoin.spark import join_script
from tests.deltajoin.spark.cases import halves, load
from tests.deltajoin.spark.steps import joined_by, multiset_of
from tests.helpers import LOCAL_CLUSTER, changelog, lent, run_spark_script, spark_script
from upsert.errors import ConfigurationError
from upsert.schema import TableSchema
from upsert.store.table import Table

pytestmark = pytest.mark.spark

SCRIPT = Path(join_script.__file__)
ORDERS = TableSchema.of({"id": pa.int64(), "product": pa.int32(), "note": pa.string()}, primary_key=["id"])
PRODUCTS = TableSchema.of({"code": pa.int64(), "name": pa.string()}, primary_key=["code"])
LABELS = TableSchema.of({"name": pa.string(), "label": pa.string()}, primary_key=["name"])


def make_tables(folder: Path) -> tuple[Table, Table, DeltaJoinSpec]:
    """Empty orders and products in two buckets each, and their join."""
    orders = Table.create(folder / "orders", ORDERS.index("product"), {"bucket": "2"})
    products = Table.create(folder / "products", PRODUCTS, {"bucket": "2"})
    left = Side(orders.path, ("id", "product", "note"), ("product",))
    right = Side(products.path, ("code", "name"), ("code",))
    return orders, products, DeltaJoinSpec.of("inner", left, right, shards=2)


FORMS = ("fused", "shuffled", "stateful")
LONG_FORMS = [
    "fused",
    pytest.param("shuffled", marks=pytest.mark.long),
    pytest.param("stateful", marks=pytest.mark.long),
]
Sink = Callable[[DataFrame, int], None]
Run = Callable[..., None]


class Collected:
    """What a query has emitted, by micro-batch; a batch that is done again must be the same."""

    def __init__(self) -> None:
        self.batches: dict[int, Rows] = {}
        self.replayed: list[int] = []

    def __call__(self, rows: DataFrame, batch: int) -> None:
        emitted = signed([tuple(row) for row in rows.collect()])
        if batch in self.batches:
            assert self.batches[batch] == emitted
            self.replayed.append(batch)
        self.batches[batch] = emitted

    @property
    def total(self) -> Rows:
        """The sum of all micro-batches."""
        return total([self])


def total(sinks: Iterable[Collected]) -> Rows:
    """The sum of all micro-batches of several queries."""
    rows: Rows = Counter()
    for sink in sinks:
        for emitted in sink.batches.values():
            rows.update(emitted)
    return Counter({row: weight for row, weight in rows.items() if weight})


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path) -> Run:
    """Runs a join until it has read all that is there, with the same checkpoint unless told otherwise."""

    def run(
        spec: DeltaJoinSpec, sink: Sink, form: str = "auto", checkpoint: str = "checkpoint", **options: Any
    ) -> None:
        writer = read_join(spark, spec, form, **options).writeStream.foreachBatch(sink)
        query = writer.option("checkpointLocation", str(tmp_path / checkpoint)).start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    return run


def truth(spec: DeltaJoinSpec) -> Rows:
    """The join of both tables as they are now."""
    left, right = (Table.open(side.path).snapshot().scan() for side in spec.tables)
    return joined_by(spec, left, right)


@pytest.mark.parametrize(
    ("form", "other"),
    [("fused", "shuffled"), pytest.param("shuffled", "fused", marks=pytest.mark.long)],
)
def test_restarted_and_replayed_stream_is_the_join(run: Run, tmp_path: Path, form: str, other: str) -> None:
    """The form changes at each restart; once the crash came before Spark had logged the batch as done."""
    orders, products, spec = make_tables(tmp_path)
    sink = Collected()
    orders.write(changelog(ORDERS.arrow, "+I 1 7 a", "+I 2 8 b", "+I 3 NULL c", "+I 4 7 d"))
    products.write(changelog(PRODUCTS.arrow, "+I 7 apple", "+I 9 pear"))
    run(spec, sink, form)
    assert sink.total == truth(spec)
    change(orders, products)
    run(spec, sink, other)
    assert sink.total == truth(spec)
    last = max(sink.batches)
    for log in (tmp_path / "checkpoint" / "commits").glob(f"*{last}*"):
        log.unlink()
    orders.write(changelog(ORDERS.arrow, "+I 5 8 e"))
    run(replace(spec, shards=3, max_rows_per_trigger=1), sink, form)
    assert sink.replayed == [last]
    assert sink.total == truth(spec)


def change(orders: Table, products: Table) -> None:
    """Changes of all kinds on both sides."""
    orders.write(changelog(ORDERS.arrow, "-D 1 7 a", "+U 2 9 b", "+U 4 7 dd"))
    products.write(changelog(PRODUCTS.arrow, "+U 7 apricot", "-D 9 pear", "+I 8 plum"))


@pytest.mark.long
def test_a_new_checkpoint_goes_on_where_another_one_is(run: Run, spark: SparkSession, tmp_path: Path) -> None:
    """For Spark lets no query begin or end to be stateful; nothing is missed, and nothing comes twice."""
    orders, products, spec = make_tables(tmp_path)
    sinks = [Collected() for _ in range(3)]
    orders.write(changelog(ORDERS.arrow, "+I 1 7 a", "+I 2 8 b", "+I 4 7 d"))
    products.write(changelog(PRODUCTS.arrow, "+I 7 apple", "+I 9 pear"))
    run(spec, sinks[0], "shuffled")
    start = reached(spark, str(tmp_path / "checkpoint"), spec)
    change(orders, products)
    run(spec, sinks[1], "stateful", "second", start=start)
    orders.write(changelog(ORDERS.arrow, "-D 4 7 dd", "+I 5 8 e"))
    run(spec, sinks[1], "stateful", "second", start=start)
    assert total(sinks) == truth(spec)
    start = reached(spark, str(tmp_path / "second"), spec)
    products.write(changelog(PRODUCTS.arrow, "-D 8 plum"))
    run(spec, sinks[2], "fused", "third", start=start)
    assert all(sink.batches for sink in sinks)
    assert total(sinks) == truth(spec)


def test_a_checkpoint_is_gone_on_from_only_when_it_is_finished_and_the_joins_own(
    run: Run, spark: SparkSession, tmp_path: Path
) -> None:
    orders, products, spec = make_tables(tmp_path)
    orders.write(changelog(ORDERS.arrow, "+I 1 7 a"))
    products.write(changelog(PRODUCTS.arrow, "+I 7 apple"))
    checkpoint = str(tmp_path / "checkpoint")
    with pytest.raises(CheckpointMismatchError, match="found no micro-batch there; correct the path"):
        reached(spark, checkpoint, spec)
    run(spec, Collected())
    narrow = replace(spec.tables[0], select=("id", "product"))
    other = replace(spec, tables=(narrow, spec.tables[1]))
    with pytest.raises(CheckpointMismatchError, match="must have this join once, it has: orders"):
        reached(spark, checkpoint, other)
    (tmp_path / "checkpoint" / "commits" / "0").unlink()
    with pytest.raises(CheckpointMismatchError, match="planned is 0, finished is none"):
        reached(spark, checkpoint, spec)


def test_unknown_forms_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    _, _, spec = make_tables(tmp_path)
    with pytest.raises(ConfigurationError, match=r"physical must be one of auto, fused.*got 'fast'"):
        read_join(spark, spec, "fast")
    with pytest.raises(ConfigurationError, match=r"first_load must be one of .*got 'never'"):
        read_join(spark, spec, first_load="never")
    for lease in (-1, float("inf"), "5"):
        with pytest.raises(ConfigurationError, match=rf"lease_s must be a number of seconds.*got {lease!r}"):
            read_join(spark, spec, lease_s=lease)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name", ["delete_on_both_sides", pytest.param("equal_keys_without_primary_key", marks=pytest.mark.long)]
)
def test_cases_run_as_streams(name: str, run: Run, tmp_path: Path) -> None:
    case = load(name, tmp_path)
    sink = Collected()
    for commit in halves(case):
        case.commit(commit)
        run(case.spec, sink)
        assert sink.total == case.truth()


@pytest.mark.parametrize("form", ["fused", "stateful", pytest.param("shuffled", marks=pytest.mark.long)])
def test_every_column_type_comes_through(run: Run, tmp_path: Path, form: str) -> None:
    """Exact values, where a detour over pandas would make floats of integers, and NULL of NaN."""
    value = pa.struct([pa.field("n", pa.int32()), pa.field("words", pa.list_(pa.string()))])
    schema = TableSchema.of(
        {
            "id": pa.int64(),
            "flag": pa.bool_(),
            "tiny": pa.int8(),
            "big": pa.int64(),
            "real": pa.float32(),
            "double": pa.float64(),
            "money": pa.decimal128(20, 4),
            "day": pa.date32(),
            "at": pa.timestamp("us", tz="UTC"),
            "local": pa.timestamp("us"),
            "raw": pa.binary(),
            "nested": value,
            "counts": pa.map_(pa.string(), pa.int64()),
        },
        primary_key=["id"],
    )
    now = dt.datetime(9999, 12, 30, 23, 59, 59, 999999)
    values = (
        True,
        -5,
        2**62 + 1,
        0.5,
        float("nan"),
        Decimal("1234567890123456.7891"),
        dt.date(1582, 10, 15),
        now.replace(tzinfo=dt.UTC),
        now,
        b"\x00\xff",
        {"n": 1, "words": ["a", None]},
        [("x", 1)],
    )
    rows = [(1, *values), (2, *[None] * len(values))]
    columns = list(zip(*rows, strict=True))
    arrays = [pa.array(c, f.type) for c, f in zip(columns, schema.arrow, strict=True)]
    tables = [Table.create(tmp_path / name, schema) for name in ("left", "right")]
    for table in tables:
        table.write(pa.table(arrays, schema=schema.arrow))
    left, right = (Side(table.path, schema.names, ("id",)) for table in tables)
    seen: list[dict[str, Any]] = []
    # collected as Arrow: Python's own rows cannot hold the year 9999 in every time zone
    spec = DeltaJoinSpec.of("inner", left, right)
    run(spec, lambda frame, _: seen.extend(frame.toArrow().to_pylist()), form)
    wanted = tables[0].snapshot().scan().to_pylist()
    for emitted, row in zip(sorted(seen, key=lambda r: r["t0_id"]), wanted, strict=True):
        for prefix in ("t0_", "t1_"):
            found = {name: emitted[prefix + name] for name in schema.names}
            assert repr(found) == repr(row)


@pytest.mark.parametrize("form", LONG_FORMS)
def test_a_tree_of_three_tables_is_joined(run: Run, tmp_path: Path, form: str) -> None:
    """(orders left join products) left join labels by another key: no one key shards them all."""
    orders, _, _ = make_tables(tmp_path)
    products = Table.create(tmp_path / "named", PRODUCTS.index("name"))
    labels = Table.create(tmp_path / "labels", LABELS)
    on = (Ref(0, "product"), Ref(1, "code")), (Ref(1, "name"), Ref(2, "name"))
    tree = Outer("left", Outer("left", Leaf(0), Leaf(1), on[:1]), Leaf(2), on[1:])
    tables = (
        JoinedTable(orders.path, ("id", "product")),
        JoinedTable(products.path, ("code", "name")),
        JoinedTable(labels.path, ("name", "label")),
    )
    spec = DeltaJoinSpec(tables, tree, present=(1, 2), shards=2)
    sink = Collected()
    labels.write(changelog(LABELS.arrow, "+I apple red", "+I plum blue"))
    run(spec, sink, form)
    assert sink.batches == {0: {}}, "a first load with nothing to join"
    orders.write(changelog(ORDERS.arrow, "+I 1 7 a", "+I 2 8 b", "+I 3 NULL c"))
    products.write(changelog(PRODUCTS.arrow, "+I 7 apple"))
    run(spec, sink, form)
    nothing = (None, None)
    assert sink.total == {
        (1, 7, 7, "apple", "apple", "red", True, True): 1,
        (2, 8, *nothing, *nothing, False, False): 1,
        (3, None, *nothing, *nothing, False, False): 1,
    }
    products.write(changelog(PRODUCTS.arrow, "+I 8 plum", "-D 7 apple"))
    labels.write(changelog(LABELS.arrow, "-D apple red", "+U plum black"))
    run(spec, sink, form)
    assert sink.batches[max(sink.batches)] == {
        (1, 7, 7, "apple", "apple", "red", True, True): -1,
        (1, 7, *nothing, *nothing, False, False): 1,
        (2, 8, *nothing, *nothing, False, False): -1,
        (2, 8, 8, "plum", "plum", "black", True, True): 1,
    }


def test_an_error_of_the_source_names_what_is_wrong(run: Run, tmp_path: Path) -> None:
    """A commit that no change stream shows stops the query, and the message reaches the user."""
    orders, products, spec = make_tables(tmp_path)
    orders.write(changelog(ORDERS.arrow, "+I 1 7 a"))
    products.write(changelog(PRODUCTS.arrow, "+I 7 apple"))
    run(spec, Collected())
    products.commit([products.stage(changelog(PRODUCTS.arrow, "+I 8 plum"), order="rows")], tracked=False)
    with pytest.raises(StreamingQueryException, match=r"UntrackedChangesError.*'products'"):
        run(spec, Collected())


def prepared(folder: Path, max_rows: int) -> tuple[DeltaJoinSpec, list[object]]:
    """Two empty tables, an empty sink keyed by the pair, and the script's arguments."""
    _, _, spec = make_tables(folder)
    spec = replace(spec, max_rows_per_trigger=max_rows)
    columns = {f"t0_{c.name}": c.type for c in ORDERS.columns}
    columns |= {f"t1_{c.name}": c.type for c in PRODUCTS.columns}
    pairs = TableSchema.of(columns, primary_key=["t0_id", "t1_code"])
    sink = Table.create(folder / "sink", pairs, {"bucket": "2"})
    (folder / "spec.json").write_text(spec.to_json())
    return spec, [folder / "spec.json", sink.path, folder / "checkpoint"]


def rows_in(sink: object, spec: DeltaJoinSpec) -> Rows:
    """What the sink holds."""
    return multiset_of(Table.open(str(sink)).snapshot().scan(), spec.columns)


def kill_with_children(process: subprocess.Popen[str]) -> None:
    """SIGKILL for the driver and the JVM that it started: nobody finishes what was begun."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    for pid in (process.pid, *map(int, children)):
        os.kill(pid, signal.SIGKILL)
    process.wait()


@pytest.mark.parametrize(
    ("form", "where"),
    [
        ("fused", "here"),
        *(pytest.param(form, "executors", marks=pytest.mark.long) for form in (*FORMS, "regular")),
    ],
)
def test_sink_equals_the_join_although_the_driver_was_killed_and_went_on_elsewhere(
    spark: SparkSession, tmp_path: Path, form: str, where: str
) -> None:
    """In this session, or with several executors."""
    spec, arguments = prepared(tmp_path, max_rows=200)
    process = spark_script(SCRIPT, *arguments, form)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("finished 1"):
            break
    kill_with_children(process)
    if where == "executors":
        run_spark_script(SCRIPT, *arguments, form, master=LOCAL_CLUSTER)
    else:
        with lent(spark):
            join_script.main(*map(str, arguments), form)
    assert rows_in(arguments[1], spec) == truth(spec)
    assert truth(spec).total() > 50


def test_each_session_knows_the_format_whichever_is_active(spark: SparkSession) -> None:
    def knows(session: SparkSession) -> bool:
        return session._jsparkSession.sessionState().dataSourceManager().dataSourceExists("delta-join")

    first, second = spark.newSession(), spark.newSession()
    register(first)
    first.createDataFrame([], "a INT")  # which makes it the active one
    assert not knows(second)
    register(second)
    assert knows(second)
