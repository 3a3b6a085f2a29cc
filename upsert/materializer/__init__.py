"""A keyed sink of changes that its key does not tell apart: it keeps the rows of each key, and writes one.

Follows Flink's ``SinkUpsertMaterializer`` and its option ``table.exec.sink.upsert-materialize``.
"""
