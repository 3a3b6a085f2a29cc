"""The oracle of trees of joins has an oracle: DuckDB's answer to the same tree as SQL."""

from random import Random

import duckdb
from hypothesis import given
from hypothesis import strategies as st

from tests.deltajoin.core.memory_tables import counted, table_of
from tests.deltajoin.core.trees import (
    COLUMNS,
    SCHEMAS,
    evaluated,
    output_of,
    random_state,
    random_tree,
    spec_of,
    sql_of,
)


@given(random=st.randoms(use_true_random=False))
def test_nested_loops_give_what_duckdb_gives(random: Random) -> None:
    tables = random.choice((1, 2, 2, 3, 3, 4))
    tree = random_tree(random, tables, ("inner", "left", "full", "semi", "anti"))
    spec = spec_of(random, tree)
    states = [random_state(random) for _ in range(tables)]
    database = duckdb.connect()
    for number, state in enumerate(states):
        database.register("rows", table_of(SCHEMAS[0], state.elements()))
        # DuckDB pushes what a join finds into the scan of an Arrow table, where NaN is not equal to NaN
        database.execute(f"CREATE TABLE t{number} AS FROM rows")
    columns = [f"t{table}_{name}" for table in spec.visible for name in COLUMNS]
    flags = [f"coalesce(p{table}, false)" for table in spec.present]
    answer = database.execute(f"SELECT {', '.join((*columns, *flags))} FROM ({sql_of(tree)})").fetchall()
    assert counted(answer) == output_of(spec, evaluated(tree, states))
