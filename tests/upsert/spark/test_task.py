"""How the processes of Spark that run Python code begin and end."""

import io
import os
from contextlib import suppress

import pytest
from pyspark.serializers import read_int
from pyspark.sql.datasource import DataSourceStreamReader

from upsert.kafka.source import StreamReader
from upsert.managed.reader import ChangesReader


@pytest.mark.parametrize("kind", [ChangesReader, StreamReader])
def test_a_source_ends_its_process_if_spark_has_closed_the_connection_and_not_for_errors_of_its_own(
    kind: type[DataSourceStreamReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else PySpark prints the trace of a broken pipe for a query that was stopped."""
    reader, ended = kind.__new__(kind), list[int]()
    monkeypatch.setattr(os, "_exit", ended.append)

    def stopped_after(content: bytes, error: Exception | None = None) -> None:
        with suppress(EOFError):
            try:  # as PySpark's process does for each call
                read_int(io.BytesIO(content))
                if error is not None:
                    raise error
            finally:
                reader.stop()

    stopped_after(b"\0\0\0\1")
    stopped_after(b"\0\0\0\1", EOFError("a file that ends too early"))
    assert ended == []
    stopped_after(b"")
    assert ended == [0]
