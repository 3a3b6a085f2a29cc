"""The rule that refuses what a changelog must not meet, and its conditions on single nodes (pure).

Conditions are tried in order, so a later one may rely on the earlier ones.

What works row by row is right over signed rows: a union passes each row with its sign, and a generator makes
the same rows of a row that goes as of the row that came. Whatever counts, orders, compares or chooses rows is
not. An unknown operator is refused.
"""

from __future__ import annotations

from typing import Final

from planner.plan.expressions import (
    SUBQUERY,
    TIMES,
    Call,
    Cast,
    Column,
    Expr,
    Literal,
    in_short,
    is_clock_word,
    walk_expression,
)
from planner.plan.nodes import (
    Changelog,
    Filter,
    Generate,
    Join,
    Normalized,
    Opaque,
    Plan,
    Project,
    Union,
    Watermark,
)
from planner.plan.sources import Mode
from planner.plan.trees import equalities, expressions, reads_changes, row_kind_of, sources, trace, walk
from planner.refusals import Refused, first_refusal, operator_in_words
from planner.rules.topics import UPSERT_CONDITIONS, topic_of, upserts_are_replaced_above
from planner.settings import Settings
from upsert.rowkind import ROW_KIND_COLUMN

_ON_A_SNAPSHOT: Final = (
    "write the changes into a managed table with catalog.write_changes "
    "and run this over its snapshot, catalog.read"
)

_FUNCTION: Final = (
    "call it in foreachBatch, or before the rows are written into the table whose changes are read"
)

_OF_FUNCTIONS: Final = (
    *("MapInArrow", "FlatMapGroupsInArrow", "TransformWithStateInPySpark"),
    *("MapInPandas", "FlatMapGroupsInPandas", "FlatMapGroupsInPandasWithState"),
)

OF_NO_VIEW: Final = frozenset({"Sample", *_OF_FUNCTIONS})
"""Operators that no query of a materialized view may have: by chance, or without words in SQL."""

_REMEDIES: Final = {
    "AsOfJoin": "join with the versions of the time, deltajoin.temporal_join, or join the changes of both",
    "Except": "use LEFT ANTI JOIN by the key",
    "Expand": "write a GROUP BY for each grouping and bring them together with UNION ALL",
    "Intersect": "use LEFT SEMI JOIN by the key",
    "LateralJoin": "write it as a join with its own condition, and UNNEST of an array or a map as LATERAL "
    "VIEW [OUTER] explode(column) name AS column",
    "Unpivot": "select with the generator stack, as in stack(2, 'a', a, 'b', b) AS (name, value)",
    "Sample": "choose rows by a hash of their key, as in filter(pmod(xxhash64(id), 100) < 5)",
    **dict.fromkeys(_OF_FUNCTIONS, _FUNCTION),
}
"""What to do instead, where it is not `_ON_A_SNAPSHOT`."""

_DROP_THE_KIND: Final = (
    "drop it before, as in df.drop('_row_kind').na.fill('none'); optimize gives it back as the last column"
)

_RESERVED: Final = Refused(
    f"a column of the query is called {ROW_KIND_COLUMN!r}, which is reserved", "rename it"
)

_GENERATORS: Final = frozenset(
    {"Explode", "GeneratorOuter", "Inline", "JsonTuple", "PosExplode", "Stack", "ReplicateRows"}
)
"""Generators that make the same rows of equal rows, whichever rows come before or after."""


