"""Which operators may stand above signed rows, and what to do instead of those that may not (pure).

What works row by row is right over signed rows: a union passes each row with its sign, and a generator makes
the same rows of a row that goes as of the row that came. Whatever counts, orders, compares or chooses rows is
not. An unknown operator is refused.
"""

from __future__ import annotations

from typing import Final

from planner.plan.nodes import Generate, Opaque, Plan, Union
from planner.plan.trees import reads_changes, sources
from planner.refusals import Condition, Refused
from upsert.rowkind import ROW_KIND_COLUMN

ON_A_SNAPSHOT: Final = (
    "write the changes into a managed table with catalog.write_changes "
    "and run this over its snapshot, catalog.read"
)

_FUNCTION: Final = (
    "call it in foreachBatch, or before the rows are written into the table whose changes are read"
)

OPERATORS: Final = {
    "Aggregate": "an aggregate",
    "ArrowEvalPython": "a Python function",
    "AsOfJoin": "an event-time temporal join",
    "DeduplicateWithinWatermark": "dropDuplicatesWithinWatermark",
    "Distinct": "DISTINCT",
    "Except": "EXCEPT",
    "Expand": "ROLLUP, CUBE or GROUPING SETS",
    "FlatMapGroupsInArrow": "applyInArrow",
    "FlatMapGroupsInPandas": "applyInPandas",
    "FlatMapGroupsInPandasWithState": "applyInPandasWithState",
    "Generate": "a generator",
    "GlobalLimit": "a limit",
    "Intersect": "INTERSECT",
    "Join": "a join",
    "LateralJoin": "a lateral join",
    "LocalLimit": "a limit",
    "MapInArrow": "mapInArrow",
    "MapInPandas": "mapInPandas",
    "Offset": "an offset",
    "RegularJoin": "a join",
    "Sample": "a sample",
    "Sort": "a sort",
    "Tail": "a tail",
    "TransformWithStateInPySpark": "transformWithState",
    "Union": "a union",
    "Window": "a window function",
    "WithCTE": "a common table expression",
}
"""What people call a node that Catalyst calls so."""

_REMEDIES: Final = {
    "AsOfJoin": "join with the rows as they are now, deltajoin.lookup_join, or join the changes of both",
    "Except": "use LEFT ANTI JOIN by the key",
    "Expand": "write a GROUP BY for each grouping and bring them together with UNION ALL",
    "FlatMapGroupsInArrow": _FUNCTION,
    "FlatMapGroupsInPandas": _FUNCTION,
    "FlatMapGroupsInPandasWithState": _FUNCTION,
    "Intersect": "use LEFT SEMI JOIN by the key",
    "LateralJoin": "write it as a join with its own condition",
    "MapInArrow": _FUNCTION,
    "MapInPandas": _FUNCTION,
    "Sample": "choose rows by a hash of their key, as in filter(pmod(xxhash64(id), 100) < 5)",
    "TransformWithStateInPySpark": _FUNCTION,
}
"""What to do instead, where it is not `ON_A_SNAPSHOT`."""

_GENERATORS: Final = frozenset(
    {"Explode", "GeneratorOuter", "Inline", "JsonTuple", "PosExplode", "Stack", "ReplicateRows"}
)
"""Generators that make the same rows of equal rows, whichever rows come before or after."""


def operator_in_words(node: Plan) -> str:
    """What people call the operator of a node."""
    name = node.name if isinstance(node, Opaque) else type(node).__name__
    return OPERATORS.get(name, f"the operator {name!r}")


def operator_digests_changes(node: Plan) -> Refused | None:
    """An operator that is not known to respect the signs of changes may not stand above them."""
    if not isinstance(node, Opaque):
        return None
    return Refused(
        f"{operator_in_words(node)} over the changes of {sources(node)} would count rows taken away as rows",
        _REMEDIES.get(node.name, ON_A_SNAPSHOT),
    )


def union_is_of_changes_alone(node: Plan) -> Refused | None:
    """A row without a kind among changes is neither one that came nor one that went."""
    if not isinstance(node, Union) or all(reads_changes(part) for part in node.inputs):
        return None
    numbers = [str(number) for number, part in enumerate(node.inputs, 1) if not reads_changes(part)]
    return Refused(
        f"a union of the changes of {sources(node)} with rows that are no changes (input "
        f"{', '.join(numbers)} of {len(node.inputs)}) would leave rows without a kind",
        "keep those rows in a managed table and read its changes, catalog.read_changes",
    )


def union_aligns_kinds(node: Plan) -> Refused | None:
    """Columns of a union meet by position, so the kinds must be at one position, or nowhere."""
    if not isinstance(node, Union):
        return None
    positions = {tuple(n for n, c in enumerate(part.columns) if c.is_row_kind) for part in node.inputs}
    if len(positions) == 1:
        return None
    return Refused(
        f"the inputs of a union of the changes of {sources(node)} have {ROW_KIND_COLUMN!r} at different "
        "positions, so it would meet other columns",
        "leave it out of every input, optimize gives it back; or use unionByName",
    )


def generator_is_repeatable(node: Plan) -> Refused | None:
    """A row that is taken away must make the rows that it made when it came."""
    if not isinstance(node, Generate) or getattr(node.generator, "name", "") in _GENERATORS:
        return None
    return Refused(
        f"the generator {node.generator} over the changes of {sources(node)} is not known to make the same "
        "rows of a row whenever it comes",
        "use explode, posexplode, inline, stack or json_tuple, or apply it before the rows are written",
    )


def made_columns_are_no_kinds(node: Plan) -> Refused | None:
    """`_row_kind` is the name of the kind alone."""
    if isinstance(node, Generate) and any(column.is_row_kind for column in node.made):
        return Refused(f"a column of the query is called {ROW_KIND_COLUMN!r}, which is reserved", "rename it")
    return None


OPERATOR_CONDITIONS: Final[tuple[Condition, ...]] = (
    operator_digests_changes,
    union_is_of_changes_alone,
    union_aligns_kinds,
    generator_is_repeatable,
    made_columns_are_no_kinds,
)
