"""A delta join as a streaming DataFrame, and where the query of another checkpoint has got to.

Spark refuses a checkpoint whose stateful operators are not those of the query; a delta join refuses that of
another join. So a join that changes from or to the form ``stateful``, or whose columns, filters or keys are
others now, gets a new checkpoint, and begins at the versions of the old one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from deltajoin.errors import CheckpointMismatchError
from deltajoin.settings import FIRST_LOADS, PHYSICAL
from deltajoin.spark.offsets import JoinIdentity, JoinOffset, Versions
from deltajoin.spark.shuffled import shuffled, stateful
from deltajoin.spark.source import DeltaJoinSource, SourceOptions, register
from deltajoin.spark.tables import JoinedTables
from deltajoin.spec import DeltaJoinSpec
from upsert.errors import ConfigurationError
from upsert.managed.task_counts import counter_of
from upsert.managed.task_memory import DEFAULT_TASK_MEMORY
from upsert.spark.reads import load_stream
from upsert.store.retention.consumers import DEFAULT_LEASE_S, LONGEST_LEASE_S
from upsert.store.version import Version


def read_join(
    spark: SparkSession,
    spec: DeltaJoinSpec,
    physical: str = "auto",
    *,
    first_load: str = "auto",
    start: Mapping[str, Any] | None = None,
    consumer_id: str | None = None,
    lease_s: float = DEFAULT_LEASE_S,
    task_memory: int = DEFAULT_TASK_MEMORY,
) -> DataFrame:
    """A stream of the join's consolidated changes: the columns of ``spec.columns``, then ``_row_kind``.

    Every micro-batch moves all tables forward by one step; the first one begins with empty tables. A step has
    at most ``max_rows_per_trigger`` changes of each table, and no more than fit into the memory of its tasks.
    The checkpoint keeps only the versions; after a crash the same micro-batch gives the same rows. FLIP-486
    describes the join; this one is exact. The query holds the snapshots that a restart would read, as a
    consumer with a lease. If it restarts after the lease has ended, they may have expired: then it stops with
    ``SnapshotExpiredError``.

    Example::

        orders = Side("warehouse/orders", ("order_id", "product_id", "amount"), ("product_id",))
        products = Side("warehouse/products", ("id", "name"), ("id",))
        changes = read_join(spark, DeltaJoinSpec.of("inner", orders, products))

    Args:
        spark: the session; the format ``delta-join`` is registered in it.
        spec: what to join.
        physical: where the join runs; the rows are the same. ``fused``: inside the source. ``shuffled``: in
            stateless tasks after a shuffle by join key. ``stateful``: in ``applyInPandasWithState``.
            ``auto``: fused; ``write_changes`` into a managed table shuffles the changes of a micro-batch
            if that takes the tasks less CPU time. A checkpoint continues under another form; for a change
            to or from ``stateful`` see ``start``.
        first_load: ``batch``: the first micro-batch joins all existing rows, in pieces that bound its memory;
            ``micro-batches``: it obeys ``max_rows_per_trigger``; ``auto``: batch if the form is fused
            and one table is in every row of the result.
        start: where a query with a new checkpoint begins: the result of ``reached`` for another checkpoint.
        consumer_id: its name as a consumer of the tables; by default a random one that the checkpoint keeps.
        lease_s: how many seconds its snapshots are held after the last renewal; 0 holds none.
        task_memory: about how many bytes of memory a task may take, beside Python with its libraries.

    Raises:
        TableNotFoundError: a table is missing.
        SchemaError: a column is unknown, keys cannot be compared, or a table lacks an index; the message
            names the INDEX to add.
        ConfigurationError: ``physical`` or ``first_load`` is unknown, or ``lease_s`` is no time span.
    """
    _check_known("physical", physical, PHYSICAL)
    _check_known("first_load", first_load, FIRST_LOADS)
    if not (hasattr(lease_s, "__float__") and 0 <= lease_s <= LONGEST_LEASE_S):
        raise ConfigurationError(
            "delta join: lease_s must be a number of seconds, 0 or more and no more than 1000 years, got "
            f"{lease_s!r}"
        )
    register(spark)
    tables = JoinedTables.open(spec)
    tables.check_lookups()
    is_fused = physical in ("auto", "fused")
    hold = consumer_id, int(lease_s * 1000)
    by_cost = physical == "auto"
    counter = counter_of(spark)
    options = SourceOptions(tables.located, is_fused, first_load, start, *hold, task_memory, by_cost, counter)
    source = load_stream(spark, DeltaJoinSource, options.to_options(), reader_lasts=True)
    if is_fused:
        return source
    return shuffled(source, tables) if physical == "shuffled" else stateful(source, tables)


def _check_known(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigurationError(f"delta join: {name} must be one of {', '.join(known)}, got {value!r}")


def reached(
    spark: SparkSession, checkpoint: str, spec: DeltaJoinSpec, *, changed: bool = False
) -> dict[str, Any]:
    """The offset that a join has reached in a checkpoint; ``read_join`` takes it as ``start``.

    The query must have finished its last micro-batch; otherwise the new query would emit that one again.

    Args:
        spark: the session; it reads the folder, wherever it is.
        checkpoint: the ``checkpointLocation`` of the query that has computed the join so far.
        spec: the join.
        changed: whether the checkpoint may be that of another join of the same tables. Rows that it has
            emitted are not changed; later changes are those of this join.

    Raises:
        CheckpointMismatchError: the checkpoint has no finished micro-batch of this join and these tables, or
            an unfinished one.
    """
    planned, done = (_newest(spark, checkpoint, log) for log in ("offsets", "commits"))
    if planned is None:
        raise CheckpointMismatchError(
            f"delta join {spec}: {checkpoint!r} must be the checkpoint of a query that has done a "
            "micro-batch, found no micro-batch there; correct the path, or leave it out to load all rows"
        )
    if done is None or planned[0] != done[0]:
        raise CheckpointMismatchError(
            f"delta join {spec}: the last micro-batch in checkpoint {checkpoint!r} must be finished, planned "
            f"is {_number(planned)}, finished is {_number(done)}; run that query once more, with availableNow"
        )
    identity = JoinedTables.open(spec).identity
    offsets = [_parsed(line) for line in planned[1].splitlines()[2:]]
    own = [value for value in offsets if identity.is_of(value.get("fingerprint"))]
    if len(own) == 1:
        versions = JoinOffset.of(own[0], identity).versions
    else:
        others = [_of_tables(value, identity) for value in offsets if changed and not own]
        found = [each for each in others if each is not None]
        if len(found) != 1:
            joins = ", ".join(str(value.get("join", "another source")) for value in offsets)
            wanted = "one join of these tables" if changed else "this join once"
            raise CheckpointMismatchError(
                f"delta join {spec}: checkpoint {checkpoint!r} must have {wanted}, it has: {joins}; choose "
                "another one"
            )
        versions = found[0]
    return JoinOffset(identity, versions).to_json()


def _of_tables(offset: dict[str, Any], identity: JoinIdentity) -> Versions | None:
    """The versions of a join's tables in the offset of another join; None if that lacks one of them."""
    try:
        theirs = JoinOffset.from_json(offset)
    except CheckpointMismatchError:  # another source's
        return None
    left = list(zip(theirs.identity.tables, theirs.versions, strict=True))
    found: list[Version] = []
    for uuid in identity.tables:
        at = next((number for number, (table, _) in enumerate(left) if table == uuid), None)
        if at is None:
            return None
        found.append(left.pop(at)[1])
    return tuple(found)


def _newest(spark: SparkSession, checkpoint: str, log: str) -> tuple[int, str] | None:
    """Number and text of the newest file of one of Spark's logs."""
    try:
        files = spark.read.format("binaryFile").load(os.path.join(checkpoint, log))
        found = [(row.path.rsplit("/", 1)[-1], row) for row in files.select("path", "content").collect()]
    except AnalysisException:  # no such folder
        return None
    numbered = [(int(name), bytes(row.content).decode()) for name, row in found if name.isdecimal()]
    return max(numbered, default=None)


def _parsed(line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError:  # "-": a source that has read nothing
        return {}
    return value if isinstance(value, dict) else {}


def _number(entry: tuple[int, str] | None) -> str:
    return "none" if entry is None else str(entry[0])
