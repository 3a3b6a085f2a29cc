"""In which columns the rows of a query over a delta join are net (pure).

A delta join gives net rows of the columns that come out of it. What Spark computes of them may be equal for
different rows, so that an update comes out as a row and its opposite. It adds up to nothing, as all signs do.
"""

from __future__ import annotations

from deltajoin.outgoing import determined
from planner.chain import chain_of, trace
from planner.delta_join import DeltaJoin
from planner.nodes import Plan


def blurred(plan: Plan) -> tuple[str, ...]:
    """Columns that come out of the delta join of a query and cannot be told from what the query puts out.

    None if all its rows are net; then no row comes with both signs in one micro-batch. Queries that are more
    than projections and filters of one delta join have none either: what lies between decides.
    """
    join = chain_of(plan).leaf
    if not isinstance(join, DeltaJoin):
        return ()
    refs = join.refs
    put_out = {found.id for column in plan.columns if (found := trace(column, plan)) is not None}
    known = determined(join.tree, frozenset(refs[number] for number in put_out if number in refs))
    hidden = [column.name for column in join.columns if column.id in refs and refs[column.id] not in known]
    flags = [flag.name for _, flag in join.present if flag.id not in put_out]
    return tuple(dict.fromkeys((*hidden, *flags)))
