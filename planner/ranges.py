"""Which records of a topic a filter can be true of: a small subset of conditions on METADATA columns (pure).

A range only has to leave out no record that the query keeps, because the query applies its own condition
again. Offsets grow within a partition, so they are bounded on both sides. The times of records need not
grow: everything before the *first* record of a time may be left out, nothing after one.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

from planner.chain import INTEGER_WIDTHS, chain_of, folded_integer, trace
from planner.conditions import OBSERVATION
from planner.expressions import Call, Column, Expr, Literal, conjuncts, walk_expression
from planner.nodes import Filter, Plan, Watermark, Wrapper
from planner.sources import KafkaTopic, RecordRange
from planner.trees import expressions

_MIRRORED: Final = {
    "EqualTo": "EqualTo",
    "LessThan": "GreaterThan",
    "LessThanOrEqual": "GreaterThanOrEqual",
    "GreaterThan": "LessThan",
    "GreaterThanOrEqual": "LessThanOrEqual",
}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LONGEST: Final = (1 << 63) - 1
_HIGHEST_PARTITION: Final = (1 << 31) - 1


def range_of(node: Filter, topic: KafkaTopic) -> RecordRange:
    """The records of the topic, the leaf of the filter's chain, that the filter can be true of."""
    found = RecordRange()
    if not _may_be_moved_down(node):
        return found
    for part in conjuncts(node.condition):
        for narrower in _ranges(part, node.child, topic):
            found &= narrower
    return found


def _may_be_moved_down(node: Filter) -> bool:
    """Whether leaving records out changes nothing but what the filter drops: no counts, no random values."""
    below = [node, *chain_of(node.child).nodes]
    if any(isinstance(one, Wrapper) and one.name == OBSERVATION for one in below):
        return False
    parts = (part for one in below for expr in expressions(one) for part in walk_expression(expr))
    return all(part.is_deterministic for part in parts if isinstance(part, Call))


def _ranges(condition: Expr, plan: Plan, topic: KafkaTopic) -> Iterator[RecordRange]:
    match condition:
        case Call(name, (a, b)) if name in _MIRRORED:
            yield from _comparison(a, name, b, plan, topic)
            yield from _comparison(b, _MIRRORED[name], a, plan, topic)
        case Call("In", (value, *options)):
            column = _source_column(value, plan)
            numbers = [_integer(folded_integer(option)) for option in options]
            known = [number for number in numbers if number is not None]
            if column is not None and topic.metadata_key(column.name) == "partition":
                yield from _partitions(column, known if len(known) == len(numbers) else [])


def _comparison(
    value: Expr, name: str, constant: Expr, plan: Plan, topic: KafkaTopic
) -> Iterator[RecordRange]:
    column = _source_column(value, plan)
    if column is None:
        return
    constant = folded_integer(constant)
    match topic.metadata_key(column.name), _integer(constant):
        case "partition", int(number) if name == "EqualTo":
            yield from _partitions(column, [number])
        case "offset", int(number) if column.type in INTEGER_WIDTHS:
            yield from _offsets(name, number)
        case "timestamp", number:
            yield from _times(column, name, number, constant)


def _partitions(column: Column, numbers: list[int]) -> Iterator[RecordRange]:
    possible = tuple(sorted({number for number in numbers if 0 <= number <= _HIGHEST_PARTITION}))
    if possible and column.type in INTEGER_WIDTHS:
        yield RecordRange(partitions=possible)


def _offsets(name: str, number: int) -> Iterator[RecordRange]:
    if name in ("EqualTo", "GreaterThan", "GreaterThanOrEqual"):
        first = number + (name == "GreaterThan")
        if 0 < first <= _LONGEST:
            yield RecordRange(offset_from=first)
    if name in ("EqualTo", "LessThan", "LessThanOrEqual"):
        end = number + (name != "LessThan")
        if 0 < end <= _LONGEST:
            yield RecordRange(offset_until=end)


def _times(column: Column, name: str, millis: int | None, constant: Expr) -> Iterator[RecordRange]:
    """Lower bounds alone: a record that is too young may be followed by one that is not."""
    if name not in ("EqualTo", "GreaterThan", "GreaterThanOrEqual"):
        return
    first = None
    match column.type, constant:
        case "bigint", Literal() if millis is not None:
            first = millis + (name == "GreaterThan")
        case "timestamp" | "timestamp_ntz" as type_, Literal(datetime() as time, literal) if type_ == literal:
            micros = (time.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
            first = micros // 1000 + 1 if name == "GreaterThan" else -(-micros // 1000)
    if first is not None and 0 < first <= _LONGEST:
        yield RecordRange(timestamp_from=first)


def _source_column(expr: Expr, plan: Plan) -> Column | None:
    """The column of the topic that the expression is, unless a watermark on the way follows its values."""
    column = trace(expr, plan)
    for node in chain_of(plan).nodes:
        if isinstance(node, Watermark) and trace(node.column, node.child) == column:
            return None
    return column


def _integer(constant: Expr) -> int | None:
    if isinstance(constant, Literal) and constant.type in INTEGER_WIDTHS and constant.value is not None:
        return int(constant.value)
    return None
