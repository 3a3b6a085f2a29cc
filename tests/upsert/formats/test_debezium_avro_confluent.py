"""Which changes a message of Debezium in Avro holds, and how a change is written."""

import json
from dataclasses import replace
from datetime import UTC, date, datetime, time
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.upsert.formats.json_changes import changes
from tests.upsert.formats.random_columns import plain, tables
from tests.upsert.formats.registry_double import Double
from tests.upsert.formats.test_avro import record, schemas
from tests.upsert.formats.test_avro_confluent import message
from upsert import types
from upsert.errors import ConfigurationError, SchemaError
from upsert.formats.base import Decoded, FormatContext, Side
from upsert.formats.debezium.avro_confluent import FORMAT
from upsert.formats.debezium.json import FORMAT as DEBEZIUM
from upsert.options import parse as parse_options

URL = "http://registry.invalid:8081"
PERSONS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])
SOURCE = {
    "type": "record",
    "name": "Source",
    "namespace": "io.debezium.connector.mysql",
    "fields": [
        {"name": "connector", "type": "string"},
        {"name": "ts_ms", "type": "long"},
        {
            "name": "snapshot",
            "type": [{"type": "string", "connect.name": "io.debezium.data.Enum"}, "null"],
            "default": "false",
        },
        {"name": "db", "type": "string"},
        {"name": "table", "type": ["null", "string"], "default": None},
        {"name": "pos", "type": "long"},
        {"name": "row", "type": "int"},
    ],
}


def envelope(*columns: tuple[str, Any]) -> str:
    """A schema in the shape in which Debezium's MySQL connector and Confluent's converter register it."""
    value = {
        "type": "record",
        "name": "Value",
        "fields": [{"name": name, "type": type_} for name, type_ in columns],
    }
    transaction = {
        "type": "record",
        "name": "block",
        "namespace": "event",
        "fields": [{"name": "id", "type": "string"}, {"name": "total_order", "type": "long"}],
    }
    fields = [
        {"name": "before", "type": ["null", value], "default": None},
        {"name": "after", "type": ["null", "Value"], "default": None},
        {"name": "source", "type": SOURCE},
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": ["null", "long"], "default": None},
        {"name": "transaction", "type": ["null", transaction], "default": None},
    ]
    return json.dumps({"type": "record", "name": "Envelope", "namespace": "shop.persons", "fields": fields})


OWN = envelope(("id", "long"), ("name", ["null", "string"]))
OF_SOURCE = {"connector": "mysql", "ts_ms": 1_500, "snapshot": "false", "db": "shop", "pos": 7, "row": 0}


def change(op: str, before: Any, after: Any, **more: Any) -> dict[str, Any]:
    return {"op": op, "before": before, "after": after, "source": OF_SOURCE, **more}


def context(
    fields: pa.Schema,
    url: str = URL,
    metadata: tuple[str, ...] = (),
    side: Side = Side.VALUE,
    **options: str,
) -> FormatContext:
    parsed = parse_options(FORMAT.name, FORMAT.options, {"url": url, **options})
    found = FormatContext(fields, parsed, side, "persons", metadata)
    FORMAT.check(found)
    return found


def decode(
    double: Double, fields: pa.Schema, schema: str, messages: list[Any], metadata: tuple[str, ...] = ()
) -> Decoded:
    """What messages of one schema give; bytes and None stand for themselves."""
    id = double.add("persons-value", schema)
    wire = [m if m is None or isinstance(m, bytes) else message(id, schema, m) for m in messages]
    return FORMAT.decoder(context(fields, double.url, metadata)).decode(pa.array(wire, pa.binary()))


ANN, BOB = {"id": 1, "name": "ann"}, {"id": 1, "name": None}
ANOTHER = {"id": 2, "name": "ann"}


def test_snapshot_create_update_of_the_key_and_delete(double: Double) -> None:
    found = decode(
        double,
        PERSONS,
        OWN,
        [
            change("r", None, ANN, ts_ms=5),
            change("u", ANN, BOB),
            None,
            change("u", BOB, ANOTHER),
            b"",
            change("d", ANOTHER, None),
            change("c", None, ANN),
        ],
    )
    assert changes(found) == [
        ["+I", 1, "ann"],
        ["-U", 1, "ann"],
        ["+U", 1, None],
        ["-U", 1, None],
        ["+U", 2, "ann"],
        ["-D", 2, "ann"],
        ["+I", 1, "ann"],
    ]
    assert found.rows.schema == PERSONS
    assert found.bad == ()
    assert found.positions is not None
    assert found.positions.tolist() == [0, 1, 1, 3, 3, 5, 6]


