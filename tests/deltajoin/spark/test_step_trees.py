"""Any tree of stored tables, step by step: random changes and limits, every form, against recomputing."""

from collections import Counter
from dataclasses import replace
from random import Random
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from deltajoin.spec import DeltaJoinSpec
from tests.deltajoin.core.memory_tables import Rows, changes_of, is_net, signed
from tests.deltajoin.core.trees import (
    COLUMNS,
    SCHEMAS,
    evaluated,
    narrowed,
    next_state,
    output_of,
    random_state,
    random_tree,
    spec_of,
)
from tests.deltajoin.spark.steps import FORMS, Steps, multiset_of, state_at
from upsert.schema import TableSchema
from upsert.store.table import Table

KINDS = ("inner", "inner", "left", "full", "semi", "anti")
EXAMPLES = settings().max_examples


class StoredTables:
    """Some tables without primary key, with an index on each column, and what they hold."""

    def __init__(self, random: Random, folder: str, count: int) -> None:
        self._random = random
        self.tables = []
        for number in range(count):
            schema = TableSchema.of({field.name: field.type for field in random.choice(SCHEMAS)})
            for column in COLUMNS:
                schema = schema.index(column)
            options = {"bucket": random.choice("13")}
            self.tables.append(Table.create(f"{folder}/{number}", schema, options))
        self.states: list[Rows] = [Counter() for _ in range(count)]

    def change(self) -> None:
        """Some tables get other rows, in one commit each."""
        for number, table in enumerate(self.tables):
            old = self.states[number]
            new = next_state(self._random, old) if old else random_state(self._random)
            changes = changes_of(table.schema.arrow, new, old).rows
            if changes.num_rows:
                table.write(changes)
            self.states[number] = new


def truth(steps: Steps) -> Rows:
    """The join of all tables as they are at the offset, row by row in Python."""
    versions = zip(steps.spec.tables, steps.offset["versions"], strict=True)
    states = [multiset_of(state_at(part.path, version), COLUMNS) for part, version in versions]
    return output_of(steps.spec, evaluated(steps.spec.tree, states))


def random_spec(random: Random, tables: list[Table]) -> DeltaJoinSpec:
    spec = spec_of(random, random_tree(random, len(tables), KINDS, one_key=random.random() < 0.5))
    parts = (replace(part, path=table.path) for part, table in zip(spec.tables, tables, strict=True))
    return narrowed(random, replace(spec, tables=tuple(parts), shards=random.randint(1, 3)))


@settings(max_examples=EXAMPLES // 4)
@given(seed=st.integers(0, 2**32))
def test_every_step_of_any_tree_is_exact_and_net_in_every_form(seed: int) -> None:
    """The form changes from step to step; another one, with other shards, gives the same rows."""
    random = Random(seed)
    with TemporaryDirectory() as folder:
        stored = StoredTables(random, folder, random.choice((2, 2, 3, 4)))
        steps = Steps(
            random_spec(random, stored.tables),
            max_rows=random.choice((None, None, 2)),
            form=random.choice(FORMS),
            first_load=random.choice(("batch", "micro-batches")),
        )
        for _ in range(3):
            stored.change()
            start = steps.offset
            for rows in steps:
                assert steps.emitted == truth(steps)
                assert is_net(rows), "a row came with both signs"
                steps.restart(random.choice(FORMS), random.randint(1, 3))
                assert signed(steps.micro_batch(start, steps.offset)) == signed(rows)
                start = steps.offset
