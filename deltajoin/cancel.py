"""Equal rows of several paths and opposite sign cancel, before a column of them is taken (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from deltajoin.bundles import Bundle, Part
from deltajoin.changes import stay_after_netting
from deltajoin.row_codes import Ints, codes_of_rows, paired


def net(bundles: Sequence[Bundle], tables: Iterable[int]) -> list[Bundle]:
    """What is left of the rows: of equal ones as many as their signs sum up to, each with its own kind.

    Args:
        bundles: rows of the join.
        tables: those whose parts make up a row of the output.
    """
    bundles = [rows for rows in bundles if len(rows)]
    if not bundles:
        return []
    signs = np.concatenate([rows.signs for rows in bundles])
    if (signs == signs[0]).all():
        return list(bundles)
    codes = np.zeros(len(signs), np.int64)
    for table in tables:
        codes = paired(codes, _codes([rows.parts[table] for rows in bundles]))
    stays = stay_after_netting(codes, signs)
    ends = np.cumsum([len(rows) for rows in bundles])
    pieces = np.split(stays, ends[:-1])
    return [rows.where(mask) for rows, mask in zip(bundles, pieces, strict=True) if mask.any()]


def _codes(parts: Sequence[Part]) -> Ints:
    """A code for each row's part, equal where the stored rows are; padded parts have one of their own."""
    tables, positions, start = [], [], 1
    for part in parts:
        used, at = np.unique(part.at, return_inverse=True)
        missing = int(len(used) and used[0] < 0)
        tables.append(part.rows.take(pa.array(used[missing:])))
        # Position 0 stands for a padded part, which sorts first.
        positions.append(np.where(part.at < 0, 0, at - missing + start))
        start += len(used) - missing
    codes = np.concatenate([[0], codes_of_rows(pa.concat_tables(tables).combine_chunks()) + 1])
    found: Ints = codes[np.concatenate(positions)]
    return found
