"""What holds for every format of changes in JSON."""

from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.upsert.formats.random_columns import SCALARS, nested, plain, schemas, tables
from upsert import types
from upsert.errors import ConfigurationError, SchemaError
from upsert.formats.base import Format, FormatContext, Side
from upsert.formats.cdc_json import CANAL, MAXWELL, OGG
from upsert.formats.debezium.json import FORMAT as DEBEZIUM
from upsert.options import parse

FORMATS = (CANAL, DEBEZIUM, MAXWELL, OGG)


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)
@given(rows=tables(schemas(nested(SCALARS))), data=st.data())
def test_what_is_written_is_read_back_as_inserts_and_deletes(
    format: Format, rows: pa.Table, data: st.DataObject
) -> None:
    kind = st.sampled_from(["+I", "-U", "+U", "-D"])
    kinds = data.draw(st.lists(kind, min_size=rows.num_rows, max_size=rows.num_rows))
    context = FormatContext(rows.schema)
    messages = format.encoder(context).encode(rows, pa.array(kinds, pa.string()))
    found = format.decoder(context).decode(messages)
    assert found.bad == ()
    assert plain(found.rows) == plain(rows)
    assert found.rows.schema == rows.schema
    assert found.kinds is not None
    assert found.kinds.to_pylist() == ["+I" if kind[0] == "+" else "-D" for kind in kinds]


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)
def test_keys_and_maps_without_names_are_refused(format: Format) -> None:
    with pytest.raises(ConfigurationError, match="a key is no change"):
        format.check(FormatContext(pa.schema([("n", pa.int64())]), side=Side.KEY))
    with pytest.raises(SchemaError, match="key of type STRING"):
        format.check(FormatContext(pa.schema([("m", pa.map_(pa.int32(), pa.string()))])))


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)
def test_options_of_what_is_written(format: Format) -> None:
    options = {
        "encode.decimal-as-plain-number": "true",
        "timestamp-format.standard": "ISO-8601",
        "map-null-key.mode": "LITERAL",
        "map-null-key.literal": "none",
    }
    small = pa.array([Decimal("1E-9")], pa.decimal128(10, 9))
    rows = pa.table({"d": small, "t": pa.array([0], types.TIMESTAMP)})
    context = FormatContext(rows.schema, parse(format.name, format.options, options))
    (message,) = format.encoder(context).encode(rows).to_pylist()
    assert b'{"d":0.000000001,"t":"1970-01-01T00:00:00Z"}' in message
    assert format.decoder(context).decode(pa.array([message])).rows.equals(rows)
    default = FormatContext(rows.schema, parse(format.name, format.options, {}))
    assert b'{"d":1E-9,"t":"1970-01-01 00:00:00Z"}' in format.encoder(default).encode(rows).to_pylist()[0]
