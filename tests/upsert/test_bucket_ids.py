from collections import Counter

import numpy as np
import pytest
from pyspark.sql import SparkSession

from upsert.blobs import bucket_ids, murmur3


@pytest.mark.parametrize("buckets", [1, 2, 3, 8, 200])
def test_every_task_gets_an_equal_share_of_the_buckets(buckets: int) -> None:
    ids = bucket_ids(buckets)
    assert len(set(ids.tolist())) == buckets
    for tasks in (tasks for tasks in range(1, buckets + 1) if buckets % tasks == 0):
        share = Counter(np.mod(murmur3(ids.astype(np.int64)), tasks).tolist())
        assert set(share.values()) == {buckets // tasks}


@pytest.mark.spark
def test_the_hash_is_the_one_of_spark(spark: SparkSession) -> None:
    numbers = [0, 1, 2, 77, 4711, 2**31 - 1]
    rows = spark.createDataFrame([(n,) for n in numbers], "n INT").selectExpr("hash(n) h").collect()
    assert [row.h for row in rows] == murmur3(np.array(numbers)).tolist()
