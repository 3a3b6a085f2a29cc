"""When a join over what is newest is right in the end: FLIP-486's conditions, one function each (pure).

The result is an upsert stream: each of its rows is the newest for its key, and nothing is ever taken back
but by a delete of that key. So whatever decides *whether* two rows meet may not change while they live: the
join keys, and the columns of the rest of the condition. And a delete must find what it takes away by looking
it up, so only one side may delete, and never the one that can be missing (its last match goes away
unnoticed). Flink refuses all outer joins and all deletes; FLIP-486 and this module allow those that come out
right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from deltajoin.errors import Refused
from deltajoin.expressions import refs_of
from deltajoin.latest.spec import SIDES, LatestJoin
from upsert import types
from upsert.errors import ConfigurationError
from upsert.rowkind import RowKind

Condition = Callable[[LatestJoin], Refused | None]


def changes_have_no_images_before(join: LatestJoin) -> Refused | None:
    """An upsert stream has no `-U`; one among the input says that two rows of one key are under way."""
    for number, side in enumerate(join.sides):
        if RowKind.UPDATE_BEFORE.value in side.kinds:
            return Refused(
                f"the {SIDES[number]} side carries -U, and a lookup only knows what is newest",
                "leave them out below with_lookup: df.where(\"_row_kind <> '-U'\")",
            )
    return None


def keys_have_one_type(join: LatestJoin) -> Refused | None:
    """Equal keys must be equal bytes, or the two sides of a key would be joined in two shards."""
    for left, right in join.on:
        one, other = join.left.columns.field(left).type, join.right.columns.field(right).type
        if one != other or not types.is_scalar(one):
            return Refused(
                f"join columns {left!r} and {right!r} must have one scalar type, got {types.sql_name(one)} "
                f"and {types.sql_name(other)}",
                "cast one of them below with_lookup, and in what its source gives",
            )
    return None


def sources_are_asked_by_join_keys(join: LatestJoin) -> Refused | None:
    """A lookup needs a value for each column that it asks by (FLIP-486: an index within the join keys)."""
    for number, side in enumerate(join.sides):
        missing = [name for name in side.source.keys if name not in join.keys(number)]
        if missing:
            return Refused(
                f"the {SIDES[number]} side's source is asked by ({', '.join(side.source.keys)}), and the "
                f"join has no value for {', '.join(missing)}",
                "join by these columns too, or give a source that is asked by "
                f"({', '.join(join.keys(number))})",
            )
    return None


def join_keys_never_change(join: LatestJoin) -> Refused | None:
    """A row that moves to another join key would stay joined at the old one."""
    for number, side in enumerate(join.sides):
        changing = [name for name in join.keys(number) if name not in side.fixed]
        if changing:
            return Refused(
                f"join column(s) {', '.join(changing)} of the {SIDES[number]} side lie outside its upsert "
                f"key ({', '.join(side.upsert_key)}), and an update may change them",
                f"declare what never changes, with_lookup(…, immutable={changing!r}), or that rows are only "
                "added, kinds=['+I']; or join managed tables with consistency = 'snapshot'",
            )
    return None


def rest_of_condition_never_changes(join: LatestJoin) -> Refused | None:
    """A pair that an update makes fail the condition would stay in the result."""
    for ref in sorted(refs_of(join.where)):
        side = join.sides[ref.table]
        if ref.column not in side.fixed:
            return Refused(
                f"the join's condition uses {ref.column!r} of the {SIDES[ref.table]} side, which an update "
                "may change",
                f"declare with_lookup(…, immutable=[{ref.column!r}]) if it never changes; or filter the "
                "result where it is read",
            )
    return None


def deletes_come_from_one_side(join: LatestJoin) -> Refused | None:
    """A delete finds what it takes away on the other side, unless that is gone too."""
    if join.left.can_delete and join.right.can_delete:
        return Refused(
            "both sides delete rows; two deletes at a time would not find each other, and their pair would "
            "stay",
            "declare with_lookup(…, kinds=['+I', '+U']) for a side that never deletes; or join managed "
            "tables with consistency = 'snapshot'",
        )
    return None


def padded_side_never_deletes(join: LatestJoin) -> Refused | None:
    """When the last match goes, the row padded with NULLs would have to come back."""
    for number, side in enumerate(join.sides):
        if side.can_delete and join.keeps(1 - number):
            return Refused(
                f"a {join.kind} join must bring the padded row back when the last match is deleted, and the "
                f"{SIDES[number]} side deletes rows",
                "declare with_lookup(…, kinds=['+I', '+U']) if it never does; or join managed tables with "
                "consistency = 'snapshot'",
            )
    return None


def emitted_rows_are_kept(join: LatestJoin) -> Refused | None:
    """A `-U` takes back the very row that was given, also when a micro-batch is run again."""
    if join.is_whole and join.settings.state_path is None:
        return Refused(
            "changelog = 'all' must remember the rows that it has given, and no state_path says where",
            "give state_path='…', a folder on a disk that driver and executors share",
        )
    return None


CONDITIONS: Final[tuple[Condition, ...]] = (
    changes_have_no_images_before,
    keys_have_one_type,
    sources_are_asked_by_join_keys,
    join_keys_never_change,
    rest_of_condition_never_changes,
    deletes_come_from_one_side,
    padded_side_never_deletes,
    emitted_rows_are_kept,
)


def faults_of(join: LatestJoin) -> tuple[Refused, ...]:
    """All that is in the way of a join, in the order of ``CONDITIONS``; () if it comes out right."""
    return tuple(fault for condition in CONDITIONS if (fault := condition(join)) is not None)


def check_join(join: LatestJoin) -> None:
    """Refuse a join whose result would be wrong.

    Raises:
        ConfigurationError: a condition fails; the message has every one that does, with its remedy.
    """
    if faults := faults_of(join):
        raise ConfigurationError(f"{join.kind} lookup join: " + " | ".join(map(str, faults)))
