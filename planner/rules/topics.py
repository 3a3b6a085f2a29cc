"""Rules on topics of Kafka: which are read as upserts, which need their normalizer, which by a mirror (pure).

A topic may be read as upserts: `+U` with the new row, `-D` with the key alone. Such a stream is right where
each key's newest row replaces the older ones, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from planner.plan.expressions import Expr, Outcome, Value, in_deletes, in_short
from planner.plan.nodes import (
    Changelog,
    Filter,
    Join,
    Normalized,
    Opaque,
    Plan,
    Project,
    Unary,
)
from planner.plan.sources import KafkaTopic, Mode
from planner.plan.trees import (
    chain_of,
    children,
    is_observed,
    joins_changes,
    origins,
    trace,
    transform_up,
    walk,
    with_children,
)
from planner.refusals import Refused, first_refusal, operator_in_words
from planner.rules.push_down import narrow_kafka_range
from planner.settings import Settings
from upsert.materializer.choice import SEQUENCE

_READ_ALL: Final = (
    "read it with changelog = 'all', or make its changes whole with upsert.normalize(df, key=[…], order_by=…)"
)


def topic_of(plan: Plan, mode: Mode) -> KafkaTopic | None:
    """The topic that a plan reads in this mode, through projections and filters alone."""
    leaf = chain_of(plan).leaf
    origin = leaf.origin if isinstance(leaf, Changelog) else None
    return origin if isinstance(origin, KafkaTopic) and origin.mode is mode else None


def upserts_keep_their_key(node: Plan) -> Refused | None:
    """Only its key says which row an upsert replaces."""
    topic = topic_of(node, Mode.UPSERT)
    if topic is None or not isinstance(node, Project):
        return None
    lost = _lost_key(node, topic)
    if not lost or _lost_key(node.child, topic):  # said once, where it was lost
        return None
    return Refused(
        f"a projection of {topic.name!r}, read with changelog = 'upsert', loses {', '.join(lost)} of its "
        "primary key, or computes it",
        f"pass the whole key ({', '.join(topic.schema.primary_key)}) on; or {_READ_ALL}",
    )


def upserts_are_filtered_by_key(node: Plan) -> Refused | None:
    """A row that leaves the filter would stay where it went before: no `-U` says that it is gone."""
    topic = topic_of(node, Mode.UPSERT)
    if topic is None or not isinstance(node, Filter):
        return None
    other = _other_than_key(node.condition, node.child, topic)
    if not other:
        return None
    return Refused(
        f"a filter on {', '.join(other)} of {topic.name!r}, read with changelog = 'upsert', would not delete "
        "a row that an update makes fail it",
        _READ_ALL,
    )


UPSERT_CONDITIONS: Final = (upserts_keep_their_key, upserts_are_filtered_by_key)


def _sink_is_keyed_alike(plan: Plan, topic: KafkaTopic, sink_key: Sequence[str] | None) -> str | None:
    """The sink must replace a row exactly where the topic does."""
    if sink_key is None:
        return "the key of the sink is not known; give it as sink_key"
    if not sink_key:
        return "the sink has no primary key"
    traced = set()
    for name in sink_key:
        column = next((column for column in plan.columns if column.name == name), None)
        if column is None:
            return f"the sink's key column {name!r} is no column of the query"
        origin = trace(column, plan)
        if origin is None:
            return f"the sink's key column {name!r} is computed"
        traced.add(origin.name)
    key = topic.schema.primary_key
    if traced == set(key):
        return None
    return f"the sink is keyed by ({', '.join(sink_key)}), the topic by ({', '.join(key)})"


def _filters_are_on_the_key(plan: Plan, topic: KafkaTopic) -> str | None:
    """A row that leaves a filter must be taken away, which only its `-U` says."""
    for node in chain_of(plan).nodes:
        if isinstance(node, Filter) and (other := _other_than_key(node.condition, node.child, topic)):
            return f"filter on {', '.join(other)}"
    return None


def _deletes_may_have_nulls(topic: KafkaTopic) -> str | None:
    """A delete carries its key alone, so every other column must be able to hold NULL."""
    known = topic.set_in_deletes
    strict = ", ".join(c.name for c in topic.schema.columns if not c.nullable and c.name not in known)
    return f"column(s) {strict} are NOT NULL, and a delete has no value for them" if strict else None


def _expressions_take_nulls(plan: Plan, topic: KafkaTopic) -> str | None:
    """An expression over a column that is NULL in deletes must not raise an error for that."""
    chain = chain_of(plan)
    known = topic.set_in_deletes
    outcomes = {
        column.id: Outcome(Value.UNCHANGED if column.is_row_kind or column.name in known else Value.NULL)
        for column in chain.leaf.columns
    }
    for node in chain.nodes:
        if not isinstance(node, Project):
            continue
        computed: dict[int, Outcome] = {}
        for output in node.outputs:
            outcome = in_deletes(output.value, outcomes)
            if outcome is None:
                return f"{in_short(output.value)} may fail for a delete, where all but the key is NULL"
            computed[output.column.id] = outcome
        outcomes = computed
    return None


def needs_normalizer(plan: Plan, topic: KafkaTopic, settings: Settings) -> str | None:
    """Why a topic that a chain of nodes reads up to the sink needs its normalizer, or None."""
    if reason := _sink_is_keyed_alike(plan, topic, settings.sink_key):
        return reason
    if settings.sink_rule == SEQUENCE:
        return "the sink orders the rows of a key by 'sequence.field', and a delete has no value for it"
    if settings.sink_rule is not None:
        return f"the sink combines the rows of a key by {settings.sink_rule!r}, which counts each of them"
    if is_observed(plan):
        return "the query is observed, and its metrics would change"
    return (
        _filters_are_on_the_key(plan, topic)
        or _deletes_may_have_nulls(topic)
        or _expressions_take_nulls(plan, topic)
    )


def _lost_key(plan: Plan, topic: KafkaTopic) -> list[str]:
    origin = (trace(column, plan) for column in plan.columns)
    kept = {column.name for column in origin if column is not None}
    return [name for name in topic.schema.primary_key if name not in kept]


def _other_than_key(condition: Expr, plan: Plan, topic: KafkaTopic) -> list[str]:
    used = {column.name for column in origins(condition, plan)}
    return sorted(used.difference(topic.schema.primary_key))


def unmet_upserts(plan: Plan, sink_key: tuple[str, ...] | None) -> Iterator[tuple[Changelog, str]]:
    """Leaves that are read as upserts, each with a reason why that is not enough; not below normalizers.

    Upserts need their UPDATE_BEFORE wherever a newer row of a key does not simply take the place of the older
    one: below anything but projections with the key and filters on it, and before a sink with another key.
    """
    for node in walk(plan):
        for child in children(node):
            leaf = _read_as_upserts(child)
            if leaf is not None and (reason := _reason(node)):
                yield leaf, reason
    leaf, topic = _read_as_upserts(plan), topic_of(plan, Mode.UPSERT)
    if leaf is None or topic is None or sink_key is None:
        return
    if reason := _sink_is_keyed_alike(plan, topic, sink_key):
        yield leaf, reason


def unmet_everywhere(plan: Plan, sink_key: tuple[str, ...] | None) -> Iterator[tuple[Changelog, str]]:
    """The same, below `upsert.normalize` as well, which is a sink with its key to what lies there."""
    yield from unmet_upserts(plan, sink_key)
    for node in walk(plan):
        match node:
            case Changelog(origin=Normalized(key, given)):
                yield from unmet_everywhere(given, key)


def upserts_are_replaced_above(node: Plan) -> Refused | None:
    """Those that remain must be refused; joins of two streams have conditions of their own."""
    if isinstance(node, Unary | Opaque) or joins_changes(node):
        return None
    for child in children(node):
        leaf = _read_as_upserts(child)
        if leaf is not None:
            return Refused(
                f"{leaf.name!r} is read with changelog = 'upsert', and {_reason(node)}",
                "read it with changelog = 'all' and a 'state.path', or make its changes whole with "
                "upsert.normalize",
            )
    return None


def _read_as_upserts(plan: Plan) -> Changelog | None:
    leaf = chain_of(plan).leaf
    return leaf if isinstance(leaf, Changelog) and topic_of(leaf, Mode.UPSERT) is not None else None


def _reason(node: Plan) -> str | None:
    if not isinstance(node, Unary):
        return f"{operator_in_words(node)} must know which rows the upserts replace"
    refused = first_refusal(UPSERT_CONDITIONS, node)
    return None if refused is None else refused.reason


def use_mirror(node: Plan, settings: Settings) -> Plan | None:
    """Replace the changes of a mirrored topic below a join by those of its mirror, which can be looked up.

    Both have the same changes; those of the mirror come when its query has written them, and say what they
    replace, so the topic's normalizer is not needed. Not with the strategy "none", whose joins look nothing
    up.
    """
    if not isinstance(node, Join) or not joins_changes(node) or settings.strategy == "none":
        return None
    changed = with_children(node, [_mirrored(node.left), _mirrored(node.right)])
    return None if changed is node else changed


def _mirrored(plan: Plan) -> Plan:
    leaf = chain_of(plan).leaf
    match leaf:
        case Changelog(origin=KafkaTopic(mirror=mirror)) if mirror is not None:
            made = Changelog(mirror.name, leaf.columns, mirror)
            return transform_up(plan, lambda node: made if node is leaf else node)
    return plan


def put_in_normalizer(node: Plan, settings: Settings) -> Plan | None:
    """Read a topic with `changelog = all` instead of `upsert` below what needs every kind of change.

    Such are filters on other columns than the key, joins, unions, aggregates and a sink with another key; see
    `unmet_upserts`. Only where the topic's options name a `state.path`: the normalizer must keep the newest
    row of each key somewhere. Where they do not, the query is refused for the same reason.
    """
    unmet = {id(leaf) for leaf, _ in unmet_upserts(node, settings.sink_key)}

    def made_whole(part: Plan) -> Plan:
        match part:
            case Changelog(origin=KafkaTopic(has_state_path=True) as topic) if id(part) in unmet:
                return replace(part, origin=topic.read_as(Mode.ALL), ref=None)
        return part

    plan = transform_up(node, made_whole)
    return None if plan is node else plan


def look_below_normalize(node: Plan, settings: Settings) -> Plan | None:
    """Apply the rules about topics to what `upsert.normalize` is given; it is like a sink with its key.

    So a topic is not normalized twice, is read only as far as filters want it, and is made whole where
    something between needs that. A normalizer stays if the operator orders rows by a column that a
    delete by key does not have.
    """
    match node:
        case Changelog(origin=Normalized(key, given) as origin):
            own = replace(settings, sink_key=key, sink_rule=None)
            changed = put_in_normalizer(given, own) or given
            if _orders_deletes(origin):
                changed = leave_out_normalizer(changed, own) or changed
            changed = narrow_kafka_range(changed, own) or changed
            if changed is not given:
                return replace(node, origin=replace(origin, input=changed), ref=None)
    return None


def _orders_deletes(origin: Normalized) -> bool:
    """Whether each column of the order has a value in deletes that carry nothing but their key."""
    given = origin.input
    match chain_of(given).leaf:
        case Changelog(origin=KafkaTopic() as topic):
            traced = (trace(column, given) for column in given.columns if column.name in origin.order)
            names = [None if column is None else column.name for column in traced]
            return bool(names) and topic.set_in_deletes.issuperset(names)
        case _:
            return False


def refuse_unkeyed_sink(node: Plan, settings: Settings) -> Refused | None:
    """Refuse to write a topic that is read with `changelog = upsert` into a sink without the topic's key.

    A sink with another key, or with none, would keep the row that an update replaced: no `-U` takes it away.
    One that is not known is not refused: `check_sink` and `Catalog.write_changes` know theirs.
    """
    topic = topic_of(node, Mode.UPSERT)
    if topic is None or settings.sink_key is None:
        return None
    reason = _sink_is_keyed_alike(node, topic, settings.sink_key)
    if reason is None:
        return None
    return Refused(
        f"the upserts of {topic.name!r} would leave replaced rows in the sink: {reason}",
        "read the topic with changelog = 'all', or write it into a sink with the topic's primary key",
    )


def leave_out_normalizer(node: Plan, settings: Settings) -> Plan | None:
    """Read an upsert topic with `changelog = upsert` where no `-U` is of use: no state at all.

    The whole query must be projections, and filters on the key, from the topic to a sink with the topic's
    primary key; `needs_normalizer` has every condition. The sink ends up with the same rows. What differs is
    how they come there: an update is one `+U`, a delete has NULL in all columns but the key and metadata, and
    a record that repeats its predecessor is written again, with its own metadata.
    """
    match leaf := chain_of(node).leaf:
        case Changelog(origin=KafkaTopic(mode=Mode.ALL) as topic):
            if needs_normalizer(node, topic, settings):
                return None
            upserts = replace(leaf, origin=topic.read_as(Mode.UPSERT), ref=None)
            return transform_up(node, lambda below: upserts if below is leaf else below)
        case _:
            return None


def take_net_changes(node: Plan, settings: Settings) -> Plan | None:
    """Read of a topic of changes what those of a key leave, where the sink replaces rows by the same key.

    A log of changes is not always a sound one. A connector that starts again repeats changes, a snapshot
    reads rows that were inserted before, and without the whole old row a deletion has nothing but its key. Of
    the changes of one micro-batch the sink would let those cancel that are equal, in any order; in the order
    of the log the last one decides. What is left is the same for sound changes.

    Projections and filters may lie between, but no filter on metadata of records, which those left out have
    of their own. If filters are on the key alone, an update needs no row before.

    Each partition must have all changes of its keys. Where one record changes the key of a row, the row goes
    in another partition than it came in, and only all of the changes say which rows are left.
    """
    match leaf := chain_of(node).leaf:
        case Changelog(origin=KafkaTopic(mode=Mode.CDC, splits_key_changes=True) as topic):
            if not topic.schema.primary_key or settings.sink_rule is not None or is_observed(node):
                return None
            if _sink_is_keyed_alike(node, topic, settings.sink_key) or _filters_on_metadata(node, topic):
                return None
            needs_before = _filters_are_on_the_key(node, topic) is not None
            net = replace(leaf, origin=topic.read_as_net(needs_before=needs_before), ref=None)
            return transform_up(node, lambda below: net if below is leaf else below)
        case _:
            return None


_ALIKE: Final = frozenset(
    {
        *("topic", "timestamp-type", "database", "table", "source.database", "source.schema", "source.table"),
        *("primary-keys", "primary-key-columns", "pk-names"),
    }
)
"""Metadata, without `value.`, that all records of a key have alike."""


def refuse_metadata_of_changes(node: Plan, settings: Settings) -> Refused | None:
    """Refuse to write changes by key with metadata that each record has of its own, such as its offset.

    The row that a change takes away has the metadata of that change, so it is not the row that was added. If
    both are in one micro-batch, they do not cancel, and two rows of the key are left. The net changes of a
    key have one record of it, and a normalizer remembers the metadata of each row.
    """
    match chain_of(node).leaf:
        case Changelog(origin=KafkaTopic(mode=Mode.CDC) as topic):
            if not settings.sink_key or settings.sink_rule is not None:
                return None
            used = {origin.name for column in node.columns for origin in origins(column, node)}
            varying = {column.name for column in topic.schema.metadata if _varies(column.metadata, topic)}
            if not (own := ", ".join(sorted(used & varying))):
                return None
            one = "" if topic.splits_key_changes else ", for which the topic must have one partition"
            return Refused(
                f"changes of {topic.name!r} cannot be written by key with {own}, which each record has of "
                "its own: the row that a change takes away is not the one that was added",
                f"leave {own} out of the query, or let the topic's rows be remembered, "
                f"'cdc-events-duplicate' = 'true'{one}",
            )
    return None


def _varies(key: str | None, topic: KafkaTopic) -> bool:
    """Whether records of a key differ in metadata; one that changes the key may change the partition."""
    if key == "partition":
        return not topic.splits_key_changes
    return key is not None and key not in _ALIKE and key.partition(".")[2] not in _ALIKE


def leave_out_updates_before(node: Plan, settings: Settings) -> Plan | None:
    """Read a topic without the `-U` of an update that keeps its key, where the sink has a `sequence.field`.

    There a negative row deletes its key as of its own sequence. So an update that comes late, or that lowers
    the sequence, would delete the row: its `-U` is newer than its `+U`. Without the `-U` the row stays.

    A filter must be on the key alone, or the row would stay that an update makes fail it.
    """
    match leaf := chain_of(node).leaf:
        case Changelog(origin=KafkaTopic(mode=Mode.ALL | Mode.CDC | Mode.CDC_NORMALIZED) as topic):
            if settings.sink_rule != SEQUENCE or not topic.schema.primary_key or is_observed(node):
                return None
            if not topic.has_updates_before or _filters_are_on_the_key(node, topic):
                return None
            if _sink_is_keyed_alike(node, topic, settings.sink_key):
                return None
            without = replace(leaf, origin=topic.without_updates_before(), ref=None)
            return transform_up(node, lambda below: without if below is leaf else below)
        case _:
            return None


def _filters_on_metadata(plan: Plan, topic: KafkaTopic) -> bool:
    metadata = {column.name for column in topic.schema.metadata}
    filters = (node for node in chain_of(plan).nodes if isinstance(node, Filter))
    return any(c.name in metadata for node in filters for c in origins(node.condition, node.child))
