"""Spark's xxhash64 over Arrow columns."""

import random
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from tests.upsert.store.samples import KEY_VALUES
from upsert import types
from upsert.store.rows.hashing import bucket_of, hash_columns

ROWS = 3000


def random_column(type_: pa.DataType, rng: random.Random) -> pa.Array:
    """Edge values, random values and NULLs of one type."""
    values = [rng.choice([None, *KEY_VALUES[type_]]) for _ in range(ROWS)]
    for i in range(0, ROWS, 2):
        values[i] = _random_value(type_, rng)
    return pa.array(values, type_)


def _random_value(type_: pa.DataType, rng: random.Random) -> object:
    if pa.types.is_boolean(type_):
        return rng.random() < 0.5
    if pa.types.is_decimal(type_):
        bits = rng.randrange(1, 10**type_.precision)
        return Decimal(rng.choice([-1, 1]) * bits // 10 ** rng.randrange(type_.precision)).scaleb(
            -type_.scale
        )
    if pa.types.is_floating(type_):
        return float(np.float32(rng.uniform(-1e6, 1e6)))
    if pa.types.is_string(type_):
        return "".join(rng.choice("ab\0é😀") for _ in range(rng.randrange(80)))
    if pa.types.is_binary(type_):
        return rng.randbytes(rng.randrange(80))
    if pa.types.is_date(type_) or pa.types.is_timestamp(type_):
        return rng.choice(KEY_VALUES[type_])
    if pa.types.is_time(type_):
        return rng.randrange(86_400 * 10**9 // types.NANOS[type_])
    return rng.randrange(-(2 ** (type_.bit_width - 1)), 2 ** (type_.bit_width - 1))


@pytest.mark.spark
def test_hash_equals_that_of_spark_for_every_key_type(spark: SparkSession):
    """Each column alone and all of them chained, in two orders, over edge values, random values and NULLs."""
    rng = random.Random(20240229)
    names = [f"c{i}" for i in range(len(KEY_VALUES))]
    table = pa.table([random_column(type_, rng) for type_ in KEY_VALUES], names=names)
    spark_has = [types.in_spark(column.type) for column in table.columns]
    frame = spark.createDataFrame(table.cast(pa.schema(zip(names, spark_has, strict=True))))
    keys = [[name] for name in names] + [names, names[::-1]]
    hashed = frame.select(*(sf.xxhash64(*key).alias(str(i)) for i, key in enumerate(keys))).toArrow()
    for i, key in enumerate(keys):
        ours = hash_columns([table.column(name) for name in key]).view(np.int64)
        assert ours.tolist() == hashed.column(i).to_pylist(), (
            f"{key}: {[table.schema.field(n).type for n in key]}"
        )


@pytest.mark.spark
def test_bucket_equals_that_of_spark(spark: SparkSession):
    found = spark.sql("SELECT id, pmod(xxhash64(id), 7) AS bucket FROM range(-500, 500)").toArrow()
    ours = bucket_of(hash_columns([found.column("id")]), 7)
    assert ours.tolist() == found.column("bucket").to_pylist()


def test_hash_of_fixed_width_values_is_xxh64_of_their_bytes():
    numbers = np.random.default_rng(1).integers(-(2**63), 2**63, 500)
    expected = [xxhash.xxh64_intdigest(int(n).to_bytes(8, "little", signed=True), 42) for n in numbers]
    assert hash_columns([pa.array(numbers)]).tolist() == expected
    narrow = numbers.astype(np.int32)
    expected = [xxhash.xxh64_intdigest(int(n).to_bytes(4, "little", signed=True), 42) for n in narrow]
    assert hash_columns([pa.array(narrow)]).tolist() == expected


def test_hash_of_sixteen_bytes_is_xxh64_of_them():
    values = [random.Random(i).randbytes(16) for i in range(100)]
    expected = [xxhash.xxh64_intdigest(value, 42) for value in values]
    assert hash_columns([pa.array(values, pa.binary(16))]).tolist() == expected


def test_many_rows_have_the_hashes_that_each_has_by_itself():
    numbers = np.random.default_rng(2).integers(-(2**63), 2**63, 40_000)
    words = pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), 20_000, [None, pa.py_buffer(numbers)])
    for array in (pa.array(numbers), pa.array(numbers.astype(np.int32)), words):
        few = [hash_columns([array.slice(start, 1000)]) for start in range(0, len(array), 1000)]
        assert (hash_columns([array]) == np.concatenate(few)).all()


@pytest.mark.parametrize("type_", KEY_VALUES, ids=str)
def test_hash_of_a_slice_is_the_slice_of_the_hash(type_: pa.DataType):
    """Arrow slices share buffers; an offset that is forgotten hashes other rows."""
    array = pa.array([*KEY_VALUES[type_], None, *KEY_VALUES[type_]], type_)
    whole = hash_columns([array])
    assert hash_columns([array.slice(3, 4)]).tolist() == whole[3:7].tolist()
    chunked = pa.chunked_array([array.slice(0, 2), array.slice(2)])
    assert hash_columns([chunked, array]).tolist() == hash_columns([array, array]).tolist()


def test_null_leaves_the_hash_of_the_columns_before():
    some = pa.array(["a", "b"])
    nothing = pa.nulls(2, pa.int64())
    assert hash_columns([some, nothing]).tolist() == hash_columns([some]).tolist()
    assert hash_columns([nothing]).tolist() == [42, 42]


def test_equal_floats_have_equal_hashes():
    payload = np.array([0x7FF8000000000000, 0xFFF8000000000001], dtype=np.uint64).view(np.float64)
    assert len(set(hash_columns([pa.array(payload)]).tolist())) == 1
    assert len(set(hash_columns([pa.array([0.0, -0.0])]).tolist())) == 1


def test_no_rows_have_no_hashes():
    for type_ in KEY_VALUES:
        assert hash_columns([pa.array([], type_)]).tolist() == []
    assert hash_columns([pa.chunked_array([], pa.int64())]).tolist() == []
    several_empty_pieces = pa.chunked_array([pa.array([], pa.int64()), pa.array([], pa.int64())])
    assert len(hash_columns([several_empty_pieces])) == 0
