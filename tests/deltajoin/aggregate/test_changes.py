"""Changes of an aggregate over a real table, added up, against the aggregate of its rows."""

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltajoin.aggregate.source import ShareOfGroups, changes_of
from deltajoin.aggregate.spec import DeltaAggregateSpec, Measure, of_table
from deltajoin.expressions import Call, Const, Field
from upsert.errors import ConfigurationError
from upsert.rowkind import signs
from upsert.schema import TableSchema
from upsert.store import Table
from upsert.store.version import Version

SCHEMA = {"id": pa.int64(), "g": pa.string(), "h": pa.int64(), "x": pa.int64()}
WHERE = Call("<", (Field(of_table("x")), Const(9, pa.int64())))
MEASURES = (
    Measure("max", ("x",)),
    Measure("count", ("x",), is_distinct=True),
    Measure("collect_list", ("x",)),
)
ROWS = st.tuples(
    st.integers(0, 6),
    st.none() | st.sampled_from("ab"),
    st.none() | st.integers(0, 1),
    st.none() | st.integers(0, 9),
)
COMMITS = st.lists(st.lists(st.tuples(st.sampled_from("+-"), ROWS), min_size=1, max_size=6), max_size=4)


def commit(table: Table, changes: list[tuple[str, Any]], has_key: bool) -> None:
    """Apply changes; of a multiset only rows that are there can go."""
    there = Counter(map(tuple, zip(*table.snapshot().scan().to_pydict().values(), strict=True)))
    done = []
    for sign, row in changes:
        if sign == "-" and not has_key and not there[row]:
            continue
        there[row] += 1 if sign == "+" else -1
        done.append((*row, "+U" if sign == "+" else "-D"))
    if done:
        names = [*SCHEMA, "_row_kind"]
        columns = dict(zip(names, map(list, zip(*done, strict=True)), strict=True))
        table.write(pa.table({n: pa.array(v, SCHEMA.get(n, pa.string())) for n, v in columns.items()}))


def aggregate(table: Table, groups: tuple[str, ...]) -> Counter[Any]:
    found: dict[Any, list[Any]] = {}
    for row in table.snapshot().scan().to_pylist():
        if row["x"] is not None and row["x"] < 9:
            found.setdefault(tuple(row[name] for name in groups), []).append(row["x"])
    return Counter((*key, max(xs), len(set(xs)), tuple(sorted(xs))) for key, xs in found.items())


def add_up(state: Counter[Any], batches: list[pa.RecordBatch]) -> None:
    for batch in batches:
        for row, sign in zip(batch.to_pylist(), signs(batch.column("_row_kind")), strict=True):
            *values, _ = row.values()
            state[tuple(tuple(v) if isinstance(v, list) else v for v in values)] += int(sign)
    assert all(count in (0, 1) for count in state.values())


@pytest.mark.parametrize("has_key", [True, False])
@settings(max_examples=settings.default.max_examples // 4)
@given(
    COMMITS,
    st.sampled_from([("g",), ("g", "h"), ("h", "g")]),
    st.integers(1, 3),
    st.sampled_from([1, 3, 1000]),
    st.data(),
)
def test_changes_add_up_to_the_aggregate(
    tmp_path_factory: pytest.TempPathFactory,
    has_key: bool,
    commits: list[Any],
    groups: tuple[str, ...],
    shares: int,
    max_rows: int,
    data: st.DataObject,
) -> None:
    """Also for NULL groups, rows that move between groups, multisets, and commits that are cut."""
    schema = TableSchema.of(SCHEMA, ["id"] if has_key else []).index("g")
    table = Table.create(tmp_path_factory.mktemp("t") / "t", schema, {"bucket": "2"})
    spec = DeltaAggregateSpec(table.path, groups, MEASURES, WHERE)
    state, version = Counter[Any](), Version.EMPTY
    for changes in commits:
        commit(table, changes, has_key)
        while (end := table.advance(version, max_rows=max_rows)) != version:
            for share in range(shares):
                part = ShareOfGroups(table.uuid, version, end, share, shares)
                batches = list(changes_of(table, spec, part))
                assert [b.to_pydict() for b in batches] == [
                    b.to_pydict() for b in changes_of(table, spec, part)
                ]
                add_up(state, batches)
            version = end
            if data.draw(st.booleans(), label="write in between"):
                commit(
                    table, data.draw(st.lists(st.tuples(st.just("+"), ROWS), min_size=1, max_size=2)), has_key
                )
        assert +state == aggregate(table, groups)


def test_a_spec_survives_json() -> None:
    spec = DeltaAggregateSpec("/t", ("g",), (*MEASURES, Measure("count", (), where=WHERE)), WHERE, 3, 7)
    assert DeltaAggregateSpec.from_json(spec.to_json()) == spec


@pytest.mark.parametrize("text", ["", "[]", '{"path": 1}', "[" * 100_000])
def test_other_texts_are_no_specs(text: str) -> None:
    with pytest.raises(ConfigurationError, match="must be JSON text"):
        DeltaAggregateSpec.from_json(text)
