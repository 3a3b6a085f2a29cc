"""What an arriving value or delete emits, as a table (pure).

Theory. An upsert stream says of a key only what holds from now on: a value, or nothing. A changelog says what
changed: which row went, which row came. Between the two lies one bit of memory a key, "is there a row
now?", and the row itself, its *image*. So everything that can happen is a pair

    (is there a row before?, does a value arrive?)

and everything that is said about it follows from two laws:

1. The signs of what is emitted are *row after* − *row before*: a row that was there is taken back once,
   a row that is there now is given once. Summed over any stretch of the log this telescopes, so at every
   moment a key has no row or one, whatever a consumer does with kinds.
2. A kind says whether the other sign comes with it: ``-U`` and ``+U`` are a pair, in this order (a sink that
   applies rows in turn must not see two rows of a key), ``+I`` and ``-D`` stand alone.

A negative row carries the image before, with all its columns (its metadata too, FLIP-149's normalizer), a
positive one the row that arrived. A delete without a row before says nothing, for nothing changed. Nor does a
value that equals the image: whoever asks this table has sorted those out.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from upsert.rowkind import RowKind

TRANSITIONS: Final[Mapping[tuple[bool, bool], tuple[RowKind, ...]]] = MappingProxyType(
    {
        (False, False): (),
        (False, True): (RowKind.INSERT,),
        (True, False): (RowKind.DELETE,),
        (True, True): (RowKind.UPDATE_BEFORE, RowKind.UPDATE_AFTER),
    }
)
"""(row before?, value arrives?) -> kinds of the rows to emit, in this order."""
