"""Look the rows of a stream up in the managed table that it is joined with (pure)."""

from __future__ import annotations

from typing import Final

from planner.chain import Chain, are_joinable, chain_of, restack, trace, without_widening
from planner.changelogs import Relation
from planner.enriched import Enriched
from planner.expressions import Column, conjunction, conjuncts
from planner.keys import equalities, index_within
from planner.nodes import Filter, Join, Output, Plan, Project, Watermark, Wrapper
from planner.settings import Settings

_SIDES: Final = {"inner": "inner", "left outer": "left", "right outer": "left"}
_NO_ARROW: Final = ("interval", "variant", "void", "geometry", "geography")
"""Parts of the names of types that do not reach Python."""


def enrich_stream(node: Plan, settings: Settings) -> Plan | None:
    """Replace a join of a stream with rows of a managed table by lookups in that table.

    Spark would read the whole table, or topic, in every micro-batch; a topic is looked up in its mirror. Only
    for a stream whose rows are only added and that has no watermark, with an index of the table within the
    equated columns; INNER, or with the stream on the preserved side. What lies between the join and the table
    is stacked above the lookup; over a preserved stream that must be columns alone, for a filter there
    decides whether a row has a match.

        Join inner ON (user#1 = id#3)                      Project [page#2, user#1, id#3, region#4]
          Stream views [page#2, user#1]              =>      Enriched inner by table users … on (user#1 = id)
          Relation table users [id#3, region#4]                Stream views [page#2, user#1]
    """
    if not isinstance(node, Join) or settings.strategy == "none" or node.kind not in _SIDES:
        return None
    swapped = node.kind == "right outer" or (node.kind == "inner" and _is_table(node.left))
    stream, static = (node.right, node.left) if swapped else (node.left, node.right)
    below = chain_of(static)
    rows = below.leaf.rows if isinstance(below.leaf, Relation) else None
    if rows is None or not _can_look_up(stream):
        return None
    keys, conditions = _keys(node, stream, static)
    rest = [part for part in conjuncts(node.condition) if part not in conditions]
    if index_within(rows.table.schema, {name for _, name in keys}) is None:
        return None
    how = _SIDES[node.kind]
    if how == "left" and (rest or not _is_columns_alone(below)):
        return None
    enriched = Enriched(stream, rows, below.leaf.columns, keys, how)
    plan = restack(below, enriched, stream.columns)
    residual = conjunction(rest)
    plan = plan if residual is None else Filter(plan, residual)
    return Project(plan, tuple(Output.of(column) for column in node.columns))


def _is_table(plan: Plan) -> bool:
    leaf = chain_of(plan).leaf
    return isinstance(leaf, Relation) and leaf.rows is not None


def _can_look_up(stream: Plan) -> bool:
    """Whether these are rows of a stream that are only added, and can pass through Python as they are."""
    chain = chain_of(stream)
    leaf = chain.leaf
    if not isinstance(leaf, Relation) or not leaf.is_streaming:
        return False
    if any(isinstance(node, Watermark) for node in chain.nodes):
        return False
    return not any(part in column.type for column in stream.columns for part in _NO_ARROW)


def _keys(join: Join, stream: Plan, static: Plan) -> tuple[tuple[tuple[Column, str], ...], list[object]]:
    """Pairs of a column of the stream and one of the table, each of these once; and their conditions."""
    pairs: dict[str, Column] = {}
    conditions: list[object] = []
    for condition, *sides in equalities(join):
        one, other = map(without_widening, sides if stream is join.left else reversed(sides))
        found = trace(other, static)
        if (
            isinstance(one, Column)
            and found is not None
            and found.name not in pairs
            and are_joinable(one, found)
        ):
            pairs[found.name] = one
            conditions.append(condition)
    return tuple((column, name) for name, column in pairs.items()), conditions


def _is_columns_alone(chain: Chain) -> bool:
    """Whether the chain only names and chooses columns, so that NULLs pass through it."""
    return all(
        isinstance(node, Wrapper)
        or (isinstance(node, Project) and all(isinstance(output.value, Column) for output in node.outputs))
        for node in chain.nodes
    )
