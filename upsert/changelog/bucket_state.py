"""The images of one bucket of the normalizer operator: in a blob, or in a table.

A blob is rewritten whole in every batch in which the bucket has rows, so it is for small states. A table
(an ``ImageLog``) is written by its changes. Its position is the number of batches that the bucket has
seen, kept in the group state: after a crash between the table's commit and Spark's, the batch starts from
the same position and finds its images committed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa

from upsert.blobs import from_blob, to_blobs
from upsert.changelog.image_log import ImageLog
from upsert.changelog.newest import NewestImages
from upsert.changelog.normalizer import Keyed, normalize_keyed, split_kinds
from upsert.changelog.rules import NormalizeSpec
from upsert.errors import ConfigurationError
from upsert.rowkind import ROW_KIND_COLUMN

_DROP_EVERY = 64
"""Batches of a bucket after which expired images in its table are looked for."""


class Remembered(NamedTuple):
    """What Spark keeps for a bucket: as the state's columns, none of them NULL.

    ``position`` is 0 as long as the images are in the blob ``images``, which may be empty.
    """

    label: str
    images: bytes
    position: int


def step(
    spec: NormalizeSpec, bucket: int, query: str, remembered: Remembered | None, records: pa.Table
) -> tuple[Iterator[pa.Table], Remembered]:
    """The changes of one bucket in one batch, and what to remember; take all changes.

    Args:
        spec: what is normalized.
        bucket: the bucket.
        query: id of the query, which its checkpoint keeps: tables of another one are never read.
        remembered: what the last batch returned; None in the first one.
        records: conforming rows, in order of arrival.

    Raises:
        ConfigurationError: the images have become too large for the state store, or the query continues with
            other arguments.
        MissingStateError: images are not as the checkpoint says.
    """
    known = remembered or Remembered(spec.label, b"", 0)
    spec.check_label(known.label)
    if spec.state_path is not None:
        return _in_table(spec, spec.state_path, bucket, query, known, records)
    if known.position:
        raise ConfigurationError(
            f"normalize: the images of bucket {bucket} are in tables since an earlier run; give state_path "
            "as it was"
        )
    return _in_blob(spec, bucket, known, records)


def _in_blob(
    spec: NormalizeSpec, bucket: int, known: Remembered, records: pa.Table
) -> tuple[Iterator[pa.Table], Remembered]:
    newest = NewestImages.all(_images(spec, known.images), spec.rules.key)
    rows, is_value = split_kinds(records)
    images, groups = newest.meet(rows)
    changes, changed = normalize_keyed(images, Keyed(rows, is_value, groups), spec.rules)
    newest.put(changed)
    if spec.rules.expiry is not None:
        newest.drop_expired(spec.rules.expiry)
    kept = newest.changed.drop_columns([ROW_KIND_COLUMN])
    if kept.nbytes > spec.max_state_bytes:
        raise ConfigurationError(
            f"normalize: the images of bucket {bucket} must fit into max_state_bytes={spec.max_state_bytes}, "
            f"got {kept.nbytes} bytes; give state_path='…' and start the query again: it then keeps them in "
            "tables of that folder"
        )
    blob = b"".join(to_blobs(kept, {}, blob_bytes=2 * spec.max_state_bytes))
    return iter([changes]), Remembered(known.label, blob, 0)


def _images(spec: NormalizeSpec, blob: bytes) -> pa.Table:
    schema = spec.rules.image_schema(spec.schema.arrow)
    if not blob:
        return schema.empty_table()
    rows, _ = from_blob(blob)
    return pa.Table.from_arrays(rows.columns, schema=schema)


def _in_table(
    spec: NormalizeSpec, state_path: str, bucket: int, query: str, known: Remembered, records: pa.Table
) -> tuple[Iterator[pa.Table], Remembered]:
    name = f"bucket-{bucket}"
    log = ImageLog.open(
        os.path.join(state_path, query, name),
        spec.schema,
        name,
        beginning=0,
        keep=spec.keep,
        order_by=spec.rules.order_by,
        drop_every=_DROP_EVERY,
    )
    position = known.position
    if known.images:
        # until now they were in the state store
        position = 1
        log.take_over(NewestImages.all(_images(spec, known.images), spec.rules.key).changed, position)
    changes = log.advance(
        position, position + 1, records, compare=spec.rules.compare, expiry=spec.rules.expiry
    )
    return changes, Remembered(known.label, b"", position + 1)
