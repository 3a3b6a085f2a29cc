"""Words of the FLIPs' texts, older and newer, that no other test reads: what they mean, or what is said."""

import pytest

from upsert.catalog.catalog import Catalog
from upsert.errors import ConfigurationError, SchemaError
from upsert.sql.parser import parse
from upsert.sql.statements import DescribeTable


@pytest.mark.parametrize("words", ["DETAIL TABLE", "DETAIL", "TABLE EXTENDED", "EXTENDED"])
def test_details_are_described_by_the_older_word_too(words: str) -> None:
    assert parse(f"DESCRIBE {words} t") == DescribeTable("t", is_extended=True)
    partition = DescribeTable("t", True, {"day": "mon"})
    assert parse(f"DESCRIBE {words} t PARTITION (day = 'mon')") == partition


@pytest.mark.parametrize("option", ["file.path", "log.scan.startup.mode"])
def test_options_that_have_no_meaning_here_are_refused_by_name(catalog: Catalog, option: str) -> None:
    with pytest.raises(ConfigurationError, match=f"unknown option '{option}'"):
        catalog.sql(f"CREATE TABLE t (a INT) WITH ('{option}' = 'x')")
    with pytest.raises(ConfigurationError, match=option):
        catalog.sql(f"SET table-storage.{option} = x")
    assert catalog.tables() == ()


def test_compaction_of_a_partition_that_cannot_be_is_refused(catalog: Catalog) -> None:
    catalog.sql("CREATE TABLE visits (day STRING, n INT) PARTITIONED BY (day)")
    for spec, message in (("n = 1", "'n'"), ("nope = 'x'", "'nope'"), ("day = 5", "'day'")):
        with pytest.raises((SchemaError, ConfigurationError), match=message):
            catalog.sql(f"ALTER TABLE visits COMPACT PARTITION ({spec})")
