"""How the processes of Spark that run Python code begin and end."""

import io
import os
import traceback
from contextlib import suppress
from pathlib import Path

import pytest
from pyspark.serializers import read_int
from pyspark.sql.datasource import DataSourceStreamReader

from tests.helpers import output_of, spark_script
from upsert.kafka.source import StreamReader
from upsert.managed.reader import ChangesReader
from upsert.spark.task import _Stderr


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


SHOWN = """
import sys
import pyarrow as pa
from pyspark.sql import SparkSession
import upsert

spark = SparkSession.builder.getOrCreate()
catalog = upsert.Catalog(sys.argv[1])
catalog.sql("CREATE TABLE numbers (id INT, PRIMARY KEY (id) NOT ENFORCED)")
catalog.table("numbers").write(pa.table({"id": pa.array(range(300_000), pa.int32())}))
catalog.sql("SELECT * FROM numbers", spark).df.show(2)
catalog.expose(spark)
spark.sql("SELECT * FROM numbers").show(2)
"""


@pytest.mark.long  # it starts a session of its own
@pytest.mark.spark
def test_the_first_rows_of_a_table_are_shown_without_a_trace_of_the_connection_that_spark_closes(
    tmp_path: Path,
) -> None:
    (tmp_path / "shown.py").write_text(SHOWN)
    said = output_of(spark_script(tmp_path / "shown.py", tmp_path / "warehouse", forked=False))
    assert said.count("only showing top 2 rows") == 2
    assert "Traceback" not in said, said


def test_any_other_error_of_a_connection_is_printed() -> None:
    printed = io.StringIO()
    stream = _Stderr(printed)

    def function() -> None:
        try:
            raise BrokenPipeError("of the user")
        except BrokenPipeError:
            traceback.print_exc(file=stream)  # type: ignore[call-overload]

    def manager() -> None:
        try:
            raise BrokenPipeError("of Spark")
        except BrokenPipeError:
            traceback.print_exc(file=stream)  # type: ignore[call-overload]

    manager()
    assert printed.getvalue() == ""
    function()
    assert "BrokenPipeError: of the user" in printed.getvalue()
