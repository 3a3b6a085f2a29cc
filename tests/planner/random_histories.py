"""Random histories of tables, and queries streamed over them with limits, restarts and forms of joins.

After each step of a history, what the stream has given must be what Spark's batch gives for the same query.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import hypothesis
import pyarrow as pa
from hypothesis import HealthCheck, Phase, given
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

import planner
from planner import PlanError
from planner.join_reports import blurred
from tests.helpers import of_kind
from tests.planner.in_steps import by_session, joined_in_steps, local, step_of, versions_of
from tests.planner.random_queries import SCHEMAS, GroupedQuery, grouped_queries, queries
from tests.planner.test_queries import Rows, in_one
from upsert.catalog.context import Unnested
from upsert.managed import frames
from upsert.rowkind import ROW_KIND_COLUMN, RowKind
from upsert.store import Table
from upsert.store.alterations import SetOptions

_KEY = st.none() | st.integers(0, 4)
_TIMES = (datetime(2024, 2, 29), datetime(2024, 3, 1, 0, 0, 0, 1), datetime(1, 1, 1), datetime(9999, 12, 31))
_VALUES = {
    "id": st.integers(0, 12),
    "v": st.sampled_from([None, 0.0, -0.0, math.nan, math.inf, 0.5, 1.0]),
    "s": st.sampled_from([None, "x", "X", "yy", "z", "x "]),
    "e": st.sampled_from([None, Decimal("1.00"), Decimal("2.50"), Decimal("-9999999.99")]),
    "d": st.sampled_from([None, *(time.date() for time in _TIMES)]),
    "t": st.sampled_from([None, *(time.replace(tzinfo=UTC) for time in _TIMES)]),
    "y": st.sampled_from([None, b"", b"\0", b"\xff\0"]),
    "o": st.sampled_from([None, True, False]),
}

Changes = Mapping[str, Sequence[dict[str, Any]]]


def _rows(name: str) -> st.SearchStrategy[list[dict[str, Any]]]:
    schema = SCHEMAS[name]
    values = {c.name: _VALUES.get(c.name, _KEY) for c in schema.columns}
    values |= {column: st.integers(0, 12) for column in schema.primary_key}
    row = st.fixed_dictionaries(values)
    key = schema.primary_key
    unique = (lambda one: tuple(one[column] for column in key)) if key else None
    return st.lists(row, max_size=12, unique_by=unique)


CHANGES = st.fixed_dictionaries({name: _rows(name) for name in SCHEMAS})
"""Rows of all tables."""


@dataclass(frozen=True)
class Run:
    """How a stream is run over one step of a history: each is a start from the checkpoint.

    Attributes:
        max_rows: rows of a table that a micro-batch reads at most; it begins with the first run.
        form: of its joins.
        shards: of its joins.
        silent: tables that do not change in this step.
        buckets: tables that get another number of buckets between their deletions and their insertions.
    """

    max_rows: int
    form: str
    shards: int
    silent: frozenset[str]
    buckets: Mapping[str, int] = field(default_factory=dict)


_RUNS = st.builds(
    Run,
    st.sampled_from([4, 1000]),
    st.sampled_from(["fused", "shuffled"]),
    st.integers(1, 3),
    st.frozensets(st.sampled_from(sorted(SCHEMAS)), max_size=2),
    st.dictionaries(st.sampled_from(sorted(SCHEMAS)), st.integers(1, 3), max_size=2),
)


@dataclass(frozen=True)
class History:
    """Changes of all tables, step by step, how the streams run over each, and how tables are stored."""

    steps: tuple[tuple[Changes, Run], ...]
    buckets: int

    @classmethod
    def of(cls, changes: Sequence[Changes], runs: Sequence[Run], buckets: int) -> "History":
        """The history of these changes and runs."""
        return cls(tuple(zip(changes, runs, strict=True)), buckets)


T = TypeVar("T")


def drawn(strategy: st.SearchStrategy[T], seed: int) -> T:
    """A value of a strategy, by chance: the first example of Hypothesis is the simplest that there is."""
    found: list[T] = []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=2,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def draw(value: T) -> None:
        found.append(value)

    draw()
    return found[-1]


def histories(steps: int) -> st.SearchStrategy[History]:
    """Histories of so many steps."""
    changes, runs = (st.lists(each, min_size=steps, max_size=steps) for each in (CHANGES, _RUNS))
    return st.builds(History.of, changes, runs, st.integers(1, 2))


@dataclass
class Found:
    """What comparisons have found: how much was compared, and what was wrong."""

    queries: int = 0
    micro_batches: int = 0
    compared: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


class Warehouse:
    """The tables of a history in a folder."""

    def __init__(self, spark: SparkSession, history: History, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        options = {"bucket": str(history.buckets)}
        self.tables = {name: Table.create(folder / name, schema, options) for name, schema in SCHEMAS.items()}

    def change(self, rows: Changes, run: Run) -> None:
        """Take some rows away, then write others: those of equal keys are updates."""
        for name, table in self.tables.items():
            if name not in run.silent:
                write(table, table.snapshot().scan().to_pylist()[::3], "-D")
                if name in run.buckets:
                    table.alter(SetOptions({"bucket": str(run.buckets[name])}))
                write(table, rows[name], "+I")

    def view_changes(self, max_rows: int) -> None:
        """Make the tables' names those of their changes."""
        for name, table in self.tables.items():
            changes = frames.read_changes(self.spark, table.path, max_rows_per_trigger=max_rows)
            changes.createOrReplaceTempView(name)

    def view_rows(self) -> None:
        """Make the tables' names those of their present rows."""
        for name, table in self.tables.items():
            local(self.spark, table).createOrReplaceTempView(name)

    def stream_of(self, text: str) -> DataFrame:
        """The query over the tables' changes, which are in view; with its subqueries as joins."""
        return streamed(self.spark, text, {name: table.path for name, table in self.tables.items()})


