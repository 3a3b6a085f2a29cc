"""Which manifests are folded, and how: few are left, and sorted by partition where they have many entries.

Each commit appends a manifest to those of the snapshot before it. When there are too many, the newest ones
are folded into one; a manifest takes part once those behind it weigh half as much, so an entry is rewritten a
logarithmic number of times and the cost of a commit does not grow with the number of commits before it.

A fold of many entries becomes several manifests, its *parts*, which count as one. They ascend by partition,
and the snapshot says between which two the entries of each lie, so that a reader of one partition opens one
part of each fold. Entries stay columns meanwhile: as objects a million of them would take gigabytes. See
docs/decisions/0089.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa

from upsert.arrays import Positions, one_array
from upsert.failpoints import reach
from upsert.store.metadata.file_entry import FileEntry
from upsert.store.metadata.manifest import (
    Manifest,
    ManifestRows,
    partitions_of,
    read_rows,
    schema_of,
    write_manifest,
    write_rows,
)
from upsert.store.metadata.partition_order import ends_of, key_of, values_of
from upsert.store.metadata.snapshot import ManifestRef
from upsert.store.rows.layout import Layout

MAX_MANIFESTS: Final = 16
_FEWEST_TO_FOLD: Final = 8

_ENTRIES_OF_PART: Final = 20_000
"""A manifest with more of them is cut, where the table has partitions."""

_MOST_PARTS: Final = 64
"""Every snapshot names the parts, so those of a very large table have more entries instead."""


def fold(
    root: str, layout: Layout, base: int, refs: Sequence[ManifestRef], read: Callable[[ManifestRef], Manifest]
) -> tuple[ManifestRef, ...]:
    """The same live files in at most ``MAX_MANIFESTS`` manifests, not counting parts.

    Writes one, or the parts of one, if there are more, or if the newest one alone should be in parts.
    """
    folds = _folds(refs)
    count = folded_count([sum(ref.entries for ref in parts) for parts in folds])
    if not count and refs and layout.schema.partitioned_by and len(folds[-1]) == 1:
        count = int(refs[-1].entries > _ENTRIES_OF_PART)
    if not count:
        return tuple(refs)
    kept = tuple(ref for parts in folds[:-count] for ref in parts)
    folded = refs[len(kept) :]
    if sum(ref.entries for ref in folded) > _ENTRIES_OF_PART:
        return (*kept, *_write_parts(root, layout, base, combine_rows(layout, root, folded)))
    manifest = combine(map(read, folded))
    if not (manifest.added or manifest.removed):
        return kept
    return (*kept, write_manifest(root, layout, base, manifest.added, manifest.removed))


def _folds(refs: Sequence[ManifestRef]) -> list[list[ManifestRef]]:
    """Manifests with the parts of one fold together."""
    found: list[list[ManifestRef]] = []
    for ref in refs:
        if ref.part and found:
            found[-1].append(ref)
        else:
            found.append([ref])
    return found


def folded_count(entries: Sequence[int]) -> int:
    """How many of the newest manifests to fold, given the number of entries of each, oldest first.

    >>> folded_count([1] * 16), folded_count([1] * 17), folded_count([100, *[1] * 16])
    (0, 17, 16)
    """
    if len(entries) <= MAX_MANIFESTS:
        return 0
    count = total = 0
    for size in reversed(entries):
        if count >= _FEWEST_TO_FOLD and size > 2 * total:
            break
        count += 1
        total += size
    return count


def combine(manifests: Iterable[Manifest]) -> Manifest:
    """One manifest with the effect of several, oldest first: a file that came and went is in neither list."""
    added: dict[str, FileEntry] = {}
    removed: list[FileEntry] = []
    for manifest in manifests:
        removed += [entry for entry in manifest.removed if added.pop(entry.file, None) is None]
        added |= {entry.file: entry for entry in manifest.added}
    return Manifest(tuple(added.values()), tuple(removed))


def combine_rows(layout: Layout, root: str, refs: Sequence[ManifestRef]) -> pa.Table:
    """``combine`` of manifests on the disk, as the rows of one: removals first, then additions."""
    schema = schema_of(layout)
    read = [read_rows(root, ref) for ref in refs]
    rows = pa.concat_tables([each.conformed(schema) for each in read])
    chosen = _left(rows, np.repeat(np.arange(len(read)), [each.rows.num_rows for each in read]))
    return rows.take(pa.array(chosen))


def _left(rows: pa.Table, manifest: Positions) -> Positions:
    """Rows of several manifests that one with their effect has; ``manifest`` says which one has each."""
    is_added = ManifestRows(rows, 0).is_added
    files = one_array(rows.column("file")).dictionary_encode().indices.to_numpy()
    # a file comes and goes in turns, and a manifest removes before it adds
    order = np.lexsort((2 * manifest + is_added, files))
    is_other = np.diff(files[order]) != 0
    firsts = order[np.append(True, is_other)] if len(order) else order
    lasts = order[np.append(is_other, True)] if len(order) else order
    return np.concatenate([np.sort(firsts[~is_added[firsts]]), np.sort(lasts[is_added[lasts]])])


def _write_parts(root: str, layout: Layout, base: int, rows: pa.Table) -> Iterator[ManifestRef]:
    """Write the rows of one manifest as several that ascend by partition; none if there are no rows."""
    partitions, codes = partitions_of(one_array(rows.column("partition")))
    ranked = sorted(range(len(partitions)), key=lambda code: key_of(values_of(partitions[code])))
    ranks = np.empty(len(partitions), np.int64)
    ranks[ranked] = np.arange(len(partitions))
    order = np.argsort(ranks[codes], kind="stable")
    most = max(_ENTRIES_OF_PART, -(-rows.num_rows // _MOST_PARTS))
    sizes = np.bincount(ranks[codes], minlength=len(partitions)).tolist()
    cuts = _cuts(sizes, most if layout.schema.partitioned_by else rows.num_rows)
    for part, (start, stop) in enumerate(pairwise(cuts)):
        own = order[start:stop]
        ends = ends_of({partitions[codes[number]] for number in (own[0], own[-1])})
        yield replace(write_rows(root, base, rows.take(pa.array(own)).combine_chunks(), ends), part=part)
        reach("fold.after-part")


def _cuts(sizes: Sequence[int], most: int) -> list[int]:
    """Where to cut entries, given how many each partition has, so that few partitions lie in two pieces.

    >>> _cuts([3, 3, 3, 10, 1], most=6)
    [0, 6, 9, 15, 20]
    """
    cuts, at = [0], 0
    for size in sizes:
        if at + size - cuts[-1] > most and at > cuts[-1]:
            cuts.append(at)
        at += size
        while at - cuts[-1] > most:
            cuts.append(cuts[-1] + most)
    return [*cuts, at] if at > cuts[-1] else cuts