def test_bad_messages_name_what_is_wrong_in_their_order(double: Double) -> None:
    unwrapped = record(("id", "long"), ("name", ["null", "string"]))
    id = double.add("persons-value", unwrapped)
    found = decode(
        double,
        PERSONS,
        OWN,
        [
            change("u", None, ANN),
            b"{}",
            change("c", ANN, None),
            change("x", None, None),
            change("d", None, None),
            change("c", None, ANN),
            message(id, unwrapped, ANN),
            b"\x00\x00\x00\x00\x63" + b"\x00",
        ],
    )
    assert changes(found) == [["+I", 1, "ann"]]
    remedy = (
        "a table of PostgreSQL needs ALTER TABLE ... REPLICA IDENTITY FULL, or, for updates, its topic the "
        "option 'cdc-events-duplicate' = 'true'"
    )
    before = f"field 'before' is NULL in an update or delete; {remedy}"
    assert [(bad.position, bad.reason) for bad in found.bad] == [
        (0, before),
        (1, "a message must begin with a zero byte and a schema's id, got b'{}'"),
        (2, "field 'after' is NULL in an insert or update"),
        (3, "field 'op': 'x' is none of c, r, u, d"),
        (4, before),
        (6, "field 'op' is missing; rows that Debezium has unwrapped are of the format avro-confluent"),
        (7, "schema 99 is not in the registry"),
    ]


def test_messages_of_a_changed_table_are_read_with_their_own_schemas(double: Double) -> None:
    """The table got a column and a wider key; the columns of the topic's table are the newer ones."""
    older = envelope(("id", "int"))
    ids = double.add("persons-value", older), double.add("persons-value", OWN)
    wire = [
        message(ids[0], older, change("c", None, {"id": 1})),
        message(ids[1], OWN, change("u", {"id": 1, "name": None}, {"id": 2**40, "name": "x"})),
        message(ids[0], older, change("d", {"id": 3}, None)),
    ]
    own = context(PERSONS, double.url, ("schema-version", "schema-id"))
    assert changes(FORMAT.decoder(own).decode(pa.array(wire))) == [
        ["+I", 1, None, 1, 1],
        ["-U", 1, None, 2, 2],
        ["+U", 2**40, "x", 2, 2],
        ["-D", 3, None, 1, 1],
    ]


@pytest.mark.parametrize("properties", [(), ("source.properties",)])
def test_metadata_is_that_of_the_envelope_and_of_the_schema(
    double: Double, properties: tuple[str, ...]
) -> None:
    keys = ("source.table", "ingestion-timestamp", "source.timestamp", "source.database", "source.schema")
    found = decode(double, PERSONS, OWN, [change("u", ANN, BOB, ts_ms=-1)], ("schema", *keys, *properties))
    at = datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC)
    before = datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC)
    texts = {"connector": "mysql", "ts_ms": "1500", "snapshot": "false", "db": "shop", "table": None}
    source = [*{**texts, "pos": "7", "row": "0"}.items()]
    of_update = [OWN, None, before, at, "shop", None, *([source] if properties else [])]
    assert changes(found) == [["-U", 1, "ann", *of_update], ["+U", 1, None, *of_update]]


