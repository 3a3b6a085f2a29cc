"""Rules that carry the kind of each change to the top of the plan, as its last column (pure)."""

from __future__ import annotations

from dataclasses import replace

from planner.plan.expressions import Aggregation, Call, Column, Literal, conjunction, conjuncts
from planner.plan.nodes import Changelog, Filter, Output, Plan, Project, Union
from planner.plan.trees import fresh_ids, reads_changes, row_kind_of, with_children, with_row_kind_last
from planner.plan.upsert_keys import KIND_IF, UNLESS_GONE, GroupKey, group_keys, uses_keys_only
from planner.settings import Settings
from upsert.rowkind import ROW_KIND_COLUMN


def carry_row_kind(node: Plan, settings: Settings) -> Plan | None:  # noqa: ARG001
    """Make `_row_kind` of the input the last column of a Project over a changelog, and no other kind in it.

    Whether the query selects it (`SELECT *`), leaves it out or selects both kinds of a join is all the
    same: the kind belongs to the changelog. Works upwards, so that each Project finds it in its input.

        Project [a#1]                    Project [a#1, _row_kind#2]
          Changelog …              =>      Changelog …

    The inputs of a union all have it last, for they meet by position.
    """
    match node:
        case Union(inputs) if reads_changes(node):
            return _unless_same(node, with_children(node, [with_row_kind_last(part) for part in inputs]))
        case Project(child) if reads_changes(child) and (row_kind := row_kind_of(child)) is not None:
            if _carries(node, row_kind):
                return None
            own = [output for output in node.outputs if not output.column.is_row_kind]
            return replace(node, outputs=(*own, Output.of(row_kind)), ref=None)
        case Changelog():
            return _unless_same(node, with_row_kind_last(node))
    return None


def _unless_same(node: Plan, changed: Plan) -> Plan | None:
    return None if changed is node else changed


def _carries(node: Project, row_kind: Column) -> bool:
    """Whether the kind is the last column already, and the only one; it may have a new id, or be computed."""
    kinds = [output for output in node.outputs if output.column.is_row_kind]
    if kinds != [node.outputs[-1]] or kinds[0].column.name != ROW_KIND_COLUMN:
        return False
    match kinds[0].value:
        case Call(name, (kind, *_)) if name == KIND_IF:
            return kind == row_kind
        case kind:
            return kind == row_kind


def carry_group_deletes(node: Plan, settings: Settings) -> Plan | None:
    """Turn a filter above upserts of groups into their kind, and compute nothing for groups that are gone.

    A group that fails a HAVING must leave the sink, where it may be since an earlier batch: its row is a
    delete. What the filter says of the key alone stays a filter. In a delete only the key has a value, and an
    expression over the rest could fail:

        Filter (n#3 > 2)                  Project [a#1, n#3, KindIf(_row_kind#-4, (n#3 > 2)) AS _row_kind#-5]
          SignedAggregate …          =>     SignedAggregate …
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
    if any(isinstance(o.value, Call) and o.value.name == KIND_IF for o in node.outputs):
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


def end_with_row_kind(node: Plan, settings: Settings) -> Plan | None:  # noqa: ARG001
    """Put a Project on top of a query whose last operator has the kind elsewhere.

    A projection has it last by `carry_row_kind`; a generator or a join with static rows adds columns after
    it.

        Generate Explode(split#3) AS [word#9]        Project [id#1, word#9, _row_kind#2]
          Changelog …                           =>     Generate Explode(split#3) AS [word#9]
                                                         Changelog …
    """
    if not reads_changes(node):
        return None
    ended = with_row_kind_last(node)
    return None if ended is node else ended


def mark_upserts(node: Plan, settings: Settings) -> Plan | None:  # noqa: ARG001
    """Mark the kind of a projection on top of upserts again: it may have renamed the columns of their key.

    The mark on the kind names these columns, for `write_changes`. It was made further down, and knows the
    names there.

        Project [id#1 AS order_id#5, _row_kind#2]      Project [id#1 AS order_id#5, KindIf(_row_kind#2) AS …]
          Changelog a lookup join by (id) …        =>    Changelog a lookup join by (id) …
    """
    if not isinstance(node, Project) or not group_keys(node):
        return None
    kind = next((output for output in reversed(node.outputs) if output.column.is_row_kind), None)
    if kind is None or (isinstance(kind.value, Call) and kind.value.name == KIND_IF):
        return None
    marked = Output(Column(next(fresh_ids(node)), ROW_KIND_COLUMN, "string"), Call(KIND_IF, (kind.value,)))
    return replace(node, outputs=tuple(marked if one is kind else one for one in node.outputs), ref=None)
