"""Lookups in PostgreSQL: the contract against a real server, and what it must refuse."""

import math
import socket
import sys
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from deltajoin.errors import LookupFailedError, LookupUnavailableError
from deltajoin.lookup import LookupSource, PostgresLookup, RequestLimits
from deltajoin.lookup.batch import Lookups
from deltajoin.lookup.contract import SCALAR_VALUES, LookupContract, ask, found, pairs
from tests.helpers import wait_until
from tests.local_postgres import PASSWORD, LocalPostgres
from upsert import types
from upsert.errors import ConfigurationError, SchemaError

USERS = pa.table({"id": [1, 2], "name": ["ann", "bob"]})
ONCE = RequestLimits(attempts=1)


class TestPostgresLookup(LookupContract):
    column_types = tuple(SCALAR_VALUES)
    has_nul = False

    @pytest.fixture(autouse=True)
    def _server(self, postgres: LocalPostgres) -> None:
        self.server = postgres

    def make(self, rows: pa.Table, keys: Sequence[str]) -> LookupSource:
        return PostgresLookup(self.server.dsn, self.server.table(rows, keys), rows.schema, keys)

    def make_silent(self, rows: pa.Table, keys: Sequence[str]) -> LookupSource:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            dsn = f"postgresql://app@127.0.0.1:{unused.getsockname()[1]}/postgres"
        return PostgresLookup(dsn, "users", rows.schema, keys, limits=ONCE)


def lookup(postgres: LocalPostgres, table: str, schema: pa.Schema = USERS.schema, **arguments: Any) -> Any:
    return PostgresLookup(postgres.dsn, table, schema, ["id"], **{"limits": ONCE, **arguments})


def failure(source: LookupSource, ids: pa.Array | Sequence[int] = (1,)) -> LookupFailedError:
    schema = pa.schema([source.schema.field("id")])
    return ask(source, pa.table([pa.array(ids, schema.field("id").type)], schema=schema)).failures[0]


# values


@pytest.mark.parametrize(
    ("declared", "type_", "values"),
    [
        ("int2", pa.int32(), [-5, None]),
        ("int4", pa.int64(), [2**31 - 1]),
        ("float4", pa.float64(), [0.5, math.inf]),
        ("varchar(9)", pa.string(), ["ä"]),
    ],
)
def test_a_column_may_be_wider_than_in_the_database(
    postgres: LocalPostgres, declared: str, type_: pa.DataType, values: list[Any]
) -> None:
    rows = pa.table({"id": range(len(values)), "v": pa.array(values, type_)})
    source = lookup(postgres, postgres.table(rows, ["id"], {"v": declared}), rows.schema)
    expected = pairs([(at, (at, value)) for at, value in enumerate(values)])
    assert found(source, {"id": list(range(len(values)))}) == expected


@pytest.mark.parametrize(
    ("type_", "impossible"),
    [
        (pa.date32(), [-(2**31), -2_440_589, 2_145_042_906]),
        (types.TIMESTAMP, [-(2**63), -210_866_803_200_000_001]),
        (types.TIMESTAMP_NTZ, [-(2**63), -210_866_803_200_000_001]),
    ],
)
def test_a_time_that_the_database_does_not_have_finds_nothing(
    postgres: LocalPostgres, type_: pa.DataType, impossible: list[int]
) -> None:
    """And the other keys of its request are found; so are the first and the last time that there may be."""
    number = pa.int32() if type_ == pa.date32() else pa.int64()
    first, last = impossible[1] + 1, impossible[2] - 1 if len(impossible) > 2 else 2**63 - 1
    rows = pa.table({"id": pa.array([first, 0, last], number).cast(type_)})
    source = lookup(postgres, postgres.table(rows.slice(1, 1), ["id"]), rows.schema)
    keys = pa.table({"id": pa.array([*impossible, first, 0, last], number).cast(type_)})
    answer = ask(source, keys)
    assert (answer.positions.tolist(), answer.failures) == ([len(impossible) + 1], {})


@pytest.mark.parametrize(
    ("declared", "type_"),
    [
        ("int8", pa.int32()),
        ("float8", pa.float32()),
        ("char(4)", pa.string()),
        ("uuid", pa.string()),
        ("jsonb", pa.string()),
        ("int8", pa.decimal128(20, 0)),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("text[]", pa.string()),
    ],
)
def test_a_column_of_another_type_is_refused(
    postgres: LocalPostgres, declared: str, type_: pa.DataType
) -> None:
    rows = pa.table({"id": pa.array([], pa.int64()), "v": pa.array([], type_)})
    source = lookup(postgres, postgres.table(rows, ["id"], {"v": declared}), rows.schema)
    found = failure(source)
    assert type(found) is LookupFailedError
    assert "column 'v' must have one of the types" in str(found)


@pytest.mark.parametrize(
    ("declared", "type_", "value"),
    [
        ("numeric", pa.decimal128(5, 2), "1.234"),
        ("numeric", pa.decimal128(5, 2), "12345"),
        ("numeric", pa.decimal128(5, 2), "NaN"),
        ("date", pa.date32(), "infinity"),
        ("timestamp", pa.timestamp("us"), "-infinity"),
        ("timestamptz", pa.timestamp("us", tz="UTC"), "infinity"),
        ("int2", pa.int8(), "128"),
    ],
)
def test_a_value_that_does_not_fit_fails_instead_of_being_changed(
    postgres: LocalPostgres, declared: str, type_: pa.DataType, value: str
) -> None:
    rows = pa.table({"id": pa.array([], pa.int64()), "v": pa.array([], type_)})
    table = postgres.table(rows, ["id"], {"v": declared})
    quoted = table.replace('"', '""')
    postgres.run(f"INSERT INTO \"{quoted}\" VALUES (1, '{value}')")
    found = failure(lookup(postgres, table, rows.schema))
    assert type(found) is LookupFailedError
    assert "column 'v': values must fit into" in str(found)