def test_times_are_those_of_debezium_s_own_types(double: Double) -> None:
    """Kafka Connect's converter writes these names where Avro has a logical type."""
    kinds = {
        "d": ("int", "Date", 1, date(1970, 1, 2)),
        "milli": ("long", "Timestamp", -1, datetime(1969, 12, 31, 23, 59, 59, 999_000)),
        "micro": ("long", "MicroTimestamp", 1_000_001, datetime(1970, 1, 1, 0, 0, 1, 1)),
        "nano": ("long", "NanoTimestamp", 1_999, datetime(1970, 1, 1, 0, 0, 0, 1)),
        "local": ("string", "ZonedTimestamp", "1970-01-01T00:01Z", datetime(1970, 1, 1, 0, 1)),
        "iso": ("string", "IsoTimestamp", "1970-01-01T00:01:00.5Z", datetime(1970, 1, 1, 0, 1, 0, 500000)),
        "zoned": ("string", "ZonedTimestamp", "1970-01-01T02:00+02:00", datetime(1970, 1, 1, tzinfo=UTC)),
        "clock": ("int", "Time", 1, time(0, 0, 0, 1_000)),
        "micros": ("long", "MicroTime", 86_399_000_001, time(23, 59, 59, 1)),
    }
    schema = envelope(
        *(
            (name, ["null", {"type": kind, "connect.version": 1, "connect.name": f"io.debezium.time.{of}"}])
            for name, (kind, of, _, _) in kinds.items()
        )
    )
    row = {name: number for name, (_, _, number, _) in kinds.items()}
    ntz = types.TIMESTAMP_NTZ
    fields = pa.schema(
        [("d", pa.date32()), *((name, ntz) for name in ("milli", "micro", "nano", "local", "iso"))]
    )
    fields = fields.append(pa.field("zoned", types.TIMESTAMP))
    fields = fields.append(pa.field("clock", types.time_of(3))).append(pa.field("micros", types.time_of(6)))
    found = decode(double, fields, schema, [change("c", None, row)])
    assert changes(found) == [["+I", *(expected for _, _, _, expected in kinds.values())]]
    plain = pa.schema([(name, pa.int64() if isinstance(row[name], int) else pa.string()) for name in row])
    assert changes(decode(double, plain, schema, [change("c", None, row)])) == [["+I", *row.values()]]
    (bad,) = decode(double, fields, schema, [change("c", None, row | {"zoned": "infinity"})]).bad
    like = "a text must be like 2020-12-30T12:13:14.123+00:00, got 'infinity'"
    assert bad.reason == f"field 'zoned' does not fit TIMESTAMP: {like}"


def test_a_long_value_that_an_update_left_as_it_is_is_not_known(double: Double) -> None:
    schema = envelope(("id", "long"), ("name", ["null", "string"]))
    row = {"id": 1, "name": "__debezium_unavailable_value"}
    (bad,) = decode(double, PERSONS, schema, [change("u", row | {"name": "a"}, row)]).bad
    assert bad.reason.startswith("field 'after.name' has no value, for the database did not send a long one")


def test_schema_is_the_one_that_flink_derives(double: Double) -> None:
    rows = pa.table([[1, 2, 3, 4], ["a", None, "c", "d"]], schema=PERSONS)
    kinds = pa.array(["+I", "-U", "+U", "-D"])
    messages = FORMAT.encoder(context(PERSONS, double.url)).encode(rows, kinds)

    def image(name: str) -> dict[str, Any]:
        fields = [
            {"name": "id", "type": "long"},
            {"name": "name", "type": ["null", "string"], "default": None},
        ]
        one = {"type": "record", "name": f"record_{name}", "fields": fields}
        return {"name": name, "type": ["null", one], "default": None}

    assert json.loads(double.schemas[0]) == {
        "type": "record",
        "name": "record",
        "namespace": "org.apache.flink.avro.generated",
        "fields": [
            image("before"),
            image("after"),
            {"name": "op", "type": ["null", "string"], "default": None},
        ],
    }
    assert double.subjects == {"persons-value": [1]}
    head = b"\x00\x00\x00\x00\x01"
    assert messages.to_pylist() == [
        head + b"\x00\x02\x02\x02\x02a\x02\x02c",
        head + b"\x02\x04\x00\x00\x02\x02d",
        head + b"\x00\x02\x06\x02\x02c\x02\x02c",
        head + b"\x02\x08\x02\x02d\x00\x02\x02d",
    ]
    without_kinds = FORMAT.encoder(context(PERSONS, double.url)).encode(rows.slice(0, 1))
    assert without_kinds.to_pylist() == messages.to_pylist()[:1]


