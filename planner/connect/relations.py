"""A stream as the client has it: relations with names in them, which only the server can resolve.

That is enough to tell a plan that passes changes on row by row, with their kinds, from any other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NoReturn

from pyspark.sql import DataFrame

from deltajoin.temporal import STATE
from planner.refusals import PlanError, Refused
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.sql.volatile import of_the_moment
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

_CHANGELOGS: Final = frozenset({"upsert-table", "upsert-kafka", "kafka-changelog", "delta-join"})
"""Formats that give changes."""

_WHOLE: Final = frozenset({"upsert-table", "delta-join"})
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
    messages = list(_messages(relation(df)))
    if not df.isStreaming or not any(map(_gives_changes, messages)):
        return df
    used = {m.WhichOneof("rel_type") for m in messages if m.DESCRIPTOR.full_name == "spark.connect.Relation"}
    unions = [m.set_op for m in messages if _is_relation(m, "set_op")]
    if unions:
        _check_unions(unions, messages)
        used.discard("set_op")
    if _groups_at_top(df, messages):
        used.discard("aggregate")
    if others := sorted(used - _OF_ROWS):
        _refuse(f"over Spark Connect changes are taken row by row only, found {others[0]!r}", _INSTEAD)
    if (found := next(filter(None, map(_volatile_in, messages)), None)) is not None:
        _refuse(
            f"{found} may give another value for the deletion of a row than for its insert",
            "write the value into the table whose changes are read",
        )
    if [name.lower() for name in df.columns].count(ROW_KIND_COLUMN) != 1:
        _refuse(
            f"over Spark Connect a stream of changes must have the column {ROW_KIND_COLUMN!r}, found "
            f"{', '.join(df.columns)}",
            "select it too",
        )
    return df.withMetadata(ROW_KIND_COLUMN, {KEYS_MARK: UniqueKeys().to_text()}) if unions else df


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
    for field, value in message.ListFields():
        if field.message_type is not None:
            several = value.values() if hasattr(value, "values") else value
            for one in [value] if hasattr(value, "DESCRIPTOR") else several:
                if hasattr(one, "DESCRIPTOR"):  # a map may hold texts
                    yield from _messages(one)


def _gives_changes(message: Any) -> bool:
    """Whether a part of a plan reads changes; a name, and SQL, may."""
    name = message.DESCRIPTOR.full_name
    if name == "spark.connect.Read":
        is_named = message.WhichOneof("read_type") == "named_table"
        return bool(message.is_streaming) and (is_named or message.data_source.format in _CHANGELOGS)
    return name in ("spark.connect.SQL", "spark.connect.RelationChanges")


def _volatile_in(message: Any) -> str | None:
    """What a part of a plan computes that is not of the row alone; None for nothing."""
    match message.DESCRIPTOR.name:
        case "UnresolvedFunction":
            text = f"{message.function_name}({'…' if message.arguments else ''})"
        case "ExpressionString":
            text = message.expression
        case "CommonInlineUserDefinedFunction" if not message.deterministic:
            return f"the function {message.function_name!r}, which is not deterministic,"
        case _:
            return None
    found = of_the_moment(text)
    return None if found is None else found.what
