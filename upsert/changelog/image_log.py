"""The newest row of each key of one ordered log, as of a position: what the normalizer inside a source remembers.

A log is a Kafka partition, or anything else with growing positions; its state is one managed table (see
``upsert.store``), and each batch is one commit whose transaction number is the position that it leads to. So
the state *at* a position is a snapshot, cost follows the changed keys, and a crash leaves a whole commit or
none.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Self

import pyarrow as pa

from upsert.changelog.normalizer import Expiry
from upsert.schema import TableSchema


class ImageLog:
    """Images of one log; any process may open it, several attempts at one batch do no harm.

    Used inside a task, once per batch and log::

        log = ImageLog.open(f"{state}/{query_id}/{topic}-{partition}", schema, f"{topic}-{partition}", beginning=0)
        for rows in log.advance(start, end, decoded_tables, compare=["word", "n"]):
            yield from rows.to_batches()
    """

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        schema: TableSchema,
        log: str,
        *,
        beginning: int,
        keep: int = 100,
    ) -> Self:
        """The images of a log in a folder of its own, which is made if necessary.

        Args:
            path: the folder; it belongs to this log of this query alone.
            schema: columns of the rows (metadata columns are plain ones here), with a primary key.
            log: name of the log, for example topic and partition.
            beginning: the position at which the query began: there no key has an image.
            keep: batches that can still be replayed; ``spark.sql.streaming.minBatchesToRetain``.

        Raises:
            ConfigurationError: the schema has no primary key, or the folder holds images of other columns.
        """
        raise NotImplementedError

    def advance(
        self,
        start: int,
        end: int,
        records: pa.Table | Iterable[pa.Table],
        *,
        compare: Sequence[str],
        expiry: Expiry | None = None,
    ) -> Iterator[pa.Table]:
        """The changelog of one batch: the schema's columns, then ``_row_kind``; read it to its end.

        Args:
            start: first position of the batch: ``beginning``, or the ``end`` of an earlier batch.
            end: position after the batch; greater than ``start``.
            records: rows in log order, the schema's columns in any order and ``_row_kind``: ``+I``/``+U`` a value,
                ``-U``/``-D`` deletes the key, whatever its other columns (NULL is allowed). Without ``_row_kind``
                all are values. May be empty: ``end`` is remembered all the same.
            compare: columns that make two rows different; leave offset, timestamp and the like out, and a
                record that an at-least-once producer has sent twice gives nothing.
            expiry: forget images after a time; None: never.

        Raises:
            MissingStateError: there is no state for ``start``; the message says what to do.
        """
        raise NotImplementedError