def test_given_schema_is_written_with_and_one_that_needs_more_is_refused(double: Double) -> None:
    value = {"type": "record", "name": "Value", "fields": [{"name": "id", "type": "long"}]}
    schema = record(("before", ["null", value]), ("after", ["null", "Value"]), ("op", "string"))
    fields = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    own = context(fields, double.url, schema=schema, subject="mine")
    (found,) = FORMAT.encoder(own).encode(pa.table([[5]], schema=fields)).to_pylist()
    assert found == message(1, schema, {"before": None, "after": {"id": 5}, "op": "c"})
    assert (double.schemas, list(double.subjects)) == ([schema], ["mine"])
    with pytest.raises(SchemaError, match="the schema's field 'source' has no column and must not be null"):
        FORMAT.encoder(context(PERSONS, schema=OWN))
    with pytest.raises(SchemaError, match="'id' is BIGINT, the schema says string"):
        context(PERSONS, schema=envelope(("id", "string"), ("name", ["null", "string"])))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tables(schemas()), st.data())
def test_what_is_written_is_read_back_and_is_what_debezium_json_reads(
    double: Double, rows: pa.Table, data: st.DataObject
) -> None:
    kind = st.sampled_from(["+I", "-U", "+U", "-D"])
    kinds = data.draw(st.lists(kind, min_size=rows.num_rows, max_size=rows.num_rows))
    own = context(rows.schema, double.url)
    messages = FORMAT.encoder(own).encode(rows, pa.array(kinds, pa.string()))
    found = FORMAT.decoder(own).decode(messages)
    assert found.bad == ()
    assert plain(found.rows) == plain(rows)
    assert found.rows.schema == rows.schema
    json_ = FormatContext(rows.schema)
    texts = DEBEZIUM.encoder(json_).encode(rows, pa.array(kinds, pa.string()))
    same = DEBEZIUM.decoder(json_).decode(texts)
    assert (found.kinds, plain(found.rows)) == (same.kinds, plain(same.rows))


IMAGES = st.none() | st.fixed_dictionaries({"id": st.integers(-9, 9), "name": st.none() | st.just("x")})
ENVELOPES = st.builds(change, st.sampled_from(["c", "r", "u", "d", "x"]), IMAGES, IMAGES)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(ENVELOPES, max_size=8))
def test_envelopes_mean_in_avro_what_they_mean_in_json(double: Double, envelopes: list[Any]) -> None:
    found = decode(double, PERSONS, OWN, envelopes, ("source.timestamp", "source.database"))
    json_ = FormatContext(PERSONS, metadata=("source.timestamp", "source.database"))
    same = DEBEZIUM.decoder(json_).decode(
        pa.array([json.dumps(one).encode() for one in envelopes], pa.binary())
    )
    assert changes(found) == changes(same)
    assert [bad for bad in found.bad if "'before'" in bad.reason or "'after'" in bad.reason] == [
        bad for bad in same.bad if "'before'" in bad.reason or "'after'" in bad.reason
    ]
    assert [bad.position for bad in found.bad] == [bad.position for bad in same.bad]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": "registry:8081"}, "debezium-avro-confluent: option 'url' must be http: or https:"),
        ({"bearer-auth.credentials-source": "STATIC_TOKEN"}, "debezium-avro-confluent: .* needs"),
        (
            {"basic-auth.user-info": "ann:hunter2", "bearer-auth.token": "hunter2"},
            "debezium-avro-confluent: basic and bearer authentication exclude each other",
        ),
        ({"ssl.truststore.password": "hunter2"}, "must be a PEM file, which has no password"),
        ({"schema-include": "true"}, "unknown option 'schema-include'"),
    ],
)
def test_wrong_option_is_refused_without_its_password(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as error:
        context(PERSONS, **options)
    assert "hunter2" not in str(error.value)


def test_key_is_no_change_and_several_topics_need_a_subject_to_be_written() -> None:
    with pytest.raises(ConfigurationError, match="a key is no change, use avro-confluent for it"):
        context(PERSONS, side=Side.KEY)
    expected = "debezium-avro-confluent: option 'subject' is required to write into several topics"
    with pytest.raises(ConfigurationError, match=expected):
        FORMAT.encoder(replace(context(PERSONS), topic=None))


def test_options_of_older_names_and_times_in_milliseconds(double: Double) -> None:
    fields = pa.schema([("t", types.TIMESTAMP)])
    own = context(fields, double.url, **{"timestamp_mapping.legacy": "true", "schema-registry.subject": "s"})
    rows = pa.table([pa.array([1_500_000], types.TIMESTAMP)], schema=fields)
    messages = FORMAT.encoder(own).encode(rows)
    assert "timestamp-millis" in double.schemas[0]
    assert FORMAT.decoder(own).decode(messages).rows.equals(rows)
