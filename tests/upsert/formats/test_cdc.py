"""What holds for every format of changes in JSON."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.upsert.formats.random_columns import SCALARS, nested, plain, schemas, tables
from upsert.formats.base import Format, FormatContext
from upsert.formats.cdc_json import CANAL, DEBEZIUM, MAXWELL, OGG

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
