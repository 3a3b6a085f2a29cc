"""An Arrow schema as text, kept in files of formats that lack some types or field ids (pure)."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence

import pyarrow as pa


def schema_text(schema: pa.Schema) -> bytes:
    """The schema of some rows as base64, the way Arrow itself keeps it in Parquet."""
    return base64.b64encode(schema.remove_metadata().serialize().to_pybytes())


def schema_of(text: bytes | None, columns: Sequence[str]) -> pa.Schema:
    """The schema of such a text, which must have these columns.

    Raises:
        ValueError: there is no text, or it is that of no schema, or of other columns.
    """
    if text is None:
        raise ValueError("it has no Arrow schema")
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True)))
    except (binascii.Error, pa.ArrowException, OSError) as cause:
        raise ValueError(f"its Arrow schema is damaged, {cause}") from cause
    if schema.names != list(columns):
        raise ValueError(f"its columns are {', '.join(columns)}, its schema says {', '.join(schema.names)}")
    return schema.remove_metadata()