def operator_digests_changes(node: Plan) -> Refused | None:
    """An operator that is not known to respect the signs of changes may not stand above them."""
    if not isinstance(node, Opaque):
        return None
    return Refused(
        f"{operator_in_words(node)} over the changes of {sources(node)} would treat deleted rows as rows",
        _REMEDIES.get(node.name, _ON_A_SNAPSHOT),
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
        return _RESERVED
    return None


OPERATOR_CONDITIONS: Final = (
    operator_digests_changes,
    union_is_of_changes_alone,
    union_aligns_kinds,
    generator_is_repeatable,
    made_columns_are_no_kinds,
)


_SESSION_FUNCTIONS: Final = frozenset(
    {"CurrentCatalog", "CurrentDatabase", "CurrentPath", "CurrentTimeZone", "CurrentUser", "SparkVersion"}
)


def changes_have_their_kind(node: Plan) -> Refused | None:
    """Without `_row_kind` the rows that went away look like rows that came."""
    if isinstance(node, Changelog) and not any(column.is_row_kind for column in node.columns):
        return Refused(
            f"the changes of {node.name!r} are read without {ROW_KIND_COLUMN!r}, "
            "so deleted rows look like new ones",
            "leave out the option 'row-kind' and any schema of your own",
        )
    return None


def expressions_are_repeatable(node: Plan) -> Refused | None:
    """A row must be taken away with the values it came with, so each expression must give them again."""
    for expr in (part for whole in expressions(node) for part in walk_expression(whole)):
        if fault := _unrepeatable(expr):
            reason, remedy = fault
            return Refused(
                f"{in_short(expr)} {reason}, so a row over the changes of {sources(node)} could not be "
                "deleted with the values of its insert",
                remedy,
            )
    return None


def row_kind_is_left_alone(node: Plan) -> Refused | None:
    """`_row_kind` belongs to the changelog, not to the query: it may be passed on or left out."""
    match node:
        case Project():
            for output in node.outputs:
                is_passed_on = isinstance(output.value, Column) and output.value.is_row_kind
                if output.column.is_row_kind and not is_passed_on:
                    if not _uses_row_kind(output.value):
                        return _RESERVED
                    return Refused(
                        f"{ROW_KIND_COLUMN!r} is replaced by what is computed of it, as na.fill and replace "
                        "do with all columns",
                        _DROP_THE_KIND,
                    )
                if _uses_row_kind(output.value) and not output.column.is_row_kind:
                    return Refused(
                        f"{ROW_KIND_COLUMN!r} is used to compute column {output.column.name!r}",
                        "leave it out; optimize gives the kind back as the last column",
                    )
        case Join() if any(_uses_row_kind(expr) for expr in expressions(node)):
            return Refused(
                f"{ROW_KIND_COLUMN!r} is among the join columns, as in a NATURAL JOIN of two changelogs",
                f"name the join columns: {_without_row_kind(node)}",
            )
        case Generate(generator=generator) if _uses_row_kind(generator):
            return Refused(
                f"{ROW_KIND_COLUMN!r} is used by the generator {generator}",
                "leave it out; optimize gives the kind back as the last column",
            )
        case Filter() | Watermark() if any(_uses_row_kind(expr) for expr in expressions(node)):
            return Refused(
                f"{ROW_KIND_COLUMN!r} is used in a condition, which would keep half of an update",
                "remove it, or drop the column before where a function takes all columns, as na.drop does; "
                "optimize carries the kind through",
            )
    return None


CHANGE_CONDITIONS: Final = (
    changes_have_their_kind,
    row_kind_is_left_alone,
    expressions_are_repeatable,
)

_ELSEWHERE: Final = "compute it when the rows are written, or over a snapshot of the result"


def _unrepeatable(expr: Expr) -> tuple[str, str] | None:
    """Why an expression gives another value some other time, and what to write instead."""
    match expr:
        case Call(name, is_filled_in=True) if name in _SESSION_FUNCTIONS:
            return "is another one in another session", "write its value into the query as a constant"
        case Call(is_filled_in=True):
            return "reads the clock", _ELSEWHERE
        case Cast(Literal(str(text)), type_name) if type_name in TIMES and is_clock_word(text):
            return "reads the clock", _ELSEWHERE
        case Call(name) if name == SUBQUERY:
            return "reads rows that may change", _ELSEWHERE
        case Call(is_deterministic=False):
            return "is not deterministic", _ELSEWHERE
        case Call("AesEncrypt", (_, _, mode, _, vector, _)) if not _is_repeatable_cipher(mode, vector):
            return "draws a vector for each row", "name the mode 'ECB', or give a vector of your own"
    return None


def _is_repeatable_cipher(mode: Expr, vector: Expr) -> bool:
    """Whether a text is always encrypted to the same: without a vector, or with one that the query says."""
    if isinstance(mode, Literal) and str(mode.value).upper() == "ECB":
        return True
    match vector:
        case Cast(Literal(str(text))):
            return bool(text)
        case Call(text, ()):  # a constant of bytes
            return text != "X''"
        case _:
            return False


def _uses_row_kind(expr: Expr) -> bool:
    return any(isinstance(part, Column) and part.is_row_kind for part in walk_expression(expr))


def _without_row_kind(join: Join) -> str:
    names = [
        part.name
        for condition, left, _ in equalities(join)
        if not _uses_row_kind(condition)
        for part in walk_expression(left)
        if isinstance(part, Column)
    ]
    return f"JOIN … USING ({', '.join(names)})" if names else "JOIN … ON …"


def input_has_its_kinds(node: Plan) -> Refused | None:
    """The planner does not change what the operator is given: its columns are fixed."""
    match node:
        case Changelog(origin=Normalized(input=given)) if reads_changes(given):
            if any(isinstance(part, Join) and reads_changes(part) for part in walk(given)):
                fault = "joins changes as rows"
            elif row_kind_of(given) is None:
                fault = "has lost its '_row_kind'"
            else:
                return None
            return Refused(
                f"what upsert.normalize is given of the changes of {sources(given)} {fault}",
                "write upsert.normalize(planner.optimize(df), …)",
            )
    return None


def input_is_told_apart_by_its_key(node: Plan) -> Refused | None:
    """A delete among upserts has no column but its key, so it cannot be known by others."""
    match node:
        case Changelog(origin=Normalized(key, given)) if (topic := topic_of(given, Mode.UPSERT)) is not None:
            named = [column for column in given.columns if column.name in key]
            origins = {origin.name for column in named if (origin := trace(column, given)) is not None}
            of_topic = topic.schema.primary_key
            if origins != set(of_topic):
                return Refused(
                    f"upsert.normalize by ({', '.join(key)}) does not see which rows of {topic.name!r}, read "
                    f"with changelog = 'upsert', are deleted: the topic's key is ({', '.join(of_topic)})",
                    "normalize by the topic's primary key, or read the topic with changelog = 'all'",
                )
    return None


NORMALIZED_CONDITIONS: Final = (input_has_its_kinds, input_is_told_apart_by_its_key)

_CONDITIONS: Final = (
    *OPERATOR_CONDITIONS,
    *CHANGE_CONDITIONS,
    *UPSERT_CONDITIONS,
    upserts_are_replaced_above,
    *NORMALIZED_CONDITIONS,
)


def refuse_unsupported(node: Plan, settings: Settings) -> Refused | None:
    """Refuse a node over a changelog that fails a condition; those below `upsert.normalize` as well.

    Spark runs such a query without complaint and gives a wrong answer: it takes each
    change for a row. Joins have conditions of their own, see `replace_join`.
    """
    if not reads_changes(node):
        return None
    refused = first_refusal(_CONDITIONS, node)
    match node:
        case Changelog(origin=Normalized(input=given)) if refused is None:
            below = (refuse_unsupported(part, settings) for part in walk(given))
            return next((found for found in below if found), None)
    return refused
