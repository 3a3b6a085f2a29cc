"""Tables that are only looked up: what CREATE TABLE takes of them, and what is shown of it. No Spark."""

import pickle
from pathlib import Path

import pyarrow as pa
import pytest

from deltajoin.lookup import HttpLookup, PostgresLookup, RequestLimits
from deltajoin.lookup.declared import source_of
from upsert import Catalog
from upsert.errors import ConfigurationError, SchemaError, UpsertError
from upsert.lookups.http import HttpTable
from upsert.lookups.options import LookupOptions, PartialCache
from upsert.postgres.table import PostgresTable
from upsert.schema import TableSchema

RATES = TableSchema.of({"cur": pa.string(), "rate": pa.float64()}, ["cur"])
URL = "https://me:pa55w0rd@example.com/rates?code=pa55w0rd"


def create(
    *, columns: str = "cur STRING, rate DOUBLE, PRIMARY KEY (cur) NOT ENFORCED", **options: str
) -> str:
    given = {"connector": "http", "url": "https://example.com/rates"}
    given |= {key.replace("__", ".").replace("_", "-"): text for key, text in options.items()}
    pairs = ", ".join(f"'{key}' = '{text}'" for key, text in given.items())
    return f"CREATE TABLE rates ({columns}) WITH ({pairs})"


REFUSED = {
    "no key": (create(columns="cur STRING, rate DOUBLE"), SchemaError, "needs a PRIMARY KEY"),
    "a metadata column": (
        create(columns="cur STRING, at TIMESTAMP METADATA FROM 'timestamp', PRIMARY KEY (cur) NOT ENFORCED"),
        SchemaError,
        "has no METADATA columns, got 'at'",
    ),
    "a watermark": (
        create(columns="cur STRING, t TIMESTAMP, WATERMARK FOR t AS t, PRIMARY KEY (cur) NOT ENFORCED"),
        SchemaError,
        "is no stream, got a WATERMARK",
    ),
    "an index": (
        create(columns="cur STRING, rate DOUBLE, PRIMARY KEY (cur) NOT ENFORCED, INDEX (rate)"),
        SchemaError,
        "has no INDEX",
    ),
    "a type without JSON": (
        create(columns="cur STRING, m MAP<INT, INT>, PRIMARY KEY (cur) NOT ENFORCED"),
        SchemaError,
        "table 'rates': column 'm': a MAP in JSON must have a key of type STRING",
    ),
    "no address": (create(url="ftp://me:pa55w0rd@example.com/x"), ConfigurationError, "must be like 'https:"),
    "credentials twice": (
        create(url=URL, header__authorization="Bearer pa55w0rd"),
        ConfigurationError,
        "credentials must be given once",
    ),
    "a header that is none": (create(header__a="x\ny"), ConfigurationError, "without line ends, 'a' has not"),
    "an unknown option": (create(lookup__cach="NONE"), ConfigurationError, "did you mean 'lookup.cache'"),
    "a full cache": (create(lookup__cache="FULL"), ConfigurationError, "write the rows into a managed table"),
    "a bound without a cache": (
        create(lookup__partial_cache__max_rows="9"),
        ConfigurationError,
        "'lookup.partial-cache.max-rows' has no effect with 'lookup.cache' = 'NONE'",
    ),
    "a cache without a bound": (create(lookup__cache="PARTIAL"), ConfigurationError, "needs a bound"),
    "requests where there is one": (
        create(lookup__async="false", lookup__requests="3"),
        ConfigurationError,
        "'lookup.requests' has no effect with 'lookup.async' = 'false'",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_meaning_is_refused_by_create_table(tmp_path: Path, case: str) -> None:
    statement, error, said = REFUSED[case]
    catalog = Catalog(tmp_path)
    with pytest.raises(error, match=said) as refused:
        catalog.sql(statement)
    assert "pa55w0rd" not in str(refused.value)
    assert catalog.tables() == ()


def test_secrets_are_shown_nowhere(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path)
    catalog.sql(create(url=URL, header__x_trace="pa55w0rd", lookup__max_retries="1"))
    shown = str(catalog.sql("SHOW CREATE TABLE rates"))
    table = HttpTable.of("rates", RATES, {"url": URL, "header.x-trace": "pa55w0rd"})
    written = PostgresTable.of(
        "rates",
        RATES,
        {"url": "postgresql://db/x", "table-name": "r", "username": "u", "password": "pa55w0rd"},
    )
    sources = [source_of(one, ("cur",), ("cur", "rate")) for one in (table, written)]
    for text in (shown, repr(table), table.shown, repr(written), written.shown, *map(repr, sources)):
        assert "pa55w0rd" not in text
    assert "'lookup.max-retries' = '1'" in shown
    assert pickle.loads(pickle.dumps(sources)) == sources


def test_options_become_limits_and_a_cache() -> None:
    of_cache = {"max-rows": "7", "expire-after-write": "2 s", "cache-missing-key": "false"}
    given = {f"lookup.partial-cache.{key}": text for key, text in of_cache.items()} | {
        "lookup.cache": "partial"
    }
    given |= {"lookup.max-retries": "0", "lookup.async": "false", "lookup.request-timeout": "250 ms"}
    table = HttpTable.of("rates", RATES, {"url": "http://example.com", "missing-is-null": "true", **given})
    assert table.lookup == LookupOptions(PartialCache(7, 2.0, None, keeps_missing=False), 0, 1, None, 0.25)
    source = source_of(table, ("cur",), ("cur", "rate"))
    assert isinstance(source, HttpLookup)
    assert source.missing_is_null
    assert source.limits == RequestLimits(keys_per_request=100, requests=1, timeout_s=0.25, attempts=1)
    given = {"url": "jdbc:postgresql://db/x", "table-name": "s.t", "lookup.keys-per-request": "5"}
    asked = source_of(PostgresTable.of("rates", RATES, given), ("rate",), ("rate", "cur"))
    assert isinstance(asked, PostgresLookup)
    assert (asked.table, asked.keys, asked.schema.names) == (("s", "t"), ("rate",), ["rate", "cur"])
    assert asked.limits == RequestLimits(keys_per_request=5, requests=4, attempts=4)


def test_a_table_is_neither_written_nor_read_whole(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path)
    catalog.sql(create())
    connected = catalog.connected("rates")
    assert connected is not None
    nothing: object = None
    refusals = [
        (lambda: connected.write(nothing), "only looked up, got rows to write"),
        (lambda: connected.sink, "only looked up, got rows to write"),
        (lambda: connected.read(nothing), "FOR SYSTEM_TIME AS OF PROCTIME"),
        (lambda: connected.read_changes(nothing), "FOR SYSTEM_TIME AS OF PROCTIME"),
        (lambda: catalog.table("rates"), "FOR SYSTEM_TIME AS OF PROCTIME"),
    ]
    for call, said in refusals:
        with pytest.raises(UpsertError, match=said):
            call()
