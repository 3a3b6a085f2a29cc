"""A stream as the client has it: relations with names in them, which only the server can resolve.

That is enough to tell a plan that passes changes on row by row, with their kinds, from any other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NoReturn

from pyspark.sql import DataFrame

from deltajoin.spark.source import FORMAT as JOIN
from deltajoin.spec import DeltaJoinSpec
from deltajoin.temporal import STATE
from planner.connect.values import (
    fault_of,
    in_words,
    is_row_kind,
    parts,
    takes_the_day,
    touches_row_kind,
    unknown_in,
    volatile_function_in,
    volatile_in,
)
from planner.refusals import PlanError, Refused
from upsert.managed.options import PATH, ReadOptions
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.store.table import Table
from upsert.stream_keys import KEYS_MARK, UniqueKeys, UpsertKey


def relation(df: Any) -> Any:
    """The plan of a DataFrame of Spark Connect, as it is sent to the server."""
    return df._plan.to_proto(df.sparkSession.client).root


_OF_ROWS: Final = frozenset(
    {
        *("read", "project", "filter", "subquery_alias", "drop", "with_columns", "with_columns_renamed"),
        *("to_df", "hint", "repartition", "repartition_by_expression"),
    }
)
"""Relations of a plan that take a change for itself."""

_OF_COLUMNS: Final = frozenset(
    {"project", "subquery_alias", "drop", "with_columns", "with_columns_renamed", "to_df"}
)
"""Relations that give every row of their input."""

_CHANGELOGS: Final = frozenset(
    {"upsert-table", "upsert-kafka", "kafka-changelog", "delta-join", "delta-aggregate"}
)
"""Formats that give changes."""

_WHOLE: Final = frozenset({"upsert-table", "delta-join", "delta-aggregate"})
"""Formats that give every kind of change, without the option `changelog`."""

_INSTEAD: Final = (
    "join them in one statement of catalog.sql, or by deltajoin.read_join; or use a classic session, which "
    "plans every query"
)


def carried(df: DataFrame) -> DataFrame:
    """A stream of Spark Connect as it may be written: row by row over changes, and with their kinds.

    Raises:
        PlanError: it joins, counts or unites changes, has lost their kinds, or computes what is not of the
            row alone.
    """
    if not df.isStreaming:
        return df
    found = list(_messages(relation(df)))
    _check_names(df, found)
    if not any(map(_gives_changes, found)):
        return df
    used = {m.WhichOneof("rel_type") for m in found if m.DESCRIPTOR.full_name == "spark.connect.Relation"}
    unions = [m.set_op for m in found if _is_relation(m, "set_op")]
    if unions:
        _check_unions(unions, found)
        used.discard("set_op")
    if is_grouped := _groups_at_top(df, found):
        used.discard("aggregate")
    unknown = {kind for kind in map(unknown_in, found) if kind is not None}
    if others := sorted((used - _OF_ROWS) | unknown):
        _refuse(f"over Spark Connect changes are taken row by row only, found {others[0]!r}", _INSTEAD)
    volatile = next(filter(None, map(volatile_in, found)), None)
    if volatile is not None or (volatile := volatile_function_in(df.sparkSession, found)) is not None:
        _refuse_volatile(volatile)
    if [name.lower() for name in df.columns].count(ROW_KIND_COLUMN) != 1:
        _refuse(
            f"over Spark Connect a stream of changes must have the column {ROW_KIND_COLUMN!r}, found "
            f"{', '.join(df.columns)}",
            "select it too",
        )
    for message in found:
        if message.DESCRIPTOR.full_name == "spark.connect.Relation":
            _check_values(df, message)
            if not is_grouped:  # the sums are computed by it
                _check_kind(df, message)
    if is_grouped or not unions:
        return df
    return df.withMetadata(ROW_KIND_COLUMN, {KEYS_MARK: UniqueKeys().to_text()})


def are_groups(df: DataFrame) -> bool:
    """Whether a stream gives the upserts of one aggregate, with no condition above."""
    return _groups_at_top(df, list(_messages(relation(df))))


def joins_in(df: DataFrame) -> Iterator[DeltaJoinSpec]:
    """The delta joins that a stream reads."""
    reads = (message.read.data_source for message in _messages(relation(df)) if _is_relation(message, "read"))
    for read in reads:
        if read.format == JOIN:
            yield DeltaJoinSpec.from_json(read.options["spec"])


def starts_late(df: DataFrame) -> str | None:
    """The option by which changes of a stream are not read from the beginning; None where they are."""
    for message in _messages(relation(df)):
        if not _is_relation(message, "read") or not message.read.is_streaming:
            continue
        read = message.read.data_source
        given = {key.lower(): value for key, value in read.options.items()}
        if read.format == "upsert-table":
            options = ReadOptions.parse({**given, PATH.key: str(read.paths[0])} if read.paths else given)
            mode = options.beginning_as(Table.open(options.path)).scan_mode
            if mode != "full":
                return f"scan.mode = {mode!r}"
        elif (mode := given.get("scan.startup.mode", "earliest-offset")) != "earliest-offset":
            return f"scan.startup.mode = {mode!r}"
    return None


def _check_names(df: DataFrame, found: Sequence[Any]) -> None:
    """Refuse a temporary view of a stream: its query is in the server, and may have counted changes."""
    for message in found:
        if message.DESCRIPTOR.full_name == "spark.connect.Read" and not message.is_streaming:
            name = message.named_table.unparsed_identifier
            if name and df.sparkSession.table(name).isStreaming:
                _refuse(
                    f"over Spark Connect the stream of the view {name!r} cannot be planned, because only the "
                    "server has its query",
                    "use the DataFrame of which the view was made",
                )


def _check_kind(df: Any, message: Any) -> None:
    """Refuse a relation that computes with the kind of a change, or gives its name to something else."""
    match message.WhichOneof("rel_type"):
        case "project":
            touched = [one for one in message.project.expressions if not is_row_kind(one)]
        case "filter":
            touched = [message.filter.condition]
        case "with_columns":
            touched = [one for one in message.with_columns.aliases if not is_row_kind(one)]
        case "with_columns_renamed":
            renamed = message.with_columns_renamed
            old = (*renamed.rename_columns_map, *(one.col_name for one in renamed.renames))
            new = (*renamed.rename_columns_map.values(), *(one.new_col_name for one in renamed.renames))
            if ROW_KIND_COLUMN in map(str.lower, (*old, *new)):
                _refuse_kind("a new name")
            return
        case "to_df":
            before, after = _names(df, message.to_df.input), list(message.to_df.column_names)
            if [*map(_is_kind, before)] != [*map(_is_kind, after)]:
                _refuse_kind("a new name")
            return
        case _:
            return
    if (one := next(filter(touches_row_kind, touched), None)) is not None:
        _refuse_kind(repr(in_words(one)))


def _is_kind(name: str) -> bool:
    return name.lower() == ROW_KIND_COLUMN


def _names(df: Any, below: Any) -> list[str]:
    """Names of the columns of a relation."""
    plan = df._plan.to_proto(df.sparkSession.client)
    plan.root.CopyFrom(below)
    return list(df.sparkSession.client.schema(plan).names)


def _refuse_kind(found: str) -> NoReturn:
    _refuse(
        f"over Spark Connect the kind of a change must be passed on as it is, under its name, found {found}",
        f"select {ROW_KIND_COLUMN!r} as it is, and filter and compute by other columns",
    )


def _check_values(df: DataFrame, message: Any) -> None:
    """Refuse a relation with values that Spark does not take for those of the row alone."""
    match message.WhichOneof("rel_type"):
        case "project":
            below, values = message.project.input, message.project.expressions
        case "filter":
            below, values = message.filter.input, [message.filter.condition]
        case "with_columns":
            below, values = message.with_columns.input, message.with_columns.aliases
        case _:
            return
    fault = fault_of(df, below, values)
    if fault is not None and fault.is_volatile:
        _refuse_volatile(fault.value)
    if fault is not None:
        _refuse(
            f"over Spark Connect changes are taken row by row only, found {fault.value!r}, of which Spark "
            f"says {fault.condition}",
            _INSTEAD,
        )
    if takes_the_day(df, message, below):
        _refuse_volatile("a cast of a TIME to a TIMESTAMP, which takes the day from the clock,")


def _refuse_volatile(what: str) -> NoReturn:
    _refuse(
        f"{what} may give another value for the deletion of a row than for its insert",
        "write the value into the table whose changes are read",
    )


def _refuse(reason: str, remedy: str) -> NoReturn:
    raise PlanError([Refused(reason, remedy)])


def _is_relation(message: Any, kind: str) -> bool:
    is_relation = message.DESCRIPTOR.full_name == "spark.connect.Relation"
    return bool(is_relation and message.WhichOneof("rel_type") == kind)


def _groups_at_top(df: DataFrame, messages: Sequence[Any]) -> bool:
    """Whether the plan gives the upserts of one aggregate, of `summed`, as they come, with no filter above.

    Their kind bears the mark of that; what has no such kind, or another operator above, is no such plan.
    """
    upserts = UpsertKey.of_schema(df.schema.jsonValue())
    if upserts is None or upserts.is_append or sum(_is_relation(m, "aggregate") for m in messages) != 1:
        return False
    node: Any = relation(df)
    while (kind := node.WhichOneof("rel_type")) in _OF_COLUMNS:
        node = getattr(node, kind).input
    return bool(kind == "aggregate")


def _check_unions(unions: Sequence[Any], messages: Sequence[Any]) -> None:
    """Refuse a union in which a kind may meet another column, or is that of a change that is not whole."""
    is_plain = all(
        one.set_op_type == one.SET_OP_TYPE_UNION
        and one.is_all
        and one.by_name
        and not one.allow_missing_columns
        for one in unions
    )
    if not is_plain:
        _refuse(
            "over Spark Connect changes are united by the names of their columns, all of them, found another "
            "union",
            f"write one.unionByName(other), or UNION ALL in catalog.sql; else {_INSTEAD}",
        )
    reads = [m.read.data_source for m in messages if _is_relation(m, "read") and m.read.is_streaming]
    for read in reads:
        if read.format not in _WHOLE or "changelog" in {key.lower() for key in read.options}:
            _refuse(
                f"over Spark Connect a union with {read.format!r}, whose changes may not say which rows they "
                "replace, cannot be planned",
                "unite managed tables, or the mirrors of topics",
            )


def _messages(message: Any) -> Iterator[Any]:
    """A protobuf message, and all in it; below a join with versions are no changes that count."""
    yield message
    if message.DESCRIPTOR.name == "ApplyInPandasWithState" and message.state_schema == STATE:
        return
    for part in parts(message):
        yield from _messages(part)


def _gives_changes(message: Any) -> bool:
    """Whether a part of a plan reads changes; a name, and SQL, may."""
    name = message.DESCRIPTOR.full_name
    if name == "spark.connect.Read":
        is_named = message.WhichOneof("read_type") == "named_table"
        return bool(message.is_streaming) and (is_named or message.data_source.format in _CHANGELOGS)
    return name in ("spark.connect.SQL", "spark.connect.RelationChanges")
