"""Tables that change at once: their paths emit some rows with opposite signs, of which nothing comes out."""

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from deltajoin import DeltaJoinSpec
from deltajoin.expressions import Ref
from deltajoin.spec import JoinedTable
from deltajoin.tree import Inner, Leaf, Outer
from tests.deltajoin.spark.steps import Steps
from upsert.rowkind import RowKind
from upsert.schema import TableSchema
from upsert.store import Table

LONG = pa.int64()
CHAIN = ((Ref(0, "k"), Ref(1, "k")), (Ref(1, "m"), Ref(2, "m")))


def put(table: Table, kind: str, *rows: tuple[int, int]) -> None:
    columns = zip(*rows, strict=True)
    named = {name: pa.array(column, LONG) for name, column in zip(table.schema.names, columns, strict=True)}
    table.write(pa.table({**named, "_row_kind": [kind] * len(rows)}))


@pytest.mark.parametrize("last_changes", [True, False])
@pytest.mark.parametrize("kind", ["inner", "left"])
def test_a_row_that_comes_as_its_match_goes_is_in_no_row_of_the_join(
    tmp_path: Path, kind: str, last_changes: bool
) -> None:
    """No column is in all keys of the chain, so the rows of all paths meet in one shard."""
    a = Table.create(tmp_path / "a", TableSchema.of({"id": LONG, "k": LONG}, ["id"]).index("k"))
    b = Table.create(tmp_path / "b", TableSchema.of({"k": LONG, "m": LONG}, ["k"]).index("m"))
    c = Table.create(tmp_path / "c", TableSchema.of({"m": LONG, "n": LONG}, ["m"]))
    tables = tuple(JoinedTable(table.path, tuple(table.schema.names)) for table in (a, b, c))
    chain = Inner((Leaf(0), Leaf(1), Leaf(2)), CHAIN)
    tree = (
        chain if kind == "inner" else Outer("left", Inner((Leaf(0), Leaf(1)), CHAIN[:1]), Leaf(2), CHAIN[1:])
    )
    put(a, "+I", (1, 1))
    put(b, "+I", (1, 1), (2, 2))
    put(c, "+I", (1, 10), (2, 20))
    steps = Steps(DeltaJoinSpec(tables, tree))
    assert steps.run() == Counter({(1, 1, 1, 1, 1, 10): 1})
    put(a, "+I", (4, 1), (3, 2))
    put(b, "-D", (1, 1))
    if last_changes:
        put(c, "+U", (1, 11))
    emitted: list[tuple[Any, ...]] = [row for batch in steps for row in batch]
    signs = sorted((*row[:-1], RowKind(row[-1]).sign) for row in emitted)
    assert signs == [(1, 1, 1, 1, 1, 10, -1), (3, 2, 2, 2, 2, 20, 1)]