def streamed(spark: SparkSession, text: str, paths: Mapping[str, str]) -> DataFrame:
    """A query over the changes of tables, as a catalog makes it of a text with subqueries."""
    if "EXISTS (" not in text and " IN (SELECT" not in text:
        return spark.sql(text)
    streams = {name: partial(frames.read_changes, spark, path) for name, path in paths.items()}
    views = {name: spark.table(name) for name in streams}
    for name, view in views.items():
        spark.createDataFrame([], view.schema).createOrReplaceTempView(name)
    try:
        return planner.optimize(spark.sql(text), request=Unnested(streams))
    finally:
        for name, view in views.items():
            view.createOrReplaceTempView(name)


def write(table: Table, rows: Sequence[dict[str, Any]], kind: str) -> None:
    """Commit rows, all of one kind; nothing if there are none."""
    if rows:
        table.write(of_kind(pa.Table.from_pylist(list(rows), schema=table.schema.arrow), kind))


def compare_in_steps(warehouse: Warehouse, texts: Sequence[str], history: History, found: Found) -> None:
    """Step queries without a stream, as `tests.planner.in_steps`, from commit to commit of the tables."""
    spark, texts, ends = warehouse.spark, tuple(dict.fromkeys(texts)), []
    for rows, run in history.steps:
        for name in warehouse.tables:
            warehouse.change(rows, replace(run, silent=run.silent | (warehouse.tables.keys() - {name})))
            ends.append(versions_of([*warehouse.tables.values()]))
    warehouse.view_changes(1000)
    with joined_in_steps(ends):
        planned = _planned(warehouse, texts, found, "force")
        if not planned:
            return
        changes = in_one(planned).collect()
    net: dict[str, Rows] = {text: Counter() for text in planned}
    for number, end in enumerate(ends):
        found.micro_batches += 1
        for text, row, marked in changes:
            kind, step = step_of(marked)
            if step == number:
                net[text][row] += kind.sign
        for name, table in warehouse.tables.items():
            local(spark, table, end[table.path]).createOrReplaceTempView(name)
        _compare_all(warehouse, number, net, found)


def _planned(warehouse: Warehouse, texts: Sequence[str], found: Found, strategy: str) -> dict[str, DataFrame]:
    """The queries that can be planned by this strategy, as they are then."""
    planned = {text: _optimized(warehouse, text, strategy) for text in texts}
    found.queries += len(texts)
    found.refused.update(refusal for refusal in planned.values() if isinstance(refusal, str))
    return {text: df for text, df in planned.items() if not isinstance(df, str)}


def _compare_all(warehouse: Warehouse, step: int, net: Mapping[str, Rows], found: Found) -> None:
    """Compare what streams have given so far with the same queries over the rows that are in view."""
    wanted: dict[str, Rows] = {text: Counter() for text in net}
    for text, row, _ in in_one({text: warehouse.spark.sql(text) for text in net}).collect():
        wanted[text][row] += 1
    for text in net:
        _compare(found, step, text, {row: n for row, n in net[text].items() if n}, wanted[text])


