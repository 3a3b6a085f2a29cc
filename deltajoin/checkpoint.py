"""Where the query of another checkpoint has got to, for one that begins there with a checkpoint of its own.

Spark refuses a checkpoint whose stateful operators are not those of the query; a delta join refuses that of
another join. So a join that changes from or to the form ``stateful``, or whose columns, filters or keys are
others now, gets a new checkpoint, and begins at the versions of the old one.
"""

from __future__ import annotations

import json
import os
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from deltajoin.errors import CheckpointMismatchError
from deltajoin.offset import JoinIdentity, JoinOffset, Versions
from deltajoin.spec import DeltaJoinSpec
from deltajoin.tables import JoinedTables
from upsert.store.version import Version


def reached(
    spark: SparkSession, checkpoint: str, spec: DeltaJoinSpec, *, changed: bool = False
) -> dict[str, Any]:
    """The offset that a join has reached in a checkpoint; ``read_join`` takes it as ``start``.

    The query must have stopped after its last micro-batch was done, or the new one would emit that again.

    Args:
        spark: the session; it reads the folder, wherever it is.
        checkpoint: the ``checkpointLocation`` of the query that has done the join so far.
        spec: the join.
        changed: whether the checkpoint may be that of another join of the same tables. Rows that it has given
            stay as they are, and changes from there on are those of this join.

    Raises:
        CheckpointMismatchError: the checkpoint has no finished micro-batch of this join and these tables, or
            an unfinished one.
    """
    planned, done = (_newest(spark, checkpoint, log) for log in ("offsets", "commits"))
    if planned is None or done is None or planned[0] != done[0]:
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
        place = next((number for number, (table, _) in enumerate(left) if table == uuid), None)
        if place is None:
            return None
        found.append(left.pop(place)[1])
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
