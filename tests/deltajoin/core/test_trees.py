"""Joins of any tree of tables against both whole results, recomputed row by row and subtracted."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltajoin.core import keys as core_keys
from deltajoin.core.deltas import Match
from deltajoin.core.evaluate import Join, determined, emitted, evaluate
from deltajoin.core.rows import Changes
from deltajoin.core.shards import split_of
from deltajoin.expressions import Ref
from deltajoin.spec import DeltaJoinSpec, JoinedTable
from deltajoin.tree import Inner, Leaf, Outer
from tests.deltajoin.core.memory_tables import (
    Row,
    Rows,
    changes_of,
    counted,
    difference,
    is_net,
    match_in,
    signed,
)
from tests.deltajoin.core.trees import (
    COLUMNS,
    SCHEMAS,
    Facts,
    evaluated,
    narrowed,
    next_state,
    output_of,
    random_state,
    random_tree,
    spec_of,
)
from upsert.arrays import Ints

ALL_KINDS = ("inner", "inner", "left", "full", "semi", "anti")
RANDOMS = st.randoms(use_true_random=False)
EXAMPLES = settings().max_examples


@dataclass(frozen=True)
class Step:
    """Tables that go from their old to their new rows, and the join of them."""

    spec: DeltaJoinSpec
    schemas: Sequence[pa.Schema]
    old: Sequence[Rows]
    new: Sequence[Rows]
    facts: Facts

    def emitted(self, shards: int = 1, output_rows: int = 3) -> list[Row]:
        """What all shards emit."""
        known = determined(self.spec.tree, emitted(self.spec))
        split = split_of(
            self.spec.tree, lambda ref: self.schemas[ref.table].field(ref.column).type, [COLUMNS] * 8, known
        )
        join = Join.of(self.spec, self.schemas, split, self.facts)
        rows: list[Row] = []
        for shard in range(shards):
            changes = [
                changes_of(schema, new, old)
                for schema, old, new in zip(self.schemas, self.old, self.new, strict=True)
            ]
            cut = [Changes(split.of_shard(t, some.rows, shard, shards)) for t, some in enumerate(changes)]
            old, new = (
                [
                    split.cut_lookup(t, match_in(schema, rows), shard, shards)
                    for t, (schema, rows) in enumerate(zip(self.schemas, states, strict=True))
                ]
                for states in (self.old, self.new)
            )
            for batch in evaluate(join, cut, old, new, output_rows=output_rows):
                assert batch.schema == join.outgoing.schema
                assert 0 < batch.num_rows <= output_rows
                rows += zip(*(column.to_pylist() for column in batch.columns), strict=True)
        return rows

    @property
    def expected(self) -> Rows:
        new, old = (output_of(self.spec, evaluated(self.spec.tree, s)) for s in (self.new, self.old))
        return difference(new, old)


def random_step(random: Random, kinds: Sequence[str], *, one_key: bool = False, shared: bool = False) -> Step:
    tables = random.choice((2, 2, 3, 3, 4, 5))
    schemas = [random.choice(SCHEMAS) for _ in range(tables)]
    old = [random_state(random) for _ in range(tables)]
    new = [next_state(random, rows) for rows in old]
    if shared:
        schemas[1], old[1], new[1] = schemas[0], old[0], new[0]
    tree = random_tree(random, tables, kinds, one_key=one_key)
    return Step(narrowed(random, spec_of(random, tree)), schemas, old, new, Facts(seed=random.randint(0, 9)))


def check(step: Step, shards: int = 1) -> None:
    emitted = step.emitted(shards)
    assert signed(emitted) == step.expected
    assert is_net(emitted), "a row came with both signs"


@given(random=RANDOMS)
def test_inner_joins_emit_exactly_the_difference(random: Random) -> None:
    check(random_step(random, ("inner",)))


@given(random=RANDOMS)
@settings(max_examples=EXAMPLES * 3)
def test_any_tree_emits_exactly_the_difference(random: Random) -> None:
    check(random_step(random, ALL_KINDS))


@given(random=RANDOMS)
def test_a_table_may_be_there_several_times(random: Random) -> None:
    check(random_step(random, ALL_KINDS, shared=True))


@given(random=RANDOMS, one_key=st.booleans(), shards=st.integers(1, 4))
def test_the_shards_of_any_split_add_up_to_the_whole(random: Random, one_key: bool, shards: int) -> None:
    check(random_step(random, ALL_KINDS, one_key=one_key), shards)


@given(random=RANDOMS)
def test_keys_done_a_few_at_a_time_are_net_all_the_same(random: Random) -> None:
    step = random_step(random, ALL_KINDS, one_key=True)
    with (
        patch("deltajoin.core.evaluate.FIRST_LOOKUP_KEYS", 0),  # INNER joins too
        patch.multiple(core_keys, FIRST_LOOKUP_KEYS=1, LOOKUP_ROWS=1),  # and not only the first of the keys
    ):
        check(step)


def test_a_tail_of_many_to_many_costs_no_more_than_its_output() -> None:
    """Two changes meet 50 rows of b each, and each of these 50 rows of c, of 20,000 rows in both tables."""
    count, groups = 20_000, 400
    keys = np.arange(count) % groups
    schemas = [pa.schema({"k": pa.int64(), "id": pa.int64()})] * 3
    b, c = (pa.table([keys, np.arange(count)], schema=schemas[0]) for _ in range(2))
    asked: list[int] = []

    def match_in(rows: pa.Table) -> Match:
        by_key = [np.flatnonzero(keys == key) for key in range(groups)]

        def match(by: Sequence[str], probe: pa.Table, select: Sequence[str]) -> tuple[Ints, pa.Table]:
            wanted = probe.column(by[0]).to_pylist()
            asked.append(len(wanted))
            found = [by_key[key] for key in wanted if rows.num_rows]
            at = np.concatenate([np.empty(0, np.int64), *found])
            which = np.repeat(np.arange(len(found)), [len(one) for one in found])
            return which, rows.select(list(select)).take(pa.array(at))

        return match

    pairs = ((Ref(0, "k"), Ref(1, "k")), (Ref(1, "k"), Ref(2, "k")))
    tree = Inner((Leaf(0), Leaf(1), Leaf(2)), pairs)
    spec = DeltaJoinSpec(tuple(JoinedTable(f"/t{i}", ("k", "id")) for i in range(3)), tree)
    split = split_of(tree, lambda ref: schemas[ref.table].field(ref.column).type, [("k", "id")] * 3)
    join = Join.of(spec, schemas, split, TwoColumns())
    nothing = schemas[0].empty_table()
    one = pa.table({"k": [1, 2], "id": [0, 0], "_row_kind": ["+I", "+I"]})
    kinds = nothing.append_column("_row_kind", pa.array([], pa.string()))
    lookups = [match_in(nothing), match_in(b), match_in(c)]
    rows = sum(
        batch.num_rows
        for batch in evaluate(join, [Changes(one), Changes(kinds), Changes(kinds)], lookups, lookups)
    )
    assert rows == 2 * (count // groups) ** 2
    assert asked == [2, 2], "each table is asked once, for the two keys alone"


class TwoColumns(Facts):
    """Tables of a key and a number."""

    def select(self, table: int) -> tuple[str, ...]:
        return ("k", "id")[: 2 * (table >= 0)]


@pytest.mark.parametrize("kind", ["left", "full", "semi", "anti"])
def test_the_first_match_and_the_last_one_turn_a_row(kind: str) -> None:
    """One row of a; rows of b come and go: only the first that comes and the last that goes count."""
    tree = Outer(kind, Leaf(0), Leaf(1), ((Ref(0, "k"), Ref(1, "k")),))
    spec = DeltaJoinSpec(tuple(JoinedTable(f"/t{i}", COLUMNS) for i in range(2)), tree)
    a = counted([(1, 7, None, None)])
    states = [counted((i, 7, None, None) for i in range(n)) for n in (0, 1, 2, 1, 0)]
    own = []
    for old, new in pairwise(states):
        step = Step(spec, SCHEMAS, [a, old], [a, new], Facts())
        check(step)
        of_a = [row for row in step.emitted() if kind in ("semi", "anti") or row[4] is None]
        own.append([row[-1] for row in of_a])
    gone, back = ("+I", "-D") if kind == "semi" else ("-D", "+I")
    assert own == [[gone], [], [], [back]]


def test_a_row_that_moves_to_another_key_is_no_change_where_no_key_comes_out() -> None:
    tables = (JoinedTable("/t0", COLUMNS, emit=("id",)), JoinedTable("/t1", COLUMNS, emit=()))
    spec = DeltaJoinSpec(tables, Inner((Leaf(0), Leaf(1)), ((Ref(0, "k"), Ref(1, "k")),)))
    b = counted([(1, 7, None, None), (2, 8, None, None)])
    step = Step(
        spec, SCHEMAS, [counted([(5, 7, None, None)]), b], [counted([(5, 8, None, None)]), b], Facts()
    )
    assert step.emitted() == []


def test_rows_that_differ_in_nothing_that_comes_out_are_in_one_shard() -> None:
    """What tells them apart is not hashed then: they would not meet, and not cancel."""
    tables = (JoinedTable("/t0", COLUMNS, emit=("m",)), JoinedTable("/t1", COLUMNS, emit=()))
    spec = DeltaJoinSpec(tables, Inner((Leaf(0), Leaf(1)), ((Ref(0, "k"), Ref(1, "k")),)))
    b = counted([(1, 7, None, None)])
    old, new = (counted((id, 7, id % 2, None) for id in ids) for ids in (range(8), range(8, 16)))
    assert Step(spec, SCHEMAS, [old, b], [new, b], Facts()).emitted(shards=4) == []