def compare_joins(warehouse: Warehouse, texts: Sequence[str], history: History, found: Found) -> None:
    """Stream queries as one, and compare the net of what it gives after each step."""
    texts = tuple(dict.fromkeys(texts))
    warehouse.view_changes(1000)
    known = _planned(warehouse, texts, found, "auto")
    if not known:
        return
    is_net = {text for text in known if not blurred(planner.explain(warehouse.stream_of(text)).after)}
    net: dict[str, Rows] = {text: Counter() for text in known}
    opposites: list[tuple[str, str]] = []

    def take(batch: DataFrame, _: int) -> None:
        found.micro_batches += 1
        signs: dict[tuple[str, str], set[int]] = {}
        for text, row, kind in batch.collect():
            net[text][row] += RowKind(kind).sign
            signs.setdefault((text, row), set()).add(RowKind(kind).sign)
        opposites.extend(key for key, both in signs.items() if len(both) > 1 and key[0] in is_net)

    for number, (rows, run) in enumerate(history.steps):
        warehouse.change(rows, run)
        warehouse.view_changes(history.steps[0][1].max_rows)
        options = {"physical": run.form, "shards": run.shards}
        df = in_one({text: by_session(warehouse.stream_of(text), **options) for text in known})
        writer = df.writeStream.foreachBatch(take).trigger(availableNow=True)
        writer.option("checkpointLocation", str(warehouse.folder / "joins")).start().awaitTermination()
        warehouse.view_rows()
        _compare_all(warehouse, number, net, found)
    found.wrong += [
        f"a row came with both signs in one micro-batch: {text}: {row}" for text, row in opposites
    ]


def compare_aggregate(warehouse: Warehouse, query: GroupedQuery, history: History, found: Found) -> None:
    """Stream an aggregate, keep the newest row of each group, and compare these after each step."""
    spark = warehouse.spark
    found.queries += 1
    warehouse.view_changes(1000)
    if isinstance(refusal := _optimized(warehouse, query.sql, "auto"), str):
        found.refused[refusal] += 1
        return
    groups: dict[tuple[Any, ...], Any] = {}

    def take(batch: DataFrame, _: int) -> None:
        found.micro_batches += 1
        kind_of = batch.columns.index(ROW_KIND_COLUMN)
        for row in sorted(_collected(batch), key=lambda one: RowKind(one[kind_of]).sign):
            key, kind = tuple(map(repr, row[: query.groups])), RowKind(row[kind_of])
            if kind.sign > 0:
                groups[key] = repr(row[:-1])
            else:
                groups.pop(key, None)

    for number, (rows, run) in enumerate(history.steps):
        warehouse.change(rows, run)
        warehouse.view_changes(history.steps[0][1].max_rows)
        df = by_session(warehouse.stream_of(query.sql), shards=run.shards)
        writer = df.writeStream.outputMode("update").foreachBatch(take).trigger(availableNow=True)
        writer.option("checkpointLocation", str(warehouse.folder / "groups")).start().awaitTermination()
        warehouse.view_rows()
        wanted = Counter(map(repr, _collected(spark.sql(query.sql))))
        _compare(found, number, query.sql, Counter(groups.values()), wanted)


def _collected(df: DataFrame) -> list[tuple[Any, ...]]:
    """Rows, also of the first day of year 1, which Spark's own rows of Python cannot have."""
    return list(zip(*(column.to_pylist() for column in df.toArrow().columns), strict=True))


def _compare(found: Found, step: int, text: str, given: Mapping[Any, int], wanted: Mapping[Any, int]) -> None:
    found.compared += 1
    if given != wanted:
        more = {row: n for row, n in given.items() if wanted.get(row) != n}
        less = {row: n for row, n in wanted.items() if given.get(row) != n}
        found.wrong.append(f"step {step}: {text}: stream {more!r}, batch {less!r}")


def _optimized(warehouse: Warehouse, text: str, strategy: str) -> DataFrame | str:
    """What a query becomes; or the reason why it is refused, without its names."""
    return optimized_or_refused(lambda: by_session(warehouse.stream_of(text), strategy=strategy, shards=1))


def optimized_or_refused(optimized: Callable[[], DataFrame]) -> DataFrame | str:
    """What an optimized query is; or the reason why it is refused, one of the `KNOWN_REFUSALS`."""
    try:
        return optimized()
    except PlanError as refused:
        for reason in KNOWN_REFUSALS:
            if reason in str(refused):
                return reason
        raise


KNOWN_REFUSALS = (
    "for no column of its table is never NULL",
    "must hold inside the delta join",
    "no equality between",
    "compares a key that is computed",
    "NOT IN takes no row",
    "a subquery of the query cannot become a join",
    "its table lies a union",
    "no index of",
    "a delta join takes 8 at most",
    "Spark's own join is right over changes only if",
    "so the rows of a group that changes must be looked up",
    "groups by what can change",
    "Stream-stream join without equality",
)
"""Reasons that a random query may be refused for; any other one is an error."""


__all__ = [
    "Found",
    "History",
    "Run",
    "Warehouse",
    "compare_aggregate",
    "compare_in_steps",
    "compare_joins",
    "drawn",
    "grouped_queries",
    "histories",
    "optimized_or_refused",
    "queries",
    "streamed",
]
