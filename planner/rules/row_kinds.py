"""Rules on the kind of each change: carried to the top, and left out where a sink needs none (pure).

Upserts by the key of a group or of a lookup join hold no replaced rows. Without `-U` they are right where
they replace a row by its key, which only a sink does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from planner.plan.expressions import Aggregation, Call, Column, Literal, conjunction, conjuncts
from planner.plan.keys import (
    AGGREGATE,
    KIND_IF,
    UNLESS_GONE,
    GroupKey,
    group_keys,
    is_marked,
    sink_is_keyed_by_groups,
    upsert_key,
    uses_keys_only,
)
from planner.plan.nodes import (
    LOOKUP_JOIN,
    Aggregate,
    Changelog,
    EnrichedUpserts,
    Filter,
    LookupJoined,
    Output,
    Plan,
    Project,
    Unary,
    Union,
)
from planner.plan.trees import (
    chain_of,
    children,
    fresh_ids,
    reads_changes,
    row_kind_of,
    sources,
    walk,
    with_children,
    with_row_kind_last,
)
from planner.refusals import Refused, operator_in_words
from planner.settings import Settings
from upsert.rowkind import ROW_KIND_COLUMN


def carry_row_kind(node: Plan, _settings: Settings) -> Plan | None:
    """Make `_row_kind` of the input the last column of a Project over a changelog, and no other kind in it.

    Whether the query selects it (`SELECT *`), leaves it out or selects both kinds of a join is all the
    same: the kind belongs to the changelog. Works upwards, so that each Project finds it in its input. The
    inputs of a union all have it last, for they meet by position.
    """
    changed = node
    match node:
        case Union(inputs) if reads_changes(node):
            changed = with_children(node, [with_row_kind_last(part) for part in inputs])
        case Project(child) if reads_changes(child) and (row_kind := row_kind_of(child)) is not None:
            if not _carries(node, row_kind):
                own = [output for output in node.outputs if not output.column.is_row_kind]
                changed = replace(node, outputs=(*own, Output.of(row_kind)), ref=None)
        case EnrichedUpserts(child):
            changed = with_children(node, [with_row_kind_last(child)])
        case Changelog():
            changed = with_row_kind_last(node)
    return None if changed is node else changed


def _carries(node: Project, row_kind: Column) -> bool:
    """Whether the kind is the last column already, and the only one; it may have a new id, or be computed."""
    kinds = [output for output in node.outputs if output.column.is_row_kind]
    if kinds != [node.outputs[-1]] or kinds[0].column.name != ROW_KIND_COLUMN:
        return False
    value = kinds[0].value
    return (value.args[0] if is_marked(kinds[0]) else value) == row_kind


def carry_group_deletes(node: Plan, settings: Settings) -> Plan | None:
    """Turn a filter above upserts of groups into their kind, and compute nothing for groups that are gone.

    A group that fails a HAVING must leave the sink, where it may be since an earlier batch: its row is a
    delete. What the filter says of the key alone stays a filter. In a delete only the key has a value, and an
    expression over the rest could fail.
    """
    if not isinstance(node, Project | Filter):
        return None
    keys, kind = group_keys(node.child), row_kind_of(node.child)
    if keys is None:
        return None
    if kind is None:
        raise AssertionError(f"every node above an aggregate carries the kind by now, got {node.child}")
    new_kind = Column(next(fresh_ids(node)), ROW_KIND_COLUMN, "string")
    if isinstance(node, Filter):
        return _having(node, kind, new_kind, keys)
    if any(map(is_marked, node.outputs)):
        return None
    guarded = tuple(_guarded(output, kind, keys) for output in node.outputs if not output.column.is_row_kind)
    if set(map(id, guarded)) <= set(map(id, node.outputs)):
        return carry_row_kind(node, settings)
    return replace(node, outputs=(*guarded, Output(new_kind, Call(KIND_IF, (kind,)))), ref=None)


def _having(node: Filter, kind: Column, new_kind: Column, keys: tuple[GroupKey, ...]) -> Plan | None:
    """What a condition says of the key never changes for a group: only the rest can remove the group."""
    parts = conjuncts(node.condition)
    of_keys = conjunction([part for part in parts if uses_keys_only(part, keys)])
    rest = conjunction([part for part in parts if not uses_keys_only(part, keys)])
    if rest is None:
        return None
    below = node.child if of_keys is None else Filter(node.child, of_keys)
    passed = tuple(Output.of(column) for column in node.columns if not column.is_row_kind)
    return Project(below, (*passed, Output(new_kind, Call(KIND_IF, (kind, rest)))))


def _guarded(output: Output, kind: Column, keys: tuple[GroupKey, ...]) -> Output:
    if isinstance(output.value, Column | Literal | Aggregation) or uses_keys_only(output.value, keys):
        return output
    return Output(output.column, Call(UNLESS_GONE, (kind, output.value)))


def end_with_row_kind(node: Plan, _settings: Settings) -> Plan | None:
    """Put a Project on top of a query whose last operator has the kind elsewhere.

    A projection has it last by `carry_row_kind`; a generator or a join with static rows adds columns after
    it.
    """
    ended = with_row_kind_last(node)
    return None if ended is node or not reads_changes(node) else ended


def mark_upserts(node: Plan, _settings: Settings) -> Plan | None:
    """Mark the kind of a projection on top of upserts again: it may have renamed the columns of their key.

    The mark on the kind names these columns, for `write_changes`, or the constant columns of an aggregate of
    all rows. It was made further down, and knows the names there.
    """
    if not isinstance(node, Project) or group_keys(node) is None:
        return None
    kind = next((output for output in reversed(node.outputs) if output.column.is_row_kind), None)
    if kind is None or is_marked(kind):
        return None
    marked = Output(Column(next(fresh_ids(node)), ROW_KIND_COLUMN, "string"), Call(KIND_IF, (kind.value,)))
    return replace(node, outputs=tuple(marked if one is kind else one for one in node.outputs), ref=None)


_CONSTANT: Final = "a constant, as in SELECT 'all' AS name, count(*) …"
_STATE_PATH: Final = "state_path='…', a folder on a disk that driver and executors share"


def unmet_lookup_joins(plan: Plan, sink_key: tuple[str, ...] | None) -> Iterator[tuple[Changelog, str]]:
    """Lookup joins whose upserts are not enough, each with a reason.

    Below projections and filters alone they are, and in a sink with their key.
    """
    for node in walk(plan):
        for child in () if isinstance(node, Unary) else children(node):
            if (leaf := _lookup_join_of(child)) is not None:
                yield leaf, f"{operator_in_words(node)} must know which rows are replaced"
    leaf = _lookup_join_of(plan)
    if leaf is not None and sink_key is not None and (reason := sink_is_keyed_by_groups(plan, sink_key)):
        yield leaf, reason


def _upserts_go_to_a_sink(node: Plan, below: Plan, settings: Settings) -> Refused:
    """The refusal of a node that takes for changes what an input of it, `below`, gives as upserts."""
    if upsert_key(below).of == AGGREGATE:
        what = "another aggregate" if isinstance(node, Aggregate) else operator_in_words(node)
        return Refused(
            f"{what} over an aggregate of the changes of {sources(node)}: its rows replace each other by the "
            "group's key, which only a sink can do",
            "write the aggregate into a managed table whose PRIMARY KEY is its GROUP BY columns, with "
            "catalog.write_changes, and continue with that table's changes, catalog.read_changes",
        )
    key = ", ".join(one.name for one in group_keys(below) or ())
    return Refused(
        f"{operator_in_words(node)} over {_upserts_in_words(below)}: its rows replace each other by ({key}), "
        "which only a sink can do",
        f"{_or_whole(below, settings)}write it into a managed table with this PRIMARY KEY, with "
        "catalog.write_changes, and continue with that table's changes, catalog.read_changes",
    )


def _upserts_replace_nothing(node: Plan, reason: str, settings: Settings) -> Refused:
    """Upserts that go into a sink with another key, for a reason."""
    keys = group_keys(node) or ()
    named = ", ".join(key.name for key in keys)
    if upsert_key(node).of == AGGREGATE:
        columns = f"the group columns ({named or _CONSTANT})"
        what, whole = f"the aggregate of the changes of {sources(node)}", ""
    else:
        columns, what, whole = f"({named})", _upserts_in_words(node), _or_whole(node, settings)
    return Refused(
        f"{what} would leave replaced rows in the sink: {reason}",
        f"{whole}write it into a table with a PRIMARY KEY of {columns}",
    )


def _upserts_in_words(plan: Plan) -> str:
    """What gives upserts that are none of an aggregate."""
    match _lookup_join_of(plan):
        case Changelog(name, origin=LookupJoined(left=left, right=right)):
            return f"{name} of {left.name} with {right.name}"
        case _:
            return upsert_key(plan).of


def _or_whole(plan: Plan, settings: Settings) -> str:
    """How a lookup join comes to give every kind of change, as the first of two remedies."""
    match chain_of(plan).leaf:
        case Changelog(origin=LookupJoined()) if settings.changelog == "upsert":
            return f"leave changelog at 'auto' and give {_STATE_PATH}; or "
        case Changelog(origin=LookupJoined()) if settings.state_path is None:
            return f"give {_STATE_PATH}, and the join gives -U too; or "
        case Changelog(name, origin=_) if name == LOOKUP_JOIN:
            return f"call lookup_delta_join with changelog='all' and {_STATE_PATH}; or "
        case _:
            return ""


def _lookup_join_of(plan: Plan) -> Changelog | None:
    leaf = chain_of(plan).leaf
    return leaf if isinstance(leaf, Changelog) and isinstance(leaf.origin, LookupJoined) else None


def refuse_over_groups(node: Plan, settings: Settings) -> Refused | None:
    """Refuse every operator but projections and filters above the upserts of an aggregate or a lookup join.

    They hold no `-U`, so what counts or joins changes would keep the rows that they replace. Lookups for
    upserts by their own key replace them as a sink does.
    """
    if isinstance(node, Unary):
        return None
    if isinstance(node, EnrichedUpserts) and _are_replaced_by(node.key, node.child):
        return None
    below = next((child for child in children(node) if group_keys(child) is not None), None)
    return None if below is None else _upserts_go_to_a_sink(node, below, settings)


def _are_replaced_by(key: Sequence[Column], below: Plan) -> bool:
    """Whether upserts replace each other by these columns."""
    groups = group_keys(below) or ()
    return len(groups) == len(key) and all(any(column.id in one.ids for one in groups) for column in key)


def refuse_ungrouped_sink(node: Plan, settings: Settings) -> Refused | None:
    """Refuse to write the upserts of an aggregate, or of a lookup join, into a sink with another key.

    The start or the end of a window stands for the window, and a constant may be part of the key: the one row
    of an aggregate without GROUP BY needs one. A sink that is not known (`sink_key` None) is not refused.
    """
    if settings.sink_key is None or group_keys(node) is None:
        return None
    reason = sink_is_keyed_by_groups(node, settings.sink_key)
    return None if reason is None else _upserts_replace_nothing(node, reason, settings)
