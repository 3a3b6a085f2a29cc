"""Delta joins through the store: random tables and changes, steps of any size, against recomputing."""

from collections import Counter
from dataclasses import dataclass, field
from random import Random
from tempfile import TemporaryDirectory

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from deltajoin import DeltaJoinSpec, Side
from tests.deltajoin.core.memory_tables import Row, Rows, counted, is_net, signed
from tests.deltajoin.spark.steps import FORMS, Steps, joined_by, multiset_of, rescaled_by_chance
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.schema import TableSchema
from upsert.store.predicate import parse_where
from upsert.store.table import Table
from upsert.store.version import Version

COLUMNS = {"id": pa.int32(), "k": pa.int64(), "v": pa.float64(), "s": pa.string()}
SCHEMAS = (
    TableSchema.of(COLUMNS, primary_key=["id"]).index("k"),
    TableSchema.of({**COLUMNS, "k": pa.int16()}, primary_key=["id"]).index("k"),
    TableSchema.of(COLUMNS, primary_key=["k", "id"]),
    TableSchema.of(COLUMNS).index("k"),
)
SELECTS = (("id", "k", "v", "s"), ("k",), ("s", "k"), ("v", "id", "k"))
WHERES = (None, None, [("v", "!=", 1.0)], [("s", "is not null", None), ("id", "in", [0, 1])])
EXAMPLES = settings().max_examples
FLOATS = (None, 1.0, -1.0, 0.0, -0.0, float("nan"))


@dataclass
class Model:
    """A table, and what it should hold, told by the changes alone."""

    table: Table
    keyed: dict[Row, Row] = field(default_factory=dict)
    bag: Rows = field(default_factory=Counter)

    def change(self, random: Random) -> None:
        """Commit some upserts and deletions."""
        changes = [change for _ in range(random.randint(1, 6)) if (change := self._change(random))]
        schema = self.table.schema.arrow.append(pa.field(ROW_KIND_COLUMN, pa.string()))
        columns = list(zip(*changes, strict=True)) or [()] * len(schema)
        arrays = [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
        self.table.write(pa.table(arrays, schema=schema))

    def _change(self, random: Random) -> Row | None:
        is_nullable = "k" not in self.table.schema.primary_key
        key = random.choice((0, 0, 0, 1, 1, None if is_nullable else 2))
        row = (random.randint(0, 3), key, random.choice(FLOATS), random.choice(("", "x", None)))
        is_delete = random.random() < 0.3
        if self.table.schema.primary_key:
            return self._keyed(row, is_delete)
        if is_delete:
            return self._less(random)
        self.bag.update(counted([row]))
        return (*row, "+I")

    def _keyed(self, row: Row, is_delete: bool) -> Row:
        key = tuple(row[self.table.schema.names.index(name)] for name in self.table.schema.primary_key)
        if is_delete:
            self.keyed.pop(key, None)
            return (*row, "-D")
        self.keyed[key] = row
        return (*row, "+U")

    def _less(self, random: Random) -> Row | None:
        there = sorted(self.bag.elements(), key=repr)
        if not there:
            return None
        row = random.choice(there)
        self.bag -= Counter([row])
        return (row[0], row[1], float("nan") if row[2] == "NaN" else row[2], row[3], "-D")

    def is_right(self) -> bool:
        """Whether the table holds what it should."""
        wanted = counted(self.keyed.values()) if self.table.schema.primary_key else self.bag
        return multiset_of(self.table.snapshot().scan(), self.table.schema.names) == wanted


def recomputed(steps: Steps) -> Rows:
    """The join of both tables as they are at the offset, filters applied first."""
    states = []
    for side, version in zip(steps.spec.tables, steps.offset["versions"], strict=True):
        table = Table.open(side.path)
        rows = table.at(Version.from_json(version)).scan()
        states.append(parse_where(side.where, table.schema).apply(rows))
    return joined_by(steps.spec, states[0], states[1])


def check_steps(steps: Steps, random: Random) -> None:
    """Run what is new; every step must be exact, net, and the same when another form replays it."""
    start = steps.offset
    for rows in steps:
        assert steps.emitted == recomputed(steps)
        assert is_net(rows), "a row came with both signs"
        rescaled_by_chance(random, steps.spec)
        steps.restart(random.choice(FORMS), random.randint(1, 3))
        assert signed(steps.micro_batch(start, steps.offset)) == signed(rows)
        start = steps.offset


def random_run(random: Random, folder: str) -> None:
    """Two random tables and their join, through several commits and many more steps."""
    options = {"bucket": random.choice("13"), "num-sorted-run.compaction-trigger": "3"}
    models = [Model(Table.create(f"{folder}/{i}", random.choice(SCHEMAS), options)) for i in range(2)]
    left, right = (Side(m.table.path, random.choice(SELECTS), ("k",), random.choice(WHERES)) for m in models)
    spec = DeltaJoinSpec.of("inner", left, right, shards=random.randint(1, 3))
    first_load = random.choice(("batch", "micro-batches"))
    form = random.choice(FORMS)
    steps = Steps(spec, max_rows=random.choice((None, 1, 2, 5)), form=form, first_load=first_load)
    for _ in range(6):
        for model in models:
            if random.random() < 0.8:
                model.change(random)
        if random.random() < 0.7:
            check_steps(steps, random)
    check_steps(steps, random)
    assert all(model.is_right() for model in models)


@settings(max_examples=EXAMPLES // 4)
@given(seed=st.integers(0, 2**32))
def test_every_step_is_exact_net_and_repeatable(seed: int) -> None:
    """After each step, also inside a commit that the limit cuts, the sum of all output is the join."""
    with TemporaryDirectory() as folder:
        random_run(Random(seed), folder)


@settings(max_examples=EXAMPLES // 4)
@given(seed=st.integers(0, 2**32))
def test_self_join_is_exact(seed: int) -> None:
    """One table on both sides: its changes drive the join from either side, at versions that may differ."""
    random = Random(seed)
    with TemporaryDirectory() as folder:
        model = Model(Table.create(f"{folder}/t", random.choice(SCHEMAS)))
        side = Side(model.table.path, ("id", "k", "s"), ("k",))
        steps = Steps(DeltaJoinSpec.of("inner", side, side, shards=2), max_rows=random.choice((None, 2)))
        for _ in range(4):
            model.change(random)
            check_steps(steps, random)
