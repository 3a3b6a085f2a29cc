"""Trees of joins through the store, in each physical form: random tables, commits and steps of any size."""

from collections import Counter
from random import Random
from tempfile import TemporaryDirectory

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from deltajoin.spec import DeltaJoinSpec, JoinedTable
from tests.deltajoin.core.memory_tables import Rows, counted, is_net, plain
from tests.deltajoin.core.trees import (
    COLUMNS,
    SCHEMAS,
    evaluated,
    narrowed,
    output_of,
    random_row,
    random_tree,
    spec_of,
)
from tests.deltajoin.spark.steps import FORMS, Steps, rescaled_by_chance
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.schema import TableSchema
from upsert.store.table import Table
from upsert.store.version import Version

KINDS = ("inner", "left", "full", "semi", "anti")
EXAMPLES = settings().max_examples


def random_table(random: Random, path: str) -> Table:
    """With or without primary key, and an index for each column."""
    columns = {field.name: field.type for field in random.choice(SCHEMAS)}
    schema = TableSchema.of(columns, primary_key=random.choice(([], ["id"])))
    for name in COLUMNS[len(schema.primary_key) :]:
        schema = schema.index(name)
    return Table.create(path, schema, {"bucket": random.choice("12")})


def change(random: Random, table: Table) -> None:
    """Commit some rows that come, and some that go."""
    there = sorted(rows_of(table, Version.complete(table.snapshot().id)).elements(), key=repr)
    gone = [row for row in there if random.random() < 0.3]
    changes = [(*map(plain, row), "-D") for row in gone]
    changes += [(*map(plain, random_row(random)), "+I") for _ in range(random.randint(0, 3))]
    if changes:
        schema = table.schema.arrow.append(pa.field(ROW_KIND_COLUMN, pa.string()))
        arrays = [pa.array(c, f.type) for c, f in zip(zip(*changes, strict=True), schema, strict=True)]
        table.write(pa.table(arrays, schema=schema))


def rows_of(table: Table, version: Version) -> Rows:
    """The table at a version."""
    rows = table.at(version).scan()
    return counted(zip(*(column.to_pylist() for column in rows.columns), strict=True))


def truth(spec: DeltaJoinSpec, steps: Steps) -> Rows:
    """The join of all tables where the steps have got to."""
    versions = map(Version.from_json, steps.offset["versions"])
    states = [
        rows_of(Table.open(part.path), version) for part, version in zip(spec.tables, versions, strict=True)
    ]
    return Counter(
        {row: count for row, count in output_of(spec, evaluated(spec.tree, states)).items() if count}
    )


@given(seed=st.integers(0, 2**32), form=st.sampled_from(sorted(FORMS)))
@settings(max_examples=EXAMPLES // 4)
def test_every_step_of_any_tree_is_exact_and_net(seed: int, form: str) -> None:
    random = Random(seed)
    count = random.choice((2, 3, 3, 4))
    tree = random_tree(random, count, KINDS, one_key=random.random() < 0.5)
    with TemporaryDirectory() as folder:
        tables = [random_table(random, f"{folder}/{number}") for number in range(count)]
        parts = tuple(JoinedTable(table.path, COLUMNS) for table in tables)
        spec = DeltaJoinSpec(parts, tree, spec_of(random, tree).present, shards=random.randint(1, 3))
        spec = narrowed(random, spec)
        steps = Steps(spec, form=form, max_rows=random.choice((None, 1, 3)))
        for _ in range(4):
            for table in tables:
                if random.random() < 0.7:
                    change(random, table)
            for rows in steps:
                assert steps.emitted == truth(spec, steps)
                assert is_net(rows), "a row came with both signs"
                rescaled_by_chance(random, spec)
