"""How work is cut into shards: which buckets a shard needs, and where the images of a row are."""

import numpy as np
import pyarrow as pa
import pytest

from deltajoin.core.shards import Bucketing, Split
from upsert.store.rows.hashing import bucket_of, hash_columns

KEY, TYPES = ("k",), (pa.int64(),)
SPLIT = Split((KEY, None, ("a", "k")), (TYPES, None, TYPES * 2), is_by_key=False)


@pytest.mark.parametrize("buckets", [1, 4, 6])
@pytest.mark.parametrize("shards", [1, 3, 4, 8])
def test_a_shard_needs_one_group_of_the_buckets_and_no_smaller_part_of_them(
    buckets: int, shards: int
) -> None:
    rows = pa.table({"k": np.arange(500)})
    shard = SPLIT.shard_of(0, rows, shards)
    bucket = bucket_of(hash_columns([rows["k"].chunk(0)], 500), buckets)
    groups = SPLIT.groups(0, Bucketing(KEY, TYPES), buckets, shards)
    met = {(int(b) % groups, int(s) % groups) for b, s in zip(bucket, shard, strict=True)}
    assert met == {(group, group) for group in range(groups)}
    assert len(set(zip(bucket.tolist(), shard.tolist(), strict=True))) == buckets * shards // groups


def test_buckets_of_another_hash_are_all_needed() -> None:
    others = [
        SPLIT.groups(0, Bucketing(("id",), TYPES), 4, 4),
        SPLIT.groups(0, Bucketing(KEY, (pa.int32(),)), 4, 4),
        SPLIT.groups(1, Bucketing(KEY, TYPES), 4, 4),
    ]
    assert others == [1, 1, 1]


def test_all_images_of_a_row_are_in_one_shard_if_its_primary_key_says_which() -> None:
    keys = ((), ("k",), ("id",), ("id", "k"), ("k", "a"), ("a", "id", "k"))
    found = [[SPLIT.keeps_shards(table, key) for key in keys] for table in range(3)]
    assert found == [
        [True, True, False, True, True, True],
        [False] * 6,
        [True, False, False, False, True, True],
    ]
