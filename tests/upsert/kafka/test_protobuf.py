"""Keys and values of Protobuf through a real topic."""

import uuid
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.upsert.formats.protobuf_messages import descriptor_options, file_of
from tests.upsert.formats.registry_double import registry_double
from upsert import Catalog
from upsert.testing import LocalKafka

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


def test_keys_and_values_of_an_upsert_topic(spark: SparkSession, kafka: LocalKafka, tmp_path: Path) -> None:
    key = descriptor_options(tmp_path, file_of("Key\nint64 id = 1"), "Key")
    catalog = Catalog(tmp_path / "tables")
    with registry_double() as registry:
        options = {
            "connector": "upsert-kafka",
            "topic": f"protobuf-{uuid.uuid4().hex[:12]}",
            "topic.partitions": "1",
            "properties.bootstrap.servers": kafka.bootstrap_servers,
            "key.format": "protobuf",
            **{f"key.protobuf.{name}": text for name, text in key.items()},
            "value.format": "protobuf-confluent",
            "value.protobuf-confluent.url": registry.url,
            "value.fields-include": "EXCEPT_KEY",
        }
        given = ", ".join(f"'{name}' = '{text}'" for name, text in options.items())
        catalog.sql(
            "CREATE TABLE orders (id BIGINT, tags ARRAY<STRING>, at STRUCT<day: INT, note: STRING>, "
            "number INT METADATA FROM 'value.schema-id' VIRTUAL, PRIMARY KEY (id) NOT ENFORCED) "
            f"WITH ({given})"
        )
        rows = "(1, array('a', ''), named_struct('day', 3, 'note', 'n')), (0, NULL, NULL)"
        catalog.sql(f"INSERT INTO orders SELECT * FROM VALUES {rows} AS v(id, tags, at)", spark)
        catalog.sql("INSERT INTO orders SELECT * FROM VALUES (1, array('b'), NULL) AS v(id, tags, at)", spark)
        found = catalog.sql("SELECT id, tags, number FROM orders", spark).rows.sort_by("id").to_pylist()
        assert found == [
            {"id": 0, "tags": None, "number": 1},
            {"id": 1, "tags": ["b"], "number": 1},
        ]
        assert [*registry.subjects] == [f"{options['topic']}-value"]
