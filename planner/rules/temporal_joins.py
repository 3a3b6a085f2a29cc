"""Rules on joins by `FOR SYSTEM_TIME AS OF` with what only lookups or versions can answer (pure).

Tables of web services and of PostgreSQL have no rows to read, only answers by key; versions of rows are those
of a time that has passed. In a plan both are relations that nothing can read, so each join with them becomes
what it is here, or is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from planner.plan.expressions import Column, Expr, conjunction, conjuncts, without_kinds
from planner.plan.keys import key_for_upserts
from planner.plan.nodes import (
    Changelog,
    EnrichedUpserts,
    Filter,
    Join,
    LookupRows,
    Output,
    Plan,
    Project,
    Relation,
    VersionRows,
    Watermark,
)
from planner.plan.trees import above, chain_of, fresh_ids, reads_changes, sources, trace, walk
from planner.refusals import Refused
from planner.rules.static_joins import NO_ARROW, SIDES, enriched, equated_columns, gives_columns_alone
from planner.settings import Settings
from upsert.lookups.options import LookupTable
from upsert.rowkind import ROW_KIND_COLUMN


def looked_up_side(join: Join) -> tuple[Plan, Plan, LookupRows] | None:
    """Of a join with a table that is only looked up: the other side, that of the table, and the table."""
    for stream, static in ((join.left, join.right), (join.right, join.left)):
        leaf = chain_of(static).leaf
        if isinstance(leaf, Relation) and isinstance(leaf.lookups, LookupRows):
            return stream, static, leaf.lookups
    return None


def look_up(node: Plan, settings: Settings) -> Plan | Refused | None:
    """Replace a join with a table that is only looked up, over HTTP or in PostgreSQL, by its lookups.

    INNER, or with the other side preserved, which may be a stream whose rows are only added or a batch; it
    must equate what the table is asked by. A web service is asked by the primary key, PostgreSQL by all
    equated columns. What lies between the join and the table, and what the condition asks beyond the keys, is
    stacked above the lookups of an INNER join. Nothing else can read such a table, so all other joins with it
    are refused.

    A stream of changes is looked up for where the consistency is "latest": its rows replace each other by a
    key, each with what is found for it when it comes.
    """
    if not isinstance(node, Join) or (found := looked_up_side(node)) is None:
        return None
    stream, static, rows = found
    table = rows.table
    if refused := _cannot_look_up(node, stream, static, table, settings):
        return refused
    pairs, conditions = equated_columns(node, stream, static)
    asked = table.asked_by(tuple(name for _, name in pairs))
    if asked is None:
        wanted = f"PRIMARY KEY ({', '.join(table.schema.primary_key)})" if table.schema.primary_key else "key"
        equated = ", ".join(name for _, name in pairs) or "no column"
        return Refused(
            f"the table {table.name!r} is asked by its {wanted}, and the join equates {equated} of it",
            "equate each column of the key with one of the same type of the other side",
        )
    met = {name: condition for (_, name), condition in zip(pairs, conditions, strict=True) if name in asked}
    keys = tuple(pair for pair in pairs if pair[1] in met)
    rest = [part for part in conjuncts(node.condition) if part not in met.values()]
    if SIDES[node.kind] == "left" and rest:
        return Refused(
            f"the {node.kind} join with the table {table.name!r} has a condition beside its key, and a row "
            "that fails it would have to be padded with NULLs",
            "write the condition where the columns are selected: CASE WHEN … THEN r.column END",
        )
    if reads_changes(stream):
        return _enriched_upserts(node, stream, static, rows, keys, rest, settings)
    return enriched(node, stream, static, rows, keys, rest)


def _enriched_upserts(
    join: Join,
    stream: Plan,
    static: Plan,
    rows: LookupRows,
    keys: tuple[tuple[Column, str], ...],
    rest: Sequence[Expr],
    settings: Settings,
) -> Plan | Refused:
    """The lookups for changes, under what lies between join and table, and what is asked beyond the keys."""
    table = rows.table
    if not table.schema.primary_key or not set(table.schema.primary_key) <= {name for _, name in keys}:
        wanted = ", ".join(table.schema.primary_key)
        return Refused(
            f"the join looks rows up in {table.name!r} for the changes of {sources(join)}, and more than one "
            f"may be found by {', '.join(name for _, name in keys)}",
            f"equate its PRIMARY KEY ({wanted})" if wanted else "declare its PRIMARY KEY, and equate that",
        )
    key = key_for_upserts(stream, settings.sink_key)
    if key is None:
        return Refused(
            f"the join looks rows up in {table.name!r} for the changes of {sources(join)}, and no columns "
            "that are never NULL are known to tell their rows apart",
            "read tables with a PRIMARY KEY, and select its columns below the join",
        )
    row_kind = Column(next(fresh_ids(join)), ROW_KIND_COLUMN, "string")
    below = chain_of(static)
    plan: Plan = EnrichedUpserts(stream, rows, below.leaf.columns, keys, SIDES[join.kind], key, row_kind)
    carried = (*without_kinds(stream.columns), row_kind)
    for one in below.nodes:
        plan = above(one, plan, carried)
    residual = conjunction(rest)
    plan = plan if residual is None else Filter(plan, residual)
    return Project(plan, (*map(Output.of, without_kinds(join.columns)), Output.of(row_kind)))


def _cannot_look_up(
    join: Join, stream: Plan, static: Plan, table: LookupTable, settings: Settings
) -> Refused | None:
    """Why no lookups can do what the join does, whatever it equates; None if they can."""
    if any(isinstance(leaf, Relation) and leaf.lookups is not None for leaf in walk(stream)):
        return Refused(
            f"both sides of the join with the table {table.name!r} are only looked up",
            "join a stream, or the rows of a table, with one after the other",
        )
    if reads_changes(stream) and settings.consistency != "latest":
        return Refused(
            f"the join looks rows up in {table.name!r} for the changes of {sources(join)}, and the deletion "
            "of a row could find another row than its insert found",
            "set the option consistency = 'latest' (spark.deltajoin.consistency), with which rows replace "
            "each other by key; or look up for a stream whose rows are only added",
        )
    is_right = stream is join.right
    if join.kind not in SIDES or (join.kind != "inner" and (join.kind == "right outer") is not is_right):
        return Refused(
            f"a {join.kind} join with the table {table.name!r} would need all of its rows, which is only "
            "looked up",
            "write an INNER join, or a LEFT join with the table on the right",
        )
    if any(part in column.type for column in stream.columns for part in NO_ARROW):
        odd = next(c for c in stream.columns for part in NO_ARROW if part in c.type)
        return Refused(
            f"column {odd.name!r} of the join with the table {table.name!r} is {odd.type}, which does not "
            "reach the tasks that look rows up",
            "cast it, or leave it out",
        )
    if SIDES[join.kind] == "left" and not gives_columns_alone(static):
        return Refused(
            f"the side of the table {table.name!r} in a {join.kind} join is filtered or computed upon, and "
            "its rows may be missing",
            "do it where the columns are selected: CASE WHEN … THEN r.column END",
        )
    return None


def _versioned_side(join: Join) -> VersionRows | None:
    """The versions that a join asks for, which stand on its right side."""
    leaf = chain_of(join.right).leaf
    return leaf.lookups if isinstance(leaf, Relation) and isinstance(leaf.lookups, VersionRows) else None


def _has_no_versions(join: Join) -> Refused | None:
    """Why the join cannot be one with the versions of a table."""
    versions = _versioned_side(join)
    name = None if versions is None else versions.name
    if join.kind not in ("inner", "left outer"):
        return Refused(
            f"a {join.kind} join with the versions of {name!r} would have to know that no later row matches "
            "a version",
            "write an INNER join, or a LEFT join with the table on the right",
        )
    if any(isinstance(leaf, Changelog) for leaf in walk(join.left)):
        return Refused(
            f"the join with the versions of {name!r} has changes of {sources(join)} on its left, and a row "
            "that waits may have been deleted",
            "join rows that are only added, such as those of the connector 'kafka' with a format of rows",
        )
    if not gives_columns_alone(join.right):
        return Refused(
            f"the versions of {name!r} are filtered or computed upon before the join",
            "do it where the columns are selected",
        )
    if any(part in column.type for column in join.left.columns for part in NO_ARROW):
        return Refused(
            f"the join with the versions of {name!r} has a column of an interval or variant",
            "cast it, or leave it out",
        )
    return None


def _has_watermark(column: Column, plan: Plan) -> bool:
    """Whether a column is one that has a watermark below, perhaps under another name."""
    raw = trace(column, plan)
    marked = ((node.column, node.child) for node in walk(plan) if isinstance(node, Watermark))
    return any(one == column or (raw is not None and trace(one, below) == raw) for one, below in marked)


def join_versions(node: Plan, settings: Settings) -> Plan | Refused | None:  # noqa: ARG001 - as all rules
    """Replace a join with the versions of a table, as of a column of the other side, by the operator for it.

    `FOR SYSTEM_TIME AS OF o.ts`: INNER or LEFT, with the table on the right; the left side is a stream whose
    rows are only added, with a watermark for that column. The join equates each column of the primary key,
    and what it asks beyond these is a filter above an INNER join.
    """
    if not isinstance(node, Join) or (versions := _versioned_side(node)) is None:
        return None
    if refused := _has_no_versions(node):
        return refused
    times = [column for column in node.left.columns if column.name.lower() == versions.time.lower()]
    if len(times) != 1 or not _has_watermark(times[0], node.left):
        return Refused(
            f"the versions of {versions.name!r} are asked for as of {versions.time!r}, which must be one "
            f"column of the left side with a watermark, got {len(times) or 'none'} of that name",
            f"declare WATERMARK FOR {versions.time} AS … for the table that has it",
        )
    pairs, conditions = equated_columns(node, node.left, node.right)
    met = {name: condition for (_, name), condition in zip(pairs, conditions, strict=True)}
    if not set(versions.key) <= met.keys():
        return Refused(
            f"the versions of {versions.name!r} are those of its PRIMARY KEY ({', '.join(versions.key)}), "
            f"and the join equates {', '.join(met) or 'no column'} of it",
            "equate each column of the key with one of the same type of the left side",
        )
    keys = tuple(pair for pair in pairs if pair[1] in versions.key)
    used = [met[name] for name in versions.key]
    rest = [part for part in conjuncts(node.condition) if part not in used]
    if rest and node.kind != "inner":
        return Refused(
            f"the {node.kind} join with the versions of {versions.name!r} has a condition beside its key, "
            "and a row that fails it would have to be padded with NULLs",
            "write the condition where the columns are selected: CASE WHEN … THEN r.column END",
        )
    return enriched(node, node.left, node.right, replace(versions, at=times[0]), keys, rest)


def refuse_scan_of_lookups(node: Plan, settings: Settings) -> Refused | None:  # noqa: ARG001
    """Refuse a query that would read all rows of a table that is only looked up."""
    joined = {
        id(chain_of(side).leaf)
        for join in walk(node)
        if isinstance(join, Join)
        for side in (join.left, join.right)
    }
    for leaf in walk(node):
        if isinstance(leaf, Relation) and leaf.lookups is not None and id(leaf) not in joined:
            lookups = leaf.lookups
            if isinstance(lookups, VersionRows):
                return Refused(
                    f"versions of {lookups.name!r} as of {lookups.time!r} are for a join with the stream "
                    "that has this column",
                    "write … LEFT JOIN t FOR SYSTEM_TIME AS OF stream.column ON …",
                )
            return Refused(
                f"the table {lookups.table.name!r} is only looked up by key, and the query would read all of "
                "its rows",
                "join a stream with it by an equality",
            )
    return None
