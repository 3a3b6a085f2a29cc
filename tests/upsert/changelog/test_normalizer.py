"""The normalizer against a dict, and each of its rules by itself."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import changelog
from tests.upsert.changelog.model import Log, Model, by_key, logs
from upsert.changelog.normalizer import (
    Expiry,
    Keyed,
    Normalized,
    Rules,
    check_not_null,
    fold,
    images_of,
    net,
    normalize_keyed,
    split_kinds,
)
from upsert.errors import ChangelogError, ConfigurationError, SchemaError
from upsert.rowkind import ROW_KIND_COLUMN
from upsert.store.rows.keys import order_by

SCHEMA = pa.schema({"word": pa.string(), "n": pa.int64(), "offset": pa.int64()})
RULES = Rules(key=("word",), compare=("n",))
TTL = replace(RULES, expiry=Expiry("offset", 10))
ORDERED = replace(RULES, order_by=("offset",))


def normalize(records: pa.Table, previous: pa.Table, rules: Rules) -> Normalized:
    rows, comes = split_kinds(records)
    check_not_null(rows, rules.key, "key")
    keys = [pa.table(part.select(rules.key).columns, names=list(rules.key)) for part in (previous, rows)]
    groups = order_by(pa.concat_tables(keys).columns).numbers
    images, count = images_of(previous, groups[: len(previous)]), len(previous)
    return normalize_keyed(images, Keyed(rows, np.asarray(comes), groups[count:]), rules)


class Memory:
    """Images between batches, as the two forms keep them."""

    def __init__(self, rules: Rules, rows: pa.Schema) -> None:
        self.rules = rules
        self.images = rules.image_schema(rows).empty_table()

    def batch(self, records: pa.Table) -> list[dict[str, Any]]:
        done = normalize(records, self.images, self.rules)
        assert done.images.schema.names == [*self.images.schema.names, ROW_KIND_COLUMN]
        replaced = self._keys(done.images)
        old = [row for row in self.images.to_pylist() if self._key(row) not in replaced]
        new = done.images.filter(pc.equal(done.images[ROW_KIND_COLUMN], "+U"))
        kept = pa.Table.from_pylist(old, schema=self.images.schema)
        self.images = pa.concat_tables([kept, new.drop_columns([ROW_KIND_COLUMN]).cast(kept.schema)])
        changes: list[dict[str, Any]] = done.changes.to_pylist()
        return changes

    def _keys(self, rows: pa.Table) -> set[Any]:
        return {self._key(row) for row in rows.to_pylist()}

    def _key(self, row: dict[str, Any]) -> Any:
        return next(iter(by_key([row], self.rules.key)))


def changes_of(*batches: Sequence[str], rules: Rules = RULES) -> list[pa.Table]:
    """The changes of batches of lines like `+U apple 1 17`."""
    memory = Memory(rules, SCHEMA)
    schema = changelog(SCHEMA).schema
    return [pa.Table.from_pylist(memory.batch(changelog(SCHEMA, *batch)), schema=schema) for batch in batches]


def check(log: Log, rules: Rules) -> None:
    memory, model = Memory(rules, log.schema), Model(rules)
    for batch in log.batches:
        table = log.table(batch)
        expected = model.batch(table.to_pylist())
        assert by_key(memory.batch(table), log.keys) == by_key(expected, log.keys)


@given(logs())
def test_any_log_gives_what_a_dict_gives(log: Log) -> None:
    check(log, Rules(log.keys, log.values))


@given(logs(times=st.none() | st.integers(0, 30)), st.integers(1, 10))
def test_any_log_with_expiry_gives_what_a_dict_gives(log: Log, ttl_ms: int) -> None:
    check(log, Rules(log.keys, log.values, expiry=Expiry("at", ttl_ms)))


@given(logs(), st.integers(1, 10))
def test_ordered_rows_with_expiry_give_what_a_dict_gives(log: Log, ttl_ms: int) -> None:
    check(log, Rules(log.keys, log.values, order_by=("at",), expiry=Expiry("at", ttl_ms)))


@given(logs())
def test_ordered_rows_in_any_order_give_what_a_dict_gives(log: Log) -> None:
    check(log, Rules(log.keys, log.values, order_by=("at",)))


def test_first_row_is_an_insert_later_ones_are_updates_with_the_image_before() -> None:
    first, second = changes_of(["+U a 1 10", "+I b 5 11", "+U a 2 12"], ["+U a 3 13"])
    assert first == changelog(SCHEMA, "+I a 1 10", "+I b 5 11", "-U a 1 10", "+U a 2 12")
    assert second == changelog(SCHEMA, "-U a 2 12", "+U a 3 13")


def test_delete_has_all_columns_of_the_last_image() -> None:
    _, second = changes_of(["+U a 1 10"], ["-D a NULL 11"])
    assert second == changelog(SCHEMA, "-D a 1 10")


def test_delete_of_unknown_key_emits_nothing() -> None:
    assert changes_of(["-D a NULL 10", "-D a NULL 11"]) == [changelog(SCHEMA)]


def test_an_update_before_is_taken_as_a_delete() -> None:
    assert changes_of(["+U a 1 10", "-U a 1 11"]) == [changelog(SCHEMA, "+I a 1 10", "-D a 1 10")]


def test_a_duplicate_gives_nothing_and_leaves_the_image_as_it_was() -> None:
    first, second = changes_of(["+U a 1 10", "+U a 1 11"], ["+U a 1 12", "+U a 2 13"])
    assert first == changelog(SCHEMA, "+I a 1 10")
    assert second == changelog(SCHEMA, "-U a 1 10", "+U a 2 13")


def test_a_value_that_comes_back_after_a_delete_is_an_insert() -> None:
    (found,) = changes_of(["+U a 1 10", "-D a NULL 11", "+U a 1 12"])
    assert found == changelog(SCHEMA, "+I a 1 10", "-D a 1 10", "+I a 1 12")


def test_an_image_older_than_the_ttl_counts_as_absent() -> None:
    found = changes_of(["+U a 1 10"], ["+U a 2 20"], ["+U a 3 31"], ["-D a NULL 42"], rules=TTL)
    assert found == [
        changelog(SCHEMA, "+I a 1 10"),
        changelog(SCHEMA, "-U a 1 10", "+U a 2 20"),
        changelog(SCHEMA, "+I a 3 31"),
        changelog(SCHEMA),
    ]


def test_with_a_ttl_an_equal_row_is_an_update_and_makes_the_image_younger() -> None:
    found = changes_of(["+U a 1 10"], ["+U a 1 19"], ["+U a 1 28"], rules=TTL)
    assert found[1:] == [
        changelog(SCHEMA, "-U a 1 10", "+U a 1 19"),
        changelog(SCHEMA, "-U a 1 19", "+U a 1 28"),
    ]


def test_a_ttl_counts_milliseconds_of_timestamps() -> None:
    schema = pa.schema({"k": pa.int64(), "at": pa.timestamp("us", "UTC")})
    rules = Rules(("k",), (), expiry=Expiry("at", 1000))
    rows = pa.table(
        [pa.array([1, 1, 1]), pa.array([0, 1_000_000, 2_000_001], schema.field("at").type)], schema
    )
    found = normalize(rows, rules.image_schema(schema).empty_table(), rules).changes
    assert found[ROW_KIND_COLUMN].to_pylist() == ["+I", "-U", "+U", "+I"]
    rules = replace(rules, expiry=Expiry("at", 1 << 62))  # longer than times in microseconds can be apart
    found = normalize(rows, rules.image_schema(schema).empty_table(), rules).changes
    assert found[ROW_KIND_COLUMN].to_pylist() == ["+I", "-U", "+U", "-U", "+U"]


def test_a_late_row_gives_nothing() -> None:
    found = changes_of(["+U a 2 20", "+U a 1 10"], ["+U a 0 15"], rules=ORDERED)
    assert found == [
        changelog(SCHEMA, "+I a 1 10", "-U a 1 10", "+U a 2 20"),
        changelog(SCHEMA),
    ]


def test_a_late_row_does_not_bring_back_what_was_deleted() -> None:
    found = changes_of(["+U a 1 10"], ["-D a NULL 20"], ["+U a 2 15"], ["+U a 3 25"], rules=ORDERED)
    assert found[1:] == [changelog(SCHEMA, "-D a 1 10"), changelog(SCHEMA), changelog(SCHEMA, "+I a 3 25")]


def test_the_order_of_an_unknown_delete_is_remembered() -> None:
    assert changes_of(["-D a NULL 20"], ["+U a 2 15"], rules=ORDERED)[1] == changelog(SCHEMA)


def test_a_swallowed_duplicate_still_makes_older_rows_late() -> None:
    assert changes_of(["+U a 1 10", "+U a 1 20"], ["+U a 2 15"], rules=ORDERED)[1] == changelog(SCHEMA)


def test_of_rows_with_equal_order_the_later_one_wins() -> None:
    found = changes_of(["+U a 1 10"], ["+U a 2 10"], rules=ORDERED)
    assert found[1] == changelog(SCHEMA, "-U a 1 10", "+U a 2 10")


def test_nans_are_one_value_and_zeros_are_two() -> None:
    rules = Rules(("k",), ("v",))
    rows = pa.table({"k": [1, 1, 1, 2, 2], "v": [0.0, -0.0, -0.0, math.nan, math.nan]})
    done = normalize(rows, rules.image_schema(rows.schema).empty_table(), rules)
    assert repr(done.changes["v"].to_pylist()) == repr([0.0, 0.0, -0.0, math.nan])


def test_an_image_that_did_not_change_is_not_written_again() -> None:
    rows = pa.table({"word": ["a"], "n": [1], "offset": [11]})
    previous = pa.table({"word": ["a"], "n": [1], "offset": [10]})
    done = normalize(rows, previous, RULES)
    assert (done.changes.num_rows, done.images.num_rows) == (0, 0)


def test_null_keys_and_orders_are_refused() -> None:
    rows = changelog(SCHEMA, "+U a 1 10", "+U NULL 1 NULL")
    with pytest.raises(SchemaError, match="key column 'word' must not be NULL, got NULL in row 1 of 2"):
        normalize(rows, RULES.image_schema(SCHEMA).empty_table(), RULES)
    rows = changelog(SCHEMA, "+U a 1 NULL")
    with pytest.raises(SchemaError, match="order_by column 'offset' must not be NULL"):
        normalize(rows, ORDERED.image_schema(SCHEMA).empty_table(), ORDERED)


def test_rules_that_do_not_fit_the_rows_are_refused() -> None:
    for rules, message in (
        (Rules(("x",), ()), "key has unknown column 'x'; columns are word, n, offset"),
        (Rules(("word",), ("y",)), "compare has unknown column 'y'"),
        (Rules(("word",), (), ("z",)), "order_by has unknown column 'z'"),
        (
            Rules(("word",), (), expiry=Expiry("word", 1)),
            "must be TIMESTAMP or BIGINT milliseconds, got STRING",
        ),
    ):
        with pytest.raises(SchemaError, match=message):
            rules.check(SCHEMA)
    with pytest.raises(SchemaError, match="key must name at least one column"):
        Rules((), ())
    with pytest.raises(ConfigurationError, match="ttl must be at least 1 ms"):
        Expiry("offset", 0)
    with pytest.raises(SchemaError, match="'_order_0' is used in its state"):
        Rules(("k",), (), ("k",)).check(pa.schema({"k": pa.int64(), "_order_0": pa.int64()}))


def test_unknown_kinds_are_refused() -> None:
    with pytest.raises(ChangelogError, match="_row_kind must be one of"):
        normalize(changelog(SCHEMA, "?? a 1 10"), RULES.image_schema(SCHEMA).empty_table(), RULES)


def test_fold_keeps_the_newest_row_of_each_key() -> None:
    rows = changelog(SCHEMA, "+I a 1 10", "+U b 1 11", "-U a 1 12", "+U a 2 13", "-D b NULL 14")
    expected = changelog(SCHEMA, "+U a 2 13", "-D b NULL 14")
    assert fold(rows, ["word"]).to_pylist() == expected.to_pylist()


@given(logs())
def test_fold_of_any_log_is_the_last_row_of_each_key(log: Log) -> None:
    rows = log.table([record for batch in log.batches for record in batch])
    newest = {key: [rows_of[-1]] for key, rows_of in by_key(rows.to_pylist(), log.keys).items()}
    found = by_key(fold(rows, log.keys).to_pylist(), log.keys)
    assert {key: [row[:-1] for row in rows] for key, rows in found.items()} == {
        key: [row[:-1] for row in rows] for key, rows in newest.items()
    }


COUNTS = pa.schema({"word": pa.string(), "n": pa.int64()})


def applied(rows: dict[str, int], changes: pa.Table) -> dict[str, int]:
    """The rows of a table with a key after all changes: a row that comes replaces the one of its key."""
    found = dict(rows)
    for word, n, kind in zip(*changes.to_pydict().values(), strict=True):
        if kind in ("+I", "+U"):
            found[word] = n
        else:
            assert found.pop(word, n) == n
    return found


@given(
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 2)),
    st.lists(st.tuples(st.sampled_from("abcd"), st.none() | st.integers(0, 2))),
    st.integers(0, 12),
)
def test_net_changes_of_a_sound_log_do_what_all_of_them_do(
    rows: dict[str, int], writes: list[tuple[str, int | None]], cut: int
) -> None:
    """Also taken in two parts, whose net changes are taken together."""
    now, lines = dict(rows), list[str]()
    for word, n in writes:
        old = now.pop(word, None)
        if n is not None:
            now[word] = n
        lines += [] if old is None else [f"{'-D' if n is None else '-U'} {word} {old}"]
        lines += [] if n is None else [f"{'+I' if old is None else '+U'} {word} {n}"]
    log = changelog(COUNTS, *lines)
    once = net(log, ["word"])
    parts = pa.concat_tables([net(log[:cut], ["word"]), net(log[cut:], ["word"])])
    for found in (once, net(parts, ["word"])):
        assert applied(rows, found) == applied(rows, log) == now
        assert len(found) <= 2 * len(set(found["word"].to_pylist()))


def test_of_an_unsound_log_the_last_change_of_a_key_decides() -> None:
    """What came twice, what was read by a snapshot too, and a deletion that has nothing but its key."""
    lines = ["+I a 1", "+I a 1", "-U a 1", "+U a 2", "+I b 1", "-D b NULL", "-U c 1", "+U c 2", "-D d 5"]
    lines += ["-U e 1", "+U e 2", "-U e 2", "+U e 1"]
    left = changelog(COUNTS, "+U a 2", "-D b NULL", "-U c 1", "+U c 2", "-D d 5", "+U e 1")
    assert net(changelog(COUNTS, *lines), ["word"]).to_pylist() == left.to_pylist()