def test_a_collation_that_ignores_case_is_noticed(postgres: LocalPostgres) -> None:
    postgres.run(
        "CREATE COLLATION IF NOT EXISTS loose (provider=icu, locale='und-u-ks-level2', deterministic=false)"
    )
    rows = pa.table({"id": ["ann"], "n": [1]})
    source = lookup(postgres, postgres.table(rows, ["id"], {"id": "text COLLATE loose"}), rows.schema)
    assert found(source, {"id": ["ann"]}) == pairs([(0, ("ann", 1))])
    assert "rows must equal the key that they answer" in str(failure(source, ["ANN"]))


def test_names_are_quoted(postgres: LocalPostgres) -> None:
    postgres.run('CREATE SCHEMA IF NOT EXISTS "S.1"')
    postgres.run('CREATE TABLE IF NOT EXISTS "S.1"."select ""x""" ("Id" int8, "; --" text)')
    postgres.run('INSERT INTO "S.1"."select ""x""" VALUES (1, \'a\')')
    schema = pa.schema({"Id": pa.int64(), "; --": pa.string()})
    source = PostgresLookup(postgres.dsn, ("S.1", 'select "x"'), schema, ["Id"], limits=ONCE)
    assert found(source, {"Id": [1]}) == pairs([(0, (1, "a"))])


def test_the_index_is_used_for_many_keys(postgres: LocalPostgres) -> None:
    """A request with more keys is no scan: the plan asks the index for each of them."""
    rows = pa.table({"id": range(20_000), "name": ["x"] * 20_000})
    source = lookup(postgres, table := postgres.table(rows, ["id"]))
    postgres.run(f'ANALYZE "{table.replace(chr(34), chr(34) * 2)}"')
    assert found(source, {"id": [7, 9]}) == pairs([(0, (7, "x")), (1, (9, "x"))])
    statement = source.open()._statement  # what it sends
    plan = postgres.explain(statement, [7, 9])
    assert "Index Scan" in plan
    assert "Seq Scan" not in plan


# failures


def test_a_wrong_password_is_refused_and_shown_nowhere(postgres: LocalPostgres) -> None:
    source = PostgresLookup(
        postgres.dsn.replace(PASSWORD, "other-pa55"), "users", USERS.schema, ["id"], limits=ONCE
    )
    found = failure(source)
    assert type(found) is LookupFailedError
    assert "the server refused the credentials" in str(found)
    for text in (str(found), repr(source), repr(source.dsn), repr(vars(source))):
        assert "other-pa55" not in text


def test_an_option_of_the_dsn_that_is_wrong_does_not_show_the_password() -> None:
    dsn = "postgresql://app:s3cr3t@127.0.0.1/postgres?sslmode=s3cr3t"
    found = failure(PostgresLookup(dsn, "users", USERS.schema, ["id"], limits=ONCE))
    assert type(found) is LookupFailedError
    assert "the driver must take dsn and keys, it did not" in str(found)
    assert "s3cr3t" not in str(found)


def test_a_table_that_is_not_there_is_named(postgres: LocalPostgres) -> None:
    found = failure(lookup(postgres, "nowhere"))
    assert type(found) is LookupFailedError
    assert 'relation "nowhere" does not exist' in str(found)


def test_a_server_that_was_restarted_is_connected_to_again(postgres: LocalPostgres) -> None:
    limits = RequestLimits(attempts=2, first_wait_s=0.0, requests=1)
    lookups = Lookups(lookup(postgres, postgres.table(USERS, ["id"]), limits=limits))
    ids = pa.table({"id": [2]})
    try:
        assert lookups.answer(ids)[0].rows["name"].to_pylist() == ["bob"]
        postgres.halt()
        assert isinstance(lookups.answer(ids)[0].failures[0], LookupUnavailableError)
        postgres.launch()
        assert lookups.answer(ids)[0].rows["name"].to_pylist() == ["bob"]
    finally:
        lookups.close()


def test_connections_end_with_the_client(postgres: LocalPostgres) -> None:
    wait_until(lambda: postgres.connections() == 0)
    lookups = Lookups(lookup(postgres, postgres.table(USERS, ["id"])))
    lookups.answer(USERS.select(["id"]))
    assert postgres.connections() == 1
    lookups.close()
    wait_until(lambda: postgres.connections() == 0)  # the server hears of it a moment later


# arguments


def test_arguments_are_checked() -> None:
    schema = USERS.schema
    with pytest.raises(ConfigurationError, match="dsn must be like"):
        PostgresLookup("mysql://u:p@host/db", "users", schema, ["id"])
    with pytest.raises(ConfigurationError, match="table must be a name, or a schema and a name"):
        PostgresLookup("postgresql://host/db", ("a", "b", "c"), schema, ["id"])
    with pytest.raises(ConfigurationError, match="names must not have the character NUL"):
        PostgresLookup("postgresql://host/db", "a\0b", schema, ["id"])
    nested = pa.schema({"id": pa.int64(), "tags": pa.list_(pa.field("element", pa.string()))})
    with pytest.raises(SchemaError, match="column 'tags' must have a scalar type, got ARRAY<STRING>"):
        PostgresLookup("postgresql://host/db", "users", nested, ["id"])


def test_a_missing_library_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "deltajoin.lookup.postgres_client", raising=False)
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    with pytest.raises(ConfigurationError, match=r"needs the package 'asyncpg'.*'deltajoin\[postgres\]'"):
        ask(PostgresLookup("postgresql://host/db", "t", USERS.schema, ["id"]), USERS.select(["id"]))
